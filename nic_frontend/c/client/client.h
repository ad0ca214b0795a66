/*
 * The client's end of a session with its socket.
 *
 * One thread. Requests begin, poll says which have ended; what they sent and where their answers
 * go must stay until then. Nothing is copied but answers that come out of turn.
 */
#ifndef SHUNTER_CLIENT_H
#define SHUNTER_CLIENT_H

#include <stdbool.h>
#include <stdint.h>

#include "message.h"
#include "wire_layout.h"

struct shunter_client;

struct shunter_client_settings {
    int socket; /* connected, non-blocking */
    bool stream;
    bool gso; /* try UDP_SEGMENT where there are several segments */
    bool tagged; /* headers carry tags */
    uint16_t protect; /* FLAG_PAYLOAD_CRC, FLAG_PAYLOAD_AEAD or 0: what all payloads carry */
    struct shunter_keys keys;
    uint32_t session;
    uint16_t func_id;
    uint16_t segment;
    uint32_t input_count, output_count;
    uint32_t input_bytes[SHUNTER_MAX_TENSORS];
    uint32_t output_bytes[SHUNTER_MAX_TENSORS];
    uint64_t grant;
    uint64_t pkt_no; /* of the last datagram that the caller has sent in this session */
    uint64_t trip_ns; /* the shortest way to the server and back, 0: not known */
    /* Where workers read inputs, with room for so many requests: those are copied there, unless
     * that is where they lie, and not sent. NULL: they are sent. Only of a stream. */
    uint8_t *shared;
    uint32_t shared_requests;
    /* Not 0: the function is packed. Its one input and its one output are runs of bytes up to these
     * sizes, and an answer has at least so many. */
    uint32_t least_answer;
};

struct shunter_ended {
    uint64_t req_id;
    uint32_t status; /* STATUS_OK: the outputs are there */
    uint32_t bytes;  /* of the answer of a packed function */
};

struct shunter_client_numbers {
    uint64_t next_id, grant; /* the next request's number, the highest that may be sent */
    uint64_t below;          /* every request less than this has ended */
    uint64_t pending;
    uint64_t lost;    /* datagrams sent again */
    uint64_t rtt_ns;  /* smoothed; the time in the model is part of it */
    uint64_t trip_ns; /* to the server and back, the shortest */
    /* bytes of answers that came out of turn, of inputs that are shared, and of requests that ended
     * before a stream had taken all of them */
    uint64_t copied;
    uint64_t heard_ns; /* when something true came last */
    uint64_t unknown_ns; /* when somebody said last that there is no such session */
    uint64_t kept;    /* bytes that a stream did not take yet */
    uint64_t packets; /* datagrams, or segments on a stream, in both directions */
};

/*
 * 0, -EINVAL, -E2BIG, -ENOMEM, or -ENOTSUP where payloads are to be encrypted and there is no
 * libcrypto. The socket stays the caller's.
 */
int shunter_client_new(
    const struct shunter_client_settings *settings, struct shunter_client **client);
void shunter_client_free(struct shunter_client *client);

/*
 * The request's number, -EAGAIN without credit or while a stream takes nothing (poll, then try
 * again), or another negative errno of sending. Never waits on a stream.
 */
int64_t shunter_client_begin(
    struct shunter_client *client, const void *const *inputs, void *const *outputs,
    uint64_t deadline_us, uint32_t priority, uint32_t idempotent);

/* The request of a packed function. */
struct shunter_client_run {
    const void *request;
    /* Has room for the longest; NULL: the request ends only with a status, and an answer to it is
     * taken for one of a handler that failed. */
    void *answer;
    uint32_t bytes, rows; /* of the request */
    uint32_t part; /* not 0: no request, but asks for this part of the answer to ``of`` */
    uint64_t of;
};

/* The same of a packed function: -EINVAL for a run that is too long. */
int64_t shunter_client_begin_run(
    struct shunter_client *client, const struct shunter_client_run *run, uint64_t deadline_us,
    uint32_t priority, uint32_t idempotent);

/*
 * Several requests are to begin now: small ones wait for each other and go in few system calls, at
 * the latest when ``corked`` is 0 again, or by poll. Nothing changes on a stream. 0 or a negative
 * errno of sending.
 */
int shunter_client_cork(struct shunter_client *client, uint32_t corked);

/*
 * Where workers read the inputs of the next request: what is written there is not copied. 0, -ENOTSUP
 * when nothing is shared, or -EAGAIN while its place is another's.
 */
int shunter_client_places(const struct shunter_client *client, void **inputs);

/*
 * Take in what has come, send again what is missing, until something has ended or ``until_ns``
 * (CLOCK_MONOTONIC) has passed; when no request is on its way, until anything has come; or until a
 * stream takes more again. Returns how many have ended, or a negative errno: -ECONNRESET when a
 * stream is over. ``spin``: do not sleep.
 */
int shunter_client_poll(
    struct shunter_client *client, struct shunter_ended *ended, uint32_t most, uint64_t until_ns,
    uint32_t spin);

/* One request from its beginning to its end. */
struct shunter_exchange {
    const void *const *inputs;
    void *const *outputs;
    uint64_t deadline_us, until_ns;
    uint32_t priority, idempotent, spin;
    uint32_t status; /* 0: it has not ended yet, and is like any other that has begun */
    uint64_t req_id; /* 0: it could not begin */
    uint32_t bytes, rows; /* of the request of a packed function; the bytes become the answer's */
};

/*
 * Begin, then poll until the request has ended or its time is over. Only while no other is on its
 * way. 0, -EAGAIN as of begin, or another negative errno, which may be of either.
 */
int shunter_client_exchange(struct shunter_client *client, struct shunter_exchange *exchange);

/*
 * The last answer to a hello, which says nothing about a request: poll ends when one comes. Returns
 * its length, 0: there is none. It is told once, and there until the next poll.
 */
uint32_t shunter_client_hello(struct shunter_client *client, const uint8_t **datagram);

/* No more parts of the answer to a request that has ended with STATUS_UNDER_WAY are wanted. */
int shunter_client_unwanted(struct shunter_client *client, uint64_t req_id);
/* Give a request up; it does not end any more. */
int shunter_client_cancel(struct shunter_client *client, uint64_t req_id);
/* Ask for credit, unless a stream takes nothing. */
int shunter_client_ask(struct shunter_client *client);
/* The session is over: the server need not keep it, nor the last answers. */
int shunter_client_farewell(struct shunter_client *client);
/* When poll has to be called again although nothing came, UINT64_MAX: never. */
uint64_t shunter_client_due_ns(const struct shunter_client *client);
/* As they are at any time, as long as the client lives. */
const struct shunter_client_numbers *shunter_client_numbers(const struct shunter_client *client);

#endif
