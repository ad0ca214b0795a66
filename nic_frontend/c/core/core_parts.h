/* What the parts of the core share: what there is of a function, a session and a request. */
#ifndef SHUNTER_CORE_PARTS_H
#define SHUNTER_CORE_PARTS_H

#include <errno.h>
#include <stdatomic.h>
#include <string.h>

#include "congestion.h"
#include "core.h"
#include "hold_line.h"
#include "links.h"

#define NO_ENTRY (-1)
#define IDLE_NS 60000000000ULL
#define KEEP_NS 2000000000ULL /* answers, while sessions wait for room */
#define REPLAY_WORDS 32 /* a power of 2, more than are looked at */
#define ADDRESS_ROWS 1024

/* ---- requests */

enum state { FREE, RECEIVING = SHUNTER_SACK_RECEIVING, RX_COMPLETE, RUNNING, TX_COMPLETE, FAILED, FORGOTTEN };

struct call {
    uint64_t req_id;
    uint64_t begun_ns;   /* first segment that came */
    uint64_t arrived_ns; /* last segment that was new, or the answer was there */
    uint64_t changed_ns;
    uint64_t deadline_ns;
    /* Segments that are here; once it is answered those of the answer that are to be sent. */
    uint64_t received[SHUNTER_MAX_SEGMENTS / 64];
    uint32_t unsent, next; /* these; the first segment of which none was sent yet */
    uint32_t missing;
    int32_t entry;
    uint32_t bytes; /* of a packed function's request, and when it is answered of the answer */
    uint16_t flags, status, rows;
    uint8_t state, priority, tries;
    bool direct;  /* while it runs: its worker sends the answer */
    bool stalled; /* while it is received: it holds nothing until it is here */
};

/* ---- sessions */

enum kind { SESSIONS, STREAMS };

/* Sessions of one address. */
struct address {
    uint64_t origin;
    uint32_t open[2];     /* sessions; streams among them */
    struct link quiet[2]; /* those that are none, and streams; the longest silent first */
    struct line *lines;
    struct address *next;
};

/* Those of them that are of one function. */
struct line {
    struct link turn;    /* in the function's row */
    struct link waiting; /* those that wait for room */
    uint32_t sessions, awake;
    uint32_t promises; /* of room for them */
    uint32_t most;     /* of these at once */
    uint16_t func_id;
    struct line *next; /* of the same address */
};

/* Whether a session waits for room: in its address's line, or told that some is kept for it. */
enum turn { NO_TURN, WAITS, PROMISED };

struct session {
    uint32_t id;
    uint16_t func_id;
    uint16_t window, protect;
    bool tagged, packed;
    bool may_be_strict;
    bool is_proven; /* its last request that ended while it was received has come whole */
    bool stream;
    bool closing; /* it is removed when its last call has run */
    bool awake;   /* it has said something lately */
    uint8_t turn;
    uint8_t region; /* of shared memory, where all inputs lie; 0: they come in segments */
    uint32_t forgotten;
    struct link silence; /* awake or resting, the longest silent first */
    struct link quiet;   /* of its address */
    struct link series;  /* its answers in parts */
    uint64_t unwanted[SHUNTER_WINDOW]; /* streams that were given up before they came; 0: none */
    uint64_t asked;      /* the latest of its requests */
    struct link row;     /* of its turn */
    uint64_t wanted;     /* the request that was refused, 0: only credit */
    uint64_t promised_ns;
    uint64_t told_ns;     /* first promise since it has sent a request, 0: none */
    uint64_t patience_ns; /* so long room is kept for it */
    struct address *address;
    struct line *line;
    uint32_t key;
    struct shunter_keys keys;
    uint8_t peer[SHUNTER_PEER_BYTES];
    struct shunter_plan inputs, outputs;
    uint64_t last_offset; /* of a request in the region */
    uint64_t done;
    uint64_t answered; /* everything up to here is done, or is answered with the next datagrams */
    uint64_t grant;
    uint64_t last_ns;
    uint64_t pkt_no;
    uint64_t highest;
    uint64_t seen[REPLAY_WORDS]; /* a ring of bits: of datagram n, at n of their number */
    struct shunter_congestion path; /* of answers; a stream has its own */
    struct link sending;     /* of those that may send more when time has passed, */
    uint64_t paced_ns;       /* and when */
    uint32_t unsent, direct; /* segments of answers to be sent; requests whose workers do that */
    struct call calls[SHUNTER_WINDOW];
};

