#include <errno.h>

#include "cursor.h"
#include "packed.h"

/* A tensor on its way to where it is larger: level 0 are the rows, which are never padded. */
struct padding {
    struct shunter_cursor *from;
    uint32_t inner; /* from this level on its bytes follow one another there, too */
    uint64_t sizes[1 + SHUNTER_MAX_DIMS];
    uint64_t padded[1 + SHUNTER_MAX_DIMS];
    uint64_t strides[1 + SHUNTER_MAX_DIMS]; /* bytes from one to the next, there */
};

static bool lay_out(
    struct padding *padding, const uint64_t *dims, const uint64_t *padded, uint32_t ndim,
    uint64_t rows, uint32_t item) {
    padding->sizes[0] = padding->padded[0] = rows;
    padding->inner = 0;
    if (ndim > SHUNTER_MAX_DIMS) {
        return false;
    }
    for (uint32_t i = 1; i <= ndim; i++) {
        padding->sizes[i] = dims[i - 1];
        padding->padded[i] = padded[i - 1];
        if (dims[i - 1] > padded[i - 1]) {
            return false;
        }
        padding->inner = dims[i - 1] == padded[i - 1] ? padding->inner : i;
    }
    uint64_t stride = item;
    for (uint32_t i = ndim + 1; i-- > 0;) {
        padding->strides[i] = stride;
        stride *= padding->padded[i];
    }
    return true;
}

static bool put(const struct padding *padding, uint32_t level, uint8_t *to) {
    const uint64_t size = padding->sizes[level], stride = padding->strides[level];
    if (level == padding->inner) {
        if (!shunter_cursor_take(padding->from, to, size * stride)) {
            return false;
        }
    } else {
        for (uint64_t i = 0; i < size; i++) {
            if (!put(padding, level + 1, to + i * stride)) {
                return false;
            }
        }
    }
    memset(to + size * stride, 0, (padding->padded[level] - size) * stride);
    return true;
}

static int gather_entry(
    struct shunter_cursor *cursor, const struct shunter_packed *packed, const uint64_t *row,
    const uint64_t *into, const uint64_t *padded, uint64_t *copied) {
    const uint64_t *places = row + 1, *dims = places + 2 * packed->count;
    uint32_t before = 0; // dimensions of the tensors so far
    for (uint32_t t = 0; t < packed->count; before += packed->ndim[t++]) {
        uint8_t *to = (uint8_t *)(uintptr_t)into[t];
        struct padding padding = {.from = cursor};
        if (!to) {
            continue;
        }
        if (!shunter_cursor_take(cursor, NULL, places[2 * t] - cursor->done)) {
            return -EPROTO;
        }
        bool is_there;
        if (!padded || !packed->item[t]) {
            is_there = shunter_cursor_take(cursor, to, places[2 * t + 1]);
        } else if (!lay_out(
                       &padding, dims + before, padded + before, packed->ndim[t], row[0],
                       packed->item[t])) {
            return -EINVAL;
        } else {
            is_there = put(&padding, 0, to);
        }
        if (!is_there) {
            return -EPROTO;
        }
        *copied += places[2 * t + 1];
    }
    return 0;
}

int shunter_packed_gather(
    const struct shunter_queue *queue, uint32_t worker, const struct shunter_region *regions,
    const struct shunter_packed *packed, const uint32_t *entries, uint32_t count,
    const uint64_t *table, const uint64_t *into, const uint64_t *padded) {
    _Atomic uint64_t *word = shunter_worker_word(queue, worker, SHUNTER_W_WORKER_GATHERED);
    const uint32_t words = shunter_packed_words(packed);
    uint64_t copied = shunter_get(word);
    int result = 0;
    for (uint32_t i = 0; i < count && result == 0; i++) {
        const uint64_t *row = table + (size_t)i * words;
        struct shunter_cursor cursor;
        if (row[0] == 0) {
            continue;
        }
        result = shunter_cursor_open(&cursor, queue, regions, entries[i])
            ? gather_entry(
                  &cursor, packed, row, into + (size_t)i * packed->count, padded, &copied)
            : -EPROTO;
    }
    shunter_set(word, copied);
    return result;
}
