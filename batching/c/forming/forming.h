/*
 * When a batch leaves, and how large it is: a copy of batching/forming, where the meaning of every
 * rule stands. Golden tables keep Python, Java and C equal, the real numbers bit for bit: the order
 * of operations is part of a rule, all in IEEE doubles without contraction.
 *
 * Pure: nothing is allocated, no clock is read, nothing but the C library is included. Times are of
 * any one clock; they and counts are at least 0 unless said otherwise. Nothing overflows while sizes
 * are at most 2^20 and latencies at most an hour.
 */
#ifndef SHUNTER_FORMING_H
#define SHUNTER_FORMING_H

#include <stdbool.h>
#include <stdint.h>

/* No deadline; a worker that is not going to be free. */
#define SHUNTER_FORMING_NEVER INT64_MAX

/* ---- threshold.py: how many requests are worth a batch */

#define SHUNTER_FORMING_IDLE 1.0 /* for none it is worth waiting */

double shunter_forming_step(double t, double c, double alpha, double cap);
int64_t shunter_forming_hold_ns(double worth_ns, int64_t max_wait_ns);

struct shunter_adaptive_threshold {
    double alpha, cap; /* may be changed at any time */
    double value;      /* requests worth a batch, per worker */
    double returning;  /* share of answered requests that were followed by another */
    bool open, held;
    int64_t start_ns, end_ns;
    int64_t answers, answered, waiting, before;
};

void shunter_adaptive_threshold_init(
    struct shunter_adaptive_threshold *threshold, double alpha, double cap);
/*
 * A batch of ``size`` requests was answered; its worker may be held back ``hold_ns``. ``waiting``
 * are in the queue or were sent to that worker ahead, ``arrivals`` counts all that ever came.
 */
void shunter_adaptive_threshold_answered(
    struct shunter_adaptive_threshold *threshold, int64_t now_ns, uint32_t size, int64_t waiting,
    int64_t arrivals, int64_t hold_ns);
/* Time passes; before each arrival is counted. */
void shunter_adaptive_threshold_settle(
    struct shunter_adaptive_threshold *threshold, int64_t now_ns, int64_t arrivals);
/* Requests for which so many free workers are held back now; SHUNTER_FORMING_IDLE: for none. */
double shunter_adaptive_threshold_worth(
    const struct shunter_adaptive_threshold *threshold, int64_t now_ns, uint32_t free_workers,
    int64_t free_since_ns);
/* They are held back; until when at most. */
int64_t shunter_adaptive_threshold_held(struct shunter_adaptive_threshold *threshold);

/* ---- latency.py: the predicted latency of a batch */

/* What is decided by: the whole nanoseconds of a fit, or numbers from elsewhere. */
struct shunter_latency_line {
    int64_t fixed_ns, per_request_ns;
};

static inline int64_t shunter_latency_ns(struct shunter_latency_line line, uint32_t size) {
    return line.fixed_ns + size * line.per_request_ns;
}

struct shunter_latency_fit {
    double fixed_ns, per_request_ns;
    double error_ns; /* mean absolute error of predictions */
    uint64_t batches;
    double weight, size, latency, size_size, size_latency;
    int32_t beyond;
};

/* A line that is known from elsewhere, or zeros. */
void shunter_latency_fit_init(
    struct shunter_latency_fit *fit, double fixed_ns, double per_request_ns);
/* A batch of ``size`` >= 1 requests took that long. */
void shunter_latency_fit_observe(
    struct shunter_latency_fit *fit, uint32_t size, int64_t latency_ns);
/* Whether anything was observed. */
bool shunter_latency_fit_known(const struct shunter_latency_fit *fit);
struct shunter_latency_line shunter_latency_fit_line(const struct shunter_latency_fit *fit);
/* What one batch less may save, at most. */
int64_t shunter_latency_fit_worth_ns(const struct shunter_latency_fit *fit);
/* What is added to a prediction where a deadline is at stake. */
int64_t shunter_latency_fit_caution_ns(const struct shunter_latency_fit *fit);

/* ---- release.py: the release rule */

bool shunter_forming_should_release(
    uint64_t queued, uint64_t oldest_wait_us, bool has_deadline, int64_t slack_us,
    double threshold, uint64_t max_wait_us, uint64_t free_capacity, uint64_t predicted_us,
    uint64_t margin_us);
/* Microseconds until that turns true by the passing of time alone. */
uint64_t shunter_forming_wake_after_us(
    uint64_t oldest_wait_us, bool has_deadline, int64_t slack_us, uint64_t max_wait_us,
    uint64_t predicted_us, uint64_t margin_us);
bool shunter_forming_may_send_ahead(
    uint32_t queued, double threshold, uint32_t cap, uint32_t in_flight, uint32_t ahead_limit,
    uint32_t free_workers, bool strict, bool running_strict, bool strict_traffic);

/* ``sizes`` are for ``count`` workers, aligned with ``caps``. */
void shunter_forming_split(
    uint32_t queued, const uint32_t *caps, uint32_t count, uint32_t *sizes);
/* The same for workers of different speed, so that the last answer comes soonest. */
void shunter_forming_split_by_latency(
    uint32_t queued, const uint32_t *caps, const struct shunter_latency_line *lines,
    uint32_t count, uint32_t *sizes);
/* A best-effort batch that does not end together with the others; ``busy_ns``: when these end. */
uint32_t shunter_forming_staggered_size(
    uint32_t cap, struct shunter_latency_line line, const int64_t *busy_ns, uint32_t count);

struct shunter_cut {
    uint32_t skip, take; /* the most urgent requests to give up; the rows to run now */
};

/*
 * ``slacks_ns``: times left to the deadlines of the first ``count`` = min(waiting, 2 * cap + 1)
 * requests, ascending, at least one; SHUNTER_FORMING_NEVER without a deadline. Where
 * ``next_free_ns`` is 0 the first is enough. ``rows``: of the same requests, NULL: one each.
 */
struct shunter_cut shunter_forming_fit_deadlines(
    const int64_t *slacks_ns, const uint32_t *rows, uint32_t count, uint32_t waiting,
    uint32_t size, uint32_t cap, struct shunter_latency_line line, int64_t next_free_ns);

/* Whether a request cannot be answered in time any more, and when to ask that again. */
bool shunter_forming_is_too_late(int64_t now_ns, int64_t deadline_ns, int64_t soonest_ns);
int64_t shunter_forming_too_late_at_ns(int64_t now_ns, int64_t deadline_ns, int64_t least_ns);

int64_t shunter_forming_predicted_wait_ns(
    uint64_t ahead, uint64_t capacity, int64_t batch_ns, int64_t busy_ns);

#endif
