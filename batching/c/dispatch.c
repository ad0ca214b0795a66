/* Who works on what. */
#include "dispatch.h"

static uint64_t us(uint64_t ns) { return ns / 1000; }

static void expire(struct shunter_served *served, uint64_t now_ns) {
    const struct shunter_owner *owner = &served->owner;
    for (int class = 0; class < SHUNTER_CLASSES; class ++) {
        const struct shunter_class_list *list = &served->lists[class];
        while (list->deadlines && served->waiting[list->heap[0]].deadline_ns <= now_ns) {
            const uint32_t entry = (uint32_t)list->heap[0];
            shunter_dequeue(served, entry);
            served->counts->expired++;
            owner->expired(owner->context, entry, now_ns);
        }
    }
}

static uint64_t tightest(
    const struct shunter_served *served, const struct shunter_class_list *list) {
    return list->deadlines ? served->waiting[list->heap[0]].deadline_ns : SHUNTER_NEVER;
}

/* Free workers; their caps in order. */
static uint32_t free_workers(
    const struct shunter_served *served, uint32_t *workers, uint32_t *caps) {
    uint32_t count = 0;
    for (uint32_t i = 0; i < served->worker_count; i++) {
        const struct shunter_worker_state *state = &served->workers[i];
        if (state->present && !state->draining && !shunter_in_flight(state)) {
            workers[count] = i;
            caps[count++] = state->cap;
        }
    }
    return count;
}

static uint64_t predicted_ns(
    const struct shunter_served *served, const struct shunter_class_list *list, uint64_t capacity) {
    const uint64_t size = list->count < capacity ? list->count : capacity;
    return served->policy.fixed_ns + size * served->policy.per_request_ns;
}

static bool release_class(struct shunter_served *served, uint8_t class, uint64_t now_ns) {
    const struct shunter_policy *policy = &served->policy;
    struct shunter_class_list *list = &served->lists[class];
    uint32_t workers[SHUNTER_WORKER_COUNT], caps[SHUNTER_WORKER_COUNT];
    uint32_t sizes[SHUNTER_WORKER_COUNT];
    const uint32_t count = free_workers(served, workers, caps);
    uint64_t capacity = 0;
    for (uint32_t i = 0; i < count; i++) {
        capacity += caps[i];
    }
    if (!list->count || !count) {
        return false;
    }
    const uint64_t deadline = tightest(served, list);
    const uint64_t predicted = predicted_ns(served, list, capacity);
    if (!shunter_should_release(
            list->count, us(now_ns - served->waiting[list->first].arrival_ns),
            deadline != SHUNTER_NEVER, ((int64_t)deadline - (int64_t)now_ns) / 1000, policy->threshold,
            us(policy->max_wait_ns), capacity, us(predicted), us(policy->margin_ns))) {
        return false;
    }
    shunter_split(list->count, caps, count, sizes);
    bool given = false;
    for (uint32_t i = 0; i < count && list->count; i++) {
        if (sizes[i]) {
            shunter_give(served, workers[i], shunter_take(served, class, sizes[i]), now_ns);
            given = true;
        }
    }
    return given;
}

/* The next batch of a busy worker: as many requests as are worth one, when nobody is free. */
static bool send_ahead(struct shunter_served *served, uint8_t class, uint64_t now_ns) {
    uint32_t workers[SHUNTER_WORKER_COUNT], caps[SHUNTER_WORKER_COUNT];
    const struct shunter_class_list *list = &served->lists[class];
    if (!served->policy.ahead || !list->count || free_workers(served, workers, caps)) {
        return false;
    }
    for (uint32_t i = 0; i < served->worker_count; i++) {
        const struct shunter_worker_state *state = &served->workers[i];
        if (!state->present || state->draining || shunter_in_flight(state) != 1) {
            continue;
        }
        const uint8_t runs = state->held[state->given % SHUNTER_AHEAD].class;
        const bool behind_strict = class == 0 && runs == 0;
        const double least =
            served->policy.threshold < state->cap ? served->policy.threshold : state->cap;
        if ((behind_strict || !served->lists[0].count) && list->count >= least) {
            shunter_give(served, i, shunter_take(served, class, state->cap), now_ns);
            return true;
        }
    }
    return false;
}

/* Best effort goes first once in ``ageing_ns`` if it has waited as long. */
static bool aged(struct shunter_served *served, uint64_t now_ns) {
    const struct shunter_class_list *list = &served->lists[1];
    const uint64_t ageing = served->policy.ageing_ns;
    return ageing && list->count && now_ns - served->aged_ns >= ageing &&
           now_ns - served->waiting[list->first].arrival_ns >= ageing;
}

/* When time alone changes something. */
static uint64_t next_ns(const struct shunter_served *served) {
    uint32_t workers[SHUNTER_WORKER_COUNT], caps[SHUNTER_WORKER_COUNT];
    const uint32_t free_count = free_workers(served, workers, caps);
    uint64_t next = SHUNTER_NEVER, capacity = 0;
    for (uint32_t i = 0; i < free_count; i++) {
        capacity += caps[i];
    }
    for (uint8_t class = 0; class < SHUNTER_CLASSES; class ++) {
        const struct shunter_class_list *list = &served->lists[class];
        uint64_t deadline = tightest(served, list);
        if (list->count && free_count) { // held back; it goes when its deadline is near
            const uint64_t early =
                predicted_ns(served, list, capacity) + served->policy.margin_ns;
            const uint64_t waited =
                served->waiting[list->first].arrival_ns + served->policy.max_wait_ns;
            if (deadline != SHUNTER_NEVER) {
                deadline = deadline > early ? deadline - early : 0;
            }
            next = waited < next ? waited : next;
        }
        next = deadline < next ? deadline : next;
    }
    return next;
}

uint64_t shunter_dispatch(struct shunter_served *served, uint64_t now_ns) {
    expire(served, now_ns);
    if (aged(served, now_ns) && release_class(served, 1, now_ns)) {
        served->aged_ns = now_ns;
    }
    for (uint8_t class = 0; class < SHUNTER_CLASSES; class ++) {
        while (release_class(served, class, now_ns)) {
        }
        while (send_ahead(served, class, now_ns)) {
        }
    }
    const bool wants = served->lists[0].count || served->lists[1].count || served->indirect;
    atomic_store(
        shunter_front_end_word(&served->queue, SHUNTER_Q_FRONT_END_WANTS_DONE), wants);
    return next_ns(served);
}
