/*
 * Answers, as much of them as the path takes: what goes now, what waits, what goes again.
 *
 * A client that lacks something asks for it. What is on its way is not sent again before it must be
 * lost, and the longer it asks in vain the less often: so many bytes as there are in a window are
 * the most that a question brings.
 */
#include "actions.h"
#include "answers.h"
#include "runs.h"

#define DIRECT_RUN 8192 /* bytes: a longer one is sent by a worker only if it is one segment */
#define USUAL_RUN 65536 /* bytes: most answers of a packed function have less, whatever they may have */

static uint32_t bytes_of(
    const struct session *session, const struct call *call, uint32_t seq) {
    return SHUNTER_HEADER_BYTES + segment_of_answer(session, call, seq).length +
           shunter_behind(session->protect);
}

static uint32_t largest(const struct session *session) {
    return SHUNTER_HEADER_BYTES + session->outputs.segment + shunter_behind(session->protect);
}

/* The most of one. */
static uint64_t bytes_of_answer(const struct session *session) {
    return (uint64_t)session->outputs.count * largest(session);
}

/* Window of a way that is short: all answers that a session usually has at once. */
static uint64_t near_window(const struct session *session) {
    const uint64_t each = bytes_of_answer(session);
    if (session->packed && each > USUAL_RUN) {
        const uint64_t usual = (uint64_t)session->window * USUAL_RUN;
        return usual > each ? usual : each;
    }
    return session->window * each;
}

void shunter_answers_open(struct session *session, uint64_t now_ns) {
    shunter_congestion_init(
        &session->path, largest(session), near_window(session),
        shunter_loopback_ns(session->peer), now_ns);
}

/* ---- what is to be sent */

static bool is_wanted(const struct call *call, uint32_t seq) { return has_segment(call, seq); }

static void want(struct session *session, struct call *call, uint32_t seq) {
    if (!is_wanted(call, seq)) {
        call->received[seq / 64] |= 1ULL << (seq % 64);
        call->unsent++;
        session->unsent++;
    }
}

static void want_none(struct session *session, struct call *call) {
    memset(call->received, 0, sizeof call->received);
    session->unsent -= call->unsent;
    call->unsent = 0;
}

static void want_lost(void *context, uint64_t owner, uint16_t part) {
    struct session *session = context;
    struct call *call = call_of(session, owner);
    if (call->req_id == owner && call->state == TX_COMPLETE) {
        want(session, call, part);
    }
}

/* ---- what goes */

/* Whether a segment goes now; then it is on its way. */
static bool send_one(
    struct shunter_core *core, struct session *session, struct call *call, uint32_t seq,
    bool parted, uint64_t now_ns) {
    struct shunter_congestion *path = &session->path;
    const uint32_t bytes = bytes_of(session, call, seq);
    const uint64_t unsent = session->unsent * (uint64_t)largest(session);
    session->paced_ns = shunter_congestion_may_send_at(path, bytes, unsent, now_ns);
    if (session->paced_ns > now_ns) {
        return false;
    }
    const bool is_last = seq + 1 == segments_of_answer(session, call);
    const bool is_half = 2 * (path->in_flight + bytes) > path->window;
    const bool asks = parted ? shunter_congestion_should_ask(path, bytes) : is_half && is_last;
    const bool others_wait = is_last && !is_alone(&function_of(core, session)->waiting);
    const struct shunter_flight flight = {
        .sent_ns = now_ns,
        .owner = call->req_id,
        .bytes = bytes,
        .part = (uint16_t)seq,
        .asks = asks,
        .again = seq < call->next};
    (void)shunter_congestion_sent(path, &flight); // not counted: its client asks for it
    call->received[seq / 64] &= ~(1ULL << (seq % 64));
    call->unsent--;
    session->unsent--;
    call->next = seq < call->next ? call->next : seq + 1;
    shunter_send_segment(core, session, call, seq, asks || others_wait);
    return true;
}

/* Whether all of it went that is to be sent. */
static bool send_call(
    struct shunter_core *core, struct session *session, struct call *call, uint64_t now_ns) {
    const uint64_t bytes = (uint64_t)call->unsent * largest(session);
    const bool parted =
        call->next || !shunter_congestion_holds(&session->path, bytes, now_ns);
    for (uint32_t seq = 0; call->unsent; seq++) {
        if (is_wanted(call, seq) && !send_one(core, session, call, seq, parted, now_ns)) {
            return false;
        }
    }
    return true;
}

