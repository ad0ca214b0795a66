/* Every event ends here: what is too late is answered, what should leave leaves. */
#include "dispatch.h"

/* What the rows of a request but one add to a batch. */
static int64_t further_ns(const struct shunter_served *served, int32_t entry) {
    return (int64_t)(served->waiting[entry].rows - 1) * shunter_line(served).per_request_ns;
}

static void expire(struct shunter_served *served, uint64_t now_ns) {
    const int64_t soonest = shunter_soonest_ns(served, now_ns);
    for (int class = 0; class < SHUNTER_CLASSES; class ++) {
        const struct shunter_class_list *list = &served->lists[class];
        while (list->deadlines &&
               shunter_forming_is_too_late(
                   (int64_t)now_ns, (int64_t)served->waiting[list->heap[0]].deadline_ns,
                   soonest + (soonest ? further_ns(served, list->heap[0]) : 0))) {
            shunter_expire(served, (uint32_t)list->heap[0], now_ns);
        }
    }
}

/* When to look again for what can no longer be answered in time. */
static uint64_t too_late_ns(const struct shunter_served *served, uint64_t now_ns) {
    uint64_t next = SHUNTER_NEVER;
    const int64_t least = shunter_latency_ns(shunter_line(served), 1);
    for (int class = 0; class < SHUNTER_CLASSES; class ++) {
        const struct shunter_class_list *list = &served->lists[class];
        if (list->deadlines) {
            const int64_t deadline = (int64_t)served->waiting[list->heap[0]].deadline_ns;
            const uint64_t at = (uint64_t)shunter_forming_too_late_at_ns(
                (int64_t)now_ns, deadline, least + further_ns(served, list->heap[0]));
            next = at < next ? at : next;
        }
    }
    return next;
}

static uint32_t largest_cap(const struct shunter_served *served) {
    uint32_t largest = 0;
    for (uint32_t i = 0; i < served->worker_count; i++) {
        const struct shunter_worker_state *worker = &served->workers[i];
        largest = shunter_is_ready(worker) && worker->cap > largest ? worker->cap : largest;
    }
    return largest;
}

/*
 * Requests that have more rows than any worker takes, since one that took them has left, wait for
 * another, but not for long. Returns until when. Without any worker that is for their owner to say.
 */
static uint64_t fail_untaken(struct shunter_served *served, uint64_t now_ns) {
    const uint32_t largest = largest_cap(served);
    if (largest != served->largest) {
        served->largest = largest;
        served->largest_since_ns = now_ns;
    }
    if (!largest || served->most_waiting <= largest) {
        return SHUNTER_NEVER;
    }
    uint64_t until_ns = SHUNTER_NEVER;
    served->most_waiting = 0;
    for (int class = 0; class < SHUNTER_CLASSES; class ++) {
        for (int32_t at = served->lists[class].first, next; at >= 0; at = next) {
            const struct shunter_waiting *entry = &served->waiting[at];
            const uint64_t since = entry->arrival_ns > served->largest_since_ns
                ? entry->arrival_ns
                : served->largest_since_ns;
            const uint64_t end_ns = since + SHUNTER_UNSERVED_NS;
            const uint32_t rows = entry->rows;
            next = entry->next;
            if (rows > largest && now_ns >= end_ns) {
                shunter_dequeue(served, (uint32_t)at);
                shunter_count_failure(served, (uint32_t)at);
                served->owner.finished(
                    served->owner.context, (uint32_t)at, SHUNTER_NO_WORKER, false, now_ns);
                continue;
            }
            until_ns = rows > largest && end_ns < until_ns ? end_ns : until_ns;
            served->most_waiting = rows > served->most_waiting ? rows : served->most_waiting;
        }
    }
    return until_ns;
}

/* Since when somebody waits for whom a worker could do more than wait for its clients; 0: nobody. */
static uint64_t waiting_since_ns(const struct shunter_served *served) {
    uint64_t since_ns = served->outside_ns;
    for (int class = 0; class < SHUNTER_CLASSES; class ++) {
        const struct shunter_class_list *list = &served->lists[class];
        const uint64_t first_ns = list->count ? served->waiting[list->first].arrival_ns : 0;
        since_ns = first_ns && (!since_ns || first_ns < since_ns) ? first_ns : since_ns;
    }
    return since_ns;
}

/* Workers in sets: what was not used goes to others, and what waits is told. */
static void settle(struct shunter_served *served, uint64_t now_ns) {
    const bool waits[SHUNTER_CLASSES] = {served->lists[0].count, served->lists[1].count};
    for (uint32_t i = 0; i < served->worker_count; i++) {
        if (served->workers[i].member) {
            shunter_set_settle(served->workers[i].member, waits, now_ns);
        }
    }
}

uint64_t shunter_dispatch(struct shunter_served *served, uint64_t now_ns) {
    uint64_t next = SHUNTER_NEVER;
    shunter_refuse(served, now_ns);
    if (served->lists[0].count || served->lists[1].count) {
        expire(served, now_ns);
        const uint64_t untaken = fail_untaken(served, now_ns);
        next = shunter_plan(served, now_ns);
        next = untaken < next ? untaken : next;
        const uint64_t too_late = too_late_ns(served, now_ns);
        next = too_late < next ? too_late : next;
    }
    if (served->members) {
        settle(served, now_ns);
    }
    // In a set, what is done here may be the room that another model waits for.
    const bool wants = served->lists[0].count || served->lists[1].count || served->indirect ||
                       served->members;
    atomic_store(
        shunter_front_end_word(&served->queue, SHUNTER_Q_FRONT_END_WANTS_DONE), wants);
    shunter_set(
        shunter_front_end_word(&served->queue, SHUNTER_Q_FRONT_END_SINCE_NS),
        waiting_since_ns(served));
    return next;
}
