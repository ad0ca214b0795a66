#include "core.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "segments.h"
#include "siphash.h"

#define GAP_NS 3000000ULL
#define RECEIVE_NS 2000000000ULL
#define KEEP_NS 2000000000ULL
#define IDLE_NS 60000000000ULL
#define MOST_TRIES 2
#define REPLAY_WORDS 16
#define REPLAY_BITS (64 * REPLAY_WORDS)
#define REPLAY_JUMP (1u << 20)
#define KNOWN_FLAGS 0xff
#define PROTECTIONS (SHUNTER_FLAG_PAYLOAD_AEAD | SHUNTER_FLAG_PAYLOAD_CRC)
#define NO_ENTRY (-1)

enum state { FREE, RECEIVING = SHUNTER_SACK_RECEIVING, RX_COMPLETE, RUNNING, TX_COMPLETE, FAILED, FORGOTTEN };

struct call {
    uint64_t req_id;
    uint64_t arrived_ns; /* last segment that was new */
    uint64_t changed_ns;
    uint64_t deadline_ns;
    uint64_t received[SHUNTER_MAX_SEGMENTS / 64];
    uint32_t missing;
    int32_t entry;
    uint16_t flags;
    uint16_t status;
    uint8_t state;
    uint8_t priority;
    uint8_t tries;
};

struct session {
    uint32_t id;
    uint16_t func_id;
    uint16_t window;
    uint16_t protect;
    bool tagged;
    bool stream;
    bool closing; /* it is removed when its last call has run */
    uint32_t forgotten;
    uint8_t key[16];
    uint8_t to_server[16], to_client[16];
    uint8_t peer[SHUNTER_PEER_BYTES];
    struct shunter_plan inputs, outputs;
    uint64_t done;
    uint64_t grant;
    uint64_t last_ns;
    uint64_t pkt_no;
    uint64_t highest;
    uint64_t seen[REPLAY_WORDS]; /* bit n of the whole: datagram highest - n */
    struct call calls[SHUNTER_WINDOW];
};

struct owner {
    uint32_t session;
    uint64_t req_id;
};

struct function {
    uint16_t id;
    unsigned input_count, output_count;
    uint32_t inputs[SHUNTER_MAX_TENSORS], outputs[SHUNTER_MAX_TENSORS];
    uint32_t entries, free, next, burst;
    uint32_t sessions;
    struct shunter_defaults defaults;
    uint8_t *used;
    struct owner *owners;
};

struct shunter_core {
    shunter_emit emit;
    void *context;
    struct function *functions[SHUNTER_FUNCTIONS];
    struct session *sessions[SHUNTER_SESSIONS]; /* by the low 16 bits of the id */
    uint32_t ids[SHUNTER_SESSIONS]; /* those that are there, so that time passes only for them */
    uint32_t places[SHUNTER_SESSIONS]; /* of each in ids */
    uint32_t count;
    uint32_t receiving; /* calls */
};

/* ---- entries */

static uint32_t next_free(const struct function *function, uint32_t at) {
    while (function->used[at]) {
        at = at + 1 == function->entries ? 0 : at + 1;
    }
    return at;
}

static int32_t take_entry(struct function *function) {
    if (function->free == 0) {
        return NO_ENTRY;
    }
    const uint32_t at = next_free(function, function->next);
    function->used[at] = 1;
    function->free--;
    function->next = at + 1 == function->entries ? 0 : at + 1;
    return (int32_t)at;
}

static void release(struct function *function, struct call *call) {
    if (call->entry != NO_ENTRY) {
        function->used[call->entry] = 0;
        function->free++;
        call->entry = NO_ENTRY;
    }
}

static uint32_t share(const struct function *function) {
    if (function->free == 0) {
        return 0;
    }
    const uint32_t each =
        function->burst / (function->sessions ? function->sessions : 1);
    return each ? each : 1;
}

/* ---- sessions */

static struct call *call_of(struct session *session, uint64_t req_id) {
    return &session->calls[req_id % SHUNTER_WINDOW];
}

static struct function *function_of(
    const struct shunter_core *core, const struct session *session) {
    return core->functions[session->func_id];
}

static struct session *find(const struct shunter_core *core, uint32_t id) {
    struct session *session = core->sessions[id & (SHUNTER_SESSIONS - 1)];
    return session && session->id == id ? session : NULL;
}