/* Whose request lies in an entry. */
struct owner {
    struct link link; /* of what is being received, or of what is kept */
    uint32_t session;
    uint64_t req_id;
};

struct function {
    uint16_t id;
    unsigned input_count, output_count;
    uint32_t inputs[SHUNTER_MAX_TENSORS], outputs[SHUNTER_MAX_TENSORS];
    struct shunter_runs runs;
    uint32_t entries, free, next, burst, sessions;
    uint32_t open;   /* those that are not closing */
    uint32_t awake;  /* addresses of which one has said something lately */
    uint64_t credit; /* requests that they may have on their way together */
    uint8_t *used;
    struct owner *owners;
    struct series_table *series; /* NULL: answers are whole */
    struct link link;      /* of the core's functions */
    struct link receiving; /* entries in parts */
    struct link kept;      /* answered entries, the longest untouched first */
    struct link waiting;   /* lines with sessions that wait for room: the row */
    struct link promised;  /* sessions for which room is kept, the oldest promise first */
    uint32_t promises;
    struct shunter_defaults defaults;
    int32_t slot;    /* of its model on the control page, -1: none */
    uint32_t strict; /* requests that hold */
    struct shunter_slice_set slices; /* that they hold, none while nobody would run them */
    bool somewhere;          /* there are some */
};

struct shunter_core {
    shunter_emit emit;
    void *context;
    struct function *functions[SHUNTER_FUNCTIONS];
    struct link all;     /* functions */
    struct session *sessions[SHUNTER_SESSIONS]; /* by the low 16 bits of the id */
    uint32_t count;
    uint32_t open[2]; /* sessions that are not closing; streams among them */
    uint32_t most[2]; /* of these */
    uint64_t ended_streams; /* so far */
    /* open sessions that are no streams, and streams; the longest silent first */
    struct link awake[2], resting[2];
    struct address *addresses[ADDRESS_ROWS];
    struct link sending; /* sessions that may send more of their answers when time has passed */
    uint32_t receiving;  /* calls */
    uint32_t in_rows;   /* sessions that wait, or have a promise */
    uint64_t unknown_ns; /* when answers to unknown sessions were counted anew */
    uint32_t unknown;
    struct shunter_hold_line line; /* of the control page: what strict requests hold */
};

static inline struct call *call_of(struct session *session, uint64_t req_id) {
    return &session->calls[req_id % SHUNTER_WINDOW];
}

static inline struct function *function_of(
    const struct shunter_core *core, const struct session *session) {
    return core->functions[session->func_id];
}

static inline struct session *find(const struct shunter_core *core, uint32_t id) {
    struct session *session = core->sessions[id & (SHUNTER_SESSIONS - 1)];
    return session && session->id == id ? session : NULL;
}

static inline uint32_t next_free(const struct function *function, uint32_t at) {
    while (function->used[at]) {
        at = at + 1 == function->entries ? 0 : at + 1;
    }
    return at;
}

/* ---- actions.c */

/* A datagram without payload to a session's peer. */
void shunter_control(
    const struct shunter_core *core, struct session *session, uint8_t type, uint64_t req_id,
    uint16_t status, const void *payload, uint16_t length);
void shunter_send_segment(
    const struct shunter_core *core, struct session *session, const struct call *call,
    uint32_t seq, bool asks);
void shunter_error(
    const struct shunter_core *core, struct session *session, uint64_t req_id, uint16_t status);
/* Which segments of a request are here. */
void shunter_sack(
    const struct shunter_core *core, struct session *session, const struct call *call);

/* ---- calls.c */

