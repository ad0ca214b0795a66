#include "congestion.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define INITIAL_DATAGRAMS 10
#define INITIAL_BYTES 14720
#define LEAST_DATAGRAMS 2
#define GRANULARITY_NS 1000000ULL
#define FIRST_RTT_NS 10000000ULL /* as long as it is not known; a client waits twice as long */
#define REORDERED 3              /* datagrams that may overtake one */
#define MOST_DOUBLED 6
#define MOST_RTT_NS 10000000000ULL
#define FILL_NS 20000ULL /* not more often: less than this is not counted well */
#define PERSISTENT 3  /* timeouts without a sign */
#define BURST_NS 2000000ULL /* what the rate brings meanwhile may go at once: clocks tick in ms */
#define FIRST_ROOM 16
#define MOST_ROOM (1u << 17)

static uint64_t least(uint64_t a, uint64_t b) { return a < b ? a : b; }
static uint64_t most(uint64_t a, uint64_t b) { return a > b ? a : b; }

static struct shunter_flight *flight_at(const struct shunter_congestion *path, uint64_t number) {
    return &path->flights[number & (path->room - 1)];
}

static uint64_t initial_window(uint32_t datagram) {
    const uint64_t few = most(INITIAL_BYTES, (uint64_t)LEAST_DATAGRAMS * datagram);
    return least((uint64_t)INITIAL_DATAGRAMS * datagram, few);
}

static uint64_t least_window(const struct shunter_congestion *path) {
    return (uint64_t)LEAST_DATAGRAMS * path->datagram;
}

/* ---- the round trip: RFC 9002, 5.3 */

static uint64_t rtt_of(const struct shunter_congestion *path) {
    return path->measured_ns ? path->rtt_ns : FIRST_RTT_NS;
}

static uint64_t patience(const struct shunter_congestion *path) {
    const uint64_t var = path->measured_ns ? path->var_ns : FIRST_RTT_NS / 2;
    return rtt_of(path) + most(4 * var, GRANULARITY_NS);
}

uint64_t shunter_congestion_timeout_ns(const struct shunter_congestion *path) {
    return patience(path) << least(path->timeouts, MOST_DOUBLED);
}

/* What was sent so long before something that came is late. */
static uint64_t loss_delay(const struct shunter_congestion *path) {
    const uint64_t rtt = most(rtt_of(path), path->latest_ns);
    return most(rtt + rtt / 8, GRANULARITY_NS);
}

void shunter_congestion_measure(
    struct shunter_congestion *path, uint64_t rtt_ns, uint64_t now_ns) {
    path->latest_ns = least(most(rtt_ns, 1), MOST_RTT_NS);
    if (!path->measured_ns) {
        path->measured_ns = most(now_ns, 1);
        path->rtt_ns = path->latest_ns;
        path->var_ns = path->latest_ns / 2;
        if (rtt_ns < SHUNTER_NEAR_NS && !path->recovery_ns) {
            path->window = most(path->window, path->near);
        }
        return;
    }
    const uint64_t off = path->rtt_ns > path->latest_ns ? path->rtt_ns - path->latest_ns
                                                        : path->latest_ns - path->rtt_ns;
    path->var_ns = (3 * path->var_ns + off) / 4;
    path->rtt_ns = (7 * path->rtt_ns + path->latest_ns) / 8;
}

/* ---- what may be sent */

void shunter_congestion_init(
    struct shunter_congestion *path, uint32_t datagram, uint64_t near, uint64_t rtt_ns,
    uint64_t now_ns) {
    memset(path, 0, sizeof *path);
    path->datagram = datagram;
    path->near = near;
    path->window = path->tokens = initial_window(datagram);
    path->threshold = path->due_ns = SHUNTER_NEVER;
    path->filled_ns = now_ns;
    if (rtt_ns) {
        shunter_congestion_measure(path, rtt_ns, now_ns);
        path->tokens = path->window;
    }
}

void shunter_congestion_free(struct shunter_congestion *path) {
    free(path->flights);
    path->flights = NULL;
    path->room = 0;
}

