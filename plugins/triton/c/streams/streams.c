/* Answers in parts: places for them to the workers, and what these have written into them. */
#include <stdlib.h>
#include <string.h>

#include "streams.h"

#define PLACES SHUNTER_STREAM_PLACES

_Static_assert(PLACES <= SHUNTER_PARTS_AHEAD, "a worker has no more at once");

/* Of an entry that is a request. Its part n has place n % PLACES: they are used in turn. */
struct shunter_stream {
    uint32_t places[PLACES]; /* entries */
    uint64_t given, seen;    /* so far; parts that were found in them */
    bool running;
};

/* What its worker says is there. */
struct found {
    struct shunter_call *call;
    uint32_t entry;
    int64_t place; /* -1: no more parts follow */
};

struct shunter_streams {
    uint32_t live_count, found_count;
    uint32_t *live; /* entries that run */
    struct found *found;
    struct shunter_stream of[]; /* by entry */
};

struct shunter_streams *shunter_streams_new(uint32_t entries) {
    struct shunter_streams *streams =
        calloc(1, sizeof *streams + entries * sizeof(struct shunter_stream));
    if (streams) {
        streams->live = calloc(entries, sizeof *streams->live);
        streams->found = calloc(2 * (size_t)entries, sizeof *streams->found);
    }
    if (streams && (!streams->live || !streams->found)) {
        shunter_streams_free(streams);
        streams = NULL;
    }
    return streams;
}

void shunter_streams_free(struct shunter_streams *streams) {
    if (streams) {
        free(streams->live);
        free(streams->found);
        free(streams);
    }
}

static _Atomic uint64_t *word(
    const struct shunter_function *function, uint32_t entry, uint32_t field) {
    return shunter_entry_word(&function->queue, entry, field);
}

/* ---- under the lock */

void shunter_stream_takes_places(struct shunter_function *function, uint32_t entry) {
    struct shunter_stream *stream = &function->streams->of[entry];
    *stream = (struct shunter_stream){0};
    for (uint32_t i = 0; i < PLACES; i++) {
        stream->places[i] = (uint32_t)function->free[--function->free_count];
        // Its own row: a part is an answer of one.
        function->rows[stream->places[i]] = (struct shunter_row){.next = -1};
    }
}

void shunter_stream_gives_places_back(struct shunter_function *function, uint32_t entry) {
    const struct shunter_stream *stream = &function->streams->of[entry];
    for (uint32_t i = 0; i < PLACES; i++) {
        function->free[function->free_count++] = (int32_t)stream->places[i];
    }
}

static void give_place(const struct shunter_function *function, uint32_t entry) {
    struct shunter_stream *stream = &function->streams->of[entry];
    const uint32_t place = stream->places[stream->given % PLACES];
    const uint32_t at = 8 * (uint32_t)(stream->given % SHUNTER_PARTS_AHEAD);
    // What a worker calls a part without writing it would be another's.
    shunter_set(word(function, place, SHUNTER_E_ENTRY_RESULT_BYTES), 0);
    shunter_set(word(function, entry, SHUNTER_E_ENTRY_PLACES + at), place);
    // Sequentially consistent, as the worker's sleep is: one of the two sees the other.
    atomic_store(word(function, entry, SHUNTER_E_ENTRY_GIVEN), ++stream->given);
}

void shunter_stream_runs(struct shunter_function *function, uint32_t entry) {
    struct shunter_streams *streams = function->streams;
    struct shunter_stream *stream = &streams->of[entry];
    stream->running = true;
    stream->given = stream->seen = 0;
    streams->live[streams->live_count++] = entry;
    shunter_set(word(function, entry, SHUNTER_E_ENTRY_PARTS), 0);
    // Nobody looks for parts of a call that has ended: its worker would wait for ever.
    const bool has_ended = function->rows[entry].call->end != SHUNTER_END_OK;
    shunter_set(word(function, entry, SHUNTER_E_ENTRY_UNWANTED), has_ended);
    while (stream->given < PLACES) {
        give_place(function, entry);
    }
}

void shunter_stream_stops(struct shunter_function *function, uint32_t entry) {
    struct shunter_streams *streams = function->streams;
    for (uint32_t i = 0; i < streams->live_count; i++) {
        if (streams->live[i] == entry) {
            streams->of[entry].running = false;
            streams->live[i] = streams->live[--streams->live_count];
            return;
        }
    }
}

/* Its client wants no more of it: the handler hears so at its next part. */
static void let_end(struct shunter_function *function, uint32_t entry, enum shunter_end end) {
    struct shunter_call *call = function->rows[entry].call;
    call->end = call->end == SHUNTER_END_OK ? end : call->end;
    if (function->streams->of[entry].running) {
        atomic_store(word(function, entry, SHUNTER_E_ENTRY_UNWANTED), 1);
        shunter_nudge(function->served, entry);
    }
}

void shunter_look_after_streams(struct shunter_function *function) {
    struct shunter_streams *streams = function->streams;
    for (uint32_t i = 0; streams && i < streams->live_count; i++) {
        const uint32_t entry = streams->live[i];
        struct shunter_call *call = function->rows[entry].call;
        bool is_cancelled = false;
        TRITONSERVER_Error *error =
            TRITONBACKEND_RequestIsCancelled(call->request, &is_cancelled);
        if (error) {
            TRITONSERVER_ErrorDelete(error);
        }
        if (is_cancelled && call->end == SHUNTER_END_OK) {
            let_end(function, entry, SHUNTER_END_CANCELLED);
        }
    }
}

