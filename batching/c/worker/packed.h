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
 * Copy and check what the requests of these entries say they are; a row of ``table`` for each. 0, or
 * -EPROTO when pieces lie nowhere or are not as long as their entry.
 */
int shunter_packed_read(
    const struct shunter_queue *queue, uint32_t worker, const struct shunter_region *regions,
    const struct shunter_packed *packed, const uint32_t *entries, uint32_t count,
    uint64_t *table);

/*
 * Copy tensors to where they belong, each byte once. ``into``: for each entry and tensor an address,
 * 0: nowhere. ``padded``: sizes of all dimensions there, what the request has not becomes 0; NULL: as
 * they are. Byte strings are as they are always, with their lengths. 0, -EPROTO or -EINVAL.
 */
int shunter_packed_gather(
    const struct shunter_queue *queue, uint32_t worker, const struct shunter_region *regions,
    const struct shunter_packed *packed, const uint32_t *entries, uint32_t count,
    const uint64_t *table, const uint64_t *into, const uint64_t *padded);

/* Where each of ``count`` byte strings ends; its length lies before it. 0, or -EBADMSG when they are
 * not exactly these bytes. */
int shunter_packed_strings(
    const uint8_t *content, uint64_t bytes, uint64_t count, uint64_t *ends);

/*
 * Make the answers of entries where they are sent from: header and tensors of each as its row of
 * ``table`` says. ``from``: for each entry and tensor where it is, 0: already there. A row of no rows
 * is left out. 0, or -EINVAL for what has no room.
 */
int shunter_packed_put(
    const struct shunter_queue *queue, const struct shunter_packed *packed,
    const uint32_t *entries, uint32_t count, const uint64_t *table, const uint64_t *from);

#endif
