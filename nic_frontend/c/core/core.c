#include "core_parts.h"

#include "siphash.h"

#define GAP_NS 3000000ULL
#define RECEIVE_NS 2000000000ULL
#define SEGMENT_NS 20000000ULL
#define SPARE_NS 1000000000ULL
#define MOST_TRIES 2
#define UNKNOWN_NS 100000000ULL
#define MOST_UNKNOWN 256
#define REPLAY_BITS (64 * REPLAY_WORDS)
#define REPLAY_JUMP (1u << 20)
#define PROTECTIONS (SHUNTER_FLAG_PAYLOAD_AEAD | SHUNTER_FLAG_PAYLOAD_CRC)
#define KNOWN_FLAGS                                                                              \
    (SHUNTER_FLAG_LAST | SHUNTER_FLAG_RETRANS | SHUNTER_FLAG_HDR_TAG | PROTECTIONS |              \
     SHUNTER_FLAG_ACK_REQ | SHUNTER_FLAG_IDEMPOTENT)

/* ---- sessions */

static uint64_t next_pkt_no(struct session *session, uint32_t count) {
    const uint64_t first = session->pkt_no + 1;
    session->pkt_no += count;
    return first;
}

static void shift(uint64_t *words, uint64_t by) {
    const unsigned whole = (unsigned)(by / 64), part = (unsigned)(by % 64);
    for (int i = REPLAY_WORDS - 1; i >= 0; i--) {
        const int from = i - (int)whole;
        uint64_t word = from >= 0 ? words[from] << part : 0;
        if (part && from >= 1) {
            word |= words[from - 1] >> (64 - part);
        }
        words[i] = word;
    }
}

static bool is_new(struct session *session, uint64_t number) {
    if (number > session->highest + REPLAY_JUMP) {
        return false;
    }
    if (number > session->highest) {
        const uint64_t by = number - session->highest;
        if (by >= REPLAY_BITS) {
            memset(session->seen, 0, sizeof session->seen);
        } else {
            shift(session->seen, by);
        }
        session->seen[0] |= 1;
        session->highest = number;
        return true;
    }
    const uint64_t age = session->highest - number;
    if (number < 1 || age >= REPLAY_BITS || session->seen[age / 64] >> (age % 64) & 1) {
        return false;
    }
    session->seen[age / 64] |= 1ULL << (age % 64);
    return true;
}

static uint64_t nearest(uint32_t low, uint64_t about) {
    const int64_t half = 1LL << 31, whole = 1LL << 32;
    int64_t number = (int64_t)(about - about % (uint64_t)whole) + low;
    if (number > (int64_t)about + half) {
        number -= whole;
    } else if (number <= (int64_t)about - half) {
        number += whole;
    }
    return number > 0 ? (uint64_t)number : 0;
}

/* ---- actions */

static void emit(const struct shunter_core *core, const struct shunter_action *action) {
    core->emit(core->context, action);
}

static void drop(const struct shunter_core *core, enum shunter_drop why) {
    const struct shunter_action action = {
        .kind = SHUNTER_DROP, .drop = (uint16_t)why, .entry = NO_ENTRY};
    emit(core, &action);
}

static void withdraw(const struct shunter_core *core, uint16_t func_id, int32_t entry) {
    const struct shunter_action action = {
        .kind = SHUNTER_WITHDRAW, .func_id = func_id, .entry = entry};
    emit(core, &action);
}

static void ready(
    const struct shunter_core *core, uint16_t func_id, const struct call *call, bool again,
    bool returned) {
    const struct shunter_action action = {
        .kind = SHUNTER_READY,
        .func_id = func_id,
        .entry = call->entry,
        .priority = call->priority,
        .deadline_ns = call->deadline_ns,
        .again = again,
        .returned = returned};
    emit(core, &action);
}

static bool is_direct(const struct session *session) {
    return !session->stream && !session->protect;
}

