/* What becomes of a request that is here: its states, its end, and what workers say of it. */
#include <stdlib.h>

#include "actions.h"
#include "answers.h"
#include "series.h"

#define MOST_TRIES 2

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
void shunter_touch(struct function *function, struct call *call, uint64_t now_ns) {
    call->changed_ns = now_ns;
    link_last(&function->kept, &function->owners[call->entry].link);
}

/* ---- ends */

void shunter_end_call(
    struct shunter_core *core, struct session *session, struct call *call, uint64_t now_ns) {
    struct function *function = function_of(core, session);
    session->is_proven = session->is_proven && call->state != RECEIVING;
    shunter_answer_over(session, call);
    shunter_release(core, function, call);
    shunter_become(core, function, call, FREE, now_ns);
}

void shunter_take_out(struct shunter_core *core, struct session *session) {
    core->sessions[session->id & (SHUNTER_SESSIONS - 1)] = NULL;
    core->count--;
    function_of(core, session)->sessions--;
    link_out(&session->sending);
    shunter_congestion_free(&session->path);
    free(session);
}

/* What nobody waits for has run. */
static void end_forgotten(
    struct shunter_core *core, struct session *session, struct call *call, uint64_t now_ns) {
    struct function *function = function_of(core, session);
    shunter_end_call(core, session, call, now_ns);
    session->forgotten--;
    if (session->closing && session->forgotten == 0) {
        shunter_take_out(core, session);
    }
    shunter_offer(core, function, now_ns);
}

void shunter_fail(
    struct shunter_core *core, struct session *session, struct call *call, uint16_t status,
    uint64_t now_ns) {
    struct function *function = function_of(core, session);
    shunter_release(core, function, call);
    call->status = status;
    shunter_become(core, function, call, FAILED, now_ns);
    shunter_allow_next(function, session);
    shunter_error(core, session, call->req_id, status);
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
    const bool waits = call->state == RX_COMPLETE && call->entry != NO_ENTRY;
    const int32_t entry = call->entry;
    shunter_end_call(core, session, call, now_ns);
    if (waits) {
        withdraw(core, session->func_id, entry);
    }
}

/* ---- workers */

static struct session *owner_of(
    struct shunter_core *core, uint16_t func_id, uint32_t entry, struct call **call) {
    const struct owner *owner = &core->functions[func_id]->owners[entry];
    struct session *session = find(core, owner->session);
    struct series *series = shunter_series_at(core->functions[func_id], entry);
    *call = series ? &series->call : call_of(session, owner->req_id);
    return session;
}

/* The same, when it does not run any more. */
static struct session *back_of(
    struct shunter_core *core, uint16_t func_id, uint32_t entry, struct call **call) {
    struct session *session = owner_of(core, func_id, entry, call);
    session->direct -= (*call)->direct;
    (*call)->direct = false;
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
    struct series *series = shunter_series_at(function, entry);
    if (series) {
        shunter_series_runs(core, function, series);
    }
    call->direct = !function->series && shunter_answer_is_direct(session, now_ns);
    session->direct += call->direct;
    if (call->direct) {
        shunter_allow_next(function, session);
    }
    *whom = (struct shunter_whom){
        .req_id = call->req_id,
        .session = session->id,
        .credit = (uint32_t)session->grant,
        .pkt_no = (uint32_t)next_pkt_no(session, shunter_direct_segments(session)),
        .segment = (uint16_t)session->outputs.segment,
        .priority = call->priority,
        .direct = call->direct,
        .direct_bytes = shunter_direct_segments(session) * session->outputs.segment,
        .idempotent = (call->flags & SHUNTER_FLAG_IDEMPOTENT) != 0,
        .asks = !is_alone(&function->waiting),
        .tagged = session->tagged && call->direct};
    if (whom->tagged) { // workers see no other keys
        memcpy(whom->key, session->keys.tag_to_client, sizeof whom->key);
    }
    memcpy(whom->peer, session->peer, sizeof whom->peer);
}

/* Whether an answer of a packed function may have as many bytes. */
static bool is_run(const struct function *function, uint32_t bytes) {
    return bytes >= function->runs.least_answer && bytes <= function->outputs[0];
}

void shunter_core_finished(
    struct shunter_core *core, uint16_t func_id, uint32_t entry, uint16_t status, bool sent,
    uint32_t bytes, uint64_t now_ns) {
    struct call *call;
    struct session *session = back_of(core, func_id, entry, &call);
    struct function *function = core->functions[func_id];
    struct series *series = shunter_series_at(function, entry);
    if (series) {
        const bool is_ok = status == SHUNTER_STATUS_OK;
        shunter_series_end(
            core, session, series, is_ok ? SHUNTER_STATUS_END : status, now_ns);
    } else if (call->state == FORGOTTEN) {
        end_forgotten(core, session, call, now_ns);
    } else if (session->packed && status == SHUNTER_STATUS_OK && !is_run(function, bytes)) {
        shunter_fail(core, session, call, SHUNTER_STATUS_HANDLER_FAILED, now_ns);
    } else if (status == SHUNTER_STATUS_OK) {
        call->bytes = bytes;
        let_go(core, func_id, call->entry);
        shunter_become(core, function, call, TX_COMPLETE, now_ns);
        call->arrived_ns = now_ns;
        if (sent) {
            shunter_answer_was_sent(session, call, now_ns);
        } else {
            shunter_allow_next(function, session);
            shunter_answer(core, session, call, now_ns);
        }
    } else {
        shunter_fail(core, session, call, status, now_ns);
    }
}

void shunter_core_worker_died(
    struct shunter_core *core, uint16_t func_id, uint32_t entry, uint64_t now_ns) {
    struct call *call;
    struct session *session = back_of(core, func_id, entry, &call);
    struct series *series = shunter_series_at(core->functions[func_id], entry);
    if (series) { // of its parts some may have been seen
        shunter_series_end(core, session, series, SHUNTER_STATUS_WORKER_DIED, now_ns);
    } else if (call->state == FORGOTTEN) {
        end_forgotten(core, session, call, now_ns);
    } else if (call->flags & SHUNTER_FLAG_IDEMPOTENT && call->tries < MOST_TRIES) {
        shunter_become(core, core->functions[func_id], call, RX_COMPLETE, now_ns);
        ready(core, func_id, call, true, false);
    } else {
        shunter_fail(core, session, call, SHUNTER_STATUS_WORKER_DIED, now_ns);
    }
}

void shunter_core_returned(
    struct shunter_core *core, uint16_t func_id, uint32_t entry, uint64_t now_ns) {
    struct call *call;
    struct session *session = back_of(core, func_id, entry, &call);
    struct series *series = shunter_series_at(core->functions[func_id], entry);
    if (series && call->state == FORGOTTEN) {
        shunter_series_end(core, session, series, SHUNTER_STATUS_CANCELLED, now_ns);
        return;
    }
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
    struct series *series = shunter_series_at(core->functions[func_id], entry);
    if (series) {
        shunter_series_end(core, session, series, SHUNTER_STATUS_TOO_LATE, now_ns);
    } else {
        shunter_fail(core, session, call, SHUNTER_STATUS_TOO_LATE, now_ns);
    }
}
