/*
 * How much may be on its way to a peer, and when the next may go: NewReno as QUIC uses it (RFC
 * 9002), and pacing by a token bucket.
 *
 * Pure: time comes in, nothing is sent, integers only. Twin of tests/nic_frontend/oracle/congestion.py.
 *
 * It differs from the RFC where this protocol does. What has come is said by the bits of a whole
 * request or answer, so a bit that is missing says as much as an acknowledgement of what was sent
 * later does; and it says nothing of other requests: what has come of them is told when they are
 * answered, in any order. An answer that comes sooner than the round trip was thought to last shows
 * that it is shorter. Whoever waits asks how it stands (SACK with ACK_REQ): that is the probe of the probe
 * timeout, and it is the owner's, which knows how long it wants to wait.
 */
#ifndef SHUNTER_CONGESTION_H
#define SHUNTER_CONGESTION_H

#include <stdbool.h>
#include <stdint.h>

#define SHUNTER_NEVER UINT64_MAX
/* A way that is shorter does not leave the host, or the room: see shunter_congestion_init. */
#define SHUNTER_NEAR_NS 1000000ULL

/* A datagram that was sent. */
struct shunter_flight {
    uint64_t sent_ns;
    uint64_t owner; /* the request that it belongs to */
    uint32_t bytes; /* 0: it is not on its way any more */
    uint16_t part;  /* its segment */
    bool asks;      /* to be acknowledged at once: it measures the round trip */
    bool again;     /* it was sent before: nobody knows which of them came */
    bool overtaken; /* later ones of its request have come */
    bool left;      /* it is not counted any more: by now it has come, or is lost */
};

struct shunter_congestion {
    uint32_t datagram; /* the largest */
    uint64_t near;     /* window of a way that is short */
    uint64_t window, threshold, in_flight; /* bytes */
    uint64_t rest; /* of its growth beyond the threshold: less than a byte, times the window */
    uint64_t recovery_ns; /* what was sent until then was lost together, 0: nothing was */
    uint64_t rtt_ns, var_ns, latest_ns;
    uint64_t measured_ns; /* when the first round trip was, 0: none */
    uint64_t due_ns;      /* when something on its way will be lost, if it is not here by then */
    uint64_t filled_ns, tokens; /* the bucket, in bytes */
    uint64_t asked;       /* number of the last that asks to be acknowledged */
    bool full, empty;     /* window and bucket: the last that was to go had to wait for it */
    uint32_t timeouts;  /* in a row: times when questions showed that something is lost */
    uint64_t timed_ns;  /* the last of them; what was sent before belongs to it */
    struct shunter_flight *flights; /* by number */
    uint64_t first, next; /* numbers: of the first that is on its way, of the next */
    uint64_t room;        /* of flights, a power of 2 */
};

/* Told of each datagram that is lost: it is to be sent again, unless it is known to be there. */
typedef void (*shunter_lost)(void *context, uint64_t owner, uint16_t part);

/*
 * The window that a path begins with is the RFC's: 10 datagrams. Where the round trip turns out to be
 * less than 1 ms, before anything is lost, it is ``near``, which should cover all that the peer has given credit for: a queue
 * in between would show in the round trip, credit is bounded by what the peer's own buffer holds,
 * and a whole burst of it is over before slow start would have finished. What is lost there narrows
 * the window as anywhere else. ``rtt_ns``: 0 when nothing is known yet.
 */
void shunter_congestion_init(
    struct shunter_congestion *path, uint32_t datagram, uint64_t near, uint64_t rtt_ns,
    uint64_t now_ns);
void shunter_congestion_free(struct shunter_congestion *path);

/* The round trip to a socket address of this host, as long as nobody is busy; 0: it is elsewhere. */
uint64_t shunter_loopback_ns(const void *address);

/*
 * When a datagram of so many bytes may be sent: now or before, or later, when its turn comes by
 * pacing, or what fills the window has left the path although nobody has said what became of it.
 * Clients do not say at once what has come, and only in turn.
 *
 * One that had to wait goes when there is room for a quantum of them, or for ``unsent`` bytes, which
 * are the most that wait: else a window that was full once would be filled by one datagram for each
 * that leaves it, each asking, none merged with another (silly windows, RFC 1122, 4.2.3.4).
 */
uint64_t shunter_congestion_may_send_at(
    struct shunter_congestion *path, uint32_t bytes, uint64_t unsent, uint64_t now_ns);
/* Whether as many bytes could all be sent now, and not even the last would have to wait. */
bool shunter_congestion_holds(struct shunter_congestion *path, uint64_t bytes, uint64_t now_ns);
/*
 * Whether the next datagram, of so many bytes, should ask to be acknowledged, where not all may be
 * sent at once: some do, and the last that may go.
 */
bool shunter_congestion_should_ask(const struct shunter_congestion *path, uint32_t bytes);
/* It was sent. 0 or -ENOMEM: it is not counted, and will not be lost. */
int shunter_congestion_sent(
    struct shunter_congestion *path, const struct shunter_flight *flight);

/*
 * What the peer has of a request: bits; NULL: all of it. What it lacks is lost when it should have
 * come before this was said; after a ``question`` only after a pause, which doubles as long as
 * nothing is new.
 */
void shunter_congestion_heard(
    struct shunter_congestion *path, uint64_t owner, const uint8_t *have, uint32_t have_bytes,
    bool question, uint64_t now_ns, shunter_lost lost, void *context);
/* Time has passed: what was overtaken by others long ago is lost. Call it when due_ns is over. */
void shunter_congestion_tick(
    struct shunter_congestion *path, uint64_t now_ns, shunter_lost lost, void *context);
/* Set the bits of a request's datagrams that are on their way. */
void shunter_congestion_mark(
    const struct shunter_congestion *path, uint64_t owner, uint8_t *bits);
/* Nobody wants to know any more what became of a request's datagrams. */
void shunter_congestion_forget(struct shunter_congestion *path, uint64_t owner);
/* A round trip was measured. */
void shunter_congestion_measure(
    struct shunter_congestion *path, uint64_t rtt_ns, uint64_t now_ns);
/* How long to wait for an answer to what was sent, doubled for each time that there was none. */
uint64_t shunter_congestion_timeout_ns(const struct shunter_congestion *path);

#endif