static struct shunter_guard guard_of(
    const struct session *session, uint64_t number, const uint8_t *aead_key) {
    struct shunter_guard guard = {0};
    if (session->protect) {
        guard.protect = session->protect;
        guard.number = number;
        memcpy(
            guard.key, session->protect == SHUNTER_FLAG_PAYLOAD_AEAD ? aead_key : session->key,
            sizeof guard.key);
    }
    return guard;
}

static void fill(
    struct session *session, struct shunter_action *action, struct shunter_x64 *header) {
    const uint64_t number = next_pkt_no(session, 1);
    header->magic = SHUNTER_WIRE_MAGIC;
    header->version = SHUNTER_WIRE_VERSION;
    header->words = SHUNTER_HEADER_BYTES / 8;
    header->func_id = session->func_id;
    header->session = session->id;
    header->credit = (uint32_t)session->grant;
    header->pkt_no = (uint32_t)number;
    if (action->entry != NO_ENTRY) {
        header->flags |= session->protect;
        action->guard = guard_of(session, number, session->to_client);
    }
    if (session->tagged) {
        header->flags |= SHUNTER_FLAG_HDR_TAG;
        header->tag = shunter_siphash24(session->key, header, SHUNTER_TAG_OFFSET);
    }
    memcpy(action->header, header, sizeof *header);
    memcpy(action->peer, session->peer, sizeof action->peer);
    action->kind = SHUNTER_SEND;
    action->session = session->id;
    action->length = header->length;
}

static void answer(
    const struct shunter_core *core, struct session *session, const struct call *call,
    const uint8_t *have, uint32_t have_bytes) {
    const struct shunter_plan *plan = &session->outputs;
    const uint16_t asks =
        is_alone(&function_of(core, session)->waiting) ? 0 : SHUNTER_FLAG_ACK_REQ;
    for (uint32_t seq = 0; seq < plan->count; seq++) {
        if (seq / 8 < have_bytes && have[seq / 8] >> (seq % 8) & 1) {
            continue;
        }
        const struct shunter_segment segment = shunter_place(plan, seq);
        struct shunter_x64 header = {
            .type = SHUNTER_TYPE_RESP,
            .flags = (uint16_t)(asks | (seq + 1 == plan->count ? SHUNTER_FLAG_LAST : 0)),
            .req_id = call->req_id,
            .seq = (uint16_t)seq,
            .count = (uint16_t)plan->count,
            .length = (uint16_t)segment.length,
            .total = plan->sizes[segment.tensor],
            .offset = segment.offset,
            .status = SHUNTER_STATUS_OK,
            .tensor = segment.tensor};
        struct shunter_action action = {
            .entry = call->entry, .tensor = segment.tensor, .offset = segment.offset};
        fill(session, &action, &header);
        emit(core, &action);
    }
}

void shunter_control(
    const struct shunter_core *core, struct session *session, uint8_t type, uint64_t req_id,
    uint16_t status, const void *payload, uint16_t length) {
    struct shunter_x64 header = {
        .type = type, .req_id = req_id, .count = 1, .length = length, .status = status};
    struct shunter_action action = {.entry = NO_ENTRY};
    if (length) {
        memcpy(action.payload, payload, length);
    }
    fill(session, &action, &header);
    emit(core, &action);
}

static void error(
    const struct shunter_core *core, struct session *session, uint64_t req_id, uint16_t status) {
    shunter_control(core, session, SHUNTER_TYPE_ERROR, req_id, status, NULL, 0);
}

static void sack(
    const struct shunter_core *core, struct session *session, const struct call *call) {
    shunter_control(
        core, session, SHUNTER_TYPE_SACK, call->req_id, call->state, call->received,
        (uint16_t)((session->inputs.count + 7) / 8));
}

/* ---- ends */

