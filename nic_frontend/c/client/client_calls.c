#define _GNU_SOURCE
#include "client_parts.h"
#include "siphash.h"

#define FIRST_RTO_NS 20000000ULL
#define LEAST_RTO_NS 2000000ULL
#define MOST_RTO_NS 1000000000ULL
/* Nothing is lost on a stream, but the server may end a session that says nothing. */
#define STREAM_RTO_NS 1000000000ULL
#define RETRY_NS 20000000ULL /* when the server has no room */
/* To ask costs two headers, and something may be lost: no model is so slow that it is not asked. */
#define MOST_PATIENCE_NS 100000000ULL
#define MOST_REST_NS 400000000ULL /* while the server says that it has the request */

static uint64_t least(uint64_t a, uint64_t b) { return a < b ? a : b; }
static uint64_t most(uint64_t a, uint64_t b) { return a > b ? a : b; }

/* While it is not known how long answers take. */
static uint64_t first_rto(const struct shunter_client *client) {
    return least(MOST_RTO_NS, most(FIRST_RTO_NS, 3 * client->live.trip_ns));
}

uint64_t shunter_call_rto(const struct shunter_client *client) {
    if (client->settings.stream) {
        return STREAM_RTO_NS;
    }
    if (!client->live.rtt_ns) {
        return first_rto(client);
    }
    const uint64_t wanted = most(LEAST_RTO_NS, client->live.rtt_ns + 4 * client->rttvar_ns);
    return least(least(MOST_RTO_NS, most(MOST_PATIENCE_NS, 3 * client->live.trip_ns)), wanted);
}

/* As RFC 6298 smooths round trips. */
static void measure(struct shunter_client *client, uint64_t rtt_ns) {
    if (!client->live.rtt_ns) {
        client->live.rtt_ns = rtt_ns ? rtt_ns : 1;
        client->rttvar_ns = rtt_ns / 2;
        return;
    }
    const int64_t off = (int64_t)rtt_ns - (int64_t)client->live.rtt_ns;
    const int64_t var = (int64_t)client->rttvar_ns;
    client->rttvar_ns = (uint64_t)(var + ((off < 0 ? -off : off) - var) / 4);
    client->live.rtt_ns = (uint64_t)((int64_t)client->live.rtt_ns + off / 8);
}

void shunter_call_free(struct shunter_client *client, struct shunter_call *call) {
    shunter_flow_end(client, call);
    call->req_id = 0;
    client->live.pending--;
    while (client->live.below < client->live.next_id &&
           client->calls[client->live.below % SHUNTER_WINDOW].req_id != client->live.below) {
        client->live.below++;
    }
}

int shunter_client_unwanted(struct shunter_client *client, uint64_t req_id) {
    int error = 0;
    for (int said = 0; !error && said < (client->settings.stream ? 1 : 4); said++) { // unanswered
        error = shunter_client_control(client, SHUNTER_TYPE_CANCEL, req_id, 0, NULL, 0);
    }
    return error;
}

static void end_call(struct shunter_client *client, struct shunter_call *call, uint32_t status) {
    client->ended[client->ended_count++] = (struct shunter_ended){
        call->req_id, status, shunter_client_is_packed(client) ? call->answer_bytes : 0};
    shunter_call_free(client, call);
}

/* No type is sent by both sides: what somebody sends back is none of the server's. */
static bool is_of_server(uint8_t type) {
    return type == SHUNTER_TYPE_RESP || type == SHUNTER_TYPE_SACK ||
           type == SHUNTER_TYPE_CREDIT || type == SHUNTER_TYPE_ERROR;
}

bool shunter_call_is_ours(const struct shunter_client *client, const struct shunter_x64 *header) {
    if (header->magic != SHUNTER_WIRE_MAGIC || header->version != SHUNTER_WIRE_VERSION ||
        header->words != SHUNTER_HEADER_BYTES / 8 || header->reserved ||
        !is_of_server(header->type) ||
        header->session != client->settings.session) {
        return false;
    }
    const bool tagged = header->flags & SHUNTER_FLAG_HDR_TAG;
    if (!client->settings.tagged) {
        return !tagged && !header->tag;
    }
    const uint8_t *key = client->settings.keys.tag_to_client;
    return tagged && header->tag == shunter_siphash24(key, header, SHUNTER_TAG_OFFSET);
}

