#include <string.h>

#include "packed.h"

static void put_entry(
    const struct shunter_packed *packed, const uint64_t *row, const uint64_t *from,
    uint8_t *to) {
    uint64_t end = packed->header;
    shunter_run_head(packed, row, to);
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
        const uint64_t bytes = shunter_run_places(packed, row);
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
