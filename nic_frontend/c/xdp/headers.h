/* The reader of a BPF ring buffer whose records are all of one kind. */
#ifndef SHUNTER_XDP_HEADERS_H
#define SHUNTER_XDP_HEADERS_H

#include <linux/bpf.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "program.h"

struct shunter_xdp_headers {
    _Atomic uint64_t *consumer, *producer;
    const uint8_t *records; /* mapped twice, one behind the other */
    uint64_t mask;
    uint64_t at; /* where we are; told to the program when the records are read */
    uint8_t *mapped, *mapped_records;
    size_t page;
};

/* A ring buffer of so many bytes, a power of two. 0 or a negative errno. */
int shunter_xdp_headers_open(struct shunter_xdp_headers *headers, int map, uint32_t bytes);
void shunter_xdp_headers_close(struct shunter_xdp_headers *headers);

#define SHUNTER_XDP_RECORD_STEP \
    ((sizeof(struct shunter_xdp_record) + BPF_RINGBUF_HDR_SZ + 7) & ~(size_t)7)

/* The oldest record that has not been taken, or NULL. It stays until it is let go of. */
static inline const struct shunter_xdp_record *shunter_xdp_headers_peek(
    struct shunter_xdp_headers *headers) {
    while (headers->at != atomic_load_explicit(headers->producer, memory_order_acquire)) {
        const uint8_t *found = headers->records + (headers->at & headers->mask);
        const uint32_t state =
            atomic_load_explicit((_Atomic uint32_t *)(uintptr_t)found, memory_order_acquire);
        if (state & BPF_RINGBUF_BUSY_BIT) {
            return NULL;
        }
        if (!(state & BPF_RINGBUF_DISCARD_BIT)) {
            return (const void *)(found + BPF_RINGBUF_HDR_SZ);
        }
        headers->at += SHUNTER_XDP_RECORD_STEP;
    }
    return NULL;
}

static inline void shunter_xdp_headers_take(struct shunter_xdp_headers *headers) {
    headers->at += SHUNTER_XDP_RECORD_STEP;
}

/* What was taken so far is read; the program may write there. */
static inline void shunter_xdp_headers_taken(struct shunter_xdp_headers *headers) {
    atomic_store_explicit(headers->consumer, headers->at, memory_order_release);
}

#endif
