/* What a seat and its pool process say to each other: see handlers/pool/handover.py. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "seat.h"

extern char **environ;

static int write_all(int fd, const char *data, size_t size)
{
    while (size > 0) {
        ssize_t count = send(fd, data, size, MSG_NOSIGNAL);
        if (count < 0 && errno != EINTR) {
            return -1;
        }
        if (count > 0) {
            data += count;
            size -= (size_t)count;
        }
    }
    return 0;
}

int send_with(int fd, const void *data, size_t size, const int *given, size_t count)
{
    union {
        struct cmsghdr header;
        char room[CMSG_SPACE(2 * sizeof(int))];
    } control = {0};
    struct iovec part = {.iov_base = (void *)data, .iov_len = size};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    if (count > 0) {
        message.msg_control = &control;
        message.msg_controllen = CMSG_SPACE(count * sizeof(int));
        struct cmsghdr *rights = CMSG_FIRSTHDR(&message);
        rights->cmsg_level = SOL_SOCKET;
        rights->cmsg_type = SCM_RIGHTS;
        rights->cmsg_len = CMSG_LEN(count * sizeof(int));
        memcpy(CMSG_DATA(rights), given, count * sizeof(int));
    }
    return sendmsg(fd, &message, MSG_NOSIGNAL) == (ssize_t)size ? 0 : -1;
}

/* Texts, each with its zero, one behind the other. */
struct texts {
    char *data;
    size_t size, count;
};

static int add(struct texts *texts, const char *text)
{
    size_t size = strlen(text) + 1;
    if (texts->size + size > SHUNTER_SEAT_MOST_BYTES) {
        return -1;
    }
    char *grown = realloc(texts->data, texts->size + size);
    if (grown == NULL) {
        return -1;
    }
    memcpy(grown + texts->size, text, size);
    texts->data = grown;
    texts->size += size;
    texts->count++;
    return 0;
}

int hand_over(int fd, const struct seat *seat)
{
    const int streams[2] = {STDOUT_FILENO, STDERR_FILENO};
    struct texts texts = {0};
    char *folder = get_current_dir_name();
    int result = folder == NULL ? -1 : add(&texts, folder);
    free(folder);
    for (char **each = seat->worker; result == 0 && *each; each++) {
        result = add(&texts, *each);
    }
    struct shunter_handover said = {
        .magic = SHUNTER_SEAT_MAGIC, .digest = SHUNTER_SEAT_DIGEST, .arguments = texts.count - 1};
    for (char **each = environ; result == 0 && *each; each++) {
        result = add(&texts, *each);
    }
    said.variables = texts.count - 1 - said.arguments;
    said.bytes = texts.size;
    if (result == 0) {
        result = send_with(fd, &said, sizeof(said), streams, 2);
    }
    if (result == 0) {
        result = write_all(fd, texts.data, texts.size);
    }
    free(texts.data);
    return result;
}

int hear(int fd, struct shunter_seat_word *word, int *given, char *text)
{
    union {
        struct cmsghdr header;
        char room[CMSG_SPACE(sizeof(int))];
    } control;
    struct iovec part = {.iov_base = word, .iov_len = sizeof(*word)};
    struct msghdr message = {
        .msg_iov = &part,
        .msg_iovlen = 1,
        .msg_control = &control,
        .msg_controllen = sizeof(control)};
    *given = -1;
    if (recvmsg(fd, &message, MSG_WAITALL | MSG_CMSG_CLOEXEC) != (ssize_t)sizeof(*word)) {
        return 0;
    }
    struct cmsghdr *rights = CMSG_FIRSTHDR(&message);
    if (rights && rights->cmsg_level == SOL_SOCKET && rights->cmsg_type == SCM_RIGHTS) {
        memcpy(given, CMSG_DATA(rights), sizeof(*given));
    }
    if (word->bytes < 0 || word->bytes >= SHUNTER_SEAT_MOST_TEXT) {
        return 0;
    }
    size_t size = (size_t)word->bytes;
    text[size] = '\0';
    return size == 0 || recv(fd, text, size, MSG_WAITALL) == (ssize_t)size;
}
