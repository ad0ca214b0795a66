/* The predicted latency of a batch: a copy of batching/forming/latency.py. */
#include <math.h>

#include "forming.h"
#include "numbers.h"

#define FORGET 0.96
#define FORGET_EARLY 0.8
#define EARLY 20
#define SKIP 2
#define CLIP 4.0
#define CLIP_AFTER 8
#define SURPRISES 4
#define ERROR_WEIGHT 0.125
#define SLOPE_MEMORY 16.0
#define CAUTION 2.0
#define UNVARIED 0.25
#define TRY_OF 32
#define TRY 16

void shunter_latency_fit_init(
    struct shunter_latency_fit *fit, double fixed_ns, double per_request_ns) {
    *fit = (struct shunter_latency_fit){.fixed_ns = fixed_ns, .per_request_ns = per_request_ns};
}

bool shunter_latency_fit_known(const struct shunter_latency_fit *fit) {
    return fit->batches > SKIP;
}

struct shunter_latency_line shunter_latency_fit_line(const struct shunter_latency_fit *fit) {
    return (struct shunter_latency_line){
        shunter_whole(fit->fixed_ns), shunter_whole(fit->per_request_ns)};
}

int64_t shunter_latency_fit_worth_ns(const struct shunter_latency_fit *fit) {
    const bool tries = fit->size_size < UNVARIED && fit->batches % TRY_OF < TRY;
    return shunter_whole(
        tries ? shunter_larger(fit->fixed_ns, fit->latency / 2.0) : fit->fixed_ns);
}

int64_t shunter_latency_fit_caution_ns(const struct shunter_latency_fit *fit) {
    return shunter_whole(CAUTION * fit->error_ns);
}

/* Whether so many in a row were beyond the bound on one side that all has changed. */
static bool surprised(struct shunter_latency_fit *fit, double residual, double bound) {
    const int32_t side = fabs(residual) <= bound ? 0 : residual > 0 ? 1 : -1;
    fit->beyond = side * fit->beyond > 0 ? fit->beyond + side : side;
    return fit->beyond >= SURPRISES || fit->beyond <= -SURPRISES;
}

static void forget(struct shunter_latency_fit *fit, double error) {
    fit->batches = SKIP + 1;
    fit->beyond = 0;
    fit->error_ns = error;
    fit->weight = 0.0;
    fit->size_size = 0.0;
    fit->size_latency = 0.0;
}

static double clipped(struct shunter_latency_fit *fit, double size, double latency, bool first) {
    const double expected = fit->fixed_ns + size * fit->per_request_ns;
    double residual = latency - expected;
    const bool usual = fit->size_size >= SLOPE_MEMORY || fabs(size - fit->size) < 0.5;
    if (fit->batches > SKIP + CLIP_AFTER && usual) {
        const double bound = CLIP * fit->error_ns;
        if (surprised(fit, residual, bound)) {
            forget(fit, fabs(residual));
            return latency;
        }
        residual = shunter_larger(-bound, shunter_smaller(bound, residual));
    }
    const double distance = fabs(residual);
    fit->error_ns = first ? latency * 0.25
                          : fit->error_ns + ERROR_WEIGHT * (distance - fit->error_ns);
    return expected + residual;
}

static void add(struct shunter_latency_fit *fit, double size, double latency) {
    const double keep = fit->batches <= EARLY ? FORGET_EARLY : FORGET;
    fit->weight = fit->weight * keep + 1.0;
    const double from_mean = size - fit->size;
    fit->size += from_mean / fit->weight;
    fit->latency += (latency - fit->latency) / fit->weight;
    fit->size_size = fit->size_size * keep + from_mean * (size - fit->size);
    fit->size_latency = fit->size_latency * keep + from_mean * (latency - fit->latency);
}

static void solve(struct shunter_latency_fit *fit) {
    const double slope = (fit->size_latency + SLOPE_MEMORY * fit->per_request_ns) /
                         (fit->size_size + SLOPE_MEMORY);
    fit->per_request_ns = shunter_larger(0.0, shunter_smaller(slope, fit->latency / fit->size));
    fit->fixed_ns = fit->latency - fit->per_request_ns * fit->size;
}

void shunter_latency_fit_observe(
    struct shunter_latency_fit *fit, uint32_t size, int64_t latency_ns) {
    fit->batches++;
    if (fit->batches <= SKIP) {
        return;
    }
    const bool first = fit->batches == SKIP + 1;
    if (first && fit->fixed_ns + fit->per_request_ns == 0.0) {
        fit->fixed_ns = (double)latency_ns;
    }
    add(fit, size, clipped(fit, size, (double)latency_ns, first));
    solve(fit);
}