void shunter_become(
    struct shunter_core *core, struct function *function, struct call *call,
    enum state state, uint64_t now_ns) {
    const bool held = shunter_holds(call), ran = call->state == RUNNING;
    const bool progress = state == RUNNING || (ran && state != FORGOTTEN);
    core->receiving += state == RECEIVING;
    core->receiving -= call->state == RECEIVING;
    call->state = (uint8_t)state;
    call->changed_ns = now_ns;
    const int more = shunter_holds(call) - held;
    if (more || (held && progress)) {
        shunter_hold_changes(core, function, more, progress, now_ns);
    }
    if (call->entry != NO_ENTRY) {
        struct link *link = &function->owners[call->entry].link;
        link_out(link);
        if (state == RECEIVING || state == TX_COMPLETE) {
            link_last(state == RECEIVING ? &function->receiving : &function->kept, link);
        }
    }
}

/* A kept answer was asked for. */
static void touch(struct function *function, struct call *call, uint64_t now_ns) {
    call->changed_ns = now_ns;
    link_last(&function->kept, &function->owners[call->entry].link);
}

static void end(
    struct shunter_core *core, struct session *session, struct call *call, uint64_t now_ns) {
    struct function *function = function_of(core, session);
    shunter_release(function, call);
    shunter_become(core, function, call, FREE, now_ns);
}

/* What nobody waits for has run. */
static void end_forgotten(
    struct shunter_core *core, struct session *session, struct call *call, uint64_t now_ns) {
    struct function *function = function_of(core, session);
    end(core, session, call, now_ns);
    session->forgotten--;
    if (session->closing && session->forgotten == 0) {
        shunter_take_out(core, session);
    }
    shunter_offer(core, function, now_ns);
}

static void fail(
    struct shunter_core *core, struct session *session, struct call *call, uint16_t status,
    uint64_t now_ns) {
    struct function *function = function_of(core, session);
    shunter_release(function, call);
    call->status = status;
    shunter_become(core, function, call, FAILED, now_ns);
    shunter_allow_next(function, session);
    error(core, session, call->req_id, status);
    shunter_offer(core, function, now_ns);
}

void shunter_forget(
    struct shunter_core *core, struct session *session, struct call *call, uint64_t now_ns) {
    if (call->state == FREE || call->state == FORGOTTEN) {
        return;
    }
    if (call->state == RUNNING) {
        shunter_become(core, function_of(core, session), call, FORGOTTEN, now_ns);
        session->forgotten++;
        return;
    }
    const bool waits = call->state == RX_COMPLETE;
    const int32_t entry = call->entry;
    end(core, session, call, now_ns);
    if (waits) {
        withdraw(core, session->func_id, entry);
    }
}

/* ---- a datagram */

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
    if (header->type < SHUNTER_TYPE_REQ || header->type > SHUNTER_TYPE_ACK) {
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

static bool tag_is_right(
    const struct session *session, const struct shunter_x64 *header, const uint8_t *datagram) {
    const bool tagged = header->flags & SHUNTER_FLAG_HDR_TAG;
    if (!session->tagged) {
        return !tagged && header->tag == 0;
    }
    return tagged &&
           shunter_siphash24(session->key, datagram, SHUNTER_TAG_OFFSET) == header->tag;
}

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
            shunter_forget(core, session, call, now_ns);
        }
    }
    session->answered = session->answered > session->done ? session->answered : session->done;
    shunter_offer(core, function, now_ns); // before this session takes what it gave
    shunter_allow(function, session);
}

/* Whether it is granted, and its place is not that of another. */
static bool may_come(const struct session *session, uint64_t req_id) {
    return req_id <= session->grant && req_id <= session->done + SHUNTER_WINDOW;
}

static bool fits(const struct session *session, const struct shunter_x64 *header) {
    const struct shunter_plan *plan = &session->inputs;
    if (header->count != plan->count || header->seq >= plan->count) {
        return false;
    }
    const struct shunter_segment segment = shunter_place(plan, header->seq);
    return header->tensor == segment.tensor && header->offset == segment.offset &&
           header->length == segment.length && header->total == plan->sizes[segment.tensor];
}

static void refuse(
    struct shunter_core *core, struct session *session, const struct shunter_x64 *header,
    enum shunter_drop why) {
    drop(core, why);
    if (header->flags & SHUNTER_FLAG_LAST) {
        if (why == SHUNTER_DROP_FULL) {
            shunter_wait_in_row(core, function_of(core, session), session, header->req_id);
        }
        error(core, session, header->req_id, SHUNTER_STATUS_RETRY_LATER);
    }
}

