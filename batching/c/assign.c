/* One batch: how many rows of a class go to a worker, so that they are in time; as BatchBuilder
 * of the JVM does it. */
#include "plan.h"

/* Time until another worker can take requests; never 0 for one that is overdue. */
static int64_t next_free_ns(const struct plan *plan, uint32_t except) {
    int64_t soonest = SHUNTER_FORMING_NEVER;
    for (uint32_t i = 0; i < plan->served->worker_count; i++) {
        const struct shunter_worker_state *worker = worker_of(plan, i);
        if (i == except || !shunter_is_ready(worker)) {
            continue;
        }
        int64_t busy = shunter_busy_ns(plan->served, worker, plan->now_ns);
        busy = shunter_in_flight(worker) && busy < 1 ? 1 : busy;
        soonest = busy < soonest ? busy : soonest;
    }
    return soonest;
}

static void give_up(struct plan *plan, uint8_t class, uint32_t count) {
    struct shunter_served *served = plan->served;
    for (; count && served->lists[class].count; count--) {
        shunter_expire(served, (uint32_t)shunter_most_urgent(served, class), plan->now_ns);
    }
}

/* How many rows of a class go to a worker, so that they are in time; those for whom the others would be
 * too late are given up. */
static uint32_t fit_deadlines(struct plan *plan, uint32_t to, uint8_t class, uint32_t size) {
    struct shunter_served *served = plan->served;
    const struct shunter_class_list *list = &served->lists[class];
    const int64_t start =
        signed_now(plan) + shunter_busy_ns(served, worker_of(plan, to), plan->now_ns);
    struct shunter_latency_line line = shunter_line(served);
    line.fixed_ns += shunter_caution_ns(served);
    const struct shunter_waiting *first = &served->waiting[list->heap[0]];
    const uint32_t rows_now = first->rows > size ? first->rows : size;
    if ((int64_t)first->deadline_ns - start >= shunter_latency_ns(line, rows_now)) {
        return size;
    }
    const uint32_t cap = cap_of(plan, to, class), waiting = list->rows;
    const int64_t next = next_free_ns(plan, to);
    int64_t slacks[SHUNTER_MAX_ENTRIES];
    uint32_t rows[SHUNTER_MAX_ENTRIES], count = next == 0 ? 1 : 2 * cap + 1;
    count = shunter_first_deadlines(served, class, slacks, rows, count);
    for (uint32_t i = 0; i < count; i++) {
        slacks[i] -= slacks[i] == SHUNTER_FORMING_NEVER ? 0 : start;
    }
    const struct shunter_cut cut = shunter_forming_fit_deadlines(
        slacks, rows, count, waiting, size < waiting ? size : waiting, cap, line, next);
    give_up(plan, class, cut.skip);
    return cut.take;
}

void shunter_take(
    struct shunter_served *served, struct shunter_held *batch, uint8_t class, uint32_t most,
    uint32_t limit) {
    int32_t entry;
    while (most && (entry = shunter_most_urgent_of(served, class, limit)) >= 0) {
        const uint32_t rows = served->waiting[entry].rows;
        batch->alone = served->waiting[entry].alone;
        if (batch->alone && batch->count) {
            batch->alone = false;
            return;
        }
        if (rows > most && batch->count) {
            return; // the others of this class do not overtake it
        }
        batch->deadline_ns =
            shunter_earlier(batch->deadline_ns, served->waiting[entry].deadline_ns);
        shunter_dequeue(served, (uint32_t)entry);
        served->waiting[entry].next = -1;
        *(batch->count ? &served->waiting[batch->last].next : &batch->first) = entry;
        batch->last = entry;
        batch->count++;
        batch->rows += rows;
        most -= rows < most ? rows : most;
        if (batch->alone) {
            return;
        }
    }
}

/* Whether some of a class are not for a worker that takes so many rows of a request. */
static bool some_are_not_for(
    const struct shunter_served *served, uint8_t class, uint32_t limit) {
    if (served->most_waiting <= limit) {
        return false;
    }
    int32_t at = served->lists[class].first;
    while (at >= 0 && served->waiting[at].rows <= limit) {
        at = served->waiting[at].next;
    }
    return at >= 0;
}

