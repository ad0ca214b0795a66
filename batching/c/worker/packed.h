/*
 * The worker's end of packed requests: runs of bytes as batching/queue/packed.py describes them.
 *
 * What a run says is a table of words, one row for each entry: rows of the request (0: the run is
 * malformed), then offset and bytes of each tensor, then the sizes of all dimensions without the
 * rows.
 */
#ifndef SHUNTER_PACKED_H
#define SHUNTER_PACKED_H

#include "worker.h"

#define SHUNTER_PACKED_ALIGN 64u
#define SHUNTER_PACKED_MOST (1u << 30)
#define SHUNTER_MAX_DIMS 32u
#define SHUNTER_STRING_LENGTH 4u

/* The tensors of a function's requests, or of its answers. */
struct shunter_packed {
    uint32_t count;       /* tensors */
    uint32_t dims;        /* of all of them, without the rows */
    uint32_t header;      /* bytes before the first tensor */
    uint32_t most_rows;   /* of a request; 1 unless requests are batches */
    uint32_t most_bytes;  /* of a request; at most SHUNTER_PACKED_MOST */
    const uint32_t *item; /* by tensor: bytes of an element, 0: byte strings */
    const uint32_t *ndim; /* by tensor */
    const int64_t *shape; /* of all of them, one behind the other; -1: any */
    uint8_t *scratch;     /* room for a header */
};

static inline uint32_t shunter_packed_words(const struct shunter_packed *packed) {
    return 1 + 2 * packed->count + packed->dims;
}

static inline uint64_t shunter_packed_up(uint64_t size) {
    return (size + SHUNTER_PACKED_ALIGN - 1) / SHUNTER_PACKED_ALIGN * SHUNTER_PACKED_ALIGN;
}

/*
 * Copy and check what the requests of these entries say they are; a row of ``table`` for each, 0 all
 * over for a malformed one. The good ones, or -EPROTO when pieces lie nowhere or are not as long as
 * their entry.
 */
int shunter_packed_read(
    const struct shunter_queue *queue, uint32_t worker, const struct shunter_region *regions,
    const struct shunter_packed *packed, const uint32_t *entries, uint32_t count,
    uint64_t *table);

/* Rows of all requests; ``sizes``: the largest of each dimension. */
uint64_t shunter_packed_largest(
    const struct shunter_packed *packed, const uint64_t *table, uint32_t count,
    uint64_t *sizes);

/*
 * Copy tensors to where they belong, each byte once. ``into``: for each tensor the address of the
 * first request's, NULL: not this one. Those of the others follow: where ``padded`` has the sizes of
 * all dimensions there, row behind row, and what a request has not becomes 0; else, and byte strings
 * always, as they are, with their lengths, each at a multiple of SHUNTER_PACKED_ALIGN. 0, -EPROTO or
 * -EINVAL.
 */
int shunter_packed_gather(
    const struct shunter_queue *queue, uint32_t worker, const struct shunter_region *regions,
    const struct shunter_packed *packed, const uint32_t *entries, uint32_t count,
    const uint64_t *table, uint8_t *const *into, const uint64_t *padded);

/*
 * The byte strings of a tensor that was gathered at ``content``: begin and end of each there, one
 * behind the other. A request whose strings are not exactly its bytes has no rows any more, and none
 * here. How many there are.
 */
uint64_t shunter_packed_strings(
    const struct shunter_packed *packed, uint64_t *table, uint32_t count, uint32_t tensor,
    const uint8_t *content, uint64_t *places);

/*
 * Make the answers of entries where they are sent from: header and tensors of each as its row of
 * ``table`` says, but where a tensor lies it is told there. ``from``: for each entry and tensor where
 * it is, 0: it will be written there. An answer without rows is left out; one that has no room loses
 * its rows. How many lost them.
 */
uint32_t shunter_packed_put(
    const struct shunter_queue *queue, const struct shunter_packed *packed,
    const uint32_t *entries, uint32_t count, uint64_t *table, const uint64_t *from);

#endif
