/* What the parts of the client share. */
#ifndef SHUNTER_CLIENT_PARTS_H
#define SHUNTER_CLIENT_PARTS_H

#include <sys/socket.h>
#include <sys/uio.h>
#include <time.h>

#include "aead.h"
#include "client.h"
#include "congestion.h"
#include "message.h"
#include "page_send.h"
#include "segments.h"

#define SHUNTER_CLIENT_MESSAGES 64 /* in one system call */
#define SHUNTER_CLIENT_PADS 16
#define SHUNTER_CLIENT_SPILL 65536

struct shunter_call {
    uint64_t req_id; /* 0: free */
    uint64_t sent_ns, due_ns, rto_ns, deadline_ns;
    uint64_t asked_ns; /* when the server was asked how it stands, 0: it has answered that */
    uint32_t got; /* segments of the answer */
    uint32_t part; /* not 0: it asks for this part of the answer to ``of`` */
    uint64_t of;
    uint32_t count, answer_count; /* segments: of the request, of the answer, 0: not known yet */
    uint32_t bytes, answer_bytes; /* of a packed function */
    uint16_t rows;
    uint16_t flags;
    uint8_t priority;
    bool again; /* segments were sent again */
    bool cancelled; /* its caller does not wait for it, but its inputs may still be read */
    bool parted; /* it does not go at once: some of its segments ask to be acknowledged */
    uint32_t unsent; /* segments that are to be sent */
    uint32_t next;   /* those before it have been sent, once at least */
    uint8_t wanted[SHUNTER_BITMAP_BYTES]; /* which */
    bool refused; /* the server said last that it has no room: it has nothing of the request */
    const uint8_t *inputs[SHUNTER_MAX_TENSORS];
    uint8_t *outputs[SHUNTER_MAX_TENSORS];
    uint8_t received[SHUNTER_BITMAP_BYTES];
};

struct shunter_client {
    struct shunter_client_settings settings;
    struct shunter_plan inputs, outputs;
    struct shunter_call calls[SHUNTER_WINDOW];
    struct shunter_client_numbers live;
    uint64_t pkt_no, rttvar_ns;
    struct shunter_congestion path; /* of requests; a stream has its own */
    uint64_t paced_ns; /* when more may be sent, though nothing comes */
    uint32_t unsent; /* segments of all requests */
    uint64_t heard_no; /* the highest number of a datagram whose encrypted payload was right */
    /* Refused requests, from the oldest, that the server is asked about: it promises room to the
     * session, for one at a time. */
    uint32_t asks;
    uint8_t *hello; /* the last answer to one */
    uint32_t hello_length;
    struct shunter_ended ended[SHUNTER_WINDOW];
    uint32_t ended_count;
    /* what is being sent */
    struct shunter_x64 *headers; /* of every segment of a request */
    struct iovec *pieces;
    struct mmsghdr messages[SHUNTER_CLIENT_MESSAGES];
    struct shunter_page_sender sender;
    uint8_t controls[SHUNTER_CLIENT_MESSAGES][CMSG_SPACE(sizeof(uint16_t))];
    /* Small requests that go together: header and payload of each, where these lie. */
    bool corked;
    uint32_t held;
    struct shunter_x64 held_headers[SHUNTER_CLIENT_MESSAGES];
    struct iovec held_pieces[2 * SHUNTER_CLIENT_MESSAGES];
    struct shunter_aead *aead;
    uint8_t *sealed; /* encrypted segments of a request */
    /* what comes */
    uint8_t heads[SHUNTER_CLIENT_PADS][SHUNTER_HEADER_BYTES];
    uint8_t *spill, *aside;
    uint32_t have, left; /* of a stream: bytes of the header, bytes behind it that are to come */
    uint8_t *into;
    struct shunter_x64 head;
    /* what a stream did not take yet: pieces of a request where they lie, then what is copied */
    struct iovec *lent;
    size_t lent_count;
    uint64_t lent_id; /* the request that they belong to */
    uint8_t *kept;
    size_t kept_at, kept_own, kept_room;
};

static inline uint64_t shunter_client_now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000ULL + (uint64_t)now.tv_nsec;
}

/* The number with these low bits that is nearest to ``about``. */
static inline uint64_t shunter_nearest(uint32_t low, uint64_t about) {
    return about + (uint64_t)(int64_t)(int32_t)(low - (uint32_t)about);
}

static inline struct shunter_call *shunter_call_of(struct shunter_client *client, uint64_t req_id) {
    struct shunter_call *call = &client->calls[req_id % SHUNTER_WINDOW];
    return req_id && call->req_id == req_id ? call : NULL;
}

/* ---- client_calls.c: requests that have begun, and what a header means for them */

/* How long to wait for an answer. */
uint64_t shunter_call_rto(const struct shunter_client *client);
void shunter_call_free(struct shunter_client *client, struct shunter_call *call);
bool shunter_call_is_ours(const struct shunter_client *client, const struct shunter_x64 *header);
/* Where the payload of an answer belongs, if it is one that is missing. */
bool shunter_call_place(
    struct shunter_client *client, const struct shunter_x64 *header, uint8_t **place);
/* A segment of an answer is where it belongs. */
void shunter_call_received(
    struct shunter_client *client, const struct shunter_x64 *header, uint64_t now);
/* Anything that is ours and has no payload that belongs to an answer. */
int shunter_call_heed(
    struct shunter_client *client, const struct shunter_x64 *header, const uint8_t *payload,
    uint64_t now);
void shunter_call_heed_credit(struct shunter_client *client, const struct shunter_x64 *header);
/* Nothing came: ask how it stands, and say what is here of the answer. */
int shunter_calls_tick(struct shunter_client *client, uint64_t now);

