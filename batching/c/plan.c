/*
 * Which waiting requests go to which workers now: the sequence of BatchPlanner and BatchSplit of the
 * JVM, so that the same arrivals become the same batches.
 */
#include <limits.h>
#include <string.h>

#include "plan.h"

#define LONGEST_TO_QUEUE_BEHIND_NS 5000000
#define LATE_NS 1000000

static uint64_t earlier(uint64_t a, uint64_t b) { return a < b ? a : b; }

/* Of how many batches of others one would be behind; -1: its set has no room. */
static int room_at(
    const struct plan *plan, const struct shunter_worker_state *worker, uint8_t class) {
    return worker->member ? shunter_room(plan->served, worker, class, plan->now_ns) : 0;
}

/* Where none of another model runs, if there is such a worker. */
static void collect_free(struct plan *plan, uint8_t class) {
    int least = INT_MAX;
    plan->free_count = 0;
    for (uint32_t i = 0; i < plan->served->worker_count; i++) {
        const struct shunter_worker_state *worker = worker_of(plan, i);
        if (shunter_is_ready(worker) && !shunter_in_flight(worker)) {
            const int behind = room_at(plan, worker, class);
            if (behind >= 0 && behind <= least) {
                plan->free_count = behind < least ? 0 : plan->free_count;
                least = behind;
                plan->free[plan->free_count++] = i;
            }
        }
    }
}

/* ---- what waits, over the workers that are free */

/* Workers that will be free soon take their share too, so that all end together: else the clients of
 * a large batch, which come back at once, stay the large batch of that worker while another one runs
 * small ones; and with best effort waiting they would begin another long batch just when strict
 * requests could use them. */
static uint32_t add_busy(const struct plan *plan, uint32_t *workers, uint32_t count) {
    for (uint32_t i = 0; i < plan->served->worker_count; i++) {
        const struct shunter_worker_state *worker = worker_of(plan, i);
        const bool was_busy = shunter_in_flight(worker) == 1 && worker->began_ns < plan->now_ns;
        if (shunter_is_ready(worker) && was_busy && !worker->member && // others may go before it
            shunter_busy_ns(plan->served, worker, plan->now_ns) > 0) {
            workers[count++] = i;
        }
    }
    return count;
}

/* With strict traffic, best-effort batches of several workers end one after the other. */
static uint32_t staggered(const struct plan *plan, uint32_t to, uint32_t cap) {
    int64_t busy_ns[SHUNTER_WORKER_COUNT];
    uint32_t count = 0;
    if (!plan->traffic.strict || !shunter_knows(plan->served)) {
        return cap;
    }
    for (uint32_t i = 0; i < plan->served->worker_count; i++) {
        const struct shunter_worker_state *worker = worker_of(plan, i);
        if (i != to && shunter_is_ready(worker)) {
            busy_ns[count] = shunter_busy_ns(plan->served, worker, plan->now_ns);
            count += busy_ns[count] > 0;
        }
    }
    return shunter_forming_staggered_size(cap, shunter_line(plan->served), busy_ns, count);
}

/* The shares of a division may all be of workers that take none of these requests, and the ones that
 * do may have none. */
static void give_to_one_that_takes(struct plan *plan, uint8_t class) {
    const struct shunter_served *served = plan->served;
    for (uint32_t i = 0; i < plan->free_count; i++) {
        const uint32_t worker = plan->free[i], cap = cap_of(plan, worker, class);
        if (shunter_most_urgent_of(served, class, worker_of(plan, worker)->cap) >= 0) {
            const uint32_t queued = served->lists[class].rows;
            shunter_assign(plan, worker, class, queued < cap ? queued : cap);
            return;
        }
    }
}

