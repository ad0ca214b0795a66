/* The shared memory of a function: words of the queue page, and where inputs and results lie. */
#ifndef SHUNTER_QUEUE_H
#define SHUNTER_QUEUE_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "shunter_layout.h"

/* A part of an entry's input: batching/queue/layout.py, PIECE. */
struct shunter_piece {
    uint64_t offset; /* in its region */
    uint32_t length; /* 0: it is not there */
    uint32_t region; /* 0: the landing pool */
};

_Static_assert(sizeof(struct shunter_piece) == 16, "as in Python");

/* With the number in entry_parts: none follows. */
#define SHUNTER_PARTS_ARE_OVER (1ULL << 63)
/* And beside it: because its client took them too slowly for the others of its batch. */
#define SHUNTER_PARTS_ARE_LATE (1ULL << 62)

/* With the number in batch_count: its worker has taken the batch, which grows no more. Until then its
 * owner may add entries: it links them, then exchanges the number. */
#define SHUNTER_BATCH_TAKEN (1ULL << 63)

struct shunter_queue {
    uint8_t *page;
    struct shunter_piece *pieces; /* of each entry as many as most_pieces */
    uint8_t *outputs[SHUNTER_MAX_TENSORS]; /* first mapping of each ring, NULL for an empty one */
    uint32_t input_bytes[SHUNTER_MAX_TENSORS];
    uint32_t output_bytes[SHUNTER_MAX_TENSORS];
    uint32_t input_count;
    uint32_t output_count;
    uint32_t entries;
    uint32_t func_id;
    uint32_t most_pieces;
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

static inline struct shunter_piece *shunter_pieces_of(
    const struct shunter_queue *queue, uint32_t entry) {
    return queue->pieces + (size_t)entry * queue->most_pieces;
}

#endif
