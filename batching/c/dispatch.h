/*
 * Who waits, who works: requests of one function, in batches, to its workers.
 *
 * It knows neither networks nor servers. Whose requests these are is its owner's: it says which wait,
 * and is told what becomes of them. One thread owns it.
 *
 * A request may be a batch itself, of rows; all others have one. Whatever says how large a batch is or
 * gets counts rows. A batch is at most a class's cap of them, or one request that has more: none is
 * divided, and none waits behind one that would not fit. Workers may differ in how many they take: one
 * that has more rows than a worker takes waits for another that takes them, also where it has to come
 * yet; but then not for long.
 */
#ifndef SHUNTER_DISPATCH_H
#define SHUNTER_DISPATCH_H

#include <stdbool.h>

#include "forming.h"
#include "policy.h"
#include "queue.h"
#include "sets.h"
#include "telemetry.h"

#define SHUNTER_REFUSED SHUNTER_CLASSES /* the list of what is going to be told so */
#define SHUNTER_WOULD_BE_LATE 429       /* its status; as over HTTP */
#define SHUNTER_NO_WORKER 521           /* nobody is there who could run it */
#define SHUNTER_UNSERVED_NS 10000000000ULL /* a request waits so long for a worker to come */
#define SHUNTER_NEVER UINT64_MAX
#define SHUNTER_MAX_ROWS 65536 /* of a request */
#define SHUNTER_MAX_CAP (1U << 20)

/* What happens to requests, by their entries. Called from within; none may call the dispatcher. */
struct shunter_owner {
    void *context;
    /* It is about to be given to a worker: write into its record whom to answer. True: the worker
     * answers it itself. */
    bool (*running)(void *context, uint32_t entry, uint64_t now_ns);
    /* It has run. ``sent``: its answer has left. */
    void (*finished)(
        void *context, uint32_t entry, uint16_t status, bool sent, uint64_t now_ns);
    /* Its worker died of it, or of another of its batch. */
    void (*died)(void *context, uint32_t entry, uint64_t now_ns);
    /* Its worker had not begun it: it may wait again, by shunter_enqueue. */
    void (*returned)(void *context, uint32_t entry, uint64_t now_ns);
    /* It is too late. */
    void (*expired)(void *context, uint32_t entry, uint64_t now_ns);
};

/* A request that can run. */
struct shunter_arrival {
    uint32_t entry;
    uint8_t class;
    bool again;    /* it was given to a worker that died: it runs alone */
    bool returned; /* its worker had not begun it: it has its place again */
    uint64_t deadline_ns; /* 0: none */
    uint32_t rows;        /* 0: one */
};

struct shunter_waiting {
    int32_t next, prev; /* of its class, in the order of arrivals; next: also of its batch */
    int32_t in_heap;    /* -1: it has no deadline */
    int8_t class;       /* -1: it does not wait; SHUNTER_REFUSED */
    uint8_t priority;   /* its class, whether it waits or not */
    bool alone;
    bool indirect; /* while it runs: its owner sends its answer */
    uint8_t worker; /* while it runs */
    uint32_t rows;
    uint64_t arrival; /* its number */
    uint64_t arrival_ns, deadline_ns;
    uint64_t came_ns; /* when it arrived first */
};

struct shunter_class_list {
    int32_t first, last;
    uint32_t count, rows;
    int32_t *heap; /* those with a deadline, the earliest first */
    uint32_t deadlines;
};

/* A batch: its entries follow one another by ``next``. */
struct shunter_held {
    int32_t first, last;
    uint32_t count, rows;
    uint8_t class;
    bool alone;
    bool in_set; /* it has room there */
    uint64_t given_ns;
    uint64_t deadline_ns; /* the earliest, 0: none */
};

/* The earlier of two deadlines, of which 0 is none. */
static inline uint64_t shunter_earlier(uint64_t one, uint64_t other) {
    return !one || (other && other < one) ? other : one;
}

struct shunter_worker_state {
    bool present, draining;
    bool disturbed; /* the batch that it runs may have stood still: its latency says nothing */
    uint32_t cap; /* rows */
    int doorbell;
    uint64_t given, done;
    uint64_t early; /* how often it has answered a part of a batch, as far as that is known */
    uint64_t began_ns; /* since when the oldest batch that it holds runs */
    uint64_t progress_ns; /* when it wrote a part of an answer last */
    uint64_t excused_ns; /* of the time that its oldest batch runs: it had to stand still */
    uint64_t free_since_ns;
    struct shunter_member *member; /* of a set of workers; NULL: it is in none */
    struct shunter_held held[SHUNTER_AHEAD];
};

/* What has been seen of the requests and the workers of a function. */
struct shunter_seen {
    struct shunter_latency_fit fit;
    struct shunter_adaptive_threshold threshold;
    int64_t arrivals; /* rows of requests that have come, each counted once */
    uint64_t last_strict_ns, best_effort_served_ns; /* served: given, or ended in a batch of its own */
    bool strict; /* one came */
    uint64_t full_ns; /* when a request last found as many waiting as may, says the owner; 0: never */
};

