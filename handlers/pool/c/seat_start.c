/* The pool process of a seat: it is found, or started; one that does not answer is ended. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "seat.h"

static int connected(const struct seat *seat)
{
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0) {
        return failed("socket");
    }
    if (connect(fd, (const struct sockaddr *)&seat->address, sizeof(seat->address)) == 0) {
        return fd;
    }
    close(fd);
    return -1;
}

/* In the new process. The record lock stays with it when it becomes Python; who closes any other
 * descriptor of that file loses it, so the one that was inherited goes first. */
static void become_pool(const struct seat *seat, int listening, int inherited)
{
    struct flock mine = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_len = 1};
    char number[2][16];
    char *const command[] = {seat->worker[0], "-P", "-m", seat->module, NULL};
    close(inherited);
    int lock = open(seat->lock_path, O_RDWR);
    int nothing = open("/dev/null", O_RDONLY);
    if (lock < 0 || nothing < 0 || fcntl(lock, F_SETLK, &mine) < 0) {
        return;
    }
    dup2(nothing, STDIN_FILENO);
    close(nothing);
    snprintf(number[0], sizeof(number[0]), "%d", listening);
    snprintf(number[1], sizeof(number[1]), "%d", lock);
    setenv(SHUNTER_SEAT_SOCKET_VARIABLE, number[0], 1);
    setenv(SHUNTER_SEAT_LOCK_VARIABLE, number[1], 1);
    setenv(SHUNTER_SEAT_TUNABLES_VARIABLE, SHUNTER_SEAT_TUNABLES, 0);
    execvp(command[0], command);
}

/* It is nobody's child: it must not end with the seat that happens to start it. */
static int start_pool(const struct seat *seat, int lock)
{
    int said[2];
    int problem = 0;
    int listening = socket(AF_UNIX, SOCK_STREAM, 0);
    const struct sockaddr *address = (const struct sockaddr *)&seat->address;
    unlink(seat->address.sun_path);
    if (listening < 0 || bind(listening, address, sizeof(seat->address)) < 0 ||
        listen(listening, 4096) < 0 || pipe2(said, O_CLOEXEC) < 0) {
        return failed(seat->address.sun_path);
    }
    pid_t child = fork();
    if (child == 0) {
        setsid();
        if (fork() == 0) {
            become_pool(seat, listening, lock);
            problem = errno;
            (void)!write(said[1], &problem, sizeof(problem));
        }
        _exit(0);
    }
    close(listening);
    close(said[1]);
    if (child < 0) {
        return failed("fork");
    }
    waitpid(child, NULL, 0);
    /* Closed without a word when it has become Python. */
    ssize_t count = read(said[0], &problem, sizeof(problem));
    close(said[0]);
    if (count > 0) {
        errno = problem;
        return failed(seat->worker[0]);
    }
    return 0;
}

int connected_or_started(const struct seat *seat)
{
    int fd = connected(seat);
    if (fd >= 0) {
        return fd;
    }
    int lock = open(seat->lock_path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (lock < 0 || flock(lock, LOCK_EX) < 0) {
        return failed(seat->lock_path);
    }
    fd = connected(seat); /* somebody may have been faster */
    if (fd < 0 && start_pool(seat, lock) == 0) {
        fd = connected(seat);
    }
    close(lock);
    return fd;
}

/* Stopped, as /proc says: its third word, behind a name that may have brackets itself. */
static int stands_still(pid_t process)
{
    char path[32];
    char line[512];
    snprintf(path, sizeof(path), "/proc/%d/stat", (int)process);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t size = fd < 0 ? -1 : read(fd, line, sizeof(line) - 1);
    if (fd >= 0) {
        close(fd);
    }
    line[size < 0 ? 0 : size] = '\0';
    const char *end = strrchr(line, ')');
    return end && end[1] == ' ' && (end[2] == 'T' || end[2] == 't');
}

/* It cannot be asked to go. Whoever has the record lock is it. */
int end_pool(const struct seat *seat, int always)
{
    struct flock other = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_len = 1};
    int ended = 0;
    int lock = open(seat->lock_path, O_RDWR | O_CLOEXEC);
    if (lock >= 0 && fcntl(lock, F_GETLK, &other) == 0 && other.l_type != F_UNLCK &&
        other.l_pid > 0 && (always || stands_still(other.l_pid))) {
        say("Seat: pool process %d does not answer and is ended\n", (int)other.l_pid);
        ended = kill(other.l_pid, SIGKILL) == 0;
    }
    if (lock >= 0) {
        close(lock);
    }
    return ended;
}