void shunter_become(
    struct shunter_core *core, struct function *function, struct call *call,
    enum state state, uint64_t now_ns);
void shunter_touch(struct function *function, struct call *call, uint64_t now_ns);
/* Its entry and its place are free. */
void shunter_end_call(
    struct shunter_core *core, struct session *session, struct call *call, uint64_t now_ns);
/* The client has its answer, or wants none. */
void shunter_forget(
    struct shunter_core *core, struct session *session, struct call *call, uint64_t now_ns);
void shunter_take_out(struct shunter_core *core, struct session *session);

/* ---- reassembly.c */

/* A segment of a request came. */
void shunter_request(
    struct shunter_core *core, struct session *session, const struct shunter_x64 *header,
    uint64_t now_ns);

/* ---- credit.c */

#define PROMISE_NS 50000000ULL

/* Whether there is an entry for this session. */
bool shunter_has_room(const struct function *function, const struct session *session);
/* The next free entry, NO_ENTRY when there is none for this session. */
int32_t shunter_take_entry(
    struct shunter_core *core, struct function *function, struct session *session,
    uint64_t now_ns);
void shunter_release(
    const struct shunter_core *core, struct function *function, struct call *call);
/* Let the session have as many requests on their way as it may now. */
void shunter_allow(struct function *function, struct session *session);
/* It is going to hear of answers: credit for what follows them goes with these. */
void shunter_allow_next(struct function *function, struct session *session);
/* Wait for room: for a request that was refused, or for credit (0). */
void shunter_wait_in_row(
    struct shunter_core *core, struct function *function, struct session *session,
    uint64_t wanted);
void shunter_leave_row(
    struct shunter_core *core, struct function *function, struct session *session);
/* Room that was kept for this session, or that it took, was of no use. */
void shunter_wasted(struct function *function, struct session *session);
/* Tell those who have waited longest of room that there is. */
void shunter_offer(struct shunter_core *core, struct function *function, uint64_t now_ns);
/* Promises that nobody made use of are over. */
void shunter_end_promises(
    struct shunter_core *core, struct function *function, uint64_t now_ns);

/* ---- holding.c */

/* Whether it is strict work, for which best effort stands still: it is coming, waits or runs. */
static inline bool shunter_holds(const struct call *call) {
    const bool is_coming = call->state == RECEIVING && !call->stalled;
    return !call->priority &&
           (is_coming || call->state == RX_COMPLETE || call->state == RUNNING);
}

/* A strict call has become another state, which holds by ``more`` than the last one did. */
void shunter_hold_changes(
    struct shunter_core *core, struct function *function, int more, bool progress,
    uint64_t now_ns);
/* Nobody stands still for a client that has gone, or is slow. */
void shunter_look_at_stall(
    struct shunter_core *core, struct session *session, struct call *call, uint64_t now_ns);
/* Say that the holder lives. */
void shunter_beat(const struct shunter_core *core, uint64_t now_ns);

/* ---- addresses.c */

/* NULL: there is none. */
struct address *shunter_address_of(struct shunter_core *core, uint64_t origin);
/* The same, made when it is new; NULL: there is no memory. */
struct address *shunter_come_from(struct shunter_core *core, uint64_t origin);
struct line *shunter_line_of(struct address *address, const struct function *function);
/* One more session, or one less (-1). */
void shunter_count_session(struct shunter_core *core, struct session *session, int32_t more);
/* An address, and lines of it, that have no sessions any more are gone. */
void shunter_forget_unused(struct shunter_core *core, struct address *address);
void shunter_set_awake(struct shunter_core *core, struct session *session, bool awake);
/* It has said something. */
void shunter_is_heard(struct shunter_core *core, struct session *session, uint64_t now_ns);
/* Whose place a new session of this address takes, NULL: nobody gives way. */
struct session *shunter_who_gives_way(
    const struct shunter_core *core, enum kind kind, const struct address *mine,
    uint64_t now_ns);

/* Remove it, and offer what it had to nobody yet. */
void shunter_leave(struct shunter_core *core, struct session *session, uint64_t now_ns);

#endif