/* ---- client_send.c: 0 or a negative errno; what meets no room counts as lost */

int shunter_client_control(
    struct shunter_client *client, uint8_t type, uint64_t req_id, uint16_t flags,
    const void *payload, uint16_t length);
/*
 * Header and payload of a segment of a request, protected, to be sent with others by the next.
 * Each has a number of its own, also what was sent before. 0 or -EIO.
 */
int shunter_client_prepare(
    struct shunter_client *client, const struct shunter_call *call, uint32_t seq, uint16_t flags,
    uint64_t now);
int shunter_client_send_prepared(struct shunter_client *client, uint32_t from, uint32_t to);
/* Send what is held back to go with others. */
int shunter_client_send_held(struct shunter_client *client);
/* The same, and on a stream what was kept, as far as the socket takes it. */
int shunter_client_flush(struct shunter_client *client);

/* ---- client_flow.c: what of requests goes now; 0 or a negative errno */

void shunter_flow_open(struct shunter_client *client);
void shunter_flow_begin(struct shunter_call *call);
void shunter_flow_end(struct shunter_client *client, struct shunter_call *call);
/* All segments of a request are to be sent. */
int shunter_flow_want_all(
    struct shunter_client *client, struct shunter_call *call, uint64_t now);
/* The server says which it has; ``have`` NULL: all. */
int shunter_flow_heard(
    struct shunter_client *client, struct shunter_call *call, const uint8_t *have,
    uint32_t length, uint64_t now);
/* It has them all. */
void shunter_flow_all_came(
    struct shunter_client *client, const struct shunter_call *call, uint64_t now);
/* It has none of them, and no room for them now. */
void shunter_flow_refused(
    struct shunter_client *client, struct shunter_call *call, uint64_t now);
/* When to call the next although nothing comes. */
uint64_t shunter_flow_due_ns(const struct shunter_client *client);
int shunter_flow_tick(struct shunter_client *client, uint64_t now);

/* ---- client_stream.c */

/* Send what was kept, as far as the socket takes it. */
int shunter_client_flush_stream(struct shunter_client *client);
/*
 * Never waits and never receives: what the socket does not take is kept, and goes before all else;
 * where it lies if it is lent, which is said to be over by the next. No request begins while
 * something is kept, so that is one request and a few small messages.
 */
int shunter_client_send_stream(
    struct shunter_client *client, struct iovec *pieces, size_t count, bool lends);
/* What is kept of a request is copied, because its memory is the caller's again. 0 or -ENOMEM: the
 * stream is over. */
int shunter_client_return(struct shunter_client *client);

/* ---- client_shared.c: inputs in memory that workers read */

/* Where in it those of a request lie. */
uint32_t shunter_shared_offset(const struct shunter_client *client, uint64_t req_id);
/* Copy them there, so many bytes of each. 0, or -EINVAL when they lie in each other's place. */
int shunter_shared_put(
    struct shunter_client *client, uint64_t req_id, const void *const *inputs,
    const uint32_t *sizes);
/* Nobody waits for it any more. */
int shunter_shared_cancel(struct shunter_client *client, struct shunter_call *call);
/* What comes for one that is cancelled: its place is free when it has ended. */
void shunter_shared_heed(
    struct shunter_client *client, struct shunter_call *call, const struct shunter_x64 *header);

/* ---- segments of a request, and of its answer */

/* Most answers of a packed function have fewer bytes, and so have requests, whatever they may have. */
#define SHUNTER_CLIENT_USUAL_RUN 65536

static inline bool shunter_client_is_packed(const struct shunter_client *client) {
    return client->settings.least_answer;
}

static inline struct shunter_segment shunter_request_segment(
    const struct shunter_client *client, const struct shunter_call *call, uint32_t seq) {
    return shunter_client_is_packed(client) && !client->settings.shared
        ? shunter_run_place(call->bytes, client->inputs.segment, seq)
        : shunter_place(&client->inputs, seq);
}

/* Its request ends with a status, or not at all: nowhere is room for an answer. */
static inline bool shunter_call_has_no_answer(
    const struct shunter_client *client, const struct shunter_call *call) {
    return shunter_client_is_packed(client) && !call->outputs[0];
}

/* ---- client_guard.c: protected payloads */

/* What is needed for it; 0, -ENOTSUP or -ENOMEM. */
int shunter_client_guard_new(struct shunter_client *client);
void shunter_client_guard_free(struct shunter_client *client);
/* Complete and sign the header of a segment; its payload may then lie elsewhere. 0 or -EIO. */
int shunter_client_protect(
    struct shunter_client *client, struct shunter_x64 *header, const uint8_t **payload);
void shunter_client_sign(struct shunter_client *client, struct shunter_x64 *header);
/* Check, and decrypt in place. ``head``: the header as it came. */
bool shunter_client_is_right(
    struct shunter_client *client, const struct shunter_x64 *header, const void *head,
    uint8_t *payload);

static inline bool shunter_client_encrypts(const struct shunter_client *client) {
    return client->settings.protect == SHUNTER_FLAG_PAYLOAD_AEAD;
}

/* Bytes of the largest datagram of a request. */
static inline uint32_t shunter_client_largest(const struct shunter_client *client) {
    return SHUNTER_HEADER_BYTES + client->inputs.segment +
           shunter_behind(client->settings.protect);
}

/* ---- client_receive.c */

/* Datagrams that are there; how many, or a negative errno. */
int shunter_client_receive_datagrams(struct shunter_client *client);
int shunter_client_receive_stream(struct shunter_client *client);

#endif
