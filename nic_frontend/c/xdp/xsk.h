/* AF_XDP sockets, each with the rings of one queue of an interface, and the memory that they share. */
#ifndef SHUNTER_XSK_H
#define SHUNTER_XSK_H

#include <linux/if_xdp.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* One of kernel and process produces, the other consumes; entries are a power of two. */
struct shunter_xsk_ring {
    _Atomic uint32_t *producer, *consumer, *flags;
    void *entries;
    uint32_t mask;
    uint32_t at; /* where we are; told to the kernel when it is worth it */
    void *mapped;
    size_t bytes;
};

struct shunter_xsk {
    int socket;
    struct shunter_xsk_ring fill, rx, completion;
};

struct shunter_xsk_memory {
    uint8_t *base;
    uint64_t bytes;
    uint32_t chunk;
};

/*
 * The first socket (``first`` NULL) brings the memory, the others share it. 0 or a negative errno;
 * ``step``: what failed. Close it in either case.
 */
int shunter_xsk_open(
    struct shunter_xsk *xsk, const struct shunter_xsk *first,
    const struct shunter_xsk_memory *memory, uint32_t interface, uint32_t queue, uint32_t entries,
    const char **step);
void shunter_xsk_close(struct shunter_xsk *xsk);

/* Whether frames land without a copy: the driver can. */
bool shunter_xsk_zero_copy(const struct shunter_xsk *xsk);
/* Datagrams that came and were dropped for want of a chunk or of room in the ring. */
uint64_t shunter_xsk_dropped(const struct shunter_xsk *xsk);

/* Chunks that may be put into the fill ring now. */
static inline uint32_t shunter_xsk_room(const struct shunter_xsk *xsk) {
    const struct shunter_xsk_ring *ring = &xsk->fill;
    const uint32_t taken = atomic_load_explicit(ring->consumer, memory_order_acquire);
    return ring->mask + 1 - (ring->at - taken);
}

static inline void shunter_xsk_fill(struct shunter_xsk *xsk, uint64_t address) {
    struct shunter_xsk_ring *ring = &xsk->fill;
    ((uint64_t *)ring->entries)[ring->at++ & ring->mask] = address;
}

/* What was put into the fill ring is the kernel's from now on. */
void shunter_xsk_filled(struct shunter_xsk *xsk);

/* The oldest frame that has not been taken, or NULL. */
static inline const struct xdp_desc *shunter_xsk_peek(const struct shunter_xsk *xsk) {
    const struct shunter_xsk_ring *ring = &xsk->rx;
    if (ring->at == atomic_load_explicit(ring->producer, memory_order_acquire)) {
        return NULL;
    }
    return (const struct xdp_desc *)ring->entries + (ring->at & ring->mask);
}

static inline void shunter_xsk_take(struct shunter_xsk *xsk) { xsk->rx.at++; }

/* The places of the frames that were taken are the kernel's from now on. */
static inline void shunter_xsk_taken(struct shunter_xsk *xsk) {
    atomic_store_explicit(xsk->rx.consumer, xsk->rx.at, memory_order_release);
}

#endif
