/* A request comes in segments, each of which has its place. */
#include "actions.h"
#include "runs.h"
#include "series.h"

/* Of a packed function: its requests say themselves how long they are. */
static bool fits_run(
    const struct function *function, const struct session *session,
    const struct shunter_x64 *header) {
    const struct shunter_runs *runs = &function->runs;
    if (header->total < runs->least_request || header->total > function->inputs[0] ||
        header->status < 1 || header->status > runs->rows || header->tensor) {
        return false;
    }
    if (session->region) {
        return header->count == 1 && !header->seq && !header->length &&
               header->offset <= session->last_offset;
    }
    const uint32_t segment = session->inputs.segment;
    const uint32_t count = shunter_run_count(header->total, segment);
    if (header->count != count || header->seq >= count) {
        return false;
    }
    const struct shunter_segment place = shunter_run_place(header->total, segment, header->seq);
    return header->offset == place.offset && header->length == place.length;
}

static bool fits(
    const struct shunter_core *core, const struct session *session,
    const struct shunter_x64 *header) {
    const struct shunter_plan *plan = &session->inputs;
    if (session->packed) {
        return fits_run(function_of(core, session), session, header);
    }
    if (header->count != plan->count || header->seq >= plan->count) {
        return false;
    }
    const struct shunter_segment segment = shunter_place(plan, header->seq);
    const bool is_there = session->region ? header->offset <= session->last_offset
                                          : header->offset == segment.offset;
    return is_there && header->tensor == segment.tensor &&
           header->length == segment.length && header->total == plan->sizes[segment.tensor];
}

/* Whether a segment says the same of its request as the first one that came. */
static bool is_of_it(
    const struct session *session, const struct call *call, const struct shunter_x64 *header) {
    return !session->packed || (header->total == call->bytes && header->status == call->rows);
}

static void refuse(
    struct shunter_core *core, struct session *session, const struct shunter_x64 *header,
    enum shunter_drop why) {
    drop(core, why);
    if (header->flags & (SHUNTER_FLAG_LAST | SHUNTER_FLAG_ACK_REQ)) {
        if (why == SHUNTER_DROP_FULL) {
            shunter_wait_in_row(core, function_of(core, session), session, header->req_id);
        }
        shunter_error(core, session, header->req_id, SHUNTER_STATUS_RETRY_LATER);
    }
}

static void again(
    struct shunter_core *core, struct session *session, const struct call *call,
    const struct shunter_x64 *header) {
    drop(core, SHUNTER_DROP_DUPLICATE);
    if (!(header->flags & SHUNTER_FLAG_ACK_REQ)) {
        return;
    }
    if (call->state == TX_COMPLETE) { // for the answer its client asks by QUERY
        shunter_control(core, session, SHUNTER_TYPE_SACK, call->req_id, call->state, NULL, 0);
    } else if (call->state == FAILED) {
        shunter_error(core, session, call->req_id, call->status);
    } else {
        shunter_sack(core, session, call);
    }
}

static void take_segment(
    struct shunter_core *core, struct session *session, const struct call *call,
    const struct shunter_x64 *header) {
    if (!fits(core, session, header) || !is_of_it(session, call, header)) {
        drop(core, SHUNTER_DROP_SIZES);
        return;
    }
    if (has_segment(call, header->seq)) {
        again(core, session, call, header);
        return;
    }
    struct shunter_action action; // of every segment: only what a PLACE has
    memset(&action, 0, offsetof(struct shunter_action, guard));
    action.kind = SHUNTER_PLACE;
    action.func_id = session->func_id;
    action.entry = call->entry;
    action.tensor = header->tensor;
    action.offset = header->offset;
    action.length = header->length;
    action.left = call->missing;
    action.region = session->region;
    action.guard = guard_of(
        session, nearest(header->pkt_no, session->highest), session->keys.payload_to_server);
    emit(core, &action);
}