static void fill(struct plan *plan, uint8_t class) {
    struct shunter_served *served = plan->served;
    uint32_t workers[2 * SHUNTER_WORKER_COUNT], caps[2 * SHUNTER_WORKER_COUNT];
    uint32_t sizes[2 * SHUNTER_WORKER_COUNT], count = plan->free_count;
    struct shunter_latency_line lines[2 * SHUNTER_WORKER_COUNT];
    int64_t busy_ns[2 * SHUNTER_WORKER_COUNT];
    const bool knows = shunter_knows(served);
    memcpy(workers, plan->free, count * sizeof *workers);
    const bool adapts = served->policy.threshold <= 0; // else full batches are waited for
    const bool next_is_long = class != BEST_EFFORT && served->lists[BEST_EFFORT].count;
    if (knows && (adapts || next_is_long)) {
        count = add_busy(plan, workers, count);
    }
    for (uint32_t i = 0; i < count; i++) {
        caps[i] = cap_of(plan, workers[i], class);
        lines[i] = shunter_line(served);
        busy_ns[i] = shunter_busy_ns(served, worker_of(plan, workers[i]), plan->now_ns);
        lines[i].fixed_ns += busy_ns[i];
        if (i >= plan->free_count && served->lists[class].deadlines) { // it may end later than predicted
            lines[i].fixed_ns += shunter_caution_ns(served);
        }
    }
    const uint32_t queued = served->lists[class].rows;
    if (knows && count > 1) {
        shunter_forming_split_by_latency(queued, caps, lines, count, sizes);
    } else {
        shunter_forming_split(queued, caps, count, sizes);
    }
    for (uint32_t i = 0; i < count; i++) {
        if (sizes[i] && i >= plan->free_count) {
            // If it is not free by then, the others do not wait for it.
            plan->wake_ns = earlier(plan->wake_ns, plan->now_ns + (uint64_t)busy_ns[i] + LATE_NS);
        } else if (sizes[i]) {
            const bool spreads = class == BEST_EFFORT && sizes[i] == caps[i];
            shunter_assign(plan, workers[i], class, spreads ? staggered(plan, workers[i], sizes[i]) : sizes[i]);
        }
    }
    if (served->lists[class].rows == queued) {
        give_to_one_that_takes(plan, class);
    }
}

static bool release_to_free(struct plan *plan, uint8_t class, uint32_t queued) {
    struct shunter_served *served = plan->served;
    const struct shunter_class_list *list = &served->lists[class];
    const bool adapts = served->policy.threshold <= 0;
    uint64_t capacity = 0, free_since = UINT64_MAX;
    for (uint32_t i = 0; i < plan->free_count; i++) {
        capacity += cap_of(plan, plan->free[i], class);
        free_since = earlier(free_since, worker_of(plan, plan->free[i])->free_since_ns);
    }
    double wanted = served->policy.threshold;
    if (adapts) {
        wanted = served->lists[!class].count
            ? SHUNTER_FORMING_IDLE
            : shunter_adaptive_threshold_worth(
                  &served->seen.threshold, signed_now(plan), plan->free_count,
                  (int64_t)free_since);
    }
    // What follows answers is waited for after the answer, however long the others have waited.
    uint64_t oldest = served->waiting[list->first].arrival_ns;
    oldest = adapts && free_since > oldest ? free_since : oldest;
    const uint64_t held_us = plan->now_ns > oldest ? (plan->now_ns - oldest) / 1000 : 0;
    const int64_t slack_us =
        list->deadlines
            ? ((int64_t)served->waiting[list->heap[0]].deadline_ns - signed_now(plan)) / 1000
            : 0;
    const uint32_t cap = cap_of(plan, plan->free[0], class);
    const uint32_t share = (queued + plan->free_count - 1) / plan->free_count;
    const uint64_t predicted_us =
        (uint64_t)shunter_latency_ns(shunter_line(served), share < cap ? share : cap) / 1000;
    const uint64_t margin_us = (uint64_t)shunter_caution_ns(served) / 1000;
    const uint64_t max_wait_us = served->policy.max_wait_ns / 1000;
    if (shunter_forming_should_release(
            queued, held_us, list->deadlines, slack_us, wanted, max_wait_us, capacity,
            predicted_us, margin_us)) {
        fill(plan, class);
        return true;
    }
    const uint64_t wake_us = shunter_forming_wake_after_us(
        held_us, list->deadlines, slack_us, max_wait_us, predicted_us, margin_us);
    plan->wake_ns = earlier(plan->wake_ns, plan->now_ns + wake_us * 1000);
    if (adapts) {
        const int64_t until = shunter_adaptive_threshold_held(&served->seen.threshold);
        plan->wake_ns = earlier(plan->wake_ns, (uint64_t)until);
    }
    return false;
}

/* ---- the next batch of a busy worker */

