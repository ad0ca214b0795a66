/*
 * Whether a request may wait: as AdmissionControl and CurrentWorkers of the JVM do. What may not is
 * told with the next decision, since arrivals are told by an owner that must not be called then.
 */
#include "dispatch.h"

/* Workers that take requests, together. */
struct capacity {
    uint64_t size; /* of a batch of each */
    double per_ns; /* rows */
    int64_t busy_ns; /* until the first of them is free */
    bool is_free;    /* one is: not if it is overdue */
};

static struct capacity capacity_for(
    const struct shunter_served *served, uint8_t class, struct shunter_traffic traffic,
    uint64_t now_ns) {
    const struct shunter_latency_line line = shunter_line(served);
    struct capacity all = {.busy_ns = SHUNTER_FORMING_NEVER};
    for (uint32_t i = 0; i < served->worker_count; i++) {
        const struct shunter_worker_state *worker = &served->workers[i];
        if (shunter_is_ready(worker)) {
            const uint32_t cap = shunter_cap(served, worker, class, traffic);
            const int64_t lasts_ns = shunter_latency_ns(line, cap);
            const int64_t busy_ns = shunter_busy_ns(served, worker, now_ns);
            all.size += cap;
            all.per_ns += (double)cap / (double)(lasts_ns > 1 ? lasts_ns : 1);
            all.is_free |= !shunter_in_flight(worker);
            all.busy_ns = busy_ns < all.busy_ns ? busy_ns : all.busy_ns;
        }
    }
    return all;
}

/* Latency of so many rows on the worker that takes fewest of them at once, or of all; ``rows`` are of
 * one request, which is never divided. */
static int64_t shortest_batch_ns(
    const struct shunter_served *served, uint8_t class, struct shunter_traffic traffic,
    uint32_t size, uint32_t rows) {
    for (uint32_t i = 0; i < served->worker_count; i++) {
        const struct shunter_worker_state *worker = &served->workers[i];
        if (shunter_is_ready(worker)) {
            const uint32_t cap = shunter_cap(served, worker, class, traffic);
            size = cap < size ? cap : size;
        }
    }
    return shunter_latency_ns(shunter_line(served), size > rows ? size : rows);
}

int64_t shunter_predicted_answer_ns(
    const struct shunter_served *served, uint8_t class, uint32_t rows, uint64_t now_ns) {
    const struct shunter_traffic traffic = shunter_traffic(served, now_ns);
    const struct capacity all = capacity_for(served, class, traffic, now_ns);
    const uint64_t ahead =
        served->lists[0].rows + (class == 0 ? 0 : served->lists[1].rows);
    if (!all.size || !shunter_knows(served) || (all.is_free && ahead == 0)) {
        return 0;
    }
    const int64_t round_ns = (int64_t)((double)all.size / all.per_ns);
    return shunter_forming_predicted_wait_ns(ahead, all.size, round_ns, all.busy_ns) +
           shortest_batch_ns(
               served, class, traffic, (uint32_t)(ahead % all.size) + rows, rows);
}

bool shunter_admits(
    const struct shunter_served *served, const struct shunter_arrival *arrival, uint64_t now_ns) {
    return !served->policy.admission || !arrival->deadline_ns ||
           (int64_t)now_ns + shunter_predicted_answer_ns(
                                 served, arrival->class, shunter_rows(arrival), now_ns) <=
               (int64_t)arrival->deadline_ns;
}

void shunter_refuse(struct shunter_served *served, uint64_t now_ns) {
    const struct shunter_class_list *list = &served->lists[SHUNTER_REFUSED];
    while (list->count) {
        const uint32_t entry = (uint32_t)list->first;
        const uint8_t class = served->waiting[entry].priority;
        shunter_dequeue(served, entry);
        served->counts->rejected++;
        served->telemetry.rejected[class]++;
        served->telemetry.slo_rejected[class]++;
        served->owner.finished(
            served->owner.context, entry, SHUNTER_WOULD_BE_LATE, false, now_ns);
    }
}
