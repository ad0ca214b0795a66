/* What is predicted from what was seen; as Forecast and CurrentWorkers of the JVM do. */
#include "dispatch.h"

#define STRICT_MEMORY_NS 1000000000ULL
/* So much later it is not only a batch that takes long. The JVM waits for nothing beyond caution: a
 * batch that was sent to it cannot be had back, here one grows until its worker takes it. */
#define HANGS_NS 1000000000LL
#define FULL_MEMORY_NS 1000000000ULL
#define OTHERS_MEMORY_NS 10000000000ULL

struct shunter_latency_line shunter_line(const struct shunter_served *served) {
    if (shunter_latency_fit_known(&served->seen.fit)) {
        return shunter_latency_fit_line(&served->seen.fit);
    }
    return (struct shunter_latency_line){
        (int64_t)served->policy.fixed_ns, (int64_t)served->policy.per_request_ns};
}

bool shunter_knows(const struct shunter_served *served) {
    const struct shunter_latency_line line = shunter_line(served);
    return line.fixed_ns + line.per_request_ns > 0;
}

int64_t shunter_caution_ns(const struct shunter_served *served) {
    return shunter_latency_fit_caution_ns(&served->seen.fit) + (int64_t)served->policy.margin_ns;
}

uint32_t shunter_size_adding(const struct shunter_served *served, int64_t limit_ns) {
    const int64_t each = shunter_line(served).per_request_ns;
    if (each == 0) {
        return UINT32_MAX;
    }
    const int64_t size = limit_ns / each;
    return size < 1 ? 1 : size > UINT32_MAX ? UINT32_MAX : (uint32_t)size;
}

int64_t shunter_busy_ns(
    const struct shunter_served *served, const struct shunter_worker_state *worker,
    uint64_t now_ns) {
    const struct shunter_latency_line line = shunter_line(served);
    const int64_t now = (int64_t)now_ns;
    int64_t end = (int64_t)worker->began_ns;
    if (!shunter_in_flight(worker)) {
        return 0;
    }
    for (uint64_t number = worker->done + 1; number <= worker->given; number++) {
        end += shunter_latency_ns(line, worker->held[number % SHUNTER_AHEAD].rows);
        end = end > now ? end : now;
    }
    return end - now;
}

bool shunter_is_late(
    const struct shunter_served *served, const struct shunter_worker_state *worker, uint32_t rows,
    uint64_t now_ns) {
    const int64_t longest =
        shunter_latency_ns(shunter_line(served), rows) + shunter_caution_ns(served);
    const int64_t runs = (int64_t)now_ns - (int64_t)(worker->began_ns + worker->excused_ns);
    return shunter_knows(served) && runs > longest + HANGS_NS;
}

int64_t shunter_soonest_ns(const struct shunter_served *served, uint64_t now_ns) {
    int64_t soonest = SHUNTER_FORMING_NEVER;
    for (uint32_t i = 0; i < served->worker_count; i++) {
        const struct shunter_worker_state *worker = &served->workers[i];
        if (!shunter_is_ready(worker)) {
            continue;
        }
        const int64_t lasts =
            shunter_in_flight(worker) ? shunter_latency_ns(shunter_line(served), 1) : 0;
        const int64_t answered = shunter_busy_ns(served, worker, now_ns) + lasts;
        soonest = answered < soonest ? answered : soonest;
    }
    return soonest == SHUNTER_FORMING_NEVER ? 0 : soonest;
}

static bool others_ask(const struct shunter_served *served, uint8_t class, uint64_t since_ns) {
    bool ask = false;
    for (uint32_t i = 0; !ask && i < served->worker_count; i++) {
        struct shunter_member *member = served->workers[i].member;
        ask = member && shunter_set_others_ask(member, class, since_ns);
    }
    return ask;
}