/* Parts that are there, and whether others follow, or its worker gave it up as too slow. It is the
 * worker's word: never believe that it has more than it had places for. */
static uint64_t parts_of(
    const struct shunter_function *function, uint32_t entry, bool *are_over, bool *are_late) {
    const struct shunter_stream *stream = &function->streams->of[entry];
    const uint64_t parts = shunter_get(word(function, entry, SHUNTER_E_ENTRY_PARTS));
    const uint64_t said = parts & ~(SHUNTER_PARTS_ARE_OVER | SHUNTER_PARTS_ARE_LATE);
    *are_over = parts & SHUNTER_PARTS_ARE_OVER && said <= stream->given;
    *are_late = *are_over && parts & SHUNTER_PARTS_ARE_LATE;
    return said < stream->given ? said : stream->given;
}

static void find_parts(
    struct shunter_function *function, uint32_t entry, uint64_t now_ns) {
    struct shunter_streams *streams = function->streams;
    struct shunter_stream *stream = &streams->of[entry];
    struct shunter_call *call = function->rows[entry].call;
    bool are_over, are_late;
    const uint64_t there = parts_of(function, entry, &are_over, &are_late);
    if (stream->seen < there) {
        shunter_made_progress(function->served, entry, now_ns);
    }
    for (; stream->seen < there; stream->seen++) {
        streams->found[streams->found_count++] = (struct found){
            call, entry, stream->places[stream->seen % PLACES]};
    }
    if (are_late) {
        call->end = SHUNTER_END_SLOW;
    } else if (are_over && !call->is_over) {
        streams->found[streams->found_count++] = (struct found){call, entry, -1};
    }
}

bool shunter_find_parts(struct shunter_function *function, uint64_t now_ns) {
    struct shunter_streams *streams = function->streams;
    if (!streams) {
        return false;
    }
    streams->found_count = 0;
    for (uint32_t i = 0; i < streams->live_count; i++) {
        const uint32_t entry = streams->live[i];
        if (function->rows[entry].call->end == SHUNTER_END_OK) {
            find_parts(function, entry, now_ns);
        }
    }
    return streams->found_count;
}

void shunter_parts_have_gone(struct shunter_function *function) {
    const struct shunter_streams *streams = function->streams;
    for (uint32_t i = 0; streams && i < streams->found_count; i++) {
        const struct found *found = &streams->found[i];
        if (found->call->is_broken) {
            let_end(function, found->entry, SHUNTER_END_FAILED);
        } else if (found->place >= 0 && streams->of[found->entry].running) {
            give_place(function, found->entry);
            shunter_nudge(function->served, found->entry);
        }
    }
}

/* ---- without it */

/* As an answer of one row, which lies in its place. */
static void send_part(
    const struct shunter_function *function, struct shunter_call *call, uint32_t place) {
    const struct shunter_call part = {
        .request = call->request,
        .first = (int32_t)place,
        .rows = call->rows,
        .entries = 1,
        .has_batch = call->has_batch};
    call->is_broken = !shunter_respond(function, &part, 0);
}

/* The server is told without a response that none follows. */
static void send_end(struct shunter_call *call) {
    TRITONBACKEND_ResponseFactory *factory = NULL;
    TRITONSERVER_Error *error = TRITONBACKEND_ResponseFactoryNew(&factory, call->request);
    if (!error) {
        error = TRITONBACKEND_ResponseFactorySendFlags(factory, TRITON_FINAL);
        TRITONSERVER_Error *other = TRITONBACKEND_ResponseFactoryDelete(factory);
        if (other) {
            TRITONSERVER_ErrorDelete(other);
        }
    }
    if (error) {
        TRITONSERVER_ErrorDelete(error);
    }
    call->is_over = true;
}

void shunter_send_parts(const struct shunter_function *function) {
    const struct shunter_streams *streams = function->streams;
    for (uint32_t i = 0; streams && i < streams->found_count; i++) {
        const struct found *found = &streams->found[i];
        if (found->call->is_broken) {
            continue; // what follows would not be what its client expects
        }
        if (found->place >= 0) {
            send_part(function, found->call, (uint32_t)found->place);
        } else {
            send_end(found->call);
        }
    }
}

bool shunter_end_stream(const struct shunter_function *function, struct shunter_call *call) {
    if (call->first >= 0 && !call->is_over && call->end != SHUNTER_END_CANCELLED) {
        const uint32_t entry = (uint32_t)call->first;
        struct shunter_stream *stream = &function->streams->of[entry];
        bool are_over, are_late;
        const uint64_t there = parts_of(function, entry, &are_over, &are_late);
        for (; stream->seen < there && !call->is_broken; stream->seen++) {
            send_part(function, call, stream->places[stream->seen % PLACES]);
        }
        call->end = are_late && call->end == SHUNTER_END_OK ? SHUNTER_END_SLOW : call->end;
    }
    if (call->is_over) {
        return true; // its client has heard so
    }
    if (call->is_broken && call->end == SHUNTER_END_OK) {
        call->end = SHUNTER_END_FAILED;
    }
    if (call->end != SHUNTER_END_OK) {
        return shunter_respond(function, call, TRITON_FINAL);
    }
    send_end(call);
    return true;
}
