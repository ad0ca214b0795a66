/*
 * Where datagrams come from and go to. Protocol, credit, tensor queues and workers are above it and
 * the same for every backend.
 *
 * Payloads land anywhere in the landing pool; whoever wants to keep one takes a reference to its
 * block. So a backend may be told beforehand where to put what comes (a NIC's receive queue), or find
 * out afterwards where it lies (the kernel's UDP, udp.c).
 */
#ifndef SHUNTER_BACKEND_H
#define SHUNTER_BACKEND_H

#include <stdbool.h>
#include <stdint.h>

#include "landing.h"
#include "message.h"

/* A datagram that came. What it points to stays until the next poll, its payload as long as somebody
 * refers to its block. */
struct shunter_landed {
    const uint8_t *peer;
    const uint8_t *header; /* SHUNTER_HEADER_BYTES, if the whole is as long */
    uint8_t *payload;      /* all that is behind the header, in one piece */
    int32_t block;         /* in which the payload lies; SHUNTER_NO_BLOCK: it cannot be kept */
    uint32_t length;       /* of the whole */
    uint32_t together;     /* bytes that came with it, and lie beside it in its block */
    bool far;              /* the processor cannot read the payload */
};

struct shunter_backend_stats {
    uint64_t sent, failed; /* datagrams */
    uint64_t overflows;    /* dropped before they were polled */
    uint64_t too_long, empty;
    uint64_t copied_bytes;
    uint64_t split, no_room; /* that came in two parts; that did not for want of room */
};

struct shunter_backend {
    int ready;             /* a descriptor that can be read when something has come */
    bool payloads_are_far; /* on a device: the processor can neither check nor decrypt them */
    uint32_t most;         /* datagrams of one poll */
    uint32_t worthwhile;   /* when so many messages came, more may be there at once */
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

/* Datagrams of a bound, non-blocking socket, which stays the caller's. NULL: no memory. ``landing``
 * must live longer. */
struct shunter_backend *shunter_udp_backend(int socket, struct shunter_landing *landing);

#endif
