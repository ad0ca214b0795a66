/*
 * Sets of workers behind which there is one process, which runs one batch at a time of all their
 * models. A set has room for SHUNTER_SET_DEPTH batches at once: one runs, one is next and its weights
 * come. All others wait at their dispatchers, where they still grow, expire and are put in order.
 * A strict batch passes those that stand still for it: there is as much room for these beside them.
 *
 * Who has room next: strict requests before best effort, and of these the model that was served longest
 * ago. Best effort that has waited for as long as its model says counts as strict.
 *
 * Each worker of a set is a member of it, which is one dispatcher's: that calls it under whatever lock
 * it has itself. Dispatchers of several threads share a set; its own lock is held while nothing
 * is called. A decision asks for room, gives batches, and settles: who was refused is told when there
 * is room and he is next. What waits is told anew by every decision, so that nobody can be forgotten.
 */
#ifndef SHUNTER_SETS_H
#define SHUNTER_SETS_H

#include <stdbool.h>
#include <stdint.h>

#include "telemetry.h" /* SHUNTER_CLASSES */

#define SHUNTER_SET_DEPTH 2
#define SHUNTER_SET_MOST (2 * SHUNTER_SET_DEPTH) /* with what stands still */
#define SHUNTER_SET_NO_DEADLINE UINT64_MAX

struct shunter_sets; /* all of a process */
struct shunter_member;

/* How a dispatcher is told to decide again: by another's thread, which holds that one's lock, or by its
 * own; perhaps once more after its member has left. So it only rings a bell, which must be
 * there for as long as any thread uses the sets. */
struct shunter_wake {
    void (*ring)(void *bell);
    void *bell;
};

/* What room is wanted for. */
struct shunter_want {
    uint8_t class;
    uint64_t since_ns;  /* when the oldest request of the class came */
    uint64_t ageing_ns; /* 0: best effort never counts as strict */
    uint64_t deadline_ns; /* the earliest of the class; SHUNTER_SET_NO_DEADLINE: none has one */
};

/* NULL: no memory. */
struct shunter_sets *shunter_sets_new(void);
/* All members have left. */
void shunter_sets_free(struct shunter_sets *sets);

/* A worker of ``model``, whose name is any address of its own; ``yields``: its batches stand still while
 * strict ones of others run. NULL: no memory. */
struct shunter_member *shunter_set_join(
    struct shunter_sets *sets, uint32_t number, const void *model, bool yields,
    struct shunter_wake wake);
/* It is gone, and so are its batches. */
void shunter_set_leave(struct shunter_member *member, uint64_t now_ns);

/* Room for one batch, which is kept until it is given or the decision is settled; of how many batches that
 * do not stand still for it it would be behind. -1: there is none for it now. */
int shunter_set_ask(
    struct shunter_member *member, const struct shunter_want *want, uint64_t now_ns);
/* Whether other models of its process asked since then for room for a class, or for one that goes before. */
bool shunter_set_others_ask(struct shunter_member *member, uint8_t class, uint64_t since_ns);
/* Whether a batch may be given to a worker that has one: not where it takes turns, since others may be
 * before it then. */
bool shunter_set_sends_ahead(const struct shunter_member *member, uint8_t class);
/* A batch takes the room that was asked for. False: it needs none. */
bool shunter_set_give(struct shunter_member *member, uint8_t class, uint64_t now_ns);
/* The decision is over; of these classes requests wait still. */
void shunter_set_settle(
    struct shunter_member *member, const bool waits[SHUNTER_CLASSES], uint64_t now_ns);

/*
 * Its oldest batch that took room has ended, which was done at ``done_ns``. ``began_ns``: since when it had the batch,
 * which becomes when it began to run. False: that is not known.
 */
bool shunter_set_end(
    struct shunter_member *member, uint8_t class, uint64_t done_ns, uint64_t now_ns,
    uint64_t *began_ns);
/* Since when no batch of the set is before its oldest one; 0: one is. */
uint64_t shunter_set_first_since_ns(const struct shunter_member *member);

#endif
