#include "sets.h"

#include <stdlib.h>

#include "set.h"

struct shunter_sets {
    pthread_mutex_t lock; /* of the list */
    struct shunter_set *first;
    struct shunter_set *turns;
};

static struct shunter_set *new_set(uint32_t number) {
    struct shunter_set *set = calloc(1, sizeof *set);
    if (set) {
        set->number = number;
        pthread_mutex_init(&set->lock, NULL);
    }
    return set;
}

static void free_set(struct shunter_set *set) {
    pthread_mutex_destroy(&set->lock);
    free(set);
}

struct shunter_sets *shunter_sets_new(void) {
    struct shunter_sets *sets = calloc(1, sizeof *sets);
    if (!sets || !(sets->turns = new_set(0))) {
        free(sets);
        return NULL;
    }
    sets->turns->is_of_turns = true;
    pthread_mutex_init(&sets->lock, NULL);
    return sets;
}

void shunter_sets_free(struct shunter_sets *sets) {
    if (!sets) {
        return;
    }
    for (struct shunter_set *set = sets->first, *next; set; set = next) {
        next = set->next;
        free_set(set);
    }
    free_set(sets->turns);
    pthread_mutex_destroy(&sets->lock);
    free(sets);
}

struct shunter_set *shunter_set_of_turns(const struct shunter_sets *sets) { return sets->turns; }

static void tell_time(struct shunter_set *set, uint64_t now_ns) {
    set->now_ns = now_ns > set->now_ns ? now_ns : set->now_ns;
}

/* ---- members */

/* NULL: no memory. */
static struct shunter_set *set_of(struct shunter_sets *sets, uint32_t number) {
    pthread_mutex_lock(&sets->lock);
    struct shunter_set *found = sets->first;
    while (found && found->number != number) {
        found = found->next;
    }
    if (!found && (found = new_set(number))) {
        found->next = sets->first;
        sets->first = found;
    }
    pthread_mutex_unlock(&sets->lock);
    return found;
}

struct shunter_member *shunter_set_join(
    struct shunter_sets *sets, uint32_t number, const void *model, bool yields,
    struct shunter_wake wake) {
    const struct shunter_slice_set nowhere = {{0}};
    struct shunter_set *set = set_of(sets, number);
    struct shunter_member *member = set ? shunter_set_enlist(set, model, wake, &nowhere) : NULL;
    if (member) {
        member->yields = yields; // nobody asks about it before it has asked for room
    }
    return member;
}

struct shunter_member *shunter_set_enlist(
    struct shunter_set *set, const void *model, struct shunter_wake wake,
    const struct shunter_slice_set *slices) {
    struct shunter_member *member = calloc(1, sizeof *member);
    if (!member) {
        return NULL;
    }
    member->slices = *slices;
    member->set = set;
    member->model = model;
    member->wake = wake;
    member->reserved = SHUNTER_SET_NO_CLASS;
    pthread_mutex_lock(&set->lock);
    member->number = ++set->joined;
    for (const struct shunter_member *each = set->members; each; each = each->next) {
        if (each->model == model) { // a new worker does not make its model the first
            member->turn = each->turn;
            member->best_effort_ns = each->best_effort_ns;
        }
    }
    member->next = set->members;
    set->members = member;
    pthread_mutex_unlock(&set->lock);
    return member;
}

static void drop_room(struct shunter_member *member) {
    member->set->reserved -= member->reserved != SHUNTER_SET_NO_CLASS;
    member->reserved = SHUNTER_SET_NO_CLASS;
}

static void take_out(struct shunter_set *set, uint32_t at, uint64_t now_ns) {
    set->count--;
    for (uint32_t i = at; i < set->count; i++) {
        set->batches[i] = set->batches[i + 1];
    }
    if (at == 0 && set->count) {
        set->batches[0].first_ns = now_ns;
    }
}

void shunter_set_leave(struct shunter_member *member, uint64_t now_ns) {
    struct shunter_set *set = member->set;
    pthread_mutex_lock(&set->lock);
    tell_time(set, now_ns);
    drop_room(member);
    for (uint32_t at = set->count; at-- > 0;) {
        if (set->batches[at].of == member) {
            take_out(set, at, set->now_ns);
            set->done_ns = set->now_ns; // what follows has not begun before
        }
    }
    struct shunter_member **link = &set->members;
    while (*link != member) {
        link = &(*link)->next;
    }
    *link = member->next;
    shunter_set_unlock(set);
    free(member);
}

/* ---- decisions */

int shunter_set_ask(
    struct shunter_member *member, const struct shunter_want *want, uint64_t now_ns) {
    struct shunter_set *set = member->set;
    const uint8_t class = want->class;
    if (set->is_of_turns && !shunter_set_takes_turns(set, class)) {
        // The turn of its strict requests may come before best effort has ended.
        return member->refused[SHUNTER_SET_STRICT] ? SHUNTER_SET_NO_CLASS : 0;
    }
    pthread_mutex_lock(&set->lock);
    tell_time(set, now_ns);
    member->wants[class] = *want;
    member->asked_ns[class] = set->now_ns;
    if (member->reserved != class) {
        drop_room(member); // it was for others, which may go before somebody when these do not
        if (shunter_set_has_room(member, class)) {
            member->reserved = class;
            set->reserved++;
            member->waits[class] = member->refused[class] = false;
        } else {
            member->waits[class] = member->refused[class] = true;
        }
    }
    const int behind = member->reserved == class ? (int)shunter_set_behind(member, class)
                                                 : SHUNTER_SET_NO_CLASS;
    pthread_mutex_unlock(&set->lock);
    return behind;
}