struct shunter_served {
    struct shunter_queue queue;
    struct shunter_policy policy;
    struct shunter_owner owner;
    struct shunter_counts *counts;
    struct shunter_waiting *waiting;
    struct shunter_class_list lists[SHUNTER_CLASSES + 1];
    struct shunter_worker_state workers[SHUNTER_WORKER_COUNT];
    uint32_t worker_count; /* one more than the highest index in use */
    uint32_t members;      /* workers that are in sets */
    uint32_t in_flight;    /* batches */
    uint32_t largest; /* cap of the workers that are ready; 0: none is */
    uint64_t largest_since_ns;
    uint32_t most_rows; /* of a request, as its owner says; 0: 1 */
    uint32_t most_waiting; /* rows: no request that waits has more */
    uint64_t arrivals;     /* requests that have become complete */
    struct shunter_seen seen;
    int32_t *scratch; /* for the first of a heap, in order */
    uint32_t indirect; /* requests in flight whose answers the owner sends */
    uint64_t gathered_bytes; /* by workers that are gone */
    bool streamed; /* answers come in parts, for as long as clients take: nothing is sent ahead */
    uint64_t outside_ns; /* since when requests wait that have no entry, as its owner says; 0: none */
    struct shunter_telemetry telemetry;
    struct shunter_service service;
    uint64_t strict_steps; /* batches of strict requests that were given, or have ended */
};

/* NULL: no memory. ``counts`` may be shared. */
struct shunter_served *shunter_served_new(
    const struct shunter_queue *queue, const struct shunter_policy *policy,
    const struct shunter_owner *owner, struct shunter_counts *counts);
void shunter_served_free(struct shunter_served *served);

/* ---- requests */

void shunter_enqueue(
    struct shunter_served *served, const struct shunter_arrival *arrival, uint64_t now_ns);
/* It waits no more; nothing when it does not. */
void shunter_dequeue(struct shunter_served *served, uint32_t entry);
/* The same, because nobody waits for its answer any more. */
void shunter_withdraw(struct shunter_served *served, uint32_t entry);
/* It waits no more, for its deadline cannot be met. */
void shunter_expire(struct shunter_served *served, uint32_t entry, uint64_t now_ns);
/* It has ended without an answer, whether it ran or not. */
void shunter_count_failure(struct shunter_served *served, uint32_t entry);
/* The most urgent of a class, -1: none waits. What has been tried once, then the earliest deadline,
 * then the oldest. */
int32_t shunter_most_urgent(const struct shunter_served *served, uint8_t class);
/* The same of those that have no more rows than that. */
int32_t shunter_most_urgent_of(
    const struct shunter_served *served, uint8_t class, uint32_t limit);
/* The most urgent of a class, that share a batch, join it and wait no more: as many as fit in so many
 * rows, or the first if nothing is in it yet; of those that have at most ``limit``. */
void shunter_take(
    struct shunter_served *served, struct shunter_held *batch, uint8_t class, uint32_t most,
    uint32_t limit);
/* Deadlines of the first ``count`` of a class, ascending, SHUNTER_FORMING_NEVER without one, and their
 * rows. Returns how many there are. */
uint32_t shunter_first_deadlines(
    struct shunter_served *served, uint8_t class, int64_t *deadlines_ns, uint32_t *rows,
    uint32_t count);
/* All of it waits no more and counts as failed with this status; the number. */
uint32_t shunter_fail_waiting(struct shunter_served *served, uint16_t status, uint64_t now_ns);

/* A request will soon be complete: ``left`` parts like this one of ``length`` bytes are missing. */
void shunter_expect(struct shunter_served *served, uint32_t left, uint32_t length);

/* ---- batches */

/* Take in what workers have answered; the number of batches, and of requests whose batch goes on. */
uint32_t shunter_collect(struct shunter_served *served, uint64_t now_ns);
/* Answer what is too late, give batches away. Returns when time alone changes something. */
uint64_t shunter_dispatch(struct shunter_served *served, uint64_t now_ns);
/* Give a batch to a worker. */
void shunter_give(
    struct shunter_served *served, uint32_t worker, struct shunter_held batch, uint64_t now_ns);
/* The newest batch of a worker if it has not taken it yet; NULL: it has. */
const struct shunter_held *shunter_open_batch(
    const struct shunter_served *served, uint32_t worker);
/* More for that batch. If it was taken meanwhile, these wait again. */
void shunter_join(
    struct shunter_served *served, uint32_t worker, struct shunter_held more, uint64_t now_ns);

/* ---- workers: 0 or a negative errno */

int shunter_worker_comes(
    struct shunter_served *served, uint32_t worker, uint32_t cap, int doorbell, uint64_t now_ns);
/* It is in a set from now on, as this member, which rings when the function may decide again. -ENOMEM: it
 * is none. */
