/* Datagrams that are about to be sent, many with one system call. */
#ifndef SHUNTER_DATAGRAMS_H
#define SHUNTER_DATAGRAMS_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>
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
    struct shunter_control *controls;
    int patience_ms;
};

/* Room for the address that a datagram is sent from. */
struct shunter_control {
    _Alignas(struct cmsghdr) uint8_t bytes[64];
};

/* Bytes of a socket address by its family, 0 for one that is none. */
static inline socklen_t shunter_peer_length(const uint8_t *peer) {
    sa_family_t family;
    memcpy(&family, peer, sizeof family); // it may lie anywhere
    switch (family) {
    case AF_INET:
        return 16;
    case AF_INET6:
        return 28;
    default:
        return 0;
    }
}

/* Make ``message`` leave from the local address of a peer, if it has one. */
void shunter_send_from(
    struct msghdr *message, const uint8_t *peer, struct shunter_control *control);
/* Write into a peer which local address the message was sent to. */
void shunter_sent_to(struct msghdr *message, uint8_t *peer);

/* When the socket is full, wait so long for room; what does not fit then counts as lost. 0 or
 * -ENOMEM. */
int shunter_datagrams_init(struct shunter_datagrams *datagrams, int socket, int patience_ms);
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
