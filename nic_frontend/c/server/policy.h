/* What the data path goes by, and what it counts. */
#ifndef SHUNTER_POLICY_H
#define SHUNTER_POLICY_H

#include <stdint.h>

#include "core.h"

struct shunter_policy {
    double threshold; /* requests that are worth a batch, at least 1 */
    uint64_t max_wait_ns;
    uint64_t margin_ns;
    uint64_t ageing_ns; /* 0: never */
    uint64_t fixed_ns; /* predicted latency of n requests: fixed + n * per_request */
    uint64_t per_request_ns;
    uint32_t ahead; /* 0 or 1 */
};

struct shunter_stats {
    uint64_t datagrams_in, datagrams_out, bytes_in, bytes_out, send_failures;
    uint64_t streams_in; /* requests by stream */
    uint64_t requests, batches, answered, failed, expired;
    uint64_t copied_bytes, copied_segments; /* payloads that landed elsewhere than predicted */
    uint64_t placed_segments;               /* those that landed in their entry */
    uint64_t overflows;                     /* the kernel dropped, SO_RXQ_OVFL */
    uint64_t sleeps, rings;
    uint64_t drops[SHUNTER_DROPS];
};

#endif
