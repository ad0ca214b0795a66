/*
 * What of requests goes now: as much as the path takes, and what was lost again.
 *
 * A request that does not go at once has segments that ask to be acknowledged; the answer
 * acknowledges the others. On a stream everything goes at once.
 */
#define _GNU_SOURCE
#include <string.h>

#include "client_parts.h"

#define FAR_NS 10000000ULL

static bool has_bit(const uint8_t *bits, uint32_t at) { return bits[at / 8] >> at % 8 & 1; }

static void want(struct shunter_client *client, struct shunter_call *call, uint32_t seq) {
    if (!has_bit(call->wanted, seq)) {
        call->wanted[seq / 8] |= (uint8_t)(1u << seq % 8);
        call->unsent++;
        client->unsent++;
    }
}

static void want_none(struct shunter_client *client, struct shunter_call *call) {
    memset(call->wanted, 0, (call->count + 7) / 8);
    client->unsent -= call->unsent;
    call->unsent = 0;
}

static void want_lost(void *context, uint64_t owner, uint16_t part) {
    struct shunter_call *call = shunter_call_of(context, owner);
    if (call) {
        want(context, call, part);
    }
}

/* What may be on its way at first where the way is short. */
static uint64_t near_window(const struct shunter_client *client) {
    const uint64_t each = (uint64_t)client->inputs.count * shunter_client_largest(client);
    if (shunter_client_is_packed(client) && each > SHUNTER_CLIENT_USUAL_RUN) {
        const uint64_t usual = (uint64_t)SHUNTER_WINDOW * SHUNTER_CLIENT_USUAL_RUN;
        return usual > each ? usual : each;
    }
    return SHUNTER_WINDOW * each;
}

/*
 * The round trip as far as it is known: that of a hello is long where the host is busy. Who is on
 * this host, and yet far, is a link that plays a network.
 */
static uint64_t first_trip_ns(const struct shunter_client_settings *settings) {
    uint8_t peer[sizeof(struct sockaddr_storage)] = {0};
    socklen_t length = sizeof peer;
    const bool known = getpeername(settings->socket, (struct sockaddr *)(void *)peer, &length) == 0;
    const uint64_t loopback_ns = known ? shunter_loopback_ns(peer) : 0;
    return loopback_ns && settings->trip_ns < FAR_NS ? loopback_ns : settings->trip_ns;
}

void shunter_flow_open(struct shunter_client *client) {
    shunter_congestion_init(
        &client->path, shunter_client_largest(client), near_window(client),
        first_trip_ns(&client->settings), client->live.heard_ns);
}

void shunter_flow_begin(struct shunter_call *call) {
    memset(call->wanted, 0, (call->count + 7) / 8);
    call->unsent = call->next = 0;
}

void shunter_flow_end(struct shunter_client *client, struct shunter_call *call) {
    want_none(client, call);
    if (client->lent_count && client->lent_id == call->req_id) {
        (void)shunter_client_return(client); // a stream that is over says so itself
    }
    shunter_congestion_forget(&client->path, call->req_id);
    client->paced_ns = 0; // others may go
}

/* ---- what goes */

static uint32_t bytes_of(
    const struct shunter_client *client, const struct shunter_call *call, uint32_t seq) {
    return SHUNTER_HEADER_BYTES + shunter_request_segment(client, call, seq).length +
           shunter_behind(client->settings.protect);
}

/* What all that is to be sent of it takes at most. */
static uint64_t bytes_unsent(const struct shunter_client *client, const struct shunter_call *call) {
    return (uint64_t)call->unsent * shunter_client_largest(client);
}

/* 1: a segment goes now, and is on its way; 0: it must wait; or -EIO. */
static int take(
    struct shunter_client *client, struct shunter_call *call, uint32_t seq, uint64_t now) {
    struct shunter_congestion *path = &client->path;
    const uint32_t bytes = bytes_of(client, call, seq);
    const bool again = seq < call->next, stream = client->settings.stream;
    const uint64_t unsent = client->unsent * (uint64_t)shunter_client_largest(client);
    client->paced_ns = stream ? now : shunter_congestion_may_send_at(path, bytes, unsent, now);
    if (client->paced_ns > now) {
        return 0;
    }
    // Else what waits for an answer would keep others from being sent.
    const bool is_half = 2 * (path->in_flight + bytes) > path->window;
    const bool asks = !stream && (call->parted
                          ? shunter_congestion_should_ask(path, bytes)
                          : is_half && seq + 1 == call->count);
    const uint32_t flags =
        (asks ? SHUNTER_FLAG_ACK_REQ : 0u) | (again ? SHUNTER_FLAG_RETRANS : 0u);
    call->wanted[seq / 8] &= (uint8_t)~(1u << seq % 8);
    call->unsent--;
    client->unsent--;
    call->next = again ? call->next : seq + 1;
    call->again |= again;
    client->live.lost += again;
    const int error = shunter_client_prepare(client, call, seq, (uint16_t)flags, now);
    if (error) {
        return error;
    }
    const struct shunter_flight flight = {
        .sent_ns = now,
        .owner = call->req_id,
        .bytes = bytes,
        .part = (uint16_t)seq,
        .asks = asks,
        .again = again};
    if (!stream) {
        (void)shunter_congestion_sent(path, &flight); // not counted: it is asked about
    }
    return 1;
}

