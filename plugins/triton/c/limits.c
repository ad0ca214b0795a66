/* How many requests of a function may wait. */
#include "backend.h"

bool shunter_is_full(const struct shunter_function *function) {
    uint64_t waiting = function->coming;
    for (int class = 0; function->served && class < SHUNTER_CLASSES; class ++) {
        waiting += function->served->lists[class].count;
    }
    return function->capacity && waiting >= function->capacity;
}

void shunter_turn_away(struct shunter_function *function, struct shunter_call *call) {
    const uint8_t class = call->class;
    struct shunter_telemetry *telemetry = &function->served->telemetry;
    function->counts.requests += call->entries;
    function->counts.rejected += call->entries;
    telemetry->arrivals[class] += call->entries;
    telemetry->rejected[class] += call->entries;
    telemetry->slo_rejected[class] += call->deadline_ns ? call->entries : 0;
    shunter_wrong(
        call, SHUNTER_END_FULL, "%llu requests wait already; raise jobQueueSize or add workers",
        (unsigned long long)function->capacity);
    shunter_append(&function->done, call);
}
