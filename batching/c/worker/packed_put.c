#include <errno.h>
#include <stdbool.h>
#include <string.h>

#include "packed.h"

static void head(const struct shunter_packed *packed, const uint64_t *row, uint8_t *to) {
    const uint32_t rows[2] = {(uint32_t)row[0], 0};
    const uint64_t *places = row + 1, *dims = places + 2 * packed->count;
    uint8_t *sizes = to + sizeof rows, *end = sizes + 8 * (size_t)packed->count;
    memcpy(to, rows, sizeof rows);
    for (uint32_t t = 0; t < packed->count; t++) {
        memcpy(sizes + 8 * (size_t)t, &places[2 * t + 1], 8);
    }
    for (uint32_t i = 0; i < packed->dims; i++, end += 4) {
        const uint32_t size = (uint32_t)dims[i];
        memcpy(end, &size, sizeof size);
    }
    memset(end, 0, (size_t)(to + packed->header - end));
}

/* Length of the answer; 0: it has no room, and nothing was written. */
static uint64_t put_entry(
    const struct shunter_packed *packed, const uint64_t *row, const uint64_t *from, uint8_t *to,
    uint64_t room) {
    const uint64_t *places = row + 1;
    uint64_t end = packed->header;
    for (uint32_t t = 0; t < packed->count; t++) {
        const uint64_t at = places[2 * t], size = places[2 * t + 1];
        if (at != shunter_packed_up(end) || at > room || size > room - at) {
            return 0;
        }
        end = at + size;
    }
    head(packed, row, to);
    end = packed->header;
    for (uint32_t t = 0; t < packed->count; t++) {
        const uint64_t at = places[2 * t], size = places[2 * t + 1];
        memset(to + end, 0, at - end); // what was there was another client's
        if (from[t] && size) {
            memcpy(to + at, (const uint8_t *)(uintptr_t)from[t], size);
        }
        end = at + size;
    }
    return end;
}

int shunter_packed_put(
    const struct shunter_queue *queue, const struct shunter_packed *packed,
    const uint32_t *entries, uint32_t count, const uint64_t *table, const uint64_t *from) {
    const uint32_t words = shunter_packed_words(packed);
    const uint64_t room = queue->output_bytes[0];
    for (uint32_t i = 0; i < count; i++) {
        const uint64_t *row = table + (size_t)i * words;
        if (row[0] == 0) {
            continue;
        }
        const uint64_t bytes = put_entry(
            packed, row, from + (size_t)i * packed->count,
            queue->outputs[0] + entries[i] * room, room);
        if (!bytes) {
            return -EINVAL;
        }
        shunter_set(shunter_entry_word(queue, entries[i], SHUNTER_E_ENTRY_RESULT_BYTES), bytes);
    }
    return 0;
}
