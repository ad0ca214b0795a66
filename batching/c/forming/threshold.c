/* How many requests are worth a batch: a copy of batching/forming/threshold.py. */
#include "forming.h"
#include "numbers.h"

#define SHARE_OF_FIXED_COST 0.75
#define SHORTEST_HOLD_NS 300000
#define RETURNING_WEIGHT 0.125
#define RETURNING_ENOUGH 0.75

int64_t shunter_forming_hold_ns(double worth_ns, int64_t max_wait_ns) {
    const int64_t share = shunter_whole(SHARE_OF_FIXED_COST * worth_ns);
    const int64_t hold = max_wait_ns < share ? max_wait_ns : share;
    return hold >= SHORTEST_HOLD_NS ? hold : 0;
}

double shunter_forming_step(double t, double c, double alpha, double cap) {
    double following = t;
    if (c > t) {
        following = alpha * t + (1.0 - alpha) * c;
    } else if (c < t) {
        following = t / 2.0;
    }
    return shunter_smaller(shunter_larger(following, SHUNTER_FORMING_IDLE), cap);
}

void shunter_adaptive_threshold_init(
    struct shunter_adaptive_threshold *threshold, double alpha, double cap) {
    *threshold = (struct shunter_adaptive_threshold){
        .alpha = alpha, .cap = cap, .value = SHUNTER_FORMING_IDLE};
}

void shunter_adaptive_threshold_answered(
    struct shunter_adaptive_threshold *threshold, int64_t now_ns, uint32_t size, int64_t waiting,
    int64_t arrivals, int64_t hold_ns) {
    shunter_adaptive_threshold_settle(threshold, now_ns, arrivals);
    if (!threshold->open) {
        threshold->open = true;
        threshold->held = false;
        threshold->start_ns = now_ns;
        threshold->answers = 0;
        threshold->answered = 0;
        threshold->waiting = waiting;
        threshold->before = arrivals;
    }
    threshold->answers++;
    threshold->answered += size;
    threshold->end_ns = now_ns + hold_ns;
    shunter_adaptive_threshold_settle(threshold, now_ns, arrivals);
}

void shunter_adaptive_threshold_settle(
    struct shunter_adaptive_threshold *threshold, int64_t now_ns, int64_t arrivals) {
    if (!threshold->open || now_ns < threshold->end_ns) {
        return;
    }
    threshold->open = false;
    const int64_t came = arrivals - threshold->before;
    const double count = (double)(threshold->waiting + came) / (double)threshold->answers;
    if (threshold->end_ns > threshold->start_ns) {
        const double share =
            shunter_smaller((double)came / (double)threshold->answered, 1.0);
        threshold->returning += RETURNING_WEIGHT * (share - threshold->returning);
    }
    if (threshold->held && count < threshold->value) {
        threshold->returning *= 0.5;
    }
    if (threshold->waiting + came == 0) {
        threshold->returning = 0.0;
        threshold->value = SHUNTER_FORMING_IDLE;
        return;
    }
    const double following =
        shunter_forming_step(threshold->value, count, threshold->alpha, threshold->cap);
    threshold->value = shunter_larger(following, shunter_smaller(count, threshold->value));
}

double shunter_adaptive_threshold_worth(
    const struct shunter_adaptive_threshold *threshold, int64_t now_ns, uint32_t free_workers,
    int64_t free_since_ns) {
    const bool holding = threshold->open && threshold->start_ns <= free_since_ns &&
                         now_ns < threshold->end_ns;
    return holding && threshold->returning >= RETURNING_ENOUGH
               ? threshold->value * free_workers
               : SHUNTER_FORMING_IDLE;
}

int64_t shunter_adaptive_threshold_held(struct shunter_adaptive_threshold *threshold) {
    threshold->held = true;
    return threshold->end_ns;
}
