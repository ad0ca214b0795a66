/* A datagram came: whether it is right, and what it asks for. */
#include "actions.h"
#include "answers.h"
#include "series.h"
#include "siphash.h"

#define UNKNOWN_NS 100000000ULL
#define MOST_UNKNOWN 256
#define REPLAY_BITS 1024
#define REPLAY_JUMP (1u << 20)
#define PROTECTIONS (SHUNTER_FLAG_PAYLOAD_AEAD | SHUNTER_FLAG_PAYLOAD_CRC)
#define KNOWN_FLAGS                                                                              \
    (SHUNTER_FLAG_LAST | SHUNTER_FLAG_RETRANS | SHUNTER_FLAG_HDR_TAG | PROTECTIONS |              \
     SHUNTER_FLAG_ACK_REQ | SHUNTER_FLAG_NEXT | SHUNTER_FLAG_IDEMPOTENT)

/* ---- whether it is right */

static uint64_t *word_of(struct session *session, uint64_t number) {
    return &session->seen[number / 64 % REPLAY_WORDS];
}

static bool is_new(struct session *session, uint64_t number) {
    const uint64_t bit = 1ULL << number % 64;
    if (number < 1 || number > session->highest + REPLAY_JUMP ||
        number + REPLAY_BITS <= session->highest) {
        return false;
    }
    if (number > session->highest) {
        const uint64_t words = number / 64 - session->highest / 64;
        for (uint64_t i = 1; i <= words && i <= REPLAY_WORDS; i++) { // those of long ago
            *word_of(session, session->highest + 64 * i) = 0;
        }
        session->highest = number;
    } else if (*word_of(session, number) & bit) {
        return false;
    }
    *word_of(session, number) |= bit;
    return true;
}

static int parse(const uint8_t *datagram, size_t length, struct shunter_x64 *header) {
    if (length < SHUNTER_HEADER_BYTES) {
        return SHUNTER_DROP_SHORT;
    }
    memcpy(header, datagram, sizeof *header);
    if (header->magic != SHUNTER_WIRE_MAGIC) {
        return SHUNTER_DROP_MAGIC;
    }
    if (header->version != SHUNTER_WIRE_VERSION) {
        return SHUNTER_DROP_VERSION;
    }
    if (header->type < SHUNTER_TYPE_REQ || header->type > SHUNTER_TYPE_QUERY) {
        return SHUNTER_DROP_TYPE;
    }
    if (header->flags & ~KNOWN_FLAGS) {
        return SHUNTER_DROP_FLAGS;
    }
    if (header->words != SHUNTER_HEADER_BYTES / 8) {
        return SHUNTER_DROP_WORDS;
    }
    if (header->reserved) {
        return SHUNTER_DROP_RESERVED;
    }
    if (length != SHUNTER_HEADER_BYTES + header->length + shunter_behind(header->flags)) {
        return SHUNTER_DROP_LENGTH;
    }
    return SHUNTER_DROPS;
}

/* No type is sent by both sides: what somebody sends back to us is none of a client's. */
static bool is_of_client(uint8_t type) {
    return type == SHUNTER_TYPE_REQ || type == SHUNTER_TYPE_QUERY || type == SHUNTER_TYPE_ACK ||
           type == SHUNTER_TYPE_CANCEL;
}

/* Only requests ask for parts, where answers have some. */
static bool may_ask(
    const struct shunter_core *core, const struct session *session,
    const struct shunter_x64 *header) {
    return !(header->flags & SHUNTER_FLAG_NEXT) ||
           (header->type == SHUNTER_TYPE_REQ && function_of(core, session)->series);
}

static bool tag_is_right(
    const struct session *session, const struct shunter_x64 *header, const uint8_t *datagram) {
    const bool tagged = header->flags & SHUNTER_FLAG_HDR_TAG;
    if (!session->tagged) {
        return !tagged && header->tag == 0;
    }
    return tagged &&
           shunter_siphash24(session->keys.tag_to_server, datagram, SHUNTER_TAG_OFFSET) == header->tag;
}

/* ---- what it asks for */