/* Bytes in so long a time: 5/4 of a window in a round trip. Of microseconds: nothing overflows. */
static uint64_t paced(const struct shunter_congestion *path, uint64_t ns) {
    return 5 * path->window * (ns / 1000) / (4 * most(rtt_of(path) / 1000, 1));
}

static void fill_bucket(struct shunter_congestion *path, uint64_t now_ns) {
    const uint64_t passed = now_ns > path->filled_ns ? now_ns - path->filled_ns : 0;
    if (passed >= FILL_NS) {
        const uint64_t burst = most(initial_window(path->datagram), paced(path, BURST_NS));
        path->filled_ns = now_ns;
        path->tokens += paced(path, least(passed, BURST_NS + 10 * rtt_of(path)));
        path->tokens = least(path->tokens, burst);
    }
}

uint64_t shunter_congestion_may_send_at(
    struct shunter_congestion *path, uint32_t bytes, uint64_t now_ns) {
    if (path->in_flight && path->in_flight + bytes > path->window) {
        return SHUNTER_NEVER;
    }
    fill_bucket(path, now_ns);
    if (path->tokens >= bytes || !path->in_flight) {
        return now_ns;
    }
    const uint64_t rate = most(paced(path, 1000 * GRANULARITY_NS), 1); // a second's
    return now_ns + FILL_NS + (bytes - path->tokens) * 1000 * GRANULARITY_NS / rate;
}

bool shunter_congestion_holds(struct shunter_congestion *path, uint64_t bytes, uint64_t now_ns) {
    fill_bucket(path, now_ns);
    return path->in_flight + bytes <= path->window && bytes <= path->tokens;
}

uint32_t shunter_congestion_asks_each(const struct shunter_congestion *path) {
    return (uint32_t)least(16, most(2, path->window / path->datagram / 4));
}

static int more_room(struct shunter_congestion *path) {
    const uint64_t room = path->room ? 2 * path->room : FIRST_ROOM;
    struct shunter_flight *flights =
        room > MOST_ROOM ? NULL : malloc((size_t)room * sizeof *flights);
    if (!flights) {
        return -ENOMEM;
    }
    for (uint64_t number = path->first; number < path->next; number++) {
        flights[number & (room - 1)] = *flight_at(path, number);
    }
    free(path->flights);
    path->flights = flights;
    path->room = room;
    return 0;
}

int shunter_congestion_sent(
    struct shunter_congestion *path, const struct shunter_flight *flight) {
    path->tokens -= least(path->tokens, flight->bytes);
    if (path->next - path->first == path->room && more_room(path)) {
        return -ENOMEM;
    }
    *flight_at(path, path->next++) = *flight;
    path->in_flight += flight->bytes;
    return 0;
}

/* ---- what has come, and what has not */

static void land(struct shunter_congestion *path, struct shunter_flight *flight) {
    path->in_flight -= flight->bytes;
    flight->bytes = 0;
}

static void pop(struct shunter_congestion *path) {
    while (path->first < path->next && !flight_at(path, path->first)->bytes) {
        path->first++;
    }
}

/* RFC 9002, 7.3; ``before``: bytes on their way when this was heard. */
static void grow(
    struct shunter_congestion *path, const struct shunter_flight *flight, uint64_t before) {
    const uint64_t used = path->window < path->threshold ? 2 * before
                                                         : before + 3ULL * path->datagram;
    if (flight->sent_ns <= path->recovery_ns || used < path->window) {
        return; // what is not used says nothing of the path
    }
    path->window += path->window < path->threshold
        ? flight->bytes
        : (uint64_t)path->datagram * flight->bytes / path->window;
}

static bool has(const uint8_t *have, uint32_t have_bytes, uint16_t part) {
    return !have || (part / 8u < have_bytes && have[part / 8] >> (part % 8) & 1);
}