static void again(
    struct shunter_core *core, struct session *session, struct call *call,
    const struct shunter_x64 *header, uint64_t now_ns) {
    drop(core, SHUNTER_DROP_DUPLICATE);
    if (!(header->flags & SHUNTER_FLAG_ACK_REQ)) {
        return;
    }
    if (call->state == TX_COMPLETE) {
        touch(function_of(core, session), call, now_ns);
        answer(core, session, call, NULL, 0);
    } else if (call->state == FAILED) {
        error(core, session, call->req_id, call->status);
    } else {
        sack(core, session, call);
    }
}

static bool has_segment(const struct call *call, uint32_t seq) {
    return call->received[seq / 64] >> (seq % 64) & 1;
}

static void take_segment(
    struct shunter_core *core, struct session *session, struct call *call,
    const struct shunter_x64 *header, uint64_t now_ns) {
    if (!fits(session, header)) {
        drop(core, SHUNTER_DROP_SIZES);
        return;
    }
    if (has_segment(call, header->seq)) {
        again(core, session, call, header, now_ns);
        return;
    }
    const struct shunter_action action = {
        .kind = SHUNTER_PLACE,
        .func_id = session->func_id,
        .entry = call->entry,
        .tensor = header->tensor,
        .offset = header->offset,
        .length = header->length,
        .left = call->missing,
        .guard = guard_of(
            session, nearest(header->pkt_no, session->highest), session->to_server)};
    emit(core, &action);
}

/* Class and deadline of a request that arrives now. */
static void set_terms(
    struct call *call, const struct shunter_x64 *header, const struct shunter_defaults *defaults,
    uint64_t now_ns) {
    call->priority = header->priority ? header->priority > 1 : defaults->priority;
    uint64_t budget = header->deadline_us * 1000ULL;
    if (!budget && !call->priority) {
        budget = defaults->slo_ns;
    }
    if (defaults->timeout_ns && (!budget || budget > defaults->timeout_ns)) {
        budget = defaults->timeout_ns;
    }
    call->deadline_ns = budget ? now_ns + budget : 0;
}

static void first_segment(
    struct shunter_core *core, struct session *session, struct call *call,
    const struct shunter_x64 *header, uint64_t now_ns) {
    if (!fits(session, header)) {
        drop(core, SHUNTER_DROP_SIZES);
        call->req_id = header->req_id;
        call->entry = NO_ENTRY;
        call->status = SHUNTER_STATUS_BAD_REQUEST;
        shunter_become(core, function_of(core, session), call, FAILED, now_ns);
        error(core, session, header->req_id, SHUNTER_STATUS_BAD_REQUEST);
        return;
    }
    struct function *function = function_of(core, session);
    const int32_t entry = shunter_take_entry(core, function, session, now_ns);
    if (entry == NO_ENTRY) {
        refuse(core, session, header, SHUNTER_DROP_FULL);
        return;
    }
    memset(call, 0, sizeof *call); // it was free or failed: not counted as receiving
    call->req_id = header->req_id;
    call->entry = entry;
    call->missing = session->inputs.count;
    call->flags = header->flags;
    call->begun_ns = call->arrived_ns = now_ns;
    set_terms(call, header, &function->defaults, now_ns);
    function->owners[entry].session = session->id;
    function->owners[entry].req_id = call->req_id;
    shunter_become(core, function, call, RECEIVING, now_ns);
    take_segment(core, session, call, header, now_ns);
}

