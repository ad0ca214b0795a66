/*
 * What the front end does with a datagram: bytes and the time in, actions out.
 *
 * Its twin in the tests, oracle/core.py, says what everything means; the same tests and the same
 * mutated datagrams go through both. No I/O, no clock, no thread. Memory is taken when a function
 * or a session is added and given back when it is removed.
 */
#ifndef SHUNTER_CORE_H
#define SHUNTER_CORE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "message.h"
#include "segments.h"

#define SHUNTER_SESSIONS 65536
#define SHUNTER_MOST_SESSIONS 8192 /* at once; one takes about 20 KB */
#define SHUNTER_FUNCTIONS 65536

enum shunter_action_kind {
    SHUNTER_PLACE = 1,
    SHUNTER_READY,
    SHUNTER_WITHDRAW,
    SHUNTER_LET_GO, /* the input of an entry is not needed any more */
    SHUNTER_SEND,
    SHUNTER_HELLO,
    SHUNTER_DROP,
    SHUNTER_PART, /* the entry at the offset is a place for the next part of an entry's answer */
    SHUNTER_UNWANTED, /* nobody waits for the answer of an entry that runs */
};

/* Counters of what is dropped; the order is that of core.DROPS in Python. */
enum shunter_drop {
    SHUNTER_DROP_SHORT,
    SHUNTER_DROP_MAGIC,
    SHUNTER_DROP_VERSION,
    SHUNTER_DROP_TYPE,
    SHUNTER_DROP_FLAGS,
    SHUNTER_DROP_WORDS,
    SHUNTER_DROP_RESERVED,
    SHUNTER_DROP_LENGTH,
    SHUNTER_DROP_TAG,
    SHUNTER_DROP_SESSION,
    SHUNTER_DROP_PEER,
    SHUNTER_DROP_REPLAY,
    SHUNTER_DROP_DIRECTION,
    SHUNTER_DROP_FUNC_ID,
    SHUNTER_DROP_OLD,
    SHUNTER_DROP_CREDIT,
    SHUNTER_DROP_FULL,
    SHUNTER_DROP_SIZES,
    SHUNTER_DROP_DUPLICATE,
    SHUNTER_DROP_SACK,
    SHUNTER_DROP_CANCEL,
    SHUNTER_DROP_AEAD, /* the last ones are of payloads, which the server looks at */
    SHUNTER_DROP_CRC,
    SHUNTER_DROP_POOL, /* there was no room to keep it */
    SHUNTER_DROPS,
};

struct shunter_action {
    uint8_t kind;
    uint8_t tensor;
    uint8_t priority;
    uint8_t again;    /* of a READY: it was given to a worker that died */
    uint8_t returned; /* of a READY: its worker had not begun it */
    uint16_t drop;
    uint16_t func_id;
    uint16_t rows;   /* of a READY: those of the request */
    int32_t entry;
    uint32_t offset;
    uint32_t length; /* of the payload; of a READY of a packed function: of the whole request */
    uint32_t left;   /* of a PLACE: segments that are missing, with this one */
    uint32_t region; /* of a PLACE: not 0: all of the request lies in this one, at the offset */
    uint32_t session;
    uint64_t deadline_ns;
    struct shunter_guard guard; /* of a PLACE, and of a SEND with an entry */
    uint8_t peer[SHUNTER_PEER_BYTES]; /* of a SEND */
    uint8_t header[SHUNTER_HEADER_BYTES];
    uint8_t payload[SHUNTER_BITMAP_BYTES]; /* of a SEND without an entry */
};

/* Called for each action, in order. It must not call the core. */
typedef void (*shunter_emit)(void *context, const struct shunter_action *action);

struct shunter_core;

struct shunter_core *shunter_core_new(shunter_emit emit, void *context);
void shunter_core_free(struct shunter_core *core);

