/* What is looked at from time to time: cancelled requests, and those whom nobody serves. */
#include "streams.h"

#ifndef SHUNTER_UNUSED_NS
#define SHUNTER_UNUSED_NS 10000000000ULL /* a queue that nobody uses is kept so long */
#endif

static bool is_cancelled(const struct shunter_call *call) {
    bool is = false;
    TRITONSERVER_Error *error = TRITONBACKEND_RequestIsCancelled(call->request, &is);
    if (error) {
        TRITONSERVER_ErrorDelete(error);
    }
    return is;
}

/* Those that have no room yet may be too late, cancelled, or waiting for nobody. */
static void look_through_backlog(
    struct shunter_function *function, bool is_unserved, uint64_t now_ns) {
    for (int class = 0; class < SHUNTER_CLASSES; class ++) {
        const struct shunter_calls before = function->backlog[class];
        function->backlog[class] = (struct shunter_calls){0};
        for (struct shunter_call *call = before.first, *next; call; call = next) {
            next = call->next;
            call->end = is_cancelled(call) ? SHUNTER_END_CANCELLED
                        : call->deadline_ns && now_ns >= call->deadline_ns ? SHUNTER_END_LATE
                        : is_unserved                                      ? SHUNTER_END_NO_WORKER
                                                                           : SHUNTER_END_OK;
            const bool stays = call->end == SHUNTER_END_OK;
            function->coming -= stays ? 0 : call->entries;
            shunter_append(stays ? &function->backlog[class] : &function->done, call);
        }
    }
}

static void look_for_cancelled(struct shunter_function *function) {
    const struct shunter_served *served = function->served;
    for (uint32_t entry = 0; served->lists[0].count + served->lists[1].count &&
                             entry < function->queue.entries; entry++) {
        struct shunter_call *call = function->rows[entry].call;
        const bool waits = served->waiting[entry].class >= 0;
        if (call && waits && call->end == SHUNTER_END_OK && is_cancelled(call)) {
            call->end = SHUNTER_END_CANCELLED;
            call->withdraws = function->withdraws = true;
        }
    }
}

/* Whether somebody takes batches: not who leaves, or is being killed. */
static bool has_worker(const struct shunter_function *function) {
    bool has = false;
    for (uint32_t i = 0; i < SHUNTER_WORKER_COUNT && !has; i++) {
        has = function->workers[i].connection >= 0 &&
              shunter_is_ready(&function->served->workers[i]);
    }
    return has;
}

/* A model that the server has let go of keeps no memory; one that is being loaded has its queue before
 * its first worker, and before the server says so. */
static void drop_unused(struct shunter_function *function, uint64_t now_ns) {
    if (!function->served || function->loaded || function->worker_count || function->calls) {
        function->unused_ns = 0;
    } else if (!function->unused_ns) {
        function->unused_ns = now_ns;
    } else if (now_ns - function->unused_ns >= SHUNTER_UNUSED_NS) {
        shunter_function_drops_queue(function);
        function->unused_ns = 0;
    }
}

void shunter_look_after(struct shunter_function *function, uint64_t now_ns) {
    pthread_mutex_lock(&function->lock);
    if (function->served) {
        const bool waits = function->served->lists[0].count || function->served->lists[1].count ||
                           function->backlog[0].first || function->backlog[1].first;
        if (!waits || has_worker(function)) {
            function->alone_ns = 0;
        } else if (!function->alone_ns) {
            function->alone_ns = now_ns;
        }
        const bool is_unserved =
            function->alone_ns && now_ns - function->alone_ns >= SHUNTER_UNSERVED_NS;
        if (waits) {
            look_for_cancelled(function);
            look_through_backlog(function, is_unserved, now_ns);
        }
        if (is_unserved) {
            shunter_fail_waiting(function->served, SHUNTER_NO_WORKER, now_ns);
        }
        shunter_look_after_streams(function);
        shunter_look_after_workers(function, now_ns);
    }
    drop_unused(function, now_ns);
    pthread_mutex_unlock(&function->lock);
    shunter_go_on(function);
}
