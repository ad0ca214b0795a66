/* What has come of what was sent, what is lost, and what that does to the window. */
#include "congestion_parts.h"

#define REORDERED 3              /* datagrams that may overtake one */
#define UNKNOWN_DOUBLED 3 /* who has not been asked how long the way is may be far away */
#define PERSISTENT 3  /* timeouts without a sign */

static uint64_t least_window(const struct shunter_congestion *path) {
    return (uint64_t)LEAST_DATAGRAMS * path->datagram;
}

/* What was sent so long before something that came is late. */
static uint64_t loss_delay(const struct shunter_congestion *path) {
    const uint64_t rtt = most(path->rtt_ns, path->latest_ns);
    return most(rtt + rtt / 8, GRANULARITY_NS);
}

static void land(struct shunter_congestion *path, struct shunter_flight *flight) {
    path->in_flight -= flight->left ? 0 : flight->bytes;
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
    if (path->window < path->threshold) {
        path->window += flight->bytes;
        return;
    }
    path->rest += (uint64_t)path->datagram * flight->bytes; // a wide window grows by less than a byte
    const uint64_t more = path->rest / path->window;
    path->rest %= path->window;
    path->window += more;
}

static bool has(const uint8_t *have, uint32_t have_bytes, uint16_t part) {
    return !have || (part / 8u < have_bytes && have[part / 8] >> (part % 8) & 1);
}

/* The number after the last that is new and was sent once, 0: none is. */
static uint64_t acknowledge(
    struct shunter_congestion *path, uint64_t owner, const uint8_t *have, uint32_t have_bytes,
    uint64_t now_ns) {
    const uint64_t before = path->in_flight;
    uint64_t largest = 0, sent_ns = 0;
    for (uint64_t number = path->first; number < path->next; number++) {
        struct shunter_flight *flight = flight_at(path, number);
        if (flight->bytes && flight->owner == owner && has(have, have_bytes, flight->part)) {
            grow(path, flight, before);
            sent_ns = !flight->again && (flight->asks || !have) ? flight->sent_ns : 0;
            largest = flight->again ? largest : number + 1;
            path->timeouts = 0;
            land(path, flight);
        }
    }
    // Who answers has worked meanwhile: the way is not longer than that, and may be shorter.
    if (sent_ns && now_ns > sent_ns && (have || now_ns - sent_ns < path->rtt_ns)) {
        shunter_congestion_measure(path, now_ns - sent_ns, now_ns);
    }
    return largest;
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

/* What was heard of a request, or that time has passed. */
struct news {
    uint64_t owner;   /* SHUNTER_NEVER: of none */
    uint64_t largest; /* see acknowledge */
    uint64_t late_ns; /* what was sent so long ago, and is not there, is lost */
};

/* Whether a datagram that is on its way must be lost by now: RFC 9002, 6.1. */
static bool is_lost(
    struct shunter_flight *flight, uint64_t number, const struct news *news, uint64_t delay_ns,
    uint64_t now_ns) {
    const bool heard_of = flight->owner == news->owner;
    flight->overtaken = flight->overtaken || (heard_of && number < news->largest);
    return (flight->overtaken && flight->sent_ns + delay_ns <= now_ns) ||
           (heard_of && (number + REORDERED < news->largest ||
                         flight->sent_ns + news->late_ns <= now_ns));
}

/* When the last of those was sent that are lost, 0: none is. */
static uint64_t detect(
    struct shunter_congestion *path, const struct news *news, uint64_t now_ns, shunter_lost lost,
    void *context) {
    const uint64_t delay = loss_delay(path);
    uint64_t before = path->in_flight, lost_ns = 0, began_ns = 0, span_ns = 0;
    path->due_ns = SHUNTER_NEVER;
    for (uint64_t number = path->first; number < path->next; number++) {
        struct shunter_flight *flight = flight_at(path, number);
        if (!flight->bytes) {
            began_ns = 0; // it came, or was lost before
        } else if (is_lost(flight, number, news, delay, now_ns)) {
            began_ns = began_ns ? began_ns : flight->sent_ns;
            lost_ns = flight->sent_ns;
            const bool counts = path->measured_ns && began_ns > path->measured_ns;
            span_ns = most(span_ns, counts ? lost_ns - began_ns : 0);
            before += flight->left ? flight->bytes : 0;
            land(path, flight);
            lost(context, flight->owner, flight->part);
        } else {
            began_ns = 0;
            path->due_ns =
                flight->overtaken ? least(path->due_ns, flight->sent_ns + delay) : path->due_ns;
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
    const uint64_t largest = acknowledge(path, owner, have, have_bytes, now_ns);
    if (!have && path->due_ns == SHUNTER_NEVER) {
        pop(path); // it lacks nothing, and says nothing of others
        return;
    }
    const uint64_t unknown = path->measured_ns ? 0 : UNKNOWN_DOUBLED;
    const uint64_t doubled = question ? least(path->timeouts, MOST_DOUBLED) : unknown;
    const struct news news = {owner, largest, loss_delay(path) << doubled};
    const uint64_t lost_ns = detect(path, &news, now_ns, lost, context);
    if (question && lost_ns && lost_ns >= path->timed_ns) {
        path->timeouts++;
        path->timed_ns = now_ns;
    }
}

void shunter_congestion_tick(
    struct shunter_congestion *path, uint64_t now_ns, shunter_lost lost, void *context) {
    const struct news none = {SHUNTER_NEVER, 0, 0};
    detect(path, &none, now_ns, lost, context);
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

void shunter_congestion_mark(
    const struct shunter_congestion *path, uint64_t owner, uint8_t *bits) {
    for (uint64_t number = path->first; number < path->next; number++) {
        const struct shunter_flight *flight = flight_at(path, number);
        if (flight->bytes && flight->owner == owner) {
            bits[flight->part / 8] |= (uint8_t)(1u << flight->part % 8);
        }
    }
}
