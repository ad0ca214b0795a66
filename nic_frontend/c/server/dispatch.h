/* Who waits, who works: batches of one function to its workers. */
#ifndef SHUNTER_DISPATCH_H
#define SHUNTER_DISPATCH_H

#include "core.h"
#include "policy.h"
#include "queue.h"

#define SHUNTER_CLASSES 2

struct shunter_waiting {
    int32_t next, prev;
    int8_t class; /* -1: it does not wait */
    bool alone;
    bool indirect; /* while it runs: the front end sends its answer */
    uint64_t arrival; /* its number */
    uint64_t arrival_ns, deadline_ns;
};

struct shunter_class_list {
    int32_t first, last;
    uint32_t count;
    uint32_t deadlines;
};

struct shunter_held {
    uint32_t first, count;
    uint8_t class;
};

struct shunter_worker_state {
    bool present, draining;
    uint32_t cap;
    int doorbell;
    uint64_t given, done;
    uint64_t began_ns; /* since when the oldest batch that it holds runs */
    struct shunter_held held[SHUNTER_AHEAD];
};

struct shunter_served {
    struct shunter_queue queue;
    struct shunter_policy policy;
    struct shunter_core *core;
    struct shunter_stats *stats;
    struct shunter_waiting *waiting;
    struct shunter_class_list lists[SHUNTER_CLASSES];
    struct shunter_worker_state workers[SHUNTER_WORKER_COUNT];
    uint32_t worker_count; /* one more than the highest index in use */
    uint32_t in_flight;  /* batches */
    uint64_t arrivals;   /* requests that have become complete */
    uint64_t aged_ns;
    uint32_t indirect;   /* requests in flight whose answers the front end sends */
};

struct shunter_served *shunter_served_new(
    const struct shunter_queue *queue, const struct shunter_policy *policy,
    struct shunter_core *core, struct shunter_stats *stats);
void shunter_served_free(struct shunter_served *served);

void shunter_enqueue(
    struct shunter_served *served, const struct shunter_action *ready, uint64_t now_ns);
void shunter_dequeue(struct shunter_served *served, uint32_t entry);

/* A request will soon be complete: ``left`` segments like this one of ``length`` bytes are missing. */
void shunter_expect(struct shunter_served *served, uint32_t left, uint32_t length);

/* Take in what workers have answered; the number of batches. */
uint32_t shunter_collect(struct shunter_served *served, uint64_t now_ns);
/* Answer what is too late, give batches away. Returns when time alone changes something. */
uint64_t shunter_dispatch(struct shunter_served *served, uint64_t now_ns);
void shunter_worker_gone(struct shunter_served *served, uint32_t worker, uint64_t now_ns);

/* The release rule. Twins of batching/forming/release.py. */
bool shunter_should_release(
    uint64_t queued, uint64_t oldest_wait_us, bool has_deadline, int64_t slack_us,
    double threshold, uint64_t max_wait_us, uint64_t free_capacity, uint64_t predicted_us,
    uint64_t margin_us);
void shunter_split(uint32_t queued, const uint32_t *caps, uint32_t count, uint32_t *sizes);

/* A run of entries that begins with the most urgent of a class; they wait no more. */
struct shunter_held shunter_take(struct shunter_served *served, uint8_t class, uint32_t most);
/* Give a run to a worker. */
void shunter_give(
    struct shunter_served *served, uint32_t worker, struct shunter_held run, uint64_t now_ns);

static inline uint32_t shunter_in_flight(const struct shunter_worker_state *state) {
    return (uint32_t)(state->given - state->done);
}

#endif