static void request(
    struct shunter_core *core, struct session *session, const struct shunter_x64 *header,
    uint64_t now_ns) {
    if (header->func_id != session->func_id) {
        drop(core, SHUNTER_DROP_FUNC_ID);
    } else if (header->req_id <= session->done) {
        drop(core, SHUNTER_DROP_OLD);
    } else if (!may_come(session, header->req_id)) {
        refuse(core, session, header, SHUNTER_DROP_CREDIT);
    } else {
        struct call *call = call_of(session, header->req_id);
        if (call->state == FORGOTTEN && call->req_id != header->req_id) {
            refuse(core, session, header, SHUNTER_DROP_CREDIT);
        } else if (call->req_id != header->req_id || call->state == FREE) {
            first_segment(core, session, call, header, now_ns);
        } else if (call->state == RECEIVING) {
            take_segment(core, session, call, header, now_ns);
        } else {
            again(core, session, call, header, now_ns);
        }
    }
}

static void cancel(
    struct shunter_core *core, struct session *session, const struct shunter_x64 *header,
    uint64_t now_ns) {
    struct call *call = call_of(session, header->req_id);
    struct function *function = function_of(core, session);
    if (call->req_id != header->req_id ||
        (call->state != RECEIVING && call->state != RX_COMPLETE)) {
        drop(core, SHUNTER_DROP_CANCEL);
        if (session->turn != NO_TURN && header->req_id && session->wanted == header->req_id) {
            shunter_leave_row(core, function, session);
            shunter_offer(core, function, now_ns);
        }
        return;
    }
    withdraw(core, session->func_id, call->entry);
    shunter_release(function, call);
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
    error(core, session, req_id, SHUNTER_STATUS_RETRY_LATER);
}

/* Send again what a client lacks of an answer; who asks is told how its request stands. */
static void asked(
    struct shunter_core *core, struct session *session, const struct shunter_x64 *header,
    const uint8_t *payload, uint64_t now_ns) {
    struct call *call = call_of(session, header->req_id);
    const bool known = call->req_id == header->req_id && call->state != FREE;
    if (known && call->state == TX_COMPLETE && !session->stream) {
        touch(function_of(core, session), call, now_ns);
        answer(core, session, call, payload, header->length);
    } else if (!(header->flags & SHUNTER_FLAG_ACK_REQ) || header->req_id <= session->done) {
        drop(core, SHUNTER_DROP_SACK);
    } else if (!known) {
        not_begun(core, session, call, header->req_id);
    } else if (call->state == FAILED) {
        error(core, session, call->req_id, call->status);
    } else {
        sack(core, session, call);
    }
}

/* Say so, as long as few ask, and with no more bytes than came: its client may open another. */
static void unknown(
    struct shunter_core *core, const uint8_t *peer, const struct shunter_x64 *header,
    uint64_t now_ns) {
    const bool asks = header->type == SHUNTER_TYPE_REQ || header->type == SHUNTER_TYPE_SACK ||
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
    struct session *session = find(core, header.session);
    if (!session || session->closing) {
        unknown(core, peer, &header, now_ns);
    } else if (memcmp(session->peer, peer, SHUNTER_PEER_BYTES) != 0) {
        drop(core, SHUNTER_DROP_PEER);
    } else if (!tag_is_right(session, &header, datagram)) {
        drop(core, SHUNTER_DROP_TAG);
    } else if (
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
            request(core, session, &header, now_ns);
            break;
        case SHUNTER_TYPE_SACK:
            acknowledged(core, session, &header, now_ns);
            asked(core, session, &header, datagram + SHUNTER_HEADER_BYTES, now_ns);
            break;
        case SHUNTER_TYPE_ACK:
            acknowledged(core, session, &header, now_ns);
            if (header.flags & SHUNTER_FLAG_LAST && !session->stream) {
                shunter_core_remove_session(core, session->id, now_ns);
            } else if (header.flags & SHUNTER_FLAG_ACK_REQ) {
                ask(core, session, session->done > done);
            }
            break;
        default:
            drop(core, SHUNTER_DROP_DIRECTION);
        }
    }
}

static struct call *awaited(
    const struct shunter_core *core, const struct shunter_x64 *header,
    struct session **session) {
    *session = find(core, header->session);
    if (!*session || (*session)->closing || header->seq >= (*session)->inputs.count) {
        return NULL;
    }
    struct call *call = call_of(*session, header->req_id);
    return call->req_id == header->req_id && call->state == RECEIVING &&
                   !has_segment(call, header->seq)
               ? call
               : NULL;
}

