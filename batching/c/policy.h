/* What the dispatcher goes by, and what it counts. */
#ifndef SHUNTER_POLICY_H
#define SHUNTER_POLICY_H

#include <stdbool.h>
#include <stdint.h>

#include "telemetry.h" /* SHUNTER_CLASSES */

/* The numbers of the control page, as the dispatcher of the JVM takes them. Where requests are
 * batches themselves, these are of their rows. */
struct shunter_policy {
    double threshold;     /* requests that are worth a batch; 0: what adapts */
    double alpha;         /* of what adapts: weight of what was */
    double threshold_cap; /* at most so many */
    uint64_t max_wait_ns; /* longest deliberate wait */
    uint64_t margin_ns;
    uint64_t ageing_ns; /* 0: never */
    uint64_t fixed_ns;  /* predicted latency of n requests: fixed + n * per_request, until one is seen */
    uint64_t per_request_ns;
    uint64_t slo_ns; /* best effort adds at most half of it; 0: none, what a lone request takes */
    uint32_t ahead;  /* 0 or 1 */
    uint32_t mixes;  /* not 0: batches may hold both classes */
    uint32_t admission; /* not 0: what would be answered too late is refused at once */
};

/* What has come lately. */
struct shunter_traffic {
    bool strict;                  /* strict requests */
    bool floods[SHUNTER_CLASSES]; /* more than can be served, beside other models of the process */
};

/* Of all functions together. */
struct shunter_counts {
    uint64_t requests, batches, answered, failed, expired, rejected, rings;
};

#endif