bool shunter_set_others_ask(struct shunter_member *member, uint8_t class, uint64_t since_ns) {
    struct shunter_set *set = member->set;
    bool ask = false;
    pthread_mutex_lock(&set->lock);
    for (const struct shunter_member *each = set->is_of_turns ? NULL : set->members; each && !ask;
         each = each->next) {
        for (uint8_t its = 0; each->model != member->model && its <= class; its++) {
            ask = ask || each->asked_ns[its] > since_ns;
        }
    }
    pthread_mutex_unlock(&set->lock);
    return ask;
}

/* One that passes runs before what stands still or has not begun; if it has, it is the first one. */
static void put_in(struct shunter_member *member, uint8_t class) {
    struct shunter_set *set = member->set;
    uint32_t at = set->count++;
    while (shunter_set_passes(member, class) && at > 1 && set->batches[at - 1].of->yields) {
        set->batches[at] = set->batches[at - 1];
        at--;
    }
    set->batches[0].was_passed |= at > 0 && set->batches[0].of->yields;
    set->batches[at].of = member;
    set->batches[at].first_ns = at ? 0 : set->now_ns;
    set->batches[at].was_passed = false;
}

/* Its model's best effort waits so long again, from when a batch of it is given or has ended: one
 * that takes longer than that would be urgent for ever. */
static void serve_best_effort(struct shunter_member *member, uint8_t class) {
    if (class != SHUNTER_SET_BEST_EFFORT) {
        return;
    }
    for (struct shunter_member *each = member->set->members; each; each = each->next) {
        if (each->model == member->model) {
            each->best_effort_ns = member->set->now_ns;
        }
    }
}

bool shunter_set_give(struct shunter_member *member, uint8_t class, uint64_t now_ns) {
    struct shunter_set *set = member->set;
    if (member->reserved != class) {
        return false; // it takes no turns now; in a set of one process nobody gives without
    }
    pthread_mutex_lock(&set->lock);
    tell_time(set, now_ns);
    drop_room(member);
    if (set->is_of_turns) {
        member->running[class]++;
    } else {
        put_in(member, class);
    }
    set->turns++;
    member->gave = true;
    for (struct shunter_member *each = set->members; each; each = each->next) {
        if (each->model == member->model) {
            each->turn = set->turns;
        }
    }
    serve_best_effort(member, class);
    pthread_mutex_unlock(&set->lock);
    return true;
}

void shunter_set_settle(
    struct shunter_member *member, const bool still[SHUNTER_CLASSES], uint64_t now_ns) {
    struct shunter_set *set = member->set;
    if (member->reserved == SHUNTER_SET_NO_CLASS && !member->gave && !shunter_set_waits(member)) {
        return; // only its own decisions change that
    }
    pthread_mutex_lock(&set->lock);
    tell_time(set, now_ns);
    drop_room(member);
    for (int class = 0; class < SHUNTER_CLASSES; class ++) {
        member->waits[class] = member->refused[class] && still[class];
        member->refused[class] = false;
    }
    member->called = member->gave = false;
    shunter_set_unlock(set);
}

/* ---- batches */

bool shunter_set_end(
    struct shunter_member *member, uint8_t class, uint64_t done_ns, uint64_t now_ns,
    uint64_t *began_ns) {
    struct shunter_set *set = member->set;
    bool is_known = set->is_of_turns; // it began at once
    uint32_t at = 0;
    pthread_mutex_lock(&set->lock);
    tell_time(set, now_ns);
    serve_best_effort(member, class);
    member->running[class] -= set->is_of_turns;
    while (at < set->count && set->batches[at].of != member) {
        at++;
    }
    if (at < set->count) {
        // It began when the one before it was done. One that was given before it and has not ended yet
        // may have run before it, or may run now; or it stands still for it.
        is_known = set->done_ns <= done_ns && !set->batches[at].was_passed &&
                   (at == 0 || (at == 1 && set->batches[0].of->yields &&
                                shunter_set_passes(member, class)));
        *began_ns = is_known && set->done_ns > *began_ns ? set->done_ns : *began_ns;
        set->done_ns = done_ns > set->done_ns ? done_ns : set->done_ns;
        take_out(set, at, set->now_ns);
    }
    shunter_set_unlock(set);
    return is_known;
}

uint64_t shunter_set_first_since_ns(const struct shunter_member *member) {
    struct shunter_set *set = member->set;
    if (set->is_of_turns) {
        return 1; // none ever is
    }
    pthread_mutex_lock(&set->lock);
    const bool is_first = set->count && set->batches[0].of == member;
    const uint64_t since_ns = is_first ? set->batches[0].first_ns : 0;
    pthread_mutex_unlock(&set->lock);
    return since_ns;
}
