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

/* One tensor of a request; ``to`` moves behind it. */
static int gather_tensor(
    struct shunter_cursor *cursor, const struct shunter_packed *packed, const uint64_t *row,
    uint32_t tensor, uint32_t before, const uint64_t *padded, uint8_t **to) {
    const uint64_t bytes = row[2 + 2 * tensor], *dims = row + 1 + 2 * packed->count;
    if (!padded || !packed->item[tensor]) {
        const bool is_there = shunter_cursor_take(cursor, *to, bytes);
        *to += shunter_packed_up(bytes);
        return is_there ? 0 : -EPROTO;
    }
    struct padding padding = {.from = cursor};
    if (!lay_out(
            &padding, dims + before, padded + before, packed->ndim[tensor], row[0],
            packed->item[tensor])) {
        return -EINVAL;
    }
    if (!put(&padding, 0, *to)) {
        return -EPROTO;
    }
    *to += row[0] * padding.strides[0];
    return 0;
}

static int gather_entry(
    struct shunter_cursor *cursor, const struct shunter_packed *packed, const uint64_t *row,
    const uint64_t *padded, uint8_t **to, uint64_t *copied) {
    uint32_t before = 0; // dimensions of the tensors so far
    for (uint32_t t = 0; t < packed->count; before += packed->ndim[t++]) {
        if (!to[t]) {
            continue;
        }
        if (!shunter_cursor_take(cursor, NULL, row[1 + 2 * t] - cursor->done)) {
            return -EPROTO;
        }
        const int result = gather_tensor(cursor, packed, row, t, before, padded, &to[t]);
        if (result) {
            return result;
        }
        *copied += row[2 + 2 * t];
    }
    return 0;
}

int shunter_packed_gather(
    const struct shunter_queue *queue, uint32_t worker, const struct shunter_region *regions,
    const struct shunter_packed *packed, const uint32_t *entries, uint32_t count,
    const uint64_t *table, uint8_t *const *into, const uint64_t *padded) {
    _Atomic uint64_t *word = shunter_worker_word(queue, worker, SHUNTER_W_WORKER_GATHERED);
    const uint32_t words = shunter_packed_words(packed);
    uint8_t *to[SHUNTER_MAX_TENSORS];
    uint64_t copied = shunter_get(word);
    int result = 0;
    memcpy(to, into, packed->count * sizeof *to);
    for (uint32_t i = 0; i < count && result == 0; i++) {
        const uint64_t *row = table + (size_t)i * words;
        struct shunter_cursor cursor;
        if (row[0] == 0) {
            continue;
        }
        result = shunter_cursor_open(&cursor, queue, regions, entries[i])
            ? gather_entry(&cursor, packed, row, padded, to, &copied)
            : -EPROTO;
    }
    shunter_set(word, copied);
    return result;
}
