/* A decision of the dispatcher: what its two parts share. */
#ifndef SHUNTER_PLAN_H
#define SHUNTER_PLAN_H

#include "dispatch.h"

#define BEST_EFFORT 1

struct plan {
    struct shunter_served *served;
    uint64_t now_ns, wake_ns;
    struct shunter_traffic traffic;
    bool best_effort_waits;
    uint32_t free[SHUNTER_WORKER_COUNT]; /* workers */
    uint32_t free_count;
};

static inline int64_t signed_now(const struct plan *plan) { return (int64_t)plan->now_ns; }

static inline struct shunter_worker_state *worker_of(const struct plan *plan, uint32_t worker) {
    return &plan->served->workers[worker];
}

static inline uint32_t cap_of(const struct plan *plan, uint32_t worker, uint8_t class) {
    return shunter_cap(plan->served, worker_of(plan, worker), class, plan->traffic);
}

static inline bool has_alone(const struct plan *plan, uint8_t class) {
    const struct shunter_class_list *list = &plan->served->lists[class];
    return list->count && plan->served->waiting[list->first].alone;
}

/* assign.c: give a worker the next requests of a class, up to so many rows, as many of them as it can
 * serve in time. */
void shunter_assign(struct plan *plan, uint32_t to, uint8_t class, uint32_t size);
/* assign.c: more requests of a class for the batches of it that their workers have not taken yet. */
void shunter_fill_up(struct plan *plan, uint8_t class);

#endif
