/* A set and its members, for those who keep it: sets.c who comes, goes and has room, order.c who is
 * next; turns.c the same of the set that is not of one process, but of all that take turns. */
#ifndef SHUNTER_SET_H
#define SHUNTER_SET_H

#include <pthread.h>
#include <stdatomic.h>

#include "hold_line.h"
#include "sets.h"

#define SHUNTER_SET_STRICT 0
#define SHUNTER_SET_BEST_EFFORT 1
#define SHUNTER_SET_NO_CLASS (-1)

struct shunter_set {
    struct shunter_set *next;
    uint32_t number;
    pthread_mutex_t lock; /* of all that follows, and of the members */
    struct shunter_member *members;
    struct {
        struct shunter_member *of;
        uint64_t first_ns; /* since when it is the first one */
        bool was_passed;   /* another one may have run in its midst */
    } batches[SHUNTER_SET_MOST]; /* in the order in which they run */
    uint32_t count;    /* of these */
    uint32_t reserved; /* rooms that decisions have not used yet */
    uint64_t done_ns;  /* when a batch was done last */
    uint64_t now_ns;   /* the latest that anybody has said: threads need not agree on the time */
    uint64_t turns;    /* batches that were given */
    uint64_t joined;
    /* of the set of turns: turns.c */
    bool is_of_turns;
    _Atomic uint32_t rules;
};

struct shunter_member {
    struct shunter_set *set;
    struct shunter_member *next;
    const void *model;
    bool yields; /* its batches stand still for strict ones */
    struct shunter_wake wake;
    uint64_t number;         /* of those that have joined */
    uint64_t turn;           /* of the last batch of its model; 0: it had none */
    uint64_t best_effort_ns; /* when one of best effort was given, or ended, last */
    struct shunter_want wants[SHUNTER_CLASSES];
    uint64_t asked_ns[SHUNTER_CLASSES]; /* for room, last; 0: never */
    bool waits[SHUNTER_CLASSES]; /* for room */
    bool called;                 /* since its last decision: its next one will ask */
    /* of the set of turns */
    struct shunter_slice_set slices;   /* where it runs */
    uint32_t running[SHUNTER_CLASSES]; /* batches */
    /* of the decision that goes on */
    bool refused[SHUNTER_CLASSES];
    bool gave; /* others may not have to wait for it any more */
    int reserved; /* the class that room is kept for, or SHUNTER_SET_NO_CLASS */
};

/* ---- sets.c */

struct shunter_set *shunter_set_of_turns(const struct shunter_sets *sets);
/* A new member. NULL: no memory. */
struct shunter_member *shunter_set_enlist(
    struct shunter_set *set, const void *model, struct shunter_wake wake,
    const struct shunter_slice_set *slices);

/* ---- turns.c */

/* Whether batches of a class take turns now. */
bool shunter_set_takes_turns(const struct shunter_set *set, uint8_t class);
/* Under the lock: whether one may begin. */
bool shunter_set_has_turn(const struct shunter_member *member, uint8_t class);

/* ---- order.c, under the lock */

/* Whether a batch of a class runs where those of members that yield stand still. */
bool shunter_set_passes(const struct shunter_member *member, uint8_t class);
/* Batches that are given and do not stand still for it. */
uint32_t shunter_set_behind(const struct shunter_member *member, uint8_t class);
/* Whether there is room for a batch of a class, after those of others that wait and go before it. */
bool shunter_set_has_room(const struct shunter_member *member, uint8_t class);
/* Let go of the lock, and call who is next: as many as there is room for. */
void shunter_set_unlock(struct shunter_set *set);

static inline bool shunter_set_waits(const struct shunter_member *member) {
    return member->waits[SHUNTER_SET_STRICT] || member->waits[SHUNTER_SET_BEST_EFFORT];
}

#endif