/* 0, or a negative errno: EINVAL, EEXIST, ENOMEM. ``burst``: requests on their way at once. */
int shunter_core_add_function(
    struct shunter_core *core, uint16_t func_id, const uint32_t *inputs, unsigned input_count,
    const uint32_t *outputs, unsigned output_count, uint32_t entries, uint32_t burst);
/*
 * The function is packed: its one input and its one output are runs of bytes, and the sizes that it
 * was added with are the most that they may have. What is in them is its clients' and its workers'.
 */
struct shunter_runs {
    uint32_t rows; /* most of a request, 0: it is not packed */
    uint32_t least_request, least_answer; /* bytes; with parts, of each */
    uint32_t streamed; /* not 0: answers come in parts, each of at most the output's size */
    uint64_t idle_ns;  /* so long an answer in parts is kept for whom nobody asks */
};

/* 0, or a negative errno: ENOENT, EINVAL; EBUSY when it has sessions and only ``rows`` may change. */
int shunter_core_set_runs(
    struct shunter_core *core, uint16_t func_id, const struct shunter_runs *runs);
/* What requests take from their model: core.Defaults in Python. */
struct shunter_defaults {
    uint64_t slo_ns;     /* deadline of strict requests that have none; 0: none */
    uint64_t timeout_ns; /* latest deadline of all; 0: none */
    uint8_t priority;    /* class of those that name none */
};

/* 0, or a negative errno: ENOENT, EINVAL. */
int shunter_core_set_defaults(
    struct shunter_core *core, uint16_t func_id, const struct shunter_defaults *defaults);
int shunter_core_remove_function(struct shunter_core *core, uint16_t func_id);

/*
 * Where the strict requests of a function run: the slot of its model on the control page, -1 for
 * none, and the SHUNTER_SLICE_WORDS words of a set of slices, which is empty while nobody runs them.
 * 0, or a negative errno: ENOENT, EINVAL.
 */
int shunter_core_set_hold(
    struct shunter_core *core, uint16_t func_id, int32_t slot, const uint64_t *slices,
    uint64_t now_ns);
/*
 * Say on this holder's line of the control page what strict requests hold, from the header of the
 * first of them to the end of the last; NULL: say it nowhere. It must stay mapped until then.
 */
void shunter_core_hold_at(struct shunter_core *core, void *line, uint64_t now_ns);

/* What a session begins with. */
struct shunter_opening {
    uint64_t pkt_no; /* of the last datagram to the client: 0 */
    uint32_t session;
    uint16_t func_id;
    uint16_t segment;
    uint16_t window;
    uint16_t protect; /* FLAG_PAYLOAD_CRC, FLAG_PAYLOAD_AEAD, or 0 */
    uint8_t stream;
    uint8_t tagged; /* headers, with the keys below */
    uint8_t may_be_strict; /* otherwise all of its requests are best effort */
    uint8_t region; /* of memory that it shares, where its requests lie; 0: none */
    uint64_t region_bytes;
    uint32_t key; /* number of the key that it was opened with, 0: none */
    uint64_t origin; /* the address whose sessions are counted together */
    struct shunter_keys keys;
    uint8_t peer[SHUNTER_PEER_BYTES];
};

/* 0, or a negative errno: EINVAL, EEXIST, ENOENT, ENOMEM, E2BIG for too many segments, ENOSPC when
 * there are too many sessions and none gives way. */
int shunter_core_add_session(
    struct shunter_core *core, const struct shunter_opening *opening, uint64_t now_ns);
/* As many sessions at once, and as many on streams among them. */
void shunter_core_limit(struct shunter_core *core, uint32_t sessions, uint32_t streams);
int shunter_core_remove_session(struct shunter_core *core, uint32_t session, uint64_t now_ns);
/* All that were opened with this key; how many. */
uint32_t shunter_core_remove_key(struct shunter_core *core, uint32_t key, uint64_t now_ns);

/* ``length`` counts the whole datagram, of which at least the header (and the payload of a QUERY)
 * can be read at ``datagram``. */
