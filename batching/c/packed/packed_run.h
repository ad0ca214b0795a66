/*
 * Tensors as one run of bytes: batching/queue/packed.py says the same in Python.
 *
 * What a run says is a row of words: rows of the request, then offset and bytes of each tensor, then
 * the sizes of all dimensions without the rows.
 */
#ifndef SHUNTER_PACKED_RUN_H
#define SHUNTER_PACKED_RUN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

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
    uint8_t *scratch;     /* a worker's room for a header */
};

/* Of such a row. */
static inline uint32_t shunter_packed_words(const struct shunter_packed *packed) {
    return 1 + 2 * packed->count + packed->dims;
}

static inline uint64_t shunter_packed_up(uint64_t size) {
    return (size + SHUNTER_PACKED_ALIGN - 1) / SHUNTER_PACKED_ALIGN * SHUNTER_PACKED_ALIGN;
}

/* Bytes before the first of so many tensors, which have so many dimensions. */
static inline uint64_t shunter_packed_header(uint32_t count, uint32_t dims) {
    return shunter_packed_up(8 + 8 * (uint64_t)count + 4 * (uint64_t)dims);
}

/* The length of a run, which its row has. */
static inline uint64_t shunter_run_bytes(const struct shunter_packed *packed, const uint64_t *row) {
    return row[2 * packed->count - 1] + row[2 * packed->count];
}

/* Where the tensors of a row lie, whose bytes it has; the length of the run. */
uint64_t shunter_run_places(const struct shunter_packed *packed, uint64_t *row);
/* Write the header of a run. */
void shunter_run_head(const struct shunter_packed *packed, const uint64_t *row, uint8_t *to);
/* What a run of so many bytes says whose header nobody else can write to any more. False when it is
 * none, or of other rows. */
bool shunter_run_parse(
    const struct shunter_packed *packed, const uint8_t *header, uint64_t bytes, uint64_t rows,
    uint64_t *row);
/* Begin and end of so many byte strings in ``content``, from ``at`` to ``end``; ``places`` may be NULL.
 * False when they are not exactly these bytes. */
bool shunter_run_strings(
    const uint8_t *content, uint64_t at, uint64_t end, uint64_t count, uint64_t *places);

#endif
