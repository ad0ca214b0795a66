/*
 * A seat: what a server starts, watches and kills as the worker of a pooled model.
 *
 *     shunter-seat MODULE PYTHON ARGUMENTS...
 *
 * PYTHON ARGUMENTS is the worker as it would be without a pool, MODULE the pool process in that
 * Python. The seat hands over all it has, starts the pool process if there is none, and waits. When
 * the pool process goes, it ends with status 1; when it ends, the pool process sees that. What they
 * say is in handlers/pool/handover.py.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "seat.h"

#ifndef SHUNTER_SEAT_SOURCE
#define SHUNTER_SEAT_SOURCE "shunter-seat-sha256=unknown"
#endif
/* So that whoever has the program knows what it was built from. */
__attribute__((used)) static const char source[] = SHUNTER_SEAT_SOURCE;

#define TRIES 3
#define ROUNDS 3 /* of patience */

void say(const char *format, ...)
{
    va_list values;
    va_start(values, format);
    vdprintf(STDOUT_FILENO, format, values);
    va_end(values);
}

int failed(const char *what)
{
    say("Seat: %s: %s\n", what, strerror(errno));
    return -1;
}

/* Its server goes on with the worker that this process becomes. */
static void be_alone(const struct seat *seat, int fd, const char *text)
{
    static char value[SHUNTER_SEAT_MOST_TEXT + 16];
    snprintf(value, sizeof(value), "%d:%s", fd, text);
    if (fd >= 0) {
        fcntl(fd, F_SETFD, 0);
        setenv(SHUNTER_SEAT_CONTINUES_VARIABLE, value, 1);
    }
    unsetenv("SHUNTER_POOL");
    execvp(seat->worker[0], seat->worker);
    failed(seat->worker[0]);
}

/* A front end knows its workers by who has connected, and ends those that hang: this one. */
static int connect_for(int fd, const char *path)
{
    struct sockaddr_un there = {.sun_family = AF_UNIX};
    struct shunter_seat_word word = {.kind = SHUNTER_SEAT_CONNECTED, .value = ENAMETOOLONG};
    int made = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (strlen(path) < sizeof(there.sun_path)) {
        strcpy(there.sun_path, path);
        word.value = 0;
        if (made < 0 || connect(made, (struct sockaddr *)&there, sizeof(there)) < 0) {
            word.value = errno;
        }
    }
    int result = send_with(fd, &word, sizeof(word), &made, word.value == 0);
    if (made >= 0) {
        close(made);
    }
    return result;
}

/*
 * Wait for a word. 1 with one; 0 when the pool process is gone; -1 when the time is over. A server
 * that is gone reads no more of what is printed; a pool process that stands still does not say so.
 */
static int wait_word(int fd, struct shunter_seat_word *word, int *given, char *text, int timeout_ms)
{
    struct pollfd watched[2] = {{.fd = fd, .events = POLLIN}, {.fd = STDOUT_FILENO}};
    for (;;) {
        int count = poll(watched, 2, timeout_ms);
        if (count == 0) {
            return -1;
        }
        if (count > 0 && watched[0].revents) {
            return hear(fd, word, given, text);
        }
        if (count > 0 && watched[1].revents & POLLERR) {
            exit(1);
        }
        if (count > 0) {
            watched[1].fd = -1; /* it cannot be watched */
        }
    }
}

/* What the pool process last said to all: for whom it works. NULL: it cannot be seen. */
static const _Atomic uint64_t *shared_words(int fd)
{
    const size_t size = SHUNTER_SEAT_AT_WORK * sizeof(uint64_t);
    void *page = fd < 0 ? MAP_FAILED : mmap(NULL, size, PROT_READ, MAP_SHARED, fd, 0);
    return page == MAP_FAILED ? NULL : page;
}

/* Whether what was sent to a seat had begun when its pool process went; if nobody knows, it had. */
static int had_begun(const _Atomic uint64_t *at_work, uint64_t number)
{
    int begun = at_work == NULL;
    for (int i = 0; at_work && i < SHUNTER_SEAT_AT_WORK; i++) {
        begun |= at_work[i] == number;
    }
    return begun;
}

/* A process that is slow, at the start of many, has more time than one that stands still. */
static int wait_taken(
    const struct seat *seat, int fd, struct shunter_seat_word *word, int *given, char *text,
    int patience_ms)
{
    for (int round = 1;; round++) {
        int heard = wait_word(fd, word, given, text, patience_ms);
        struct pollfd now = {.fd = fd, .events = POLLIN};
        if (heard >= 0) {
            return heard;
        }
        /* If something is there, another seat has ended it. */
        if (poll(&now, 1, 0) == 0 && end_pool(seat, round == ROUNDS)) {
            return 0;
        }
    }
}

/* Returns when another try makes sense. */
static void sit(const struct seat *seat, int fd, int patience_ms)
{
    static char text[SHUNTER_SEAT_MOST_TEXT];
    struct shunter_seat_word word;
    int given;
    int heard = 0;
    struct timeval patience = {.tv_sec = 1 + patience_ms / 1000};
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof(patience));
    if (hand_over(fd, seat) == 0) {
        heard = wait_taken(seat, fd, &word, &given, text, patience_ms);
    } else if (errno == EAGAIN) {
        end_pool(seat, 1);
    }
    const uint64_t number = heard > 0 ? (uint64_t)word.value : 0;
    const _Atomic uint64_t *at_work = heard > 0 ? shared_words(given) : NULL;
    while (heard > 0) {
        switch (word.kind) {
        case SHUNTER_SEAT_END:
            exit((int)word.value);
        case SHUNTER_SEAT_ALONE:
            close(fd);
            be_alone(seat, given, text);
            exit(1);
        case SHUNTER_SEAT_CONNECT:
            connect_for(fd, text);
            break;
        default:
            break;
        }
        if (given >= 0) {
            close(given);
        }
        heard = wait_word(fd, &word, &given, text, -1);
        if (heard == 0) {
            say("Seat: the pool process is gone\n");
            exit(had_begun(at_work, number) ? 1 : SHUNTER_SEAT_UNBEGUN_STATUS);
        }
    }
}

int main(int count, char **arguments)
{
    const char *number = getenv("SHUNTER_POOL");
    const char *runtime = getenv("SHUNTER_RUNTIME");
    const char *patience = getenv(SHUNTER_SEAT_PATIENCE_VARIABLE);
    if (count < 3 || !number || !runtime) {
        say("usage: SHUNTER_POOL=K SHUNTER_RUNTIME=FOLDER shunter-seat MODULE PYTHON ...\n");
        return 2;
    }
    static struct seat seat = {.address.sun_family = AF_UNIX};
    seat.module = arguments[1];
    seat.worker = arguments + 2;
    const size_t room = sizeof(seat.address.sun_path);
    int size = snprintf(seat.address.sun_path, room, "%s/p.%s", runtime, number);
    if (size < 0 || (size_t)size >= room) {
        say("Seat: the path %s is too long for a socket\n", runtime);
        return 1;
    }
    snprintf(seat.lock_path, sizeof(seat.lock_path), "%s.lock", seat.address.sun_path);
    const int said = patience ? atoi(patience) : 0;
    int patience_ms = 1000 * (said > 0 && said < 1000000 ? said : SHUNTER_SEAT_PATIENCE_S);
    for (int i = 0; i < TRIES; i++) {
        int fd = connected_or_started(&seat);
        if (fd < 0) {
            return 1;
        }
        sit(&seat, fd, patience_ms);
        close(fd);
    }
    say("Seat: no pool process has taken it\n");
    return 1;
}
