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

/* Of what waits, by what comes first. */
static struct order first_of(const struct shunter_member *member) {
    return order_of(member, member->waits[0] ? SHUNTER_SET_STRICT : SHUNTER_SET_BEST_EFFORT);
}

static bool has_room(const struct shunter_member *member, struct order order) {
    const struct shunter_set *set = member->set;
    uint32_t used = set->count + set->reserved;
    for (const struct shunter_member *each = set->members; each && used < SHUNTER_SET_DEPTH;
         each = each->next) {
        used += each != member && shunter_set_waits(each) && is_before(first_of(each), order);
    }
    return used < SHUNTER_SET_DEPTH;
}

bool shunter_set_has_room(const struct shunter_member *member, uint8_t class) {
    return has_room(member, order_of(member, class));
}

/* ---- who is called */

struct calls {
    struct shunter_wake each[SHUNTER_SET_DEPTH];
    uint32_t count;
};

/* Who is next, as many as there is room for. */
static struct calls choose_calls(struct shunter_set *set) {
    struct calls calls = {.count = 0};
    for (struct shunter_member *each = set->members;
         each && calls.count < SHUNTER_SET_DEPTH && set->count + set->reserved < SHUNTER_SET_DEPTH;
         each = each->next) {
        if (shunter_set_waits(each) && !each->called && has_room(each, first_of(each))) {
            each->called = true;
            calls.each[calls.count++] = each->wake;
        }
    }
    return calls;
}

void shunter_set_unlock(struct shunter_set *set) {
    const struct calls calls = choose_calls(set);
    pthread_mutex_unlock(&set->lock);
    for (uint32_t i = 0; i < calls.count; i++) {
        calls.each[i].ring(calls.each[i].bell);
    }
}