static void acknowledged(
    struct shunter_core *core, struct session *session, const struct shunter_x64 *header,
    uint64_t now_ns) {
    uint64_t below = nearest(header->credit, session->done);
    if (below > session->grant + 1) {
        below = session->grant + 1;
    }
    struct function *function = function_of(core, session);
    while (session->done + 1 < below) {
        session->done++;
        function->credit--;
        struct call *call = call_of(session, session->done);
        if (call->req_id == session->done) {
            shunter_answer_came(session, call, now_ns);
            shunter_forget(core, session, call, now_ns);
        }
    }
    session->answered = session->answered > session->done ? session->answered : session->done;
    shunter_offer(core, function, now_ns); // before this session takes what it gave
    shunter_allow(function, session);
    shunter_answers_go(core, session, now_ns);
}

static void cancel(
    struct shunter_core *core, struct session *session, const struct shunter_x64 *header,
    uint64_t now_ns) {
    struct call *call = call_of(session, header->req_id);
    struct function *function = function_of(core, session);
    if (shunter_series_cancel(core, session, header->req_id, now_ns)) {
        return;
    }
    if (call->req_id != header->req_id ||
        (call->state != RECEIVING && call->state != RX_COMPLETE)) {
        drop(core, SHUNTER_DROP_CANCEL);
        if (session->turn != NO_TURN && header->req_id && session->wanted == header->req_id) {
            shunter_leave_row(core, function, session);
            shunter_offer(core, function, now_ns);
        }
        return;
    }
    if (call->entry != NO_ENTRY) {
        withdraw(core, session->func_id, call->entry);
    }
    session->is_proven = session->is_proven && call->state != RECEIVING;
    shunter_release(core, function, call);
    call->status = SHUNTER_STATUS_CANCELLED;
    shunter_become(core, function, call, FAILED, now_ns);
    shunter_offer(core, function, now_ns);
}

/* Nothing has come of a request: whether it is worth while to send it again. */
static void not_begun(
    struct shunter_core *core, struct session *session, const struct call *call,
    uint64_t req_id) {
    struct function *function = function_of(core, session);
    if (!may_come(session, req_id) || call->state == FORGOTTEN) {
        drop(core, SHUNTER_DROP_CREDIT);
    } else if (!shunter_has_room(function, session)) {
        drop(core, SHUNTER_DROP_FULL);
        shunter_wait_in_row(core, function, session, req_id);
    } else {
        shunter_control(core, session, SHUNTER_TYPE_SACK, req_id, RECEIVING, NULL, 0);
        return;
    }
    shunter_error(core, session, req_id, SHUNTER_STATUS_RETRY_LATER);
}

/* Send again what a client lacks of an answer; who asks is told how its request stands. */
static void asked(
    struct shunter_core *core, struct session *session, const struct shunter_x64 *header,
    const uint8_t *payload, uint64_t now_ns) {
    struct call *call = call_of(session, header->req_id);
    const bool known = call->req_id == header->req_id && call->state != FREE;
    if (known && call->state == TX_COMPLETE && !session->stream) {
        const bool question = header->flags & SHUNTER_FLAG_ACK_REQ;
        shunter_answer_heard(core, session, call, payload, header->length, question, now_ns);
    } else if (!(header->flags & SHUNTER_FLAG_ACK_REQ) || header->req_id <= session->done) {
        drop(core, SHUNTER_DROP_SACK);
    } else if (!known) {
        not_begun(core, session, call, header->req_id);
    } else if (call->state == FAILED) {
        shunter_error(core, session, call->req_id, call->status);
    } else {
        shunter_sack(core, session, call);
    }
}

