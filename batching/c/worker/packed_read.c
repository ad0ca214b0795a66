#include <errno.h>

#include "cursor.h"
#include "packed.h"

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
            } else if (shunter_run_parse(packed, packed->scratch, bytes, rows, row)) {
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
        if (row[0] && shunter_run_strings(content, at, at + bytes, strings, places + 2 * found)) {
            found += strings;
        } else {
            row[0] = 0;
        }
        at += shunter_packed_up(bytes);
    }
    return found;
}
