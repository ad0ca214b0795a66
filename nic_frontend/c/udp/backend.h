/*
 * Where datagrams come from and go to. Protocol, credit, tensor queues and workers are above it and
 * the same for every backend.
 *
 * The kernel's UDP (udp.c) is the one that is built. Others would fit: a NIC that splits header
 * from payload (DPDK's buffer split, verbs, AF_XDP with frames of the rings) posts the places that
 * it is told as payload buffers, polls its queue, and says of each datagram where its payload lies.
 */
#ifndef SHUNTER_BACKEND_H
#define SHUNTER_BACKEND_H

#include <stdbool.h>
#include <stdint.h>

#include "message.h"

enum {
    SHUNTER_CAP_HDR_SPLIT = 1, /* header and payload lie apart, whatever comes */
    SHUNTER_CAP_PLACED = 2,    /* a payload that comes in turn lands where post_rx said */
    SHUNTER_CAP_GRO = 4,       /* several datagrams may come as one */
    SHUNTER_CAP_DEV_MEM = 8    /* places may be memory of a device */
};

/* Where the payload of a datagram is expected to belong. */
struct shunter_expected {
    uint8_t *into; /* NULL: nowhere */
    uint32_t length;
};

/* The datagrams that are expected next, one after another. */
struct shunter_rx {
    bool (*next)(void *context, struct shunter_expected *expected);
    void *context;
    uint32_t behind; /* bytes that each has behind its payload */
};

/* A datagram that came. What it points to stays until the next post_rx. */
struct shunter_landed {
    const uint8_t *peer, *header, *payload;
    const uint8_t *tag; /* NULL: whatever is behind the payload follows it */
    uint32_t length;    /* of the whole */
};

struct shunter_backend_stats {
    uint64_t sent, failed; /* datagrams */
    uint64_t overflows;    /* dropped before they were polled */
    uint64_t too_long, empty;
    uint64_t copied_bytes; /* what did not lie as it was laid */
};

struct shunter_backend {
    uint32_t caps;
    uint32_t most;       /* datagrams of one poll */
    size_t bytes;        /* of the payloads of one poll */
    uint32_t worthwhile; /* when so many messages came, more may be there at once */
    void (*post_rx)(struct shunter_backend *backend, struct shunter_rx *rx);
    /* How many have landed, or a negative errno. ``messages``: in how many pieces. */
    int (*poll)(
        struct shunter_backend *backend, struct shunter_landed *landed, uint32_t *messages);
    /* Header and peer are copied, the payload only if ``copied``: it has to stay until the flush. */
    void (*tx)(
        struct shunter_backend *backend, const struct shunter_x64 *header, const void *payload,
        size_t length, const uint8_t *peer, bool copied);
    void (*flush)(struct shunter_backend *backend);
    /* Largest datagram. */
    uint32_t (*mtu)(const struct shunter_backend *backend);
    void (*stats)(const struct shunter_backend *backend, struct shunter_backend_stats *stats);
    void (*close)(struct shunter_backend *backend);
};

/* Datagrams of a bound, non-blocking socket, which stays the caller's. NULL: no memory. */
struct shunter_backend *shunter_udp_backend(int socket, bool gro);

#endif
