/*
 * A holder's line of the control page: on which slices best-effort work must stand still, and for
 * whose strict work. batching/page/hold_words.py says in which order words are stored and why; all
 * stores are releases. One thread at a time.
 */
#ifndef SHUNTER_HOLD_LINE_H
#define SHUNTER_HOLD_LINE_H

#include <stdbool.h>
#include <stdint.h>

#include "shunter_layout.h"

/* Slices of the machine; batching/page/slices.py says which bit is which. */
struct shunter_slice_set {
    uint64_t words[SHUNTER_SLICE_WORDS];
};

/* All that is held together. */
struct shunter_hold {
    struct shunter_slice_set slices;
    uint64_t models[SHUNTER_SLOT_WORDS];
    bool any, nameless;
};

struct shunter_hold_line {
    _Atomic uint64_t *words; /* NULL: there is none */
    struct shunter_slice_set said;
    uint64_t number; /* of its last change */
};

/* A model holds these, too; ``slot`` -1: it is not on the page. */
void shunter_hold_add(
    struct shunter_hold *hold, const struct shunter_slice_set *slices, int32_t slot);
/* Say that this is held. The slices are raised last, and lowered first: ``raises``. */
void shunter_hold_say(
    struct shunter_hold_line *line, const struct shunter_hold *hold, uint64_t now_ns, bool raises);
/* From now on it is said there; what was said elsewhere is lowered. NULL: nowhere. */
void shunter_hold_move(struct shunter_hold_line *line, void *words, uint64_t now_ns);
/* Strict work that holds has begun or ended something. */
void shunter_hold_progress(const struct shunter_hold_line *line, uint64_t now_ns);
/* Say that the holder lives. */
void shunter_hold_beat(const struct shunter_hold_line *line, uint64_t now_ns);

#endif
