/*
 * Answers in parts. A request of a streamed function begins a series when all of it is here: its own
 * answer is that it is under way. Each part is then the answer of a request of its own, which names
 * the series and the part's number. A part that was asked for gets an entry, which is the place that
 * the worker writes it into, and that of the answer's request from then on. What becomes of the
 * request is the answer of the request for the part that does not come any more.
 */
#ifndef SHUNTER_SERIES_H
#define SHUNTER_SERIES_H

#include "core_parts.h"

struct series {
    struct link of_session, of_function;
    struct call call; /* the request; FAILED: it has ended, and nobody was told yet */
    uint32_t session;
    uint32_t asked;          /* the highest part that was asked for */
    uint32_t given, written; /* parts that got places, and those that are there */
    int32_t places[SHUNTER_PARTS_AHEAD]; /* of part n at n % SHUNTER_PARTS_AHEAD, until it goes */
    uint32_t bytes[SHUNTER_PARTS_AHEAD]; /* of those that are there */
    uint16_t status;         /* how it has ended */
    bool told;               /* and somebody knows */
    bool over;               /* it has, though its request runs on with its batch */
    uint64_t last_ns;        /* when a part was asked for, or came */
    uint64_t nexts[SHUNTER_WINDOW]; /* who asks for part n is at n % SHUNTER_WINDOW; 0: nobody yet */
};

/* Of a function. */
struct series_table {
    struct link live;
    uint32_t count;
    bool lacks; /* entries, for places */
    struct series at[]; /* by the entry of the request */
};

struct series_table *shunter_series_table(uint32_t entries);

/* calls.c: a request ends with a status. */
void shunter_fail(
    struct shunter_core *core, struct session *session, struct call *call, uint16_t status,
    uint64_t now_ns);

static inline uint64_t *shunter_next_of(struct series *series, uint32_t number) {
    return &series->nexts[number % SHUNTER_WINDOW];
}

/* The request for a part, NULL: there is none, or its client wants no answer to it any more. */
static inline struct call *shunter_asks(struct session *session, struct series *series, uint32_t number) {
    const uint64_t req_id = *shunter_next_of(series, number);
    struct call *call = call_of(session, req_id);
    return req_id && call->req_id == req_id && call->state == RX_COMPLETE ? call : NULL;
}

static inline int32_t *shunter_place_of(struct series *series, uint32_t number) {
    return &series->places[number % SHUNTER_PARTS_AHEAD];
}

/* The series of a request with these low bits, which its client has not given up; NULL: none. */
struct series *shunter_series_find(struct session *session, uint32_t low);
/* It has ended: nothing of it is left when that is known, and all parts have gone. */
void shunter_series_end_if_told(
    struct shunter_core *core, struct session *session, struct series *series, uint64_t now_ns);
/*
 * Requests for parts that nobody writes yet hold places in their session's window. When these run
 * short, others could not go on for whom they wait: who has waited is told to ask again.
 */
void shunter_series_make_way(
    struct shunter_core *core, struct session *session, uint64_t now_ns);

/* The series whose request lies in this entry; NULL: none. */
struct series *shunter_series_at(const struct function *function, uint32_t entry);
/* There are so many that others might not get the places for their parts. */
bool shunter_series_are_many(const struct function *function);
/* All of a request is here. */
void shunter_series_begin(
    struct shunter_core *core, struct session *session, struct call *call, uint64_t now_ns);
/* A request for a part came, which its session has not seen yet. */
void shunter_series_next(
    struct shunter_core *core, struct session *session, struct call *call,
    const struct shunter_x64 *header, uint64_t now_ns);
/* Its request has run, or is not going to. */
void shunter_series_end(
    struct shunter_core *core, struct session *session, struct series *series, uint16_t status,
    uint64_t now_ns);
/* Its client wants no more of it; false: there is none of that number. */
bool shunter_series_cancel(
    struct shunter_core *core, struct session *session, uint64_t req_id, uint64_t now_ns);
/* The same of all that a session has. */
void shunter_series_leave(struct shunter_core *core, struct session *session, uint64_t now_ns);
/* There may be entries for the places that some lack. */
void shunter_series_feed(const struct shunter_core *core, struct function *function);
/* Its worker is about to begin. */
void shunter_series_runs(
    const struct shunter_core *core, struct function *function, struct series *series);
/* End those for whose parts nobody asks. */
void shunter_series_tick(
    struct shunter_core *core, struct function *function, uint64_t now_ns);

#endif