bool shunter_core_awaits(const struct shunter_core *core, const uint8_t *bytes) {
    struct shunter_x64 header;
    struct session *session;
    memcpy(&header, bytes, sizeof header);
    return awaited(core, &header, &session) != NULL;
}

void shunter_core_accept(struct shunter_core *core, const uint8_t *bytes, uint64_t now_ns) {
    struct shunter_x64 header;
    struct session *session;
    memcpy(&header, bytes, sizeof header);
    struct call *call = awaited(core, &header, &session);
    if (!call) {
        return;
    }
    call->received[header.seq / 64] |= 1ULL << (header.seq % 64);
    call->missing--;
    call->arrived_ns = call->changed_ns = now_ns;
    if (call->missing == 0) {
        shunter_become(core, function_of(core, session), call, RX_COMPLETE, now_ns);
        ready(core, session->func_id, call, false, false);
    } else if (
        header.flags & SHUNTER_FLAG_ACK_REQ ||
        (session->stream && header.flags & SHUNTER_FLAG_LAST)) { // the others were refused
        sack(core, session, call);
    }
}

/* ---- workers */

static struct session *owner_of(
    struct shunter_core *core, uint16_t func_id, uint32_t entry, struct call **call) {
    const struct owner *owner = &core->functions[func_id]->owners[entry];
    struct session *session = find(core, owner->session);
    *call = call_of(session, owner->req_id);
    return session;
}

void shunter_core_running(
    struct shunter_core *core, uint16_t func_id, uint32_t entry, uint64_t now_ns,
    struct shunter_whom *whom) {
    struct call *call;
    struct session *session = owner_of(core, func_id, entry, &call);
    struct function *function = core->functions[func_id];
    shunter_become(core, function, call, RUNNING, now_ns);
    call->tries++;
    if (is_direct(session)) {
        shunter_allow_next(function, session);
    }
    *whom = (struct shunter_whom){
        .req_id = call->req_id,
        .session = session->id,
        .credit = (uint32_t)session->grant,
        .pkt_no = (uint32_t)next_pkt_no(session, session->outputs.count),
        .segment = (uint16_t)session->outputs.segment,
        .priority = call->priority,
        .direct = is_direct(session),
        .idempotent = (call->flags & SHUNTER_FLAG_IDEMPOTENT) != 0,
        .asks = !is_alone(&function->waiting),
        .tagged = session->tagged};
    memcpy(whom->key, session->key, sizeof whom->key);
    memcpy(whom->peer, session->peer, sizeof whom->peer);
}

void shunter_core_finished(
    struct shunter_core *core, uint16_t func_id, uint32_t entry, uint16_t status, bool sent,
    uint64_t now_ns) {
    struct call *call;
    struct session *session = owner_of(core, func_id, entry, &call);
    if (call->state == FORGOTTEN) {
        end_forgotten(core, session, call, now_ns);
    } else if (status == SHUNTER_STATUS_OK) {
        struct function *function = core->functions[func_id];
        shunter_become(core, function, call, TX_COMPLETE, now_ns);
        if (!sent) {
            shunter_allow_next(function, session);
            answer(core, session, call, NULL, 0);
        }
    } else {
        fail(core, session, call, status, now_ns);
    }
}

void shunter_core_worker_died(
    struct shunter_core *core, uint16_t func_id, uint32_t entry, uint64_t now_ns) {
    struct call *call;
    struct session *session = owner_of(core, func_id, entry, &call);
    if (call->state == FORGOTTEN) {
        end_forgotten(core, session, call, now_ns);
    } else if (call->flags & SHUNTER_FLAG_IDEMPOTENT && call->tries < MOST_TRIES) {
        shunter_become(core, core->functions[func_id], call, RX_COMPLETE, now_ns);
        ready(core, func_id, call, true, false);
    } else {
        fail(core, session, call, SHUNTER_STATUS_WORKER_DIED, now_ns);
    }
}