struct shunter_traffic shunter_traffic(const struct shunter_served *served, uint64_t now_ns) {
    const struct shunter_seen *seen = &served->seen;
    struct shunter_traffic traffic = {
        .strict = served->lists[0].count ||
                  (seen->strict && now_ns - seen->last_strict_ns < STRICT_MEMORY_NS)};
    const bool is_full = seen->full_ns && now_ns < seen->full_ns + FULL_MEMORY_NS;
    const uint64_t since_ns = now_ns > OTHERS_MEMORY_NS ? now_ns - OTHERS_MEMORY_NS : 0;
    for (uint8_t class = 0; is_full && class < SHUNTER_CLASSES; class ++) {
        traffic.floods[class] = others_ask(served, class, since_ns);
    }
    return traffic;
}

bool shunter_has_strict_work(const struct shunter_served *served) {
    bool has = served->lists[0].count;
    for (uint32_t i = 0; !has && served->in_flight && i < served->worker_count; i++) {
        const struct shunter_worker_state *state = &served->workers[i];
        for (uint64_t number = state->done + 1; !has && number <= state->given; number++) {
            has = state->held[number % SHUNTER_AHEAD].class == 0;
        }
    }
    return has;
}

static uint32_t smaller(uint32_t one, uint32_t other) { return one < other ? one : other; }

uint32_t shunter_cap(
    const struct shunter_served *served, const struct shunter_worker_state *worker, uint8_t class,
    struct shunter_traffic traffic) {
    const uint32_t each = served->most_rows ? served->most_rows : 1;
    const uint64_t all = (uint64_t)served->queue.entries * each; // that can wait
    uint32_t cap = worker->cap < all ? worker->cap : (uint32_t)all;
    const int64_t lone_ns = shunter_latency_ns(shunter_line(served), 1);
    if (class != 0 && traffic.strict) {
        const uint64_t slo_ns = served->policy.slo_ns;
        cap = smaller(cap, shunter_size_adding(served, slo_ns ? (int64_t)(slo_ns / 2) : lone_ns));
    }
    if (worker->member && traffic.floods[class]) {
        cap = smaller(cap, shunter_size_adding(served, lone_ns));
    }
    return cap;
}

double shunter_threshold(const struct shunter_served *served) {
    return served->policy.threshold > 0 ? served->policy.threshold
                                        : served->seen.threshold.value;
}

/* Whether its latency says something: nothing failed, and nothing was tried once more. */
static bool was_usual(const struct shunter_served *served, const struct shunter_held *batch) {
    return batch->first < 0 || // answered early, all of it
           (!served->waiting[batch->first].alone &&
            shunter_get(shunter_entry_word(
                &served->queue, (uint32_t)batch->first, SHUNTER_E_ENTRY_STATUS)) ==
                SHUNTER_ENTRY_OK);
}

void shunter_forget_latency(struct shunter_served *served) {
    shunter_latency_fit_init(&served->seen.fit, 0, 0);
}

void shunter_learn(
    struct shunter_served *served, const struct shunter_held *batch, bool disturbed,
    uint64_t began_ns, uint64_t waiting_ahead, uint64_t now_ns) {
    struct shunter_seen *seen = &served->seen;
    if (batch->class == SHUNTER_BEST_EFFORT && now_ns > seen->best_effort_served_ns) {
        seen->best_effort_served_ns = now_ns; // another may have been given since
    }
    shunter_adaptive_threshold_settle(&seen->threshold, (int64_t)now_ns, seen->arrivals);
    if (!disturbed && was_usual(served, batch)) {
        shunter_latency_fit_observe(&seen->fit, batch->rows, (int64_t)(now_ns - began_ns));
    }
    seen->threshold.alpha = served->policy.alpha;
    seen->threshold.cap = served->policy.threshold_cap;
    const int64_t worth = shunter_latency_fit_known(&seen->fit)
                              ? shunter_latency_fit_worth_ns(&seen->fit)
                              : (int64_t)served->policy.fixed_ns;
    const int64_t hold =
        shunter_forming_hold_ns((double)worth, (int64_t)served->policy.max_wait_ns);
    const int64_t waiting =
        (int64_t)(served->lists[0].rows + served->lists[1].rows + waiting_ahead);
    shunter_adaptive_threshold_answered(
        &seen->threshold, (int64_t)now_ns, batch->rows, waiting, seen->arrivals, hold);
}