static void raise_grant(struct session *session, uint32_t allowed) {
    const uint64_t wanted =
        session->done + (allowed < session->window ? allowed : session->window);
    if (wanted > session->grant) {
        session->grant = wanted;
    }
}

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
    const struct shunter_core *core, uint16_t func_id, const struct call *call, bool again) {
    const struct shunter_action action = {
        .kind = SHUNTER_READY,
        .func_id = func_id,
        .entry = call->entry,
        .priority = call->priority,
        .deadline_ns = call->deadline_ns,
        .again = again};
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
    for (uint32_t seq = 0; seq < plan->count; seq++) {
        if (seq / 8 < have_bytes && have[seq / 8] >> (seq % 8) & 1) {
            continue;
        }
        const struct shunter_segment segment = shunter_place(plan, seq);
        struct shunter_x64 header = {
            .type = SHUNTER_TYPE_RESP,
            .flags = seq + 1 == plan->count ? SHUNTER_FLAG_LAST : 0,
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

static void control(
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
    control(core, session, SHUNTER_TYPE_ERROR, req_id, status, NULL, 0);
}

static void sack(
    const struct shunter_core *core, struct session *session, const struct call *call) {
    control(
        core, session, SHUNTER_TYPE_SACK, call->req_id, call->state, call->received,
        (uint16_t)((session->inputs.count + 7) / 8));
}

/* ---- ends */

static void become(
    struct shunter_core *core, struct call *call, enum state state, uint64_t now_ns) {
    core->receiving += state == RECEIVING;
    core->receiving -= call->state == RECEIVING;
    call->state = (uint8_t)state;
    call->changed_ns = now_ns;
}

static void end(
    struct shunter_core *core, struct session *session, struct call *call, uint64_t now_ns) {
    release(function_of(core, session), call);
    become(core, call, FREE, now_ns);
}

static void take_out(struct shunter_core *core, struct session *session) {
    const uint32_t place = session->id & (SHUNTER_SESSIONS - 1);
    const uint32_t last = core->ids[--core->count];
    core->ids[core->places[place]] = last;
    core->places[last & (SHUNTER_SESSIONS - 1)] = core->places[place];
    core->sessions[place] = NULL;
    function_of(core, session)->sessions--;
    free(session);
}

/* What nobody waits for has run. */
static void end_forgotten(
    struct shunter_core *core, struct session *session, struct call *call, uint64_t now_ns) {
    end(core, session, call, now_ns);
    session->forgotten--;
    if (session->closing && session->forgotten == 0) {
        take_out(core, session);
    }
}

static void fail(
    struct shunter_core *core, struct session *session, struct call *call, uint16_t status,
    uint64_t now_ns) {
    release(function_of(core, session), call);
    call->status = status;
    become(core, call, FAILED, now_ns);
    error(core, session, call->req_id, status);
}

static void forget(
    struct shunter_core *core, struct session *session, struct call *call, uint64_t now_ns) {
    if (call->state == FREE || call->state == FORGOTTEN) {
        return;
    }
    if (call->state == RUNNING) {
        become(core, call, FORGOTTEN, now_ns);
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
    while (session->done + 1 < below) {
        session->done++;
        struct call *call = call_of(session, session->done);
        if (call->req_id == session->done) {
            forget(core, session, call, now_ns);
        }
    }
    raise_grant(session, share(function_of(core, session)));
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
    const struct shunter_core *core, struct session *session, const struct shunter_x64 *header,
    enum shunter_drop why) {
    drop(core, why);
    if (header->flags & SHUNTER_FLAG_LAST) {
        error(core, session, header->req_id, SHUNTER_STATUS_RETRY_LATER);
    }
}

static void again(
    const struct shunter_core *core, struct session *session, struct call *call,
    const struct shunter_x64 *header, uint64_t now_ns) {
    drop(core, SHUNTER_DROP_DUPLICATE);
    if (!(header->flags & SHUNTER_FLAG_ACK_REQ)) {
        return;
    }
    if (call->state == TX_COMPLETE) {
        call->changed_ns = now_ns;
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
        become(core, call, FAILED, now_ns);
        error(core, session, header->req_id, SHUNTER_STATUS_BAD_REQUEST);
        return;
    }
    struct function *function = function_of(core, session);
    const int32_t entry = take_entry(function);
    if (entry == NO_ENTRY) {
        refuse(core, session, header, SHUNTER_DROP_FULL);
        return;
    }
    memset(call, 0, sizeof *call); // it was free or failed: not counted as receiving
    call->req_id = header->req_id;
    call->entry = entry;
    call->missing = session->inputs.count;
    call->flags = header->flags;
    call->arrived_ns = now_ns;
    set_terms(call, header, &function->defaults, now_ns);
    become(core, call, RECEIVING, now_ns);
    function->owners[entry] = (struct owner){session->id, call->req_id};
    take_segment(core, session, call, header, now_ns);
}

static void request(
    struct shunter_core *core, struct session *session, const struct shunter_x64 *header,
    uint64_t now_ns) {
    if (header->func_id != session->func_id) {
        drop(core, SHUNTER_DROP_FUNC_ID);
    } else if (header->req_id <= session->done) {
        drop(core, SHUNTER_DROP_OLD);
    } else if (header->req_id > session->grant) {
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
    if (call->req_id != header->req_id ||
        (call->state != RECEIVING && call->state != RX_COMPLETE)) {
        drop(core, SHUNTER_DROP_CANCEL);
        return;
    }
    withdraw(core, session->func_id, call->entry);
    release(function_of(core, session), call);
    call->status = SHUNTER_STATUS_CANCELLED;
    become(core, call, FAILED, now_ns);
}

/* Nothing has come of a request: whether it is worth while to send it again. */
static void unknown(
    const struct shunter_core *core, struct session *session, const struct call *call,
    uint64_t req_id) {
    if (req_id > session->grant || call->state == FORGOTTEN) {
        drop(core, SHUNTER_DROP_CREDIT);
    } else if (function_of(core, session)->free == 0) {
        drop(core, SHUNTER_DROP_FULL);
    } else {
        control(core, session, SHUNTER_TYPE_SACK, req_id, RECEIVING, NULL, 0);
        return;
    }
    error(core, session, req_id, SHUNTER_STATUS_RETRY_LATER);
}

/* Send again what a client lacks of an answer; who asks is told how its request stands. */
static void asked(
    const struct shunter_core *core, struct session *session, const struct shunter_x64 *header,
    const uint8_t *payload, uint64_t now_ns) {
    struct call *call = call_of(session, header->req_id);
    const bool known = call->req_id == header->req_id && call->state != FREE;
    if (known && call->state == TX_COMPLETE && !session->stream) {
        call->changed_ns = now_ns;
        answer(core, session, call, payload, header->length);
    } else if (!(header->flags & SHUNTER_FLAG_ACK_REQ) || header->req_id <= session->done) {
        drop(core, SHUNTER_DROP_SACK);
    } else if (!known) {
        unknown(core, session, call, header->req_id);
    } else if (call->state == FAILED) {
        error(core, session, call->req_id, call->status);
    } else {
        sack(core, session, call);
    }
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
        drop(core, SHUNTER_DROP_SESSION);
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
        session->last_ns = now_ns;
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
                control(core, session, SHUNTER_TYPE_CREDIT, 0, 0, NULL, 0);
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
        become(core, call, RX_COMPLETE, now_ns);
        ready(core, session->func_id, call, false);
    } else if (header.flags & SHUNTER_FLAG_ACK_REQ) {
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
    become(core, call, RUNNING, now_ns);
    call->tries++;
    *whom = (struct shunter_whom){
        .req_id = call->req_id,
        .session = session->id,
        .credit = (uint32_t)session->grant,
        .pkt_no = (uint32_t)next_pkt_no(session, session->outputs.count),
        .segment = (uint16_t)session->outputs.segment,
        .priority = call->priority,
        .direct = is_direct(session),
        .idempotent = (call->flags & SHUNTER_FLAG_IDEMPOTENT) != 0,
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
        become(core, call, TX_COMPLETE, now_ns);
        if (!sent) {
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
        become(core, call, RX_COMPLETE, now_ns);
        ready(core, func_id, call, true);
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
    become(core, call, RX_COMPLETE, now_ns);
    ready(core, func_id, call, false);
}

void shunter_core_expired(
    struct shunter_core *core, uint16_t func_id, uint32_t entry, uint64_t now_ns) {
    struct call *call;
    struct session *session = owner_of(core, func_id, entry, &call);
    fail(core, session, call, SHUNTER_STATUS_TOO_LATE, now_ns);
}

/* ---- time */

static void age(
    struct shunter_core *core, struct session *session, struct call *call, uint64_t now_ns) {
    if (call->state == RECEIVING && session->stream) { // it loses nothing, and may be slow
        if (now_ns - call->changed_ns > IDLE_NS) {
            end(core, session, call, now_ns);
        }
    } else if (call->state == RECEIVING) {
        if (now_ns - call->arrived_ns > RECEIVE_NS) {
            end(core, session, call, now_ns);
        } else if (now_ns - call->changed_ns > GAP_NS) {
            call->changed_ns = now_ns;
            sack(core, session, call);
        }
    } else if (call->state == TX_COMPLETE && now_ns - call->changed_ns > KEEP_NS) {
        release(function_of(core, session), call);
        call->status = SHUNTER_STATUS_LOST_ANSWER;
        become(core, call, FAILED, now_ns);
    }
}

void shunter_core_tick(struct shunter_core *core, uint64_t now_ns) {
    for (uint32_t i = core->count; i-- > 0;) {
        struct session *session = find(core, core->ids[i]);
        if (session->closing) {
            continue;
        }
        if (!session->stream && now_ns - session->last_ns > IDLE_NS) {
            shunter_core_remove_session(core, session->id, now_ns);
            continue;
        }
        for (uint32_t k = 0; k < SHUNTER_WINDOW; k++) {
            age(core, session, &session->calls[k], now_ns);
        }
    }
}

/* ---- what is expected */

void shunter_core_forecast(
    const struct shunter_core *core, uint32_t id, uint64_t req_id,
    struct shunter_forecast *forecast) {
    memset(forecast, 0, sizeof *forecast);
    struct session *session = find(core, id);
    if (!session || session->closing) {
        return;
    }
    const struct call *call = call_of(session, req_id);
    const struct function *function = function_of(core, session);
    forecast->plan = &session->inputs;
    forecast->function = function;
    forecast->free = function->free;
    forecast->behind = shunter_behind(session->protect);
    if (call->req_id == req_id && call->state == RECEIVING) {
        forecast->call = call;
        forecast->entry = (uint32_t)call->entry;
    } else if (function->free) {
        forecast->entry = next_free(function, function->next);
    }
}

bool shunter_forecast_next(
    struct shunter_forecast *forecast, uint32_t *entry, struct shunter_segment *segment) {
    const struct shunter_plan *plan = forecast->plan;
    const struct function *function = forecast->function;
    const struct call *call = forecast->call;
    while (call && forecast->seq < plan->count &&
           call->received[forecast->seq / 64] >> (forecast->seq % 64) & 1) {
        forecast->seq++;
    }
    if (call && forecast->seq == plan->count) {
        forecast->call = call = NULL;
        forecast->seq = 0;
        if (forecast->free) {
            forecast->entry = next_free(function, function->next);
        }
    }
    if (!plan || (!call && !forecast->free)) {
        return false;
    }
    *entry = forecast->entry;
    *segment = shunter_place(plan, forecast->seq++);
    if (!call && forecast->seq == plan->count) {
        forecast->seq = 0;
        if (--forecast->free) {
            const uint32_t next = forecast->entry + 1;
            forecast->entry = next_free(function, next == function->entries ? 0 : next);
        }
    }
    return true;
}

/* ---- what there is */

struct shunter_core *shunter_core_new(shunter_emit emitter, void *context) {
    struct shunter_core *core = calloc(1, sizeof *core);
    if (core) {
        core->emit = emitter;
        core->context = context;
    }
    return core;
}

static void free_function(struct function *function) {
    if (function) {
        free(function->used);
        free(function->owners);
        free(function);
    }
}

void shunter_core_free(struct shunter_core *core) {
    if (!core) {
        return;
    }
    for (uint32_t i = 0; i < core->count; i++) {
        free(find(core, core->ids[i]));
    }
    for (uint32_t i = 0; i < SHUNTER_FUNCTIONS; i++) {
        free_function(core->functions[i]);
    }
    free(core);
}

int shunter_core_add_function(
    struct shunter_core *core, uint16_t func_id, const uint32_t *inputs, unsigned input_count,
    const uint32_t *outputs, unsigned output_count, uint32_t entries, uint32_t burst) {
    if (input_count < 1 || input_count > SHUNTER_MAX_TENSORS || output_count < 1 ||
        output_count > SHUNTER_MAX_TENSORS || entries < 1 || entries > SHUNTER_MAX_ENTRIES) {
        return -EINVAL;
    }
    if (core->functions[func_id]) {
        return -EEXIST;
    }
    struct function *function = calloc(1, sizeof *function);
    if (function) {
        function->used = calloc(entries, 1);
        function->owners = calloc(entries, sizeof *function->owners);
    }
    if (!function || !function->used || !function->owners) {
        free_function(function);
        return -ENOMEM;
    }
    function->id = func_id;
    function->input_count = input_count;
    function->output_count = output_count;
    memcpy(function->inputs, inputs, input_count * sizeof *inputs);
    memcpy(function->outputs, outputs, output_count * sizeof *outputs);
    function->entries = function->free = entries;
    function->burst = burst < entries ? burst : entries;
    core->functions[func_id] = function;
    return 0;
}

int shunter_core_set_defaults(
    struct shunter_core *core, uint16_t func_id, const struct shunter_defaults *defaults) {
    if (!core->functions[func_id]) {
        return -ENOENT;
    }
    if (defaults->priority > 1) {
        return -EINVAL;
    }
    core->functions[func_id]->defaults = *defaults;
    return 0;
}

int shunter_core_remove_function(struct shunter_core *core, uint16_t func_id) {
    if (!core->functions[func_id]) {
        return -ENOENT;
    }
    if (core->functions[func_id]->sessions) {
        return -EBUSY;
    }
    free_function(core->functions[func_id]);
    core->functions[func_id] = NULL;
    return 0;
}

int shunter_core_add_session(
    struct shunter_core *core, const struct shunter_opening *opening, uint64_t now_ns) {
    struct function *function = core->functions[opening->func_id];
    const uint32_t place = opening->session & (SHUNTER_SESSIONS - 1);
    const uint32_t segment = opening->segment;
    if (!function) {
        return -ENOENT;
    }
    if (segment < 1 || opening->window < 1 || opening->window > SHUNTER_WINDOW) {
        return -EINVAL;
    }
    if (core->sessions[place]) {
        return -EEXIST;
    }
    struct session *session = calloc(1, sizeof *session);
    if (!session) {
        return -ENOMEM;
    }
    if (shunter_make_plan(&session->inputs, function->inputs, function->input_count, segment) ||
        shunter_make_plan(&session->outputs, function->outputs, function->output_count, segment)) {
        free(session);
        return -E2BIG;
    }
    session->id = opening->session;
    session->func_id = opening->func_id;
    session->window = opening->window;
    session->protect = opening->protect;
    session->stream = opening->stream;
    session->tagged = opening->tagged;
    session->pkt_no = opening->pkt_no;
    memcpy(session->key, opening->key, sizeof session->key);
    memcpy(session->to_server, opening->to_server, sizeof session->to_server);
    memcpy(session->to_client, opening->to_client, sizeof session->to_client);
    memcpy(session->peer, opening->peer, sizeof session->peer);
    session->last_ns = now_ns;
    for (uint32_t k = 0; k < SHUNTER_WINDOW; k++) {
        session->calls[k].entry = NO_ENTRY;
    }
    function->sessions++;
    raise_grant(session, share(function));
    core->sessions[place] = session;
    core->places[place] = core->count;
    core->ids[core->count++] = session->id;
    return 0;
}

int shunter_core_remove_session(struct shunter_core *core, uint32_t id, uint64_t now_ns) {
    struct session *session = find(core, id);
    if (!session || session->closing) {
        return -ENOENT;
    }
    for (uint32_t k = 0; k < SHUNTER_WINDOW; k++) {
        forget(core, session, &session->calls[k], now_ns);
    }
    session->closing = true;
    if (session->forgotten == 0) {
        take_out(core, session);
    }
    return 0;
}

bool shunter_core_is_receiving(const struct shunter_core *core) { return core->receiving > 0; }

uint32_t shunter_core_free_entries(const struct shunter_core *core, uint16_t func_id) {
    return core->functions[func_id] ? core->functions[func_id]->free : 0;
}

uint32_t shunter_core_sessions(const struct shunter_core *core) { return core->count; }

uint64_t shunter_core_answer_bytes(const struct shunter_core *core, uint32_t id) {
    const struct session *session = find(core, id);
    if (!session) {
        return 0;
    }
    const uint32_t around = SHUNTER_HEADER_BYTES + shunter_behind(session->protect);
    uint64_t bytes = (uint64_t)session->outputs.count * around;
    for (unsigned i = 0; i < session->outputs.tensors; i++) {
        bytes += session->outputs.sizes[i];
    }
    return bytes * session->window;
}

void shunter_core_load(
    const struct shunter_core *core, uint16_t func_id, uint32_t *sessions, uint64_t *credit) {
    *sessions = 0;
    *credit = 0;
    for (uint32_t i = 0; i < core->count; i++) {
        const struct session *session = find(core, core->ids[i]);
        if (session->func_id == func_id && !session->closing) {
            ++*sessions;
            *credit += session->grant - session->done;
        }
    }
}

bool shunter_core_is_open(const struct shunter_core *core, uint32_t id) {
    const struct session *session = find(core, id);
    return session && !session->closing;
}

uint64_t shunter_core_grant(const struct shunter_core *core, uint32_t id) {
    const struct session *session = find(core, id);
    return session ? session->grant : 0;
}
