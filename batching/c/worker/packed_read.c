#include <errno.h>

#include "cursor.h"
#include "packed.h"

static uint32_t u32_at(const uint8_t *bytes) {
    uint32_t found;
    memcpy(&found, bytes, sizeof found);
    return found;
}

static uint64_t u64_at(const uint8_t *bytes) {
    uint64_t found;
    memcpy(&found, bytes, sizeof found);
    return found;
}

/*
 * Elements of a tensor, whose sizes it writes to ``row``; false when they are not the model's, or
 * beyond what a request can have even if none of them were 0: of byte strings there is a list for
 * each size, however few bytes the request has.
 */
static bool elements_of(
    const uint8_t *dims, const int64_t *shape, uint32_t ndim, uint64_t rows, uint32_t least,
    uint32_t most, uint64_t *row, uint64_t *elements) {
    uint64_t span = rows * least;
    *elements = rows;
    for (uint32_t i = 0; i < ndim; i++) {
        const uint64_t size = u32_at(dims + 4 * i);
        span *= size ? size : 1;
        if ((shape[i] >= 0 && (uint64_t)shape[i] != size) || span > most) {
            return false;
        }
        *elements *= size;
        row[i] = size;
    }
    return span <= most;
}

/* A row of the table from a header that nobody else can write to any more. */
static bool parse(
    const struct shunter_packed *packed, const uint8_t *header, uint64_t bytes, uint64_t rows,
    uint64_t *row) {
    const uint8_t *sizes = header + 8, *dims = sizes + 8 * (size_t)packed->count;
    const int64_t *shape = packed->shape;
    uint64_t at = packed->header, end = at, *places = row + 1;
    uint64_t *found = places + 2 * packed->count;
    if (u32_at(header) != rows || u32_at(header + 4) != 0 || rows < 1 ||
        rows > packed->most_rows) {
        return false;
    }
    for (uint32_t t = 0; t < packed->count; t++) {
        const uint32_t item = packed->item[t], ndim = packed->ndim[t];
        const uint32_t least = item ? item : SHUNTER_STRING_LENGTH;
        const uint64_t size = u64_at(sizes + 8 * (size_t)t);
        uint64_t elements;
        if (!elements_of(
                dims, shape, ndim, rows, least, packed->most_bytes, found, &elements) ||
            size < elements * least || (item && size != elements * item) || at > bytes ||
            size > bytes - at) {
            return false;
        }
        places[2 * t] = at;
        places[2 * t + 1] = size;
        end = at + size;
        at = shunter_packed_up(end);
        dims += 4 * (size_t)ndim;
        shape += ndim;
        found += ndim;
    }
    for (; dims < header + packed->header; dims++) {
        if (*dims) {
            return false;
        }
    }
    row[0] = rows;
    return end == bytes;
}

/* What the pieces of an entry have together. */
static uint64_t length_of(struct shunter_cursor cursor) {
    uint64_t found = 0;
    for (; cursor.next < cursor.end; cursor.next++) {
        found += cursor.next->length;
    }
    return found;
}

int shunter_packed_read(
    const struct shunter_queue *queue, uint32_t worker, const struct shunter_region *regions,
    const struct shunter_packed *packed, const uint32_t *entries, uint32_t count,
    uint64_t *table) {
    _Atomic uint64_t *word = shunter_worker_word(queue, worker, SHUNTER_W_WORKER_GATHERED);
    const uint32_t words = shunter_packed_words(packed);
    uint64_t copied = shunter_get(word);
    int result = 0, good = 0;
    for (uint32_t i = 0; i < count && result == 0; i++) {
        uint64_t *row = table + (size_t)i * words;
        const uint32_t entry = entries[i];
        const uint64_t bytes = shunter_get(shunter_entry_word(queue, entry, SHUNTER_E_ENTRY_BYTES));
        const uint64_t rows = shunter_get(shunter_entry_word(queue, entry, SHUNTER_E_ENTRY_ROWS));
        struct shunter_cursor cursor;
        memset(row, 0, words * sizeof *row);
        if (!shunter_cursor_open(&cursor, queue, regions, entry) || length_of(cursor) != bytes) {
            result = -EPROTO;
        } else if (bytes >= packed->header) {
            if (!shunter_cursor_take(&cursor, packed->scratch, packed->header)) {
                result = -EPROTO;
            } else if (parse(packed, packed->scratch, bytes, rows, row)) {
                good++;
            } else {
                memset(row, 0, words * sizeof *row);
            }
            copied += cursor.done;
        }
    }
    shunter_set(word, copied);
    return result ? result : good;
}

uint64_t shunter_packed_largest(
    const struct shunter_packed *packed, const uint64_t *table, uint32_t count,
    uint64_t *sizes) {
    const uint32_t words = shunter_packed_words(packed);
    uint64_t rows = 0;
    memset(sizes, 0, packed->dims * sizeof *sizes);
    for (const uint64_t *row = table; row < table + (size_t)count * words; row += words) {
        const uint64_t *dims = row + 1 + 2 * packed->count;
        for (uint32_t i = 0; i < packed->dims; i++) {
            sizes[i] = dims[i] > sizes[i] ? dims[i] : sizes[i];
        }
        rows += row[0];
    }
    return rows;
}

static uint64_t product(uint64_t first, const uint64_t *sizes, uint32_t count) {
    for (uint32_t i = 0; i < count; i++) {
        first *= sizes[i];
    }
    return first;
}

/* From ``at`` to ``end``; false when they are not exactly these bytes. */
static bool strings_of(
    const uint8_t *content, uint64_t at, uint64_t end, uint64_t count, uint64_t *places) {
    for (uint64_t i = 0; i < count; i++) {
        if (end - at < SHUNTER_STRING_LENGTH) {
            return false;
        }
        const uint64_t length = u32_at(content + at);
        at += SHUNTER_STRING_LENGTH;
        if (length > end - at) {
            return false;
        }
        places[2 * i] = at;
        at += length;
        places[2 * i + 1] = at;
    }
    return at == end;
}

uint64_t shunter_packed_strings(
    const struct shunter_packed *packed, uint64_t *table, uint32_t count, uint32_t tensor,
    const uint8_t *content, uint64_t *places) {
    const uint32_t words = shunter_packed_words(packed);
    uint32_t before = 1 + 2 * packed->count; // columns
    for (uint32_t t = 0; t < tensor; t++) {
        before += packed->ndim[t];
    }
    uint64_t at = 0, found = 0;
    for (uint64_t *row = table; row < table + (size_t)count * words; row += words) {
        const uint64_t bytes = row[2 + 2 * tensor];
        const uint64_t strings = product(row[0], row + before, packed->ndim[tensor]);
        if (row[0] && strings_of(content, at, at + bytes, strings, places + 2 * found)) {
            found += strings;
        } else {
            row[0] = 0;
        }
        at += shunter_packed_up(bytes);
    }
    return found;
}
