/* What is counted of answers and batches. */
#include "telemetry.h"

static uint32_t bits(uint64_t number, uint32_t most) {
    const uint32_t count = number ? 64 - (uint32_t)__builtin_clzll(number) : 0;
    return count < most ? count : most;
}

uint32_t shunter_time_bucket(uint64_t ns) {
    return bits(ns ? (ns - 1) >> SHUNTER_TIME_BUCKET_SHIFT : 0, SHUNTER_TIME_BUCKETS - 1);
}

uint32_t shunter_size_bucket(uint32_t size) {
    return bits(size ? size - 1 : 0, SHUNTER_SIZE_BUCKETS - 1);
}

void shunter_count_answer(
    struct shunter_telemetry *telemetry, uint8_t class, uint64_t came_ns, uint64_t deadline_ns,
    uint64_t now_ns) {
    const uint64_t latency_ns = now_ns > came_ns ? now_ns - came_ns : 0;
    telemetry->answered[class]++;
    telemetry->latency_ns[class] += latency_ns;
    telemetry->latency_times[class * SHUNTER_TIME_BUCKETS + shunter_time_bucket(latency_ns)]++;
    if (deadline_ns) {
        (now_ns > deadline_ns ? telemetry->slo_late : telemetry->slo_met)[class]++;
    }
}

void shunter_count_batch(struct shunter_telemetry *telemetry, uint32_t size) {
    telemetry->batches_by_size[shunter_size_bucket(size)]++;
    telemetry->batch_requests += size;
}

void shunter_count_service(
    struct shunter_service *service, uint8_t class, uint32_t size, uint64_t ns) {
    const uint32_t bucket = shunter_size_bucket(size);
    service->ns[bucket] += ns;
    if (class == 0) {
        service->strict_batches[bucket]++;
        service->strict_ns[bucket] += ns;
    }
}