/* Class and deadline of a request that arrives now. */
static void set_terms(
    const struct session *session, struct call *call, const struct shunter_x64 *header,
    const struct shunter_defaults *defaults, uint64_t now_ns) {
    call->priority = header->priority ? header->priority > 1 : defaults->priority;
    if (!session->may_be_strict) {
        call->priority = 1;
    }
    uint64_t budget = header->deadline_us * 1000ULL;
    if (!budget && !call->priority) {
        budget = defaults->slo_ns;
    }
    if (defaults->timeout_ns && (!budget || budget > defaults->timeout_ns)) {
        budget = defaults->timeout_ns;
    }
    call->deadline_ns = budget ? now_ns + budget : 0;
}

/* Its answer is a status. */
static void end_at_once(
    struct shunter_core *core, struct session *session, struct call *call, uint64_t req_id,
    uint16_t status, uint64_t now_ns) {
    call->req_id = req_id;
    call->entry = NO_ENTRY;
    call->status = status;
    shunter_become(core, function_of(core, session), call, FAILED, now_ns);
    shunter_error(core, session, req_id, status);
}

static void first_segment(
    struct shunter_core *core, struct session *session, struct call *call,
    const struct shunter_x64 *header, uint64_t now_ns) {
    if (header->flags & SHUNTER_FLAG_NEXT) {
        shunter_series_next(core, session, call, header, now_ns);
        return;
    }
    if (!fits(core, session, header)) {
        drop(core, SHUNTER_DROP_SIZES);
        end_at_once(core, session, call, header->req_id, SHUNTER_STATUS_BAD_REQUEST, now_ns);
        return;
    }
    struct function *function = function_of(core, session);
    const int32_t entry = shunter_take_entry(core, function, session, now_ns);
    if (entry == NO_ENTRY && !is_alone(&session->series)) {
        // It would hold the credit by which the parts go for whose places there is no room.
        end_at_once(core, session, call, header->req_id, SHUNTER_STATUS_WOULD_BE_LATE, now_ns);
        return;
    }
    if (entry == NO_ENTRY) {
        refuse(core, session, header, SHUNTER_DROP_FULL);
        return;
    }
    memset(call, 0, sizeof *call); // it was free or failed: not counted as receiving
    call->req_id = header->req_id;
    call->entry = entry;
    call->bytes = session->packed ? header->total : 0;
    call->rows = session->packed ? header->status : 1;
    call->missing = segments_of_request(session, call);
    call->flags = header->flags;
    call->begun_ns = call->arrived_ns = now_ns;
    call->stalled = !session->is_proven;
    set_terms(session, call, header, &function->defaults, now_ns);
    function->owners[entry].session = session->id;
    function->owners[entry].req_id = call->req_id;
    shunter_become(core, function, call, RECEIVING, now_ns);
    take_segment(core, session, call, header);
}

void shunter_request(
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
        session->asked = header->req_id > session->asked ? header->req_id : session->asked;
        if (call->state == FORGOTTEN && call->req_id != header->req_id) {
            refuse(core, session, header, SHUNTER_DROP_CREDIT);
        } else if (call->req_id != header->req_id || call->state == FREE) {
            first_segment(core, session, call, header, now_ns);
        } else if (call->state == RECEIVING) {
            take_segment(core, session, call, header);
        } else {
            again(core, session, call, header);
        }
    }
}

/* ---- payloads */

static struct call *awaited(
    const struct shunter_core *core, const struct shunter_x64 *header,
    struct session **session) {
    *session = find(core, header->session);
    if (!*session || (*session)->closing) {
        return NULL;
    }
    struct call *call = call_of(*session, header->req_id);
    return call->req_id == header->req_id && call->state == RECEIVING &&
                   is_of_it(*session, call, header) &&
                   header->seq < segments_of_request(*session, call) &&
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
        session->is_proven = true;
        shunter_become(core, function_of(core, session), call, RX_COMPLETE, now_ns);
        if (function_of(core, session)->series) {
            shunter_series_begin(core, session, call, now_ns);
            return;
        }
        ready(core, session->func_id, call, false, false);
    }
    const bool others_refused =
        call->missing && session->stream && header.flags & SHUNTER_FLAG_LAST;
    if (header.flags & SHUNTER_FLAG_ACK_REQ || others_refused) {
        shunter_sack(core, session, call);
    }
}