void shunter_core_returned(
    struct shunter_core *core, uint16_t func_id, uint32_t entry, uint64_t now_ns) {
    struct call *call;
    struct session *session = owner_of(core, func_id, entry, &call);
    if (call->state == FORGOTTEN) {
        end_forgotten(core, session, call, now_ns);
        return;
    }
    call->tries--;
    shunter_become(core, core->functions[func_id], call, RX_COMPLETE, now_ns);
    ready(core, func_id, call, false, true);
}

void shunter_core_expired(
    struct shunter_core *core, uint16_t func_id, uint32_t entry, uint64_t now_ns) {
    struct call *call;
    struct session *session = owner_of(core, func_id, entry, &call);
    fail(core, session, call, SHUNTER_STATUS_TOO_LATE, now_ns);
}

/* ---- time */

/* Whether a request in parts is given up: nothing comes, or, when others wait, not enough. */
static bool is_late(
    const struct function *function, const struct session *session, const struct call *call,
    uint64_t now_ns) {
    const uint64_t most = RECEIVE_NS + session->inputs.count * SEGMENT_NS;
    if (!is_alone(&function->waiting) && now_ns - call->begun_ns > most) {
        return true;
    }
    // A stream loses nothing, and may be slow.
    return now_ns - call->arrived_ns > (session->stream ? IDLE_NS : RECEIVE_NS);
}

static void look_at_part(
    struct shunter_core *core, struct session *session, struct call *call, uint64_t now_ns) {
    struct function *function = function_of(core, session);
    if (is_late(function, session, call, now_ns)) {
        end(core, session, call, now_ns);
        shunter_wasted(function, session);
        return;
    }
    shunter_look_at_stall(core, function, call, RECEIVE_NS, now_ns);
    if (!session->stream && now_ns - call->changed_ns > GAP_NS) {
        call->changed_ns = now_ns;
        sack(core, session, call);
    }
}

static struct session *owner_at(
    struct shunter_core *core, const struct link *link, struct call **call) {
    const struct owner *owner = OWNER_OF(link, owner, link);
    struct session *session = find(core, owner->session);
    *call = call_of(session, owner->req_id);
    return session;
}

static void look_at_parts(
    struct shunter_core *core, struct function *function, uint64_t now_ns) {
    for (struct link *at = function->receiving.next; at != &function->receiving;) {
        struct call *call;
        struct session *session = owner_at(core, at, &call);
        at = at->next;
        look_at_part(core, session, call, now_ns);
    }
}

/*
 * Answers are kept for a while. When others wait for their entries, not for so long those of
 * sessions that are silent: who lacks an answer asks.
 */
static void look_at_kept(
    struct shunter_core *core, struct function *function, uint64_t now_ns) {
    const bool scarce = !is_alone(&function->waiting);
    for (struct link *at = function->kept.next; at != &function->kept;) {
        struct call *call;
        const struct session *session = owner_at(core, at, &call);
        const uint64_t age_ns = now_ns - call->changed_ns;
        if (age_ns <= (scarce ? SPARE_NS : KEEP_NS)) {
            break;
        }
        at = at->next;
        if (age_ns <= KEEP_NS && now_ns - session->last_ns <= SPARE_NS) {
            continue;
        }
        shunter_release(function, call);
        call->status = SHUNTER_STATUS_LOST_ANSWER;
        shunter_become(core, function, call, FAILED, now_ns);
    }
}

void shunter_core_tick(struct shunter_core *core, uint64_t now_ns) {
    shunter_beat(core, now_ns);
    shunter_look_at_silence(core, now_ns);
    for (struct link *at = core->all.next; at != &core->all; at = at->next) {
        struct function *function = OWNER_OF(at, function, link);
        look_at_parts(core, function, now_ns);
        look_at_kept(core, function, now_ns);
        shunter_end_promises(core, function, now_ns);
        shunter_offer(core, function, now_ns);
    }
}