int shunter_worker_joins(
    struct shunter_served *served, uint32_t worker, struct shunter_member *member);
void shunter_worker_leaves_set(struct shunter_served *served, uint32_t worker, uint64_t now_ns);
/* It gets nothing more. */
int shunter_worker_drains(struct shunter_served *served, uint32_t worker);
int shunter_worker_goes(struct shunter_served *served, uint32_t worker, uint64_t now_ns);
/* The worker of an entry that runs is woken, if it sleeps: there is news of it. */
void shunter_nudge(struct shunter_served *served, uint32_t entry);
/* It has written a part of its answer. */
void shunter_made_progress(struct shunter_served *served, uint32_t entry, uint64_t now_ns);
/* Its batches may have stood still for strict work of others, of late. */
void shunter_disturb(struct shunter_served *served);
/* One of them had to, for so long; of a batch that is never more than ``most_ns`` altogether. */
void shunter_excuse(
    struct shunter_served *served, uint32_t worker, uint64_t for_ns, uint64_t most_ns);
/* For how long the oldest batch that it holds has run, without having made progress; 0: it holds none. */
uint64_t shunter_worker_busy_ns(
    const struct shunter_served *served, uint32_t worker, uint64_t now_ns);
bool shunter_worker_is_idle(const struct shunter_served *served, uint32_t worker);
/* Bytes of inputs that workers have copied. */
uint64_t shunter_gathered_bytes(const struct shunter_served *served);

/* For one that is in a set: of how many batches of it one of this class would be behind now; -1: it has
 * no room. It is kept until the batch is given, or the decision is over. */
int shunter_room(
    const struct shunter_served *served, const struct shunter_worker_state *state, uint8_t class,
    uint64_t now_ns);

/* Whether strict requests wait or run. */
bool shunter_has_strict_work(const struct shunter_served *served);

/* ---- what is predicted (predict.c) */

struct shunter_latency_line shunter_line(const struct shunter_served *served);
bool shunter_knows(const struct shunter_served *served);
int64_t shunter_caution_ns(const struct shunter_served *served); /* added where a deadline is at stake */
/* Largest batch whose rows add no more than that to its fixed part; at least 1. */
uint32_t shunter_size_adding(const struct shunter_served *served, int64_t limit_ns);
/* Until a worker has answered all that it holds. */
int64_t shunter_busy_ns(
    const struct shunter_served *, const struct shunter_worker_state *, uint64_t now_ns);
/* Whether its batch of so many rows runs for so much longer than predicted that it may hang. */
bool shunter_is_late(
    const struct shunter_served *, const struct shunter_worker_state *, uint32_t rows, uint64_t now_ns);
/* Shortest time in which a request of one row can be answered; 0 while a worker is free. */
int64_t shunter_soonest_ns(const struct shunter_served *served, uint64_t now_ns);
/* What has come lately, as far as it limits batches. */
struct shunter_traffic shunter_traffic(const struct shunter_served *served, uint64_t now_ns);
/* Largest batch of a class for a worker. */
uint32_t shunter_cap(
    const struct shunter_served *served, const struct shunter_worker_state *worker, uint8_t class,
    struct shunter_traffic traffic);
/* What was learnt of the latency of its batches says nothing any more. */
void shunter_forget_latency(struct shunter_served *served);
/* A batch was answered; ``disturbed``: how long it took says nothing. */
void shunter_learn(
    struct shunter_served *served, const struct shunter_held *batch, bool disturbed,
    uint64_t began_ns, uint64_t waiting_ahead, uint64_t now_ns);
/* Rows that are worth a batch, now. */
double shunter_threshold(const struct shunter_served *served);

/* ---- admission (admission.c) */

/* Predicted time until a request of that size that comes now is answered; 0 when nothing is known. */
int64_t shunter_predicted_answer_ns(
    const struct shunter_served *served, uint8_t class, uint32_t rows, uint64_t now_ns);
/* Whether a request that comes now may wait. */
bool shunter_admits(
    const struct shunter_served *served, const struct shunter_arrival *arrival, uint64_t now_ns);
/* Tell those that may not. */
void shunter_refuse(struct shunter_served *served, uint64_t now_ns);

/* ---- decisions (plan.c) */

/* Give away what should leave now; when to decide again if nothing happens. */
uint64_t shunter_plan(struct shunter_served *served, uint64_t now_ns);

static inline uint32_t shunter_rows(const struct shunter_arrival *arrival) {
    const uint32_t rows = arrival->rows < SHUNTER_MAX_ROWS ? arrival->rows : SHUNTER_MAX_ROWS;
    return rows ? rows : 1;
}

static inline bool shunter_is_ready(const struct shunter_worker_state *worker) {
    return worker->present && !worker->draining;
}

static inline uint32_t shunter_in_flight(const struct shunter_worker_state *state) {
    return (uint32_t)(state->given - state->done);
}

#endif