void shunter_core_receive(
    struct shunter_core *core, const uint8_t *peer, const uint8_t *datagram, size_t length,
    uint64_t now_ns);

/* The payload of a PLACE is there, and right: only now it counts. ``header`` is its header. */
void shunter_core_accept(struct shunter_core *core, const uint8_t *header, uint64_t now_ns);
/* Whether it may still be written: it was told to be placed, and may be forgotten since. */
bool shunter_core_awaits(const struct shunter_core *core, const uint8_t *header);

/* Whom a worker answers. */
struct shunter_whom {
    uint64_t req_id;
    uint32_t session;
    uint32_t credit;
    uint32_t pkt_no; /* of the first datagram; one for each segment is reserved */
    uint16_t segment;
    uint8_t priority;
    uint8_t direct; /* the worker sends the answer itself, */
    uint32_t direct_bytes; /* if it is no longer */
    uint8_t idempotent; /* it may run twice */
    uint8_t asks; /* the answer asks to be acknowledged at once: others wait for its entry */
    uint8_t tagged; /* with key, where the worker sends the answer itself */
    uint8_t key[16];
    uint8_t peer[SHUNTER_PEER_BYTES];
};

void shunter_core_running(
    struct shunter_core *core, uint16_t func_id, uint32_t entry, uint64_t now_ns,
    struct shunter_whom *whom);
/* ``bytes``: of its answer, where the function is packed. */
void shunter_core_finished(
    struct shunter_core *core, uint16_t func_id, uint32_t entry, uint16_t status, bool sent,
    uint32_t bytes, uint64_t now_ns);
/* The worker has written the next part of an answer, into the place that was told first. */
void shunter_core_part(
    struct shunter_core *core, uint16_t func_id, uint32_t entry, uint32_t bytes, uint64_t now_ns);
/* It writes none after those, though the request runs on with its batch; ``status``: why. */
void shunter_core_parts_over(
    struct shunter_core *core, uint16_t func_id, uint32_t entry, uint16_t status,
    uint64_t now_ns);
void shunter_core_worker_died(
    struct shunter_core *core, uint16_t func_id, uint32_t entry, uint64_t now_ns);
/* A batch that its worker had not begun when it died, or gives back: it runs elsewhere. */
void shunter_core_returned(
    struct shunter_core *core, uint16_t func_id, uint32_t entry, uint64_t now_ns);
void shunter_core_expired(
    struct shunter_core *core, uint16_t func_id, uint32_t entry, uint64_t now_ns);
void shunter_core_tick(struct shunter_core *core, uint64_t now_ns);

/* Numbers for the status and for tests. */
bool shunter_core_is_receiving(const struct shunter_core *core); /* a request in parts */
bool shunter_core_is_pressed(const struct shunter_core *core); /* or sessions wait for room */
uint32_t shunter_core_free_entries(const struct shunter_core *core, uint16_t func_id);
/* Sessions wait for entries of this function. */
bool shunter_core_has_row(const struct shunter_core *core, uint16_t func_id);
/* Of all answers that a session may have at once, with their headers; 0 when it is not there. */
uint64_t shunter_core_answer_bytes(const struct shunter_core *core, uint32_t session);
uint32_t shunter_core_sessions(const struct shunter_core *core);
/* Sessions on streams that have ended so far. */
uint64_t shunter_core_ended_streams(const struct shunter_core *core);
/* Open sessions of a function, and requests that they may have on their way together. */
void shunter_core_load(
    const struct shunter_core *core, uint16_t func_id, uint32_t *sessions, uint64_t *credit);
bool shunter_core_is_open(const struct shunter_core *core, uint32_t session);
/* Whether anything of it is left: also of one that has ended, while its last requests run. */
bool shunter_core_has(const struct shunter_core *core, uint32_t session);
uint64_t shunter_core_grant(const struct shunter_core *core, uint32_t session);

#endif
