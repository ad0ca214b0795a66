/* What time brings: parts that are late, answers that are old, sessions that are silent. */
#include "actions.h"
#include "answers.h"
#include "runs.h"
#include "series.h"

#define GAP_NS 3000000ULL
#ifndef RECEIVE_NS // tests that need half a request have a longer one: their host may be busy
#define RECEIVE_NS 2000000000ULL
#endif
#define SEGMENT_NS 20000000ULL
#define SPARE_NS 1000000000ULL
#define REST_NS 30000000000ULL
#define AWAKE_NS 1000000000ULL

/* ---- requests */

/* Whether a request in parts is given up: nothing comes, or, when others wait, not enough. */
static bool is_late(
    const struct function *function, const struct session *session, const struct call *call,
    uint64_t now_ns) {
    const uint64_t most = RECEIVE_NS + segments_of_request(session, call) * SEGMENT_NS;
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
        shunter_end_call(core, session, call, now_ns);
        shunter_wasted(function, session);
        return;
    }
    shunter_look_at_stall(core, session, call, now_ns);
    if (!session->stream && now_ns - call->changed_ns > GAP_NS) {
        call->changed_ns = now_ns;
        shunter_sack(core, session, call);
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
 * Answers are kept for long: their clients' hosts may stand still for seconds. When others wait for
 * their entries it is not so long, and shorter still for silent sessions: who lacks an answer asks.
 */
static void look_at_kept(
    struct shunter_core *core, struct function *function, uint64_t now_ns) {
    const bool scarce = !is_alone(&function->waiting);
    for (struct link *at = function->kept.next; at != &function->kept;) {
        struct call *call;
        struct session *session = owner_at(core, at, &call);
        const uint64_t age_ns = now_ns - call->changed_ns;
        if (age_ns <= (scarce ? SPARE_NS : REST_NS)) {
            break;
        }
        at = at->next;
        if (age_ns <= KEEP_NS && now_ns - session->last_ns <= SPARE_NS) {
            continue;
        }
        shunter_answer_over(session, call);
        shunter_release(core, function, call);
        call->status = SHUNTER_STATUS_LOST_ANSWER;
        shunter_become(core, function, call, FAILED, now_ns);
    }
}

/* ---- silence */

static struct session *longest_silent(const struct link *ring) {
    return is_alone(ring) ? NULL : OWNER_OF(ring->next, session, silence);
}

/* Whether its client may be silent because it waits: nothing is lost on a stream. */
static bool is_waiting_by_stream(const struct session *session) {
    bool waits = false;
    for (uint32_t k = 0; session->stream && k < SHUNTER_WINDOW; k++) {
        const uint8_t state = session->calls[k].state;
        waits = waits || state == RX_COMPLETE || state == RUNNING;
    }
    return waits;
}

static void look_at(struct shunter_core *core, int stream, uint64_t now_ns) {
    const struct link *awake = &core->awake[stream], *resting = &core->resting[stream];
    struct session *session;
    while ((session = longest_silent(awake)) && now_ns - session->last_ns > AWAKE_NS) {
        shunter_set_awake(core, session, false);
        link_last(&core->resting[stream], &session->silence);
    }
    while ((session = longest_silent(resting)) && now_ns - session->last_ns > IDLE_NS) {
        if (is_waiting_by_stream(session)) {
            shunter_is_heard(core, session, now_ns);
        } else {
            shunter_leave(core, session, now_ns); // to others room is offered when all of these are out
        }
    }
}

static void look_at_silence(struct shunter_core *core, uint64_t now_ns) {
    look_at(core, 0, now_ns);
    look_at(core, 1, now_ns);
}

void shunter_core_tick(struct shunter_core *core, uint64_t now_ns) {
    shunter_beat(core, now_ns);
    look_at_silence(core, now_ns);
    for (struct link *at = core->all.next; at != &core->all; at = at->next) {
        struct function *function = OWNER_OF(at, function, link);
        look_at_parts(core, function, now_ns);
        look_at_kept(core, function, now_ns);
        shunter_series_tick(core, function, now_ns);
        shunter_end_promises(core, function, now_ns);
        shunter_offer(core, function, now_ns);
    }
    shunter_answers_tick(core, now_ns);
}