/* Send what may go of a request. */
static int send_call(struct shunter_client *client, struct shunter_call *call, uint64_t now) {
    const uint32_t count = call->count;
    call->parted =
        call->next || !shunter_congestion_holds(&client->path, bytes_unsent(client, call), now);
    for (uint32_t from = 0; call->unsent; from++) {
        while (from < count && !has_bit(call->wanted, from)) {
            from++;
        }
        uint32_t to = from;
        int taken = 0;
        while (to < count && has_bit(call->wanted, to) &&
               (taken = take(client, call, to, now)) > 0) {
            to++;
        }
        if (taken < 0 || from == to) {
            return taken;
        }
        const int error = shunter_client_send_prepared(client, from, to);
        if (error) {
            return error;
        }
        call->due_ns = now + call->rto_ns;
        from = to - 1;
    }
    return 0;
}

/* The same of all, the oldest first. */
static int send_wanted(struct shunter_client *client, uint64_t now) {
    for (uint64_t id = client->live.below; client->unsent && id < client->live.next_id; id++) {
        struct shunter_call *call = shunter_call_of(client, id);
        if (call && call->unsent) {
            const int error = send_call(client, call, now);
            if (error || call->unsent) {
                return error;
            }
        }
    }
    return 0;
}

int shunter_flow_want_all(
    struct shunter_client *client, struct shunter_call *call, uint64_t now) {
    const bool others = client->unsent;
    for (uint32_t seq = 0; seq < call->count; seq++) {
        want(client, call, seq);
    }
    return others ? send_wanted(client, now) : send_call(client, call, now);
}

/* ---- what has come */

int shunter_flow_heard(
    struct shunter_client *client, struct shunter_call *call, const uint8_t *have,
    uint32_t length, uint64_t now) {
    if (!client->settings.stream) {
        shunter_congestion_heard(
            &client->path, call->req_id, have, length, false, now, want_lost, client);
    }
    if (have && (call->asked_ns || client->settings.stream)) {
        // It answers a question: what it lacks, and is not on its way, is not there any more.
        uint8_t flying[SHUNTER_BITMAP_BYTES] = {0};
        if (call->asked_ns && !client->path.measured_ns) {
            shunter_congestion_measure(&client->path, now - call->asked_ns, now);
        }
        shunter_congestion_mark(&client->path, call->req_id, flying);
        for (uint32_t seq = 0; seq < call->next; seq++) {
            if (!has_bit(flying, seq) && (seq / 8 >= length || !has_bit(have, seq))) {
                want(client, call, seq);
            }
        }
        call->asked_ns = 0;
        call->again = true;
    }
    return send_wanted(client, now);
}

void shunter_flow_all_came(
    struct shunter_client *client, const struct shunter_call *call, uint64_t now) {
    shunter_congestion_heard(&client->path, call->req_id, NULL, 0, false, now, want_lost, client);
    client->paced_ns = 0; // others may go
}

void shunter_flow_refused(
    struct shunter_client *client, struct shunter_call *call, uint64_t now) {
    want_none(client, call);
    call->next = call->count;
    shunter_flow_all_came(client, call, now);
}

/* ---- time */

uint64_t shunter_flow_due_ns(const struct shunter_client *client) {
    const uint64_t lost_ns = client->path.due_ns;
    return client->unsent && client->paced_ns < lost_ns ? client->paced_ns : lost_ns;
}

int shunter_flow_tick(struct shunter_client *client, uint64_t now) {
    if (client->path.due_ns <= now) {
        shunter_congestion_tick(&client->path, now, want_lost, client);
    }
    return send_wanted(client, now);
}
