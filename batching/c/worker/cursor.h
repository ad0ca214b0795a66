/* A place in the input of an entry, which moves from piece to piece. */
#ifndef SHUNTER_CURSOR_H
#define SHUNTER_CURSOR_H

#include <stdbool.h>
#include <string.h>

#include "worker.h"

struct shunter_cursor {
    const struct shunter_region *regions;
    const struct shunter_piece *next, *end;
    const uint8_t *at; /* of the piece before the next one */
    uint64_t left;     /* bytes of it */
    uint64_t done;     /* bytes behind us */
};

/* False when the entry has more pieces than it can have. */
static inline bool shunter_cursor_open(
    struct shunter_cursor *cursor, const struct shunter_queue *queue,
    const struct shunter_region *regions, uint32_t entry) {
    const uint64_t count = shunter_get(shunter_entry_word(queue, entry, SHUNTER_E_ENTRY_PIECES));
    const struct shunter_piece *first = shunter_pieces_of(queue, entry);
    *cursor = (struct shunter_cursor){.regions = regions, .next = first, .end = first + count};
    return count <= queue->most_pieces;
}

/* False when there is no next piece, or it lies nowhere. */
static inline bool shunter_cursor_turn(struct shunter_cursor *cursor) {
    while (cursor->next < cursor->end) {
        const struct shunter_piece here = *cursor->next++;
        if (here.length == 0) {
            continue;
        }
        const struct shunter_region *region =
            here.region < SHUNTER_REGIONS ? &cursor->regions[here.region] : NULL;
        if (!region || !region->base || here.offset > region->bytes ||
            here.length > region->bytes - here.offset) {
            return false;
        }
        cursor->at = region->base + here.offset;
        cursor->left = here.length;
        return true;
    }
    return false;
}

/* Go on by so many bytes, and copy them if ``to`` says where to. False when there are not so many. */
static inline bool shunter_cursor_take(
    struct shunter_cursor *cursor, uint8_t *to, uint64_t bytes) {
    while (bytes) {
        if (!cursor->left && !shunter_cursor_turn(cursor)) {
            return false;
        }
        const uint64_t now = bytes < cursor->left ? bytes : cursor->left;
        if (to) {
            memcpy(to, cursor->at, now);
            to += now;
        }
        cursor->at += now;
        cursor->left -= now;
        cursor->done += now;
        bytes -= now;
    }
    return true;
}

#endif
