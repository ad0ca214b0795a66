/* Datagrams that are about to be sent, many with one system call. */
#ifndef SHUNTER_DATAGRAMS_H
#define SHUNTER_DATAGRAMS_H

#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

#include "message.h"

#define SHUNTER_DATAGRAMS 64

struct shunter_datagrams {
    int socket;
    unsigned count;
    uint64_t sent;
    uint64_t failed;
    int error; /* the last one, a negative errno */
    struct mmsghdr *messages;
    struct iovec (*pieces)[2];
    struct shunter_x64 *headers;
    uint8_t (*payloads)[SHUNTER_BITMAP_BYTES];
    uint8_t (*peers)[SHUNTER_PEER_BYTES];
};

/* 0 or -ENOMEM. */
int shunter_datagrams_init(struct shunter_datagrams *datagrams, int socket);
void shunter_datagrams_free(struct shunter_datagrams *datagrams);

/* The same on the heap, NULL without memory. */
struct shunter_datagrams *shunter_datagrams_new(int socket);
void shunter_datagrams_delete(struct shunter_datagrams *datagrams);

/*
 * Add one; header and peer are copied. ``payload`` must stay as it is until the next flush, unless
 * it is copied: then it has at most SHUNTER_BITMAP_BYTES.
 */
void shunter_datagrams_add(
    struct shunter_datagrams *datagrams, const struct shunter_x64 *header, const void *payload,
    size_t length, const uint8_t *peer, int copied);
void shunter_datagrams_flush(struct shunter_datagrams *datagrams);

#endif