/* Where a segment of an answer belongs, if it may be one. */
static bool is_part(
    const struct shunter_client *client, const struct shunter_call *call,
    const struct shunter_x64 *header, struct shunter_segment *segment) {
    const struct shunter_client_settings *settings = &client->settings;
    const uint32_t total = header->total;
    if (!shunter_client_is_packed(client)) {
        if (header->count != client->outputs.count || header->seq >= header->count) {
            return false;
        }
        *segment = shunter_place(&client->outputs, header->seq);
        return total == client->outputs.sizes[segment->tensor];
    }
    // The first one says how long the answer is.
    if (total < settings->least_answer || total > settings->output_bytes[0] ||
        (call->got && total != call->answer_bytes) ||
        header->count != shunter_run_count(total, client->outputs.segment) ||
        header->seq >= header->count) {
        return false;
    }
    *segment = shunter_run_place(total, client->outputs.segment, header->seq);
    return true;
}

bool shunter_call_place(
    struct shunter_client *client, const struct shunter_x64 *header, uint8_t **place) {
    const struct shunter_call *call = shunter_call_of(client, header->req_id);
    const uint32_t protections = SHUNTER_FLAG_PAYLOAD_AEAD | SHUNTER_FLAG_PAYLOAD_CRC;
    if (header->type != SHUNTER_TYPE_RESP || !call || call->cancelled ||
        shunter_call_has_no_answer(client, call) ||
        (header->flags & protections) != client->settings.protect) {
        return false;
    }
    struct shunter_segment segment;
    if (!is_part(client, call, header, &segment) || header->tensor != segment.tensor ||
        header->offset != segment.offset || header->length != segment.length ||
        call->received[header->seq / 8] >> header->seq % 8 & 1) {
        return false;
    }
    *place = segment.length ? call->outputs[segment.tensor] + segment.offset : NULL;
    return true;
}

void shunter_call_received(
    struct shunter_client *client, const struct shunter_x64 *header, uint64_t now) {
    struct shunter_call *call = shunter_call_of(client, header->req_id);
    call->received[header->seq / 8] |= (uint8_t)(1U << header->seq % 8);
    call->refused = false;
    if (call->got == 0) {
        call->answer_bytes = header->total;
        call->answer_count = header->count;
        shunter_flow_all_came(client, call, now);
    }
    if (++call->got < call->answer_count) {
        call->rto_ns = least(shunter_call_rto(client), first_rto(client)); // the rest is on its way
        call->due_ns = now + call->rto_ns;
        if (header->flags & SHUNTER_FLAG_ACK_REQ && !client->settings.stream) { // the rest is sent when this is known
            shunter_client_control(
                client, SHUNTER_TYPE_QUERY, call->req_id, 0, call->received,
                (uint16_t)((call->answer_count + 7) / 8));
        }
        return;
    }
    if (!call->again && !call->asked_ns) {
        measure(client, now - call->sent_ns);
    }
    end_call(client, call, SHUNTER_STATUS_OK);
    if (header->flags & SHUNTER_FLAG_ACK_REQ) { // others want its room; lost, it does no harm
        shunter_client_control(client, SHUNTER_TYPE_ACK, 0, 0, NULL, 0);
    }
}

/* There may be room for others that were refused: ask about more of them than before. */
static void has_room(struct shunter_client *client, struct shunter_call *call) {
    if (call->refused) {
        call->refused = false;
        client->asks = (uint32_t)least(2 * client->asks, SHUNTER_WINDOW);
    }
}

/* The server has the request: wait as long again as it has taken up to now. */
static void rest(struct shunter_client *client, struct shunter_call *call, uint64_t now) {
    if (call->asked_ns) {
        const uint64_t trip = now - call->asked_ns;
        client->live.trip_ns = client->live.trip_ns ? least(client->live.trip_ns, trip) : trip;
        call->asked_ns = 0;
    }
    call->due_ns = now + most(call->rto_ns, least(MOST_REST_NS, now - call->sent_ns));
}

static int heed_sack(
    struct shunter_client *client, const struct shunter_x64 *header, struct shunter_call *call,
    const uint8_t *have, uint32_t length, uint64_t now) {
    has_room(client, call);
    // It answers: what is lost now has nothing to do with before.
    call->rto_ns = shunter_call_rto(client);
    call->due_ns = now + call->rto_ns;
    if (header->status == SHUNTER_SACK_RECEIVING) {
        // Nothing of it has come, where there is no list; below that would say all of it has.
        return shunter_flow_heard(client, call, length ? have : client->spill, length, now);
    }
    rest(client, call, now);
    // Where its answer is there the server does not say what it has: it is all.
    return shunter_flow_heard(client, call, length ? have : NULL, length, now);
}