/* Whether something was new. */
static bool acknowledge(
    struct shunter_congestion *path, uint64_t owner, const uint8_t *have, uint32_t have_bytes,
    uint64_t now_ns) {
    const uint64_t before = path->in_flight;
    uint64_t last = SHUNTER_NEVER, asked_ns = 0;
    for (uint64_t number = path->first; number < path->next; number++) {
        struct shunter_flight *flight = flight_at(path, number);
        if (flight->bytes && flight->owner == owner && has(have, have_bytes, flight->part)) {
            grow(path, flight, before);
            asked_ns = flight->asks && !flight->again && have ? flight->sent_ns : 0;
            path->largest = flight->again ? path->largest : most(path->largest, number + 1);
            last = number;
            land(path, flight);
        }
    }
    if (asked_ns && now_ns > asked_ns) {
        shunter_congestion_measure(path, now_ns - asked_ns, now_ns);
    }
    return last != SHUNTER_NEVER;
}

/* RFC 9002, 7.3.2 and 7.6; ``before``: bytes on their way when it was seen. */
static void narrow(
    struct shunter_congestion *path, uint64_t lost_ns, uint64_t span_ns, uint64_t before,
    uint64_t now_ns) {
    if (lost_ns > path->recovery_ns) {
        path->recovery_ns = now_ns;
        path->threshold = most(least(path->window, 2 * before) / 2, least_window(path));
        path->window = path->threshold;
    }
    if (span_ns > PERSISTENT * patience(path)) {
        path->window = least_window(path);
        path->recovery_ns = 0;
    }
}

/* What of ``owner`` was sent before ``missing_ns`` is lost, and what others have overtaken. */
static bool detect(
    struct shunter_congestion *path, uint64_t owner, uint64_t missing_ns, uint64_t now_ns,
    shunter_lost lost, void *context) {
    const uint64_t before = path->in_flight, delay = loss_delay(path);
    uint64_t lost_ns = 0, began_ns = 0, span_ns = 0;
    path->due_ns = SHUNTER_NEVER;
    for (uint64_t number = path->first; number < path->next; number++) {
        struct shunter_flight *flight = flight_at(path, number);
        const bool overtaken = number < path->largest;
        if (!flight->bytes) {
            began_ns = 0; // it came, or was lost before
        } else if (
            (overtaken && number + REORDERED < path->largest) ||
            (overtaken && flight->sent_ns + delay <= now_ns) ||
            (flight->owner == owner && flight->sent_ns <= missing_ns)) {
            began_ns = began_ns ? began_ns : flight->sent_ns;
            lost_ns = flight->sent_ns;
            const bool counts = path->measured_ns && began_ns > path->measured_ns;
            span_ns = most(span_ns, counts ? lost_ns - began_ns : 0);
            land(path, flight);
            lost(context, flight->owner, flight->part);
        } else {
            began_ns = 0;
            path->due_ns = overtaken ? least(path->due_ns, flight->sent_ns + delay) : path->due_ns;
        }
    }
    if (lost_ns) {
        narrow(path, lost_ns, span_ns, before, now_ns);
    }
    pop(path);
    return lost_ns;
}

void shunter_congestion_heard(
    struct shunter_congestion *path, uint64_t owner, const uint8_t *have, uint32_t have_bytes,
    bool question, uint64_t now_ns, shunter_lost lost, void *context) {
    if (acknowledge(path, owner, have, have_bytes, now_ns)) {
        path->timeouts = 0;
    }
    const uint64_t delay = loss_delay(path) << (question ? least(path->timeouts, MOST_DOUBLED) : 0);
    const uint64_t missing_ns = now_ns > delay ? now_ns - delay : 0;
    if (detect(path, owner, missing_ns, now_ns, lost, context) && question) {
        path->timeouts++;
    }
}

void shunter_congestion_tick(
    struct shunter_congestion *path, uint64_t now_ns, shunter_lost lost, void *context) {
    detect(path, SHUNTER_NEVER, 0, now_ns, lost, context);
}

void shunter_congestion_forget(struct shunter_congestion *path, uint64_t owner) {
    for (uint64_t number = path->first; number < path->next; number++) {
        struct shunter_flight *flight = flight_at(path, number);
        if (flight->bytes && flight->owner == owner) {
            land(path, flight);
        }
    }
    pop(path);
}
