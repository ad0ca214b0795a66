/* What became of the requests of a function: numbers that only rise. */
#ifndef SHUNTER_TELEMETRY_H
#define SHUNTER_TELEMETRY_H

#include <stdint.h>

#include "shunter_layout.h"

#define SHUNTER_CLASSES 2

/* Words of the control page from network_arrivals on, in its order: by class. */
struct shunter_telemetry {
    uint64_t arrivals[SHUNTER_CLASSES];
    uint64_t answered[SHUNTER_CLASSES];
    uint64_t expired[SHUNTER_CLASSES];
    uint64_t rejected[SHUNTER_CLASSES];
    uint64_t failed[SHUNTER_CLASSES];
    uint64_t abandoned[SHUNTER_CLASSES];
    uint64_t slo_met[SHUNTER_CLASSES];
    uint64_t slo_late[SHUNTER_CLASSES];
    uint64_t slo_rejected[SHUNTER_CLASSES];
    uint64_t slo_failed[SHUNTER_CLASSES];
    uint64_t slo_abandoned[SHUNTER_CLASSES];
    uint64_t latency_ns[SHUNTER_CLASSES];
    uint64_t latency_times[SHUNTER_CLASSES * SHUNTER_TIME_BUCKETS];
    uint64_t batches_by_size[SHUNTER_SIZE_BUCKETS]; /* rows */
    uint64_t batch_requests; /* rows of all batches */
};

_Static_assert(
    sizeof(struct shunter_telemetry) ==
        SHUNTER_S_NETWORK_BATCH_REQUESTS + 8 - SHUNTER_S_NETWORK_ARRIVALS,
    "as on the page");

/* Of batches that were answered, by size, and of strict ones: words of a slot that belong together. */
struct shunter_service {
    uint64_t ns[SHUNTER_SIZE_BUCKETS]; /* sum of their times */
    uint64_t strict_batches[SHUNTER_SIZE_BUCKETS];
    uint64_t strict_ns[SHUNTER_SIZE_BUCKETS];
};

/* Buckets are powers of two; the last one holds all that is more. */
uint32_t shunter_time_bucket(uint64_t ns);
uint32_t shunter_size_bucket(uint32_t size);

/* A request was answered that had come at ``came_ns``; ``deadline_ns`` 0: none. */
void shunter_count_answer(
    struct shunter_telemetry *telemetry, uint8_t class, uint64_t came_ns, uint64_t deadline_ns,
    uint64_t now_ns);
void shunter_count_batch(struct shunter_telemetry *telemetry, uint32_t size);
/* A batch of that class took so long. */
void shunter_count_service(
    struct shunter_service *service, uint8_t class, uint32_t size, uint64_t ns);

#endif
