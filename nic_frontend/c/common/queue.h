/* The shared memory of a function: words of the queue page, and where entries lie. */
#ifndef SHUNTER_QUEUE_H
#define SHUNTER_QUEUE_H

#include <stdatomic.h>
#include <stdint.h>
#include <sys/socket.h>

#include "shunter_layout.h"

struct shunter_queue {
    uint8_t *page;
    uint8_t *inputs[SHUNTER_MAX_TENSORS]; /* first mapping of each ring, NULL for an empty one */
    uint8_t *outputs[SHUNTER_MAX_TENSORS];
    uint32_t input_bytes[SHUNTER_MAX_TENSORS];
    uint32_t output_bytes[SHUNTER_MAX_TENSORS];
    uint32_t input_count;
    uint32_t output_count;
    uint32_t entries;
    uint32_t func_id;
};

static inline _Atomic uint64_t *shunter_word(uint8_t *page, uint32_t offset) {
    return (_Atomic uint64_t *)(void *)(page + offset);
}

static inline _Atomic uint64_t *shunter_front_end_word(
    const struct shunter_queue *queue, uint32_t field) {
    return shunter_word(queue->page, field);
}

static inline _Atomic uint64_t *shunter_worker_word(
    const struct shunter_queue *queue, uint32_t worker, uint32_t field) {
    return shunter_word(
        queue->page, SHUNTER_QUEUE_WORKERS_OFFSET + worker * SHUNTER_WORKER_SIZE + field);
}

static inline uint8_t *shunter_entry_bytes(
    const struct shunter_queue *queue, uint32_t entry, uint32_t field) {
    return queue->page + SHUNTER_QUEUE_ENTRIES_OFFSET + entry * SHUNTER_ENTRY_SIZE + field;
}

static inline _Atomic uint64_t *shunter_entry_word(
    const struct shunter_queue *queue, uint32_t entry, uint32_t field) {
    return shunter_word(shunter_entry_bytes(queue, entry, field), 0);
}

static inline uint64_t shunter_get(_Atomic uint64_t *word) {
    return atomic_load_explicit(word, memory_order_acquire);
}

static inline void shunter_set(_Atomic uint64_t *word, uint64_t value) {
    atomic_store_explicit(word, value, memory_order_release);
}

/* Bytes of a socket address by its family, 0 for one that is none. */
static inline socklen_t shunter_peer_length(const uint8_t *peer) {
    switch (((const struct sockaddr *)(const void *)peer)->sa_family) {
    case AF_INET:
        return 16;
    case AF_INET6:
        return 28;
    default:
        return 0;
    }
}

#endif