void shunter_answers_go(struct shunter_core *core, struct session *session, uint64_t now_ns) {
    bool all = true;
    for (uint64_t id = session->done + 1; all && session->unsent && id <= session->grant; id++) {
        struct call *call = call_of(session, id);
        if (call->req_id == id && call->unsent) {
            all = send_call(core, session, call, now_ns);
        }
    }
    if (session->unsent) {
        link_last(&core->sending, &session->sending);
    } else {
        link_out(&session->sending);
    }
}

void shunter_answers_tick(struct shunter_core *core, uint64_t now_ns) {
    struct link due;
    link_alone(&due);
    while (!is_alone(&core->sending)) { // those that go on waiting come back
        link_last(&due, core->sending.next);
    }
    while (!is_alone(&due)) {
        struct session *session = OWNER_OF(due.next, session, sending);
        link_last(&core->sending, &session->sending);
        if (session->paced_ns <= now_ns) {
            shunter_answers_go(core, session, now_ns);
        }
    }
}

/* ---- an answer's way */

uint32_t shunter_direct_segments(const struct session *session) {
    const uint32_t few = DIRECT_RUN / session->outputs.segment;
    if (!session->packed || few >= session->outputs.count) {
        return session->outputs.count;
    }
    return few ? few : 1;
}

bool shunter_answer_is_direct(struct session *session, uint64_t now_ns) {
    const uint64_t bytes =
        (uint64_t)(session->direct + 1) * shunter_direct_segments(session) * largest(session);
    return is_direct(session) && !session->unsent &&
           shunter_congestion_holds(&session->path, bytes, now_ns);
}

void shunter_answer_was_sent(struct session *session, struct call *call, uint64_t now_ns) {
    if (session->stream) {
        return;
    }
    want_none(session, call);
    call->next = segments_of_answer(session, call);
    for (uint32_t seq = 0; seq < call->next; seq++) {
        const struct shunter_flight flight = {
            .sent_ns = now_ns,
            .owner = call->req_id,
            .bytes = bytes_of(session, call, seq),
            .part = (uint16_t)seq};
        (void)shunter_congestion_sent(&session->path, &flight);
    }
}

void shunter_answer(
    struct shunter_core *core, struct session *session, struct call *call, uint64_t now_ns) {
    const bool asks = !is_alone(&function_of(core, session)->waiting);
    const uint32_t count = segments_of_answer(session, call);
    if (session->stream) {
        for (uint32_t seq = 0; seq < count; seq++) {
            shunter_send_segment(core, session, call, seq, asks && seq + 1 == count);
        }
        return;
    }
    want_none(session, call);
    call->next = 0;
    for (uint32_t seq = 0; seq < count; seq++) {
        want(session, call, seq);
    }
    shunter_answers_go(core, session, now_ns);
}

void shunter_answer_heard(
    struct shunter_core *core, struct session *session, struct call *call, const uint8_t *have,
    uint32_t have_bytes, bool question, uint64_t now_ns) {
    struct shunter_congestion *path = &session->path;
    shunter_congestion_heard(
        path, call->req_id, have, have_bytes, question, now_ns, want_lost, session);
    if (question) {
        uint8_t flying[SHUNTER_BITMAP_BYTES] = {0};
        shunter_congestion_mark(path, call->req_id, flying);
        for (uint32_t seq = 0; seq < call->next; seq++) {
            const bool there = seq / 8 < have_bytes && have[seq / 8] >> (seq % 8) & 1;
            if (!there && !(flying[seq / 8] >> (seq % 8) & 1)) {
                want(session, call, seq);
            }
        }
    }
    if (now_ns - call->arrived_ns < IDLE_NS) { // not for ever, however often it is asked for
        shunter_touch(function_of(core, session), call, now_ns);
    }
    shunter_answers_go(core, session, now_ns);
}

void shunter_answer_came(struct session *session, struct call *call, uint64_t now_ns) {
    if (call->state == TX_COMPLETE && !session->stream) {
        want_none(session, call);
        shunter_congestion_heard(
            &session->path, call->req_id, NULL, 0, false, now_ns, want_lost, session);
    }
}

void shunter_answer_over(struct session *session, struct call *call) {
    if (call->state == TX_COMPLETE && !session->stream) {
        want_none(session, call);
        shunter_congestion_forget(&session->path, call->req_id);
    }
}