void shunter_assign(struct plan *plan, uint32_t to, uint8_t class, uint32_t size) {
    struct shunter_served *served = plan->served;
    const struct shunter_class_list *list = &served->lists[class];
    struct shunter_held batch = {.first = -1, .last = -1, .class = class};
    uint32_t room = cap_of(plan, to, class);
    const uint32_t limit = worker_of(plan, to)->cap;
    if (!list->count) {
        return; // given up for the sake of a batch before
    }
    // Who is late because of others is not known where these may be for another worker.
    if (list->deadlines && shunter_knows(served) && !has_alone(plan, class) &&
        !some_are_not_for(served, class, limit)) {
        size = fit_deadlines(plan, to, class, size);
        const int64_t deadline = list->deadlines
            ? (int64_t)served->waiting[list->heap[0]].deadline_ns
            : SHUNTER_FORMING_NEVER;
        const int64_t fixed = shunter_line(served).fixed_ns + shunter_caution_ns(served);
        const uint32_t more =
            shunter_size_adding(served, deadline - signed_now(plan) - fixed);
        room = more < room ? more : room;
    }
    shunter_take(served, &batch, class, size, limit);
    const uint32_t own = batch.rows;
    if (!own) {
        return;
    }
    // Best effort adds no more to strict requests than in a batch of its own.
    const uint32_t best_effort = cap_of(plan, to, BEST_EFFORT);
    const uint32_t most = room < best_effort ? room : best_effort;
    if (served->policy.mixes && !batch.alone && own < most) {
        shunter_take(served, &batch, !class, most - own, limit);
    }
    if (class == BEST_EFFORT || batch.rows > own) {
        served->seen.best_effort_served_ns = plan->now_ns;
    }
    shunter_give(served, to, batch, plan->now_ns);
}

/* How many rows more a batch may get that its worker has not taken; all of it stays in time. */
static uint32_t room_in(
    const struct plan *plan, uint32_t worker, const struct shunter_held *batch) {
    const struct shunter_served *served = plan->served;
    const struct shunter_class_list *list = &served->lists[batch->class];
    const uint32_t cap = cap_of(plan, worker, batch->class);
    const uint32_t room = batch->rows < cap ? cap - batch->rows : 0;
    const uint64_t deadline = shunter_earlier(
        batch->deadline_ns, list->deadlines ? served->waiting[list->heap[0]].deadline_ns : 0);
    if (!deadline || !shunter_knows(served)) {
        return room;
    }
    const int64_t slack = (int64_t)deadline - signed_now(plan) - shunter_caution_ns(served) -
                          shunter_busy_ns(served, worker_of(plan, worker), plan->now_ns);
    const int64_t each = shunter_line(served).per_request_ns;
    if (slack < each) {
        return 0;
    }
    const uint32_t more = shunter_size_adding(served, slack);
    return more < room ? more : room;
}

/* A worker that was woken needs a while to take its batch, the longer the more the processors have to
 * do: what comes until then joins it, and one waking serves them all. */
void shunter_fill_up(struct plan *plan, uint8_t class) {
    struct shunter_served *served = plan->served;
    const bool others_are_first =
        class == BEST_EFFORT ? plan->traffic.strict : plan->best_effort_waits;
    if (others_are_first || served->streamed || has_alone(plan, class)) {
        return;
    }
    for (uint32_t i = 0; i < served->worker_count && served->lists[class].count; i++) {
        const struct shunter_worker_state *worker = worker_of(plan, i);
        const struct shunter_held *batch =
            shunter_is_ready(worker) ? shunter_open_batch(served, i) : NULL;
        // A batch that was given just now has the size that it should have.
        if (!batch || batch->class != class || batch->alone || batch->given_ns == plan->now_ns) {
            continue;
        }
        const uint32_t room = room_in(plan, i, batch);
        const int32_t first = shunter_most_urgent_of(served, class, worker->cap);
        if (first < 0 || served->waiting[first].rows > room) {
            continue;
        }
        struct shunter_held more = {.first = -1, .last = -1, .class = class};
        shunter_take(served, &more, class, room, worker->cap);
        shunter_join(served, i, more, plan->now_ns);
    }
}
