/* Whose batch is next in a set, and who is told so. */
#include "set.h"

/* Whose requests of a class are before whose. */
struct order {
    bool is_urgent;
    uint64_t turn, since_ns, number;
};

static struct order order_of(const struct shunter_member *member, uint8_t class) {
    const struct shunter_want *want = &member->wants[class];
    uint64_t since_ns = want->since_ns;
    since_ns = since_ns > member->best_effort_ns ? since_ns : member->best_effort_ns;
    const bool is_aged =
        want->ageing_ns && member->set->now_ns >= since_ns &&
        member->set->now_ns - since_ns >= want->ageing_ns; // one batch, then it waits so long again
    return (struct order){
        class != SHUNTER_SET_BEST_EFFORT || is_aged, member->turn, want->since_ns, member->number};
}

static bool is_before(struct order one, struct order other) {
    return one.is_urgent != other.is_urgent  ? one.is_urgent
           : one.turn != other.turn          ? one.turn < other.turn
           : one.since_ns != other.since_ns  ? one.since_ns < other.since_ns
                                             : one.number < other.number;
}

/* The class of what waits and comes first. */
static uint8_t first_class(const struct shunter_member *member) {
    return member->waits[0] ? SHUNTER_SET_STRICT : SHUNTER_SET_BEST_EFFORT;
}

bool shunter_set_passes(const struct shunter_member *member, uint8_t class) {
    return class == SHUNTER_SET_STRICT && !member->yields && !member->set->is_of_turns;
}

uint32_t shunter_set_behind(const struct shunter_member *member, uint8_t class) {
    const struct shunter_set *set = member->set;
    uint32_t count = 0;
    for (uint32_t i = 0; i < set->count; i++) {
        count += !(set->batches[i].of->yields && shunter_set_passes(member, class));
    }
    return count;
}

/* The same of rooms that decisions have not used yet. */
static uint32_t reserved_for(const struct shunter_member *member, uint8_t class) {
    uint32_t count = 0;
    for (const struct shunter_member *each = member->set->members; each; each = each->next) {
        count += each->reserved != SHUNTER_SET_NO_CLASS &&
                 !(each->yields && shunter_set_passes(member, class));
    }
    return count;
}

/* Its own may be given back unused. */
static uint32_t reserved_by_others(const struct shunter_member *member) {
    uint32_t count = 0;
    for (const struct shunter_member *each = member->set->members; each; each = each->next) {
        count += each->reserved != SHUNTER_SET_NO_CLASS && each->model != member->model;
    }
    return count;
}

static bool has_room(const struct shunter_member *member, uint8_t class) {
    const struct shunter_set *set = member->set;
    const struct order order = order_of(member, class);
    // Who does not pass has no room then, whatever its place in the order.
    const bool is_full = set->count + reserved_by_others(member) >= SHUNTER_SET_DEPTH;
    uint32_t used = shunter_set_behind(member, class) + reserved_for(member, class);
    for (const struct shunter_member *each = set->members; each && used < SHUNTER_SET_DEPTH;
         each = each->next) {
        if (each != member && shunter_set_waits(each)) {
            const uint8_t its = first_class(each);
            used += (!is_full || shunter_set_passes(each, its)) &&
                    is_before(order_of(each, its), order);
        }
    }
    return used < SHUNTER_SET_DEPTH;
}

bool shunter_set_has_room(const struct shunter_member *member, uint8_t class) {
    return member->set->is_of_turns ? shunter_set_has_turn(member, class)
                                    : has_room(member, class);
}

/* With what it waits for. */
static bool may_go(const struct shunter_member *member) {
    if (!member->set->is_of_turns) {
        return has_room(member, first_class(member));
    }
    bool may = false;
    for (uint8_t class = 0; class < SHUNTER_CLASSES; class ++) {
        may |= member->waits[class] && shunter_set_has_turn(member, class);
    }
    return may;
}

/* ---- who is called */

#define MOST_CALLS 8

struct calls {
    struct shunter_wake each[MOST_CALLS];
    uint32_t count;
};

/* Who is next, as many as there is room for, or turns. */
static struct calls choose_calls(struct shunter_set *set) {
    struct calls calls = {.count = 0};
    for (struct shunter_member *each = set->members;
         each && calls.count < MOST_CALLS; each = each->next) {
        if (shunter_set_waits(each) && !each->called && may_go(each)) {
            each->called = true;
            calls.each[calls.count++] = each->wake;
        }
    }
    return calls;
}

void shunter_set_unlock(struct shunter_set *set) {
    for (bool more = true; more;) {
        const struct calls calls = choose_calls(set);
        pthread_mutex_unlock(&set->lock);
        for (uint32_t i = 0; i < calls.count; i++) {
            calls.each[i].ring(calls.each[i].bell);
        }
        more = calls.count == MOST_CALLS; // perhaps
        if (more) {
            pthread_mutex_lock(&set->lock);
        }
    }
}
