#include "turns.h"

#include "hold_line.h"
#include "set.h"

#define STRICT SHUNTER_SET_STRICT
#define BEST_EFFORT SHUNTER_SET_BEST_EFFORT
/* Rules are one word, so that who does not take turns now reads that and takes no lock. */
#define EXCLUSIVE (1U << 16)
#define MASK 0xffU

static uint32_t own_order(uint32_t rules, uint8_t class) {
    return (class == STRICT ? rules : rules >> 8) & MASK;
}

static uint32_t order_of(uint32_t rules, uint8_t class) {
    const uint32_t own = own_order(rules, class);
    return own == SHUNTER_ORDER_CONCURRENT ? SHUNTER_ORDER_FIFO : own;
}

static bool is_ordered(uint32_t rules, uint8_t class) {
    return rules & EXCLUSIVE ||
           (class == STRICT && own_order(rules, STRICT) != SHUNTER_ORDER_CONCURRENT);
}

bool shunter_set_takes_turns(const struct shunter_set *set, uint8_t class) {
    return is_ordered(atomic_load_explicit(&set->rules, memory_order_relaxed), class);
}

bool shunter_set_sends_ahead(const struct shunter_member *member, uint8_t class) {
    return !member->set->is_of_turns || !shunter_set_takes_turns(member->set, class);
}

bool shunter_turns_apply(const struct shunter_sets *sets) {
    return shunter_set_takes_turns(shunter_set_of_turns(sets), STRICT);
}

static uint32_t known(uint32_t order) {
    return order <= SHUNTER_ORDER_ROUND_ROBIN ? order : SHUNTER_ORDER_CONCURRENT;
}

void shunter_turns_obey(struct shunter_sets *sets, struct shunter_turn_rules rules) {
    struct shunter_set *set = shunter_set_of_turns(sets);
    const uint32_t word =
        known(rules.strict) | known(rules.best_effort) << 8 | (rules.exclusive ? EXCLUSIVE : 0);
    if (atomic_load_explicit(&set->rules, memory_order_relaxed) != word) {
        pthread_mutex_lock(&set->lock);
        atomic_store_explicit(&set->rules, word, memory_order_relaxed);
        shunter_set_unlock(set);
    }
}

struct shunter_member *shunter_turns_join(
    struct shunter_sets *sets, const void *model, struct shunter_wake wake,
    const struct shunter_slice_set *slices) {
    return shunter_set_enlist(shunter_set_of_turns(sets), model, wake, slices);
}

/* ---- whose turn it is, under the lock */

static bool overlap(const struct shunter_member *one, const struct shunter_member *other) {
    uint64_t both = 0;
    for (uint32_t i = 0; i < SHUNTER_SLICE_WORDS; i++) {
        both |= one->slices.words[i] & other->slices.words[i];
    }
    return both != 0;
}

static bool is_aged(const struct shunter_member *member, uint8_t class) {
    const struct shunter_want *want = &member->wants[class];
    const uint64_t now_ns = member->set->now_ns;
    return want->ageing_ns && now_ns > want->since_ns && now_ns - want->since_ns >= want->ageing_ns;
}

/* Of one class. */
static bool is_before(
    const struct shunter_member *one, const struct shunter_member *other, uint8_t class,
    uint32_t order) {
    const struct shunter_want *a = &one->wants[class], *b = &other->wants[class];
    if (order == SHUNTER_ORDER_EDF && a->deadline_ns != b->deadline_ns) {
        return a->deadline_ns < b->deadline_ns;
    }
    if (order == SHUNTER_ORDER_ROUND_ROBIN) {
        const bool is_a = is_aged(one, class), is_b = is_aged(other, class);
        if (is_a != is_b) {
            return is_a;
        }
        if (!is_a && one->turn != other->turn) {
            return one->turn < other->turn;
        }
    }
    return a->since_ns != b->since_ns ? a->since_ns < b->since_ns : one->number < other->number;
}

/* What another one runs, or wants before, of a class. */
static bool is_in_the_way(
    const struct shunter_member *other, uint8_t of, const struct shunter_member *member,
    uint8_t class, uint32_t rules) {
    if (other->running[of] || other->reserved == of) {
        return true;
    }
    return other->waits[of] &&
           (of != class ? of == STRICT : is_before(other, member, class, order_of(rules, class)));
}

bool shunter_set_has_turn(const struct shunter_member *member, uint8_t class) {
    const uint32_t rules = atomic_load_explicit(&member->set->rules, memory_order_relaxed);
    if (!is_ordered(rules, class)) {
        return true;
    }
    for (const struct shunter_member *each = member->set->members; each; each = each->next) {
        for (uint8_t of = 0; of < SHUNTER_CLASSES; of++) {
            const bool conflicts = of == class ? each->model != member->model
                                               : (rules & EXCLUSIVE) != 0;
            if (conflicts && is_in_the_way(each, of, member, class, rules) &&
                overlap(each, member)) {
                return false;
            }
        }
    }
    return true;
}
