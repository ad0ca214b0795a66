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

/* Where its tensors lie; the length of the answer. */
static uint64_t lay_out(const struct shunter_packed *packed, uint64_t *row) {
    uint64_t at = packed->header, end = at;
    for (uint32_t t = 0; t < packed->count; t++) {
        row[1 + 2 * t] = at;
        end = at + row[2 + 2 * t];
        at = shunter_packed_up(end);
    }
    return end;
}

static void put_entry(
    const struct shunter_packed *packed, const uint64_t *row, const uint64_t *from,
    uint8_t *to) {
    uint64_t end = packed->header;
    head(packed, row, to);
    for (uint32_t t = 0; t < packed->count; t++) {
        const uint64_t at = row[1 + 2 * t], size = row[2 + 2 * t];
        memset(to + end, 0, at - end); // what was there was another client's
        if (from[t] && size) {
            memcpy(to + at, (const uint8_t *)(uintptr_t)from[t], size);
        }
        end = at + size;
    }
}

uint32_t shunter_packed_put(
    const struct shunter_queue *queue, const struct shunter_packed *packed,
    const uint32_t *entries, uint32_t count, uint64_t *table, const uint64_t *from) {
    const uint32_t words = shunter_packed_words(packed);
    const uint64_t room = queue->output_bytes[0];
    uint32_t lost = 0;
    for (uint32_t i = 0; i < count; i++) {
        uint64_t *row = table + (size_t)i * words;
        const uint64_t bytes = lay_out(packed, row);
        if (row[0] == 0) {
            continue;
        }
        if (bytes > room) {
            row[0] = 0;
            lost++;
            continue;
        }
        put_entry(
            packed, row, from + (size_t)i * packed->count,
            queue->outputs[0] + entries[i] * room);
        shunter_set(shunter_entry_word(queue, entries[i], SHUNTER_E_ENTRY_RESULT_BYTES), bytes);
    }
    return lost;
}
