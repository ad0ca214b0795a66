/* How much may be on its way, and when: the round trip, the window's beginning, pacing. */
#include "congestion_parts.h"

#include <errno.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>

#define INITIAL_DATAGRAMS 10
#define INITIAL_BYTES 14720
#define FIRST_RTT_NS 10000000ULL /* as long as it is not known; a client waits twice as long */
#define LOOPBACK_RTT_NS 50000ULL
#define MOST_RTT_NS 10000000000ULL
#define FILL_NS 20000ULL /* not more often: less than this is not counted well */
#define BURST_NS 2000000ULL /* what the rate brings meanwhile may go at once: clocks tick in ms */
#define QUANTUM_DATAGRAMS 64 /* of the usual MTU: about what kernels merge */
#define QUANTA 16 /* of a window at least: a small one stays full */
#define QUANTUM_NS GRANULARITY_NS /* where it is paced, not more than the rate brings meanwhile */
#define FIRST_ROOM 16
#define MOST_ROOM (1u << 14) /* all are looked at whenever a peer asks; 24 MB of the usual MTU */

static uint64_t initial_window(uint32_t datagram) {
    const uint64_t few = most(INITIAL_BYTES, (uint64_t)LEAST_DATAGRAMS * datagram);
    return least((uint64_t)INITIAL_DATAGRAMS * datagram, few);
}

/* ---- the round trip: RFC 9002, 5.3 */

uint64_t shunter_congestion_timeout_ns(const struct shunter_congestion *path) {
    return patience(path) << least(path->timeouts, MOST_DOUBLED);
}

void shunter_congestion_measure(
    struct shunter_congestion *path, uint64_t rtt_ns, uint64_t now_ns) {
    path->latest_ns = least(most(rtt_ns, 1), MOST_RTT_NS);
    if (!path->measured_ns) {
        path->measured_ns = most(now_ns, 1);
        path->rtt_ns = path->latest_ns;
        path->var_ns = path->latest_ns / 2;
    } else {
        const uint64_t off = path->rtt_ns > path->latest_ns ? path->rtt_ns - path->latest_ns
                                                            : path->latest_ns - path->rtt_ns;
        path->var_ns = (3 * path->var_ns + off) / 4;
        path->rtt_ns = (7 * path->rtt_ns + path->latest_ns) / 8;
    }
    if (path->rtt_ns < SHUNTER_NEAR_NS && !path->recovery_ns) {
        path->window = most(path->window, path->near);
    }
}

static bool is_loopback(const void *address) {
    const uint8_t *peer = address;
    const uint8_t mapped[13] = {[10] = 255, 255, 127}, itself[16] = {[15] = 1};
    sa_family_t family;
    memcpy(&family, peer, sizeof family);
    return family == AF_INET ? peer[4] == 127
                             : family == AF_INET6 && (!memcmp(peer + 8, itself, sizeof itself) ||
                                                      !memcmp(peer + 8, mapped, sizeof mapped));
}

uint64_t shunter_loopback_ns(const void *address) {
    return is_loopback(address) ? LOOPBACK_RTT_NS : 0;
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
    path->rtt_ns = FIRST_RTT_NS;
    path->var_ns = FIRST_RTT_NS / 2;
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
    return 5 * path->window * (ns / 1000) / (4 * most(path->rtt_ns / 1000, 1));
}

static void fill_bucket(struct shunter_congestion *path, uint64_t now_ns) {
    const uint64_t passed = now_ns > path->filled_ns ? now_ns - path->filled_ns : 0;
    if (passed >= FILL_NS) {
        const uint64_t burst = most(initial_window(path->datagram), paced(path, BURST_NS));
        path->filled_ns = now_ns;
        path->tokens += paced(path, least(passed, BURST_NS + 10 * path->rtt_ns));
        path->tokens = least(path->tokens, burst);
    }
}

/* Do not count what has left the path by now. When the next of the others does. */
static uint64_t leave(struct shunter_congestion *path, uint64_t now_ns) {
    const uint64_t timeout_ns = shunter_congestion_timeout_ns(path);
    for (uint64_t number = path->first; number < path->next; number++) {
        struct shunter_flight *flight = flight_at(path, number);
        if (flight->bytes && !flight->left) {
            if (flight->sent_ns + timeout_ns > now_ns) {
                return flight->sent_ns + timeout_ns;
            }
            flight->left = true;
            path->in_flight -= flight->bytes;
        }
    }
    return now_ns;
}

/* Several datagrams, or all that wait: for fewer, who stood still does not go on. */
static uint64_t quantum(const struct shunter_congestion *path, uint64_t unsent) {
    const uint64_t many = (uint64_t)QUANTUM_DATAGRAMS * path->datagram;
    return least(least(path->window / QUANTA, many), unsent);
}

uint64_t shunter_congestion_may_send_at(
    struct shunter_congestion *path, uint32_t bytes, uint64_t unsent, uint64_t now_ns) {
    const uint64_t some = quantum(path, unsent), room = path->full ? most(bytes, some) : bytes;
    if (path->in_flight + room > path->window) {
        const uint64_t left_ns = leave(path, now_ns);
        path->full = path->in_flight && path->in_flight + room > path->window;
        if (path->full) {
            return left_ns;
        }
    }
    path->full = false;
    fill_bucket(path, now_ns);
    const uint64_t tokens = path->empty ? most(bytes, least(some, paced(path, QUANTUM_NS))) : bytes;
    path->empty = path->in_flight && path->tokens < tokens;
    if (!path->empty) {
        return now_ns;
    }
    const uint64_t rate = most(paced(path, 1000 * GRANULARITY_NS), 1); // a second's
    return now_ns + FILL_NS + (tokens - path->tokens) * 1000 * GRANULARITY_NS / rate;
}

bool shunter_congestion_holds(struct shunter_congestion *path, uint64_t bytes, uint64_t now_ns) {
    if (path->in_flight + bytes > path->window) {
        leave(path, now_ns);
    }
    fill_bucket(path, now_ns);
    return path->in_flight + bytes <= path->window && bytes <= path->tokens;
}

bool shunter_congestion_should_ask(const struct shunter_congestion *path, uint32_t bytes) {
    const uint64_t each = least(QUANTUM_DATAGRAMS, most(2, path->window / path->datagram / 4));
    return !path->next || path->next - path->asked >= each ||
           path->in_flight + 2ULL * bytes > path->window || path->tokens < 2ULL * bytes;
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
    path->asked = flight->asks ? path->next : path->asked;
    *flight_at(path, path->next++) = *flight;
    path->in_flight += flight->bytes;
    return 0;
}
