/* What the dispatcher goes by, and what it counts. */
#ifndef SHUNTER_POLICY_H
#define SHUNTER_POLICY_H

#include <stdint.h>

struct shunter_policy {
    double threshold; /* requests that are worth a batch, at least 1 */
    uint64_t max_wait_ns;
    uint64_t margin_ns;
    uint64_t ageing_ns; /* 0: never */
    uint64_t fixed_ns; /* predicted latency of n requests: fixed + n * per_request */
    uint64_t per_request_ns;
    uint32_t ahead; /* 0 or 1 */
};

/* Of all functions together. */
struct shunter_counts {
    uint64_t requests, batches, answered, failed, expired, rings;
};

#endif
