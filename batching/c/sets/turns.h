/*
 * Turns of models where their workers' slices overlap: one model at a time runs there, as the control page
 * asks for. All workers that take turns are members of one set, which has room for the next batch of a
 * model when nothing of another one runs where it would; the workers of a model run beside each other.
 * Strict requests of several models take turns in the order of strict ones; with ``exclusive`` both
 * classes do, strict first, and also with one another in the same model. As Turns of the JVM has it,
 * but for best effort that takes turns without ``exclusive``: that runs as if nothing was asked for.
 */
#ifndef SHUNTER_TURNS_H
#define SHUNTER_TURNS_H

#include "sets.h"

struct shunter_slice_set;

struct shunter_turn_rules {
    uint32_t strict, best_effort; /* ORDER_... of the page */
    bool exclusive;
};

/* A worker that runs on these slices. NULL: no memory. */
struct shunter_member *shunter_turns_join(
    struct shunter_sets *sets, const void *model, struct shunter_wake wake,
    const struct shunter_slice_set *slices);
/* What the page says now: who waits decides by that. */
void shunter_turns_obey(struct shunter_sets *sets, struct shunter_turn_rules rules);
/* Whether any batches take turns. */
bool shunter_turns_apply(const struct shunter_sets *sets);

#endif
