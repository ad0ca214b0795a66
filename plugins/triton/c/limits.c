/* How many requests of a function may wait. */
#include "backend.h"

#define FULL "%llu requests wait already; raise jobQueueSize or add workers"

enum { STRICT, BEST_EFFORT };

static bool is_full(const struct shunter_function *function) {
    uint64_t waiting = function->coming;
    for (int class = 0; class < SHUNTER_CLASSES; class ++) {
        waiting += function->served->lists[class].count;
    }
    return function->capacity && waiting >= function->capacity;
}

static void count(struct shunter_function *function, const struct shunter_call *call, uint32_t n) {
    struct shunter_telemetry *telemetry = &function->served->telemetry;
    function->counts.rejected += n;
    telemetry->rejected[call->class] += n;
    telemetry->slo_rejected[call->class] += call->deadline_ns ? n : 0;
}

/* One that has no entries. */
static void turn_away(struct shunter_function *function, struct shunter_call *call) {
    function->counts.requests += call->entries;
    function->served->telemetry.arrivals[call->class] += call->entries;
    count(function, call, call->entries);
    shunter_append(&function->done, call);
}

static struct shunter_call *take_last(struct shunter_calls *calls) {
    struct shunter_call *found = calls->last, *before = NULL;
    for (struct shunter_call *at = calls->first; at != found; at = at->next) {
        before = at;
    }
    *(before ? &before->next : &calls->first) = NULL;
    calls->last = before;
    return found;
}

static void push_out(struct shunter_function *function, struct shunter_call *call) {
    const uint64_t now_ns = shunter_now_ns();
    for (int32_t at = call->first; at >= 0; at = function->rows[at].next) {
        if (function->served->waiting[at].class == BEST_EFFORT) {
            shunter_dequeue(function->served, (uint32_t)at);
            count(function, call, 1);
            shunter_end_row(function, (uint32_t)at, SHUNTER_END_FULL, now_ns);
        }
    }
}

static bool makes_way(struct shunter_function *function) {
    const struct shunter_class_list *list = &function->served->lists[BEST_EFFORT];
    const bool is_new = function->backlog[BEST_EFFORT].first != NULL;
    struct shunter_call *youngest = is_new        ? take_last(&function->backlog[BEST_EFFORT])
                                    : list->count ? function->rows[list->last].call
                                                  : NULL;
    if (!youngest || youngest->end != SHUNTER_END_OK) { // or it goes already
        return false;
    }
    shunter_wrong(
        youngest, SHUNTER_END_FULL, FULL "; a strict request took this one's place",
        (unsigned long long)function->capacity);
    if (is_new) {
        function->coming -= youngest->entries;
        turn_away(function, youngest);
    } else {
        push_out(function, youngest);
    }
    return true;
}

/* Nobody's place is worth a request that would be too late in it. */
static bool is_hopeless(
    const struct shunter_function *function, const struct shunter_call *call, uint64_t now_ns) {
    const struct shunter_arrival arrival = {
        .class = call->class,
        .deadline_ns = call->deadline_ns,
        .rows = shunter_rows_each(function, call)};
    return call->deadline_ns &&
           (!shunter_admits(function->served, &arrival, now_ns) ||
            (int64_t)now_ns + shunter_soonest_ns(function->served, now_ns) >
                (int64_t)call->deadline_ns);
}

bool shunter_may_wait(struct shunter_function *function, struct shunter_call *call) {
    while (is_full(function)) {
        const uint64_t now_ns = shunter_now_ns();
        function->served->seen.full_ns = now_ns;
        if (call->class == STRICT && is_hopeless(function, call, now_ns)) {
            call->end = SHUNTER_END_REFUSED;
            turn_away(function, call);
            return false;
        }
        if (call->class != STRICT || !makes_way(function)) {
            shunter_wrong(
                call, SHUNTER_END_FULL, FULL, (unsigned long long)function->capacity);
            turn_away(function, call);
            return false;
        }
    }
    return true;
}
