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

uint64_t shunter_dispatch(struct shunter_served *served, uint64_t now_ns) {
    uint64_t next = SHUNTER_NEVER;
    shunter_refuse(served, now_ns);
    if (served->lists[0].count || served->lists[1].count) {
        expire(served, now_ns);
        next = shunter_plan(served, now_ns);
        const uint64_t too_late = too_late_ns(served, now_ns);
        next = too_late < next ? too_late : next;
    }
    const bool wants = served->lists[0].count || served->lists[1].count || served->indirect;
    atomic_store(
        shunter_front_end_word(&served->queue, SHUNTER_Q_FRONT_END_WANTS_DONE), wants);
    return next;
}