/* Say so, as long as few ask, and with no more bytes than came: its client may open another. */
static void unknown(
    struct shunter_core *core, const uint8_t *peer, const struct shunter_x64 *header,
    uint64_t now_ns) {
    const bool asks = header->type == SHUNTER_TYPE_REQ || header->type == SHUNTER_TYPE_QUERY ||
                      (header->type == SHUNTER_TYPE_ACK && !(header->flags & SHUNTER_FLAG_LAST));
    drop(core, SHUNTER_DROP_SESSION);
    if (now_ns - core->unknown_ns >= UNKNOWN_NS) {
        core->unknown_ns = now_ns;
        core->unknown = 0;
    }
    const bool is_stream = !peer[0] && !peer[1];
    if (!asks || is_stream || core->unknown == MOST_UNKNOWN) {
        return;
    }
    core->unknown++;
    const struct shunter_x64 answer = {
        .magic = SHUNTER_WIRE_MAGIC,
        .version = SHUNTER_WIRE_VERSION,
        .type = SHUNTER_TYPE_ERROR,
        .words = SHUNTER_HEADER_BYTES / 8,
        .req_id = header->req_id,
        .count = 1,
        .session = header->session,
        .status = SHUNTER_STATUS_UNKNOWN_SESSION};
    struct shunter_action action = {
        .kind = SHUNTER_SEND, .entry = NO_ENTRY, .session = header->session};
    memcpy(action.header, &answer, sizeof answer);
    memcpy(action.peer, peer, sizeof action.peer);
    emit(core, &action);
}

/* It hears at once what it may send; or later, when it may, if it has just said that it is done. */
static void ask(struct shunter_core *core, struct session *session, bool is_done) {
    if (session->grant == session->done) {
        shunter_wait_in_row(core, function_of(core, session), session, 0);
        if (is_done && session->grant == session->done) {
            return;
        }
    }
    shunter_control(core, session, SHUNTER_TYPE_CREDIT, 0, 0, NULL, 0);
}

void shunter_core_receive(
    struct shunter_core *core, const uint8_t *peer, const uint8_t *datagram, size_t length,
    uint64_t now_ns) {
    struct shunter_x64 header;
    const int wrong = parse(datagram, length, &header);
    if (wrong != SHUNTER_DROPS) {
        drop(core, (enum shunter_drop)wrong);
        return;
    }
    if (header.type == SHUNTER_TYPE_HELLO) {
        const struct shunter_action hello = {.kind = SHUNTER_HELLO, .entry = NO_ENTRY};
        emit(core, &hello);
        return;
    }
    if (!is_of_client(header.type)) {
        drop(core, SHUNTER_DROP_DIRECTION);
        return;
    }
    struct session *session = find(core, header.session);
    if (!session || session->closing) {
        unknown(core, peer, &header, now_ns);
    } else if (memcmp(session->peer, peer, SHUNTER_PEER_BYTES) != 0) {
        drop(core, SHUNTER_DROP_PEER);
    } else if (!tag_is_right(session, &header, datagram)) {
        drop(core, SHUNTER_DROP_TAG);
    } else if (
        !may_ask(core, session, &header) ||
        (header.flags & PROTECTIONS) !=
            (header.type == SHUNTER_TYPE_REQ ? session->protect : 0)) {
        drop(core, SHUNTER_DROP_FLAGS);
    } else if (
        (session->protect || !session->stream) &&
        !is_new(session, nearest(header.pkt_no, session->highest))) {
        drop(core, SHUNTER_DROP_REPLAY);
    } else {
        const uint64_t done = session->done;
        shunter_is_heard(core, session, now_ns);
        switch (header.type) {
        case SHUNTER_TYPE_CANCEL:
            cancel(core, session, &header, now_ns);
            break;
        case SHUNTER_TYPE_REQ:
            acknowledged(core, session, &header, now_ns);
            shunter_request(core, session, &header, now_ns);
            break;
        case SHUNTER_TYPE_QUERY:
            acknowledged(core, session, &header, now_ns);
            asked(core, session, &header, datagram + SHUNTER_HEADER_BYTES, now_ns);
            break;
        default: // ACK
            acknowledged(core, session, &header, now_ns);
            if (header.flags & SHUNTER_FLAG_LAST && !session->stream) {
                shunter_core_remove_session(core, session->id, now_ns);
            } else if (header.flags & SHUNTER_FLAG_ACK_REQ) {
                ask(core, session, session->done > done);
            }
        }
    }
}
