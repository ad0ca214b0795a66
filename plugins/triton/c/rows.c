/* Rows of requests, as the dispatcher tells of them; under the lock of their function. */
#include "streams.h"

static struct shunter_function *of(void *context) { return context; }

void shunter_end_row(
    struct shunter_function *function, uint32_t entry, enum shunter_end end, uint64_t now_ns) {
    struct shunter_call *call = function->rows[entry].call;
    if (end != SHUNTER_END_OK && call->end == SHUNTER_END_OK) {
        call->end = end;
        call->withdraws = true;
        function->withdraws = true;
    }
    if (--call->left == 0) {
        call->done_ns = now_ns;
        shunter_append(&function->done, call);
    }
}

static bool running(void *context, uint32_t entry, uint64_t now_ns) {
    struct shunter_function *function = of(context);
    struct shunter_row *row = &function->rows[entry];
    row->batch = function->counts.batches;
    row->call->began_ns = row->call->began_ns ? row->call->began_ns : now_ns;
    if (function->streams) {
        shunter_stream_runs(function, entry);
    }
    const struct shunter_queue *queue = &function->queue;
    shunter_set(shunter_entry_word(queue, entry, SHUNTER_E_ENTRY_DIRECT), 0);
    shunter_set(
        shunter_entry_word(queue, entry, SHUNTER_E_ENTRY_FLAGS),
        row->call->idempotent ? SHUNTER_ENTRY_IDEMPOTENT : 0);
    return false;
}

static void stop(struct shunter_function *function, uint32_t entry) {
    if (function->streams) {
        shunter_stream_stops(function, entry);
    }
}

static void finished(
    void *context, uint32_t entry, uint16_t status, bool sent, uint64_t now_ns) {
    (void)sent;
    const enum shunter_end end = status == SHUNTER_ENTRY_OK        ? SHUNTER_END_OK
                                 : status == SHUNTER_ENTRY_BAD     ? SHUNTER_END_BAD
                                 : status == SHUNTER_WOULD_BE_LATE ? SHUNTER_END_REFUSED
                                 : status == SHUNTER_NO_WORKER     ? SHUNTER_END_NO_WORKER
                                                                   : SHUNTER_END_FAILED;
    stop(of(context), entry);
    shunter_end_row(of(context), entry, end, now_ns);
}

static void wait_again(
    struct shunter_function *function, uint32_t entry, bool again, uint64_t now_ns) {
    const struct shunter_call *call = function->rows[entry].call;
    const struct shunter_arrival arrival = {
        .entry = entry,
        .class = call->class,
        .again = again,
        .returned = !again,
        .deadline_ns = call->deadline_ns,
        .rows = shunter_rows_each(function, call)};
    shunter_enqueue(function->served, &arrival, now_ns);
}

static void died(void *context, uint32_t entry, uint64_t now_ns) {
    struct shunter_function *function = of(context);
    struct shunter_row *row = &function->rows[entry];
    stop(function, entry);
    if (function->streams) {
        shunter_end_row(function, entry, SHUNTER_END_DIED_STREAM, now_ns);
    } else if (row->call->once) {
        shunter_end_row(function, entry, SHUNTER_END_DIED_ONCE, now_ns);
    } else if (row->tried || row->call->end != SHUNTER_END_OK) {
        shunter_end_row(function, entry, SHUNTER_END_DIED, now_ns);
    } else {
        row->tried = true;
        wait_again(function, entry, true, now_ns);
    }
}

static void returned(void *context, uint32_t entry, uint64_t now_ns) {
    struct shunter_function *function = of(context);
    stop(function, entry);
    if (function->rows[entry].call->end != SHUNTER_END_OK) {
        shunter_end_row(function, entry, SHUNTER_END_FAILED, now_ns);
    } else {
        wait_again(function, entry, false, now_ns);
    }
}

static void expired(void *context, uint32_t entry, uint64_t now_ns) {
    shunter_end_row(of(context), entry, SHUNTER_END_LATE, now_ns);
}

const struct shunter_owner shunter_owner_is_function = {
    .running = running,
    .finished = finished,
    .died = died,
    .returned = returned,
    .expired = expired,
};