static bool may_take_ahead(const struct plan *plan, uint32_t to, uint8_t class) {
    const struct shunter_served *served = plan->served;
    const struct shunter_worker_state *worker = worker_of(plan, to);
    if (!shunter_is_ready(worker) || !shunter_in_flight(worker) || plan->best_effort_waits ||
        served->streamed ||
        (worker->member && !shunter_set_sends_ahead(worker->member, class)) ||
        shunter_most_urgent_of(served, class, worker->cap) < 0) {
        return false;
    }
    for (uint8_t each = 0; each <= class; each++) {
        if (has_alone(plan, each)) {
            return false; // that request needs a worker that holds nothing
        }
    }
    const struct shunter_held *running = &worker->held[(worker->done + 1) % SHUNTER_AHEAD];
    return !running->alone &&
           shunter_latency_ns(shunter_line(served), running->rows) <
               LONGEST_TO_QUEUE_BEHIND_NS &&
           !shunter_is_late(served, worker, running->rows, plan->now_ns) &&
           shunter_forming_may_send_ahead(
               served->lists[class].rows, shunter_threshold(served),
               cap_of(plan, to, class), shunter_in_flight(worker), served->policy.ahead, 0,
               class == 0, running->class == 0, plan->traffic.strict) &&
           room_at(plan, worker, class) >= 0;
}

static void send_ahead(struct plan *plan, uint8_t class) {
    const struct shunter_served *served = plan->served;
    while (served->lists[class].count) {
        int64_t soonest = -1;
        for (uint32_t i = 0; i < served->worker_count; i++) {
            // A batch that was given just now is not followed by another at once.
            const struct shunter_worker_state *worker = worker_of(plan, i);
            const bool given_now = shunter_in_flight(worker) &&
                                   worker->held[worker->given % SHUNTER_AHEAD].given_ns ==
                                       plan->now_ns;
            if (!given_now && may_take_ahead(plan, i, class) &&
                (soonest < 0 ||
                 worker->began_ns < worker_of(plan, (uint32_t)soonest)->began_ns)) {
                soonest = i;
            }
        }
        if (soonest < 0) {
            return;
        }
        const uint32_t cap = cap_of(plan, (uint32_t)soonest, class);
        const uint32_t queued = served->lists[class].rows;
        shunter_assign(plan, (uint32_t)soonest, class, queued < cap ? queued : cap);
    }
}

/* ---- a decision */

static void release_alone(struct plan *plan, uint8_t class) {
    const struct shunter_served *served = plan->served;
    while (has_alone(plan, class)) {
        const uint32_t rows = served->waiting[served->lists[class].first].rows;
        uint32_t i = 0;
        collect_free(plan, class);
        while (i < plan->free_count && worker_of(plan, plan->free[i])->cap < rows) {
            i++;
        }
        if (i == plan->free_count) {
            return;
        }
        shunter_assign(plan, plan->free[i], class, 1);
    }
}

static void release(struct plan *plan, uint8_t class) {
    const struct shunter_class_list *list = &plan->served->lists[class];
    // Again while it helps: a batch that was cut for a deadline leaves requests behind.
    for (uint32_t before = UINT32_MAX, queued = list->rows; queued && queued < before;) {
        collect_free(plan, class);
        if (!plan->free_count) {
            shunter_fill_up(plan, class);
            send_ahead(plan, class);
            return;
        }
        if (!release_to_free(plan, class, queued)) {
            return;
        }
        before = queued;
        queued = list->rows;
    }
}

/* One batch of best effort goes first if none began or ended within the ageing interval, lest it starve;
 * "ended", lest strict starves where each takes longer than that, and the next would be due at once. */
static bool best_effort_is_due(const struct plan *plan) {
    const struct shunter_served *served = plan->served;
    const struct shunter_class_list *list = &served->lists[BEST_EFFORT];
    if (!served->policy.ageing_ns || !list->count) {
        return false;
    }
    uint64_t oldest = served->waiting[list->first].arrival_ns;
    const uint64_t last = served->seen.best_effort_served_ns;
    oldest = oldest > last ? oldest : last;
    return plan->now_ns > oldest && plan->now_ns - oldest >= served->policy.ageing_ns;
}

uint64_t shunter_plan(struct shunter_served *served, uint64_t now_ns) {
    struct plan plan = {
        .served = served,
        .now_ns = now_ns,
        .wake_ns = SHUNTER_NEVER,
        .traffic = shunter_traffic(served, now_ns)};
    shunter_adaptive_threshold_settle(
        &served->seen.threshold, (int64_t)now_ns, served->seen.arrivals);
    if (best_effort_is_due(&plan)) {
        collect_free(&plan, BEST_EFFORT);
        if (plan.free_count) {
            shunter_assign(
                &plan, plan.free[0], BEST_EFFORT, cap_of(&plan, plan.free[0], BEST_EFFORT));
        }
    }
    plan.best_effort_waits = best_effort_is_due(&plan);
    for (uint8_t class = 0; class < SHUNTER_CLASSES; class ++) {
        release_alone(&plan, class);
        release(&plan, class);
    }
    return plan.wake_ns;
}