int shunter_call_heed(
    struct shunter_client *client, const struct shunter_x64 *header, const uint8_t *payload,
    uint64_t now) {
    struct shunter_call *call = shunter_call_of(client, header->req_id);
    if (!call) {
        return 0;
    }
    if (call->cancelled) {
        shunter_shared_heed(client, call, header);
        return 0;
    }
    if (header->type == SHUNTER_TYPE_ERROR && header->status == SHUNTER_STATUS_RETRY_LATER) {
        call->due_ns = now + least(call->rto_ns, RETRY_NS);
        call->refused = true;
        client->asks = 1;
        shunter_flow_refused(client, call, now);
    } else if (header->type == SHUNTER_TYPE_CREDIT) { // it was refused, and there is room now
        has_room(client, call);
        call->rto_ns = shunter_call_rto(client);
        call->due_ns = now + call->rto_ns;
        return shunter_flow_want_all(client, call, now);
    } else if (header->type == SHUNTER_TYPE_ERROR) {
        // An error that says that all is well is still none of the answer.
        end_call(
            client, call,
            header->status == SHUNTER_STATUS_OK ? SHUNTER_STATUS_HANDLER_FAILED : header->status);
    } else if (header->type == SHUNTER_TYPE_SACK) {
        return heed_sack(client, header, call, payload, header->length, now);
    } else if (header->type == SHUNTER_TYPE_RESP && shunter_call_has_no_answer(client, call)) {
        end_call(client, call, SHUNTER_STATUS_HANDLER_FAILED);
    }
    return 0;
}

void shunter_call_heed_credit(struct shunter_client *client, const struct shunter_x64 *header) {
    const uint64_t grant = shunter_nearest(header->credit, client->live.grant);
    if (grant > client->live.grant && grant - client->live.grant < UINT32_MAX / 2) {
        client->live.grant = grant;
    }
}

/* ---- time */

/* A refused request whose deadline has passed longer ago than what was said takes to come. */
static uint64_t given_up_ns(const struct shunter_client *client, const struct shunter_call *call) {
    return call->refused && call->deadline_ns ? call->deadline_ns + first_rto(client) : UINT64_MAX;
}

/* When the server is asked about it; ``refused``: how many before it were. */
static uint64_t asked_at_ns(
    const struct shunter_client *client, const struct shunter_call *call, uint32_t *refused) {
    if (!call->next) {
        return UINT64_MAX; // nothing of it was sent yet
    }
    return call->refused && (*refused)++ >= client->asks ? UINT64_MAX : call->due_ns;
}

uint64_t shunter_client_due_ns(const struct shunter_client *client) {
    uint64_t due = UINT64_MAX;
    uint32_t refused = 0;
    if (client->live.kept) {
        return due; // a stream that takes nothing is not asked
    }
    due = shunter_flow_due_ns(client);
    for (uint64_t id = client->live.below; id < client->live.next_id; id++) {
        const struct shunter_call *call = &client->calls[id % SHUNTER_WINDOW];
        if (call->req_id == id) {
            due = least(due, asked_at_ns(client, call, &refused));
            due = least(due, given_up_ns(client, call));
        }
    }
    return due;
}

int shunter_calls_tick(struct shunter_client *client, uint64_t now) {
    uint32_t refused = 0;
    int error = shunter_flow_due_ns(client) <= now ? shunter_flow_tick(client, now) : 0;
    for (uint64_t id = client->live.below; !error && id < client->live.next_id; id++) {
        struct shunter_call *call = shunter_call_of(client, id);
        if (call && given_up_ns(client, call) <= now) {
            end_call(client, call, SHUNTER_STATUS_TOO_LATE);
            error = shunter_client_control(client, SHUNTER_TYPE_CANCEL, id, 0, NULL, 0);
        } else if (call && asked_at_ns(client, call, &refused) <= now) {
            call->asked_ns = call->asked_ns ? call->asked_ns : now;
            error = shunter_client_control(
                client, SHUNTER_TYPE_QUERY, id, SHUNTER_FLAG_ACK_REQ, call->received,
                (uint16_t)((call->answer_count + 7) / 8));
            call->rto_ns = least(MOST_RTO_NS, 2 * call->rto_ns);
            call->due_ns = now + call->rto_ns;
        }
    }
    return error;
}
