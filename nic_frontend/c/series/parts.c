/* The parts of an answer: who asks for them, where they are written, and how they go. */
#include "actions.h"
#include "series.h"

#define WAITS_NS 1000000ULL

/* Whether a part is there, and was not yet sent to anybody. */
static bool is_there(struct series *series, uint32_t number) {
    return number - 1 < series->written && series->given - number < SHUNTER_PARTS_AHEAD &&
           *shunter_place_of(series, number) != NO_ENTRY;
}

/* An entry for a part, if there is one: the last ones are for those that have none. */
static int32_t take_place(struct function *function, const struct series *series) {
    uint32_t kept = 0;
    for (uint32_t i = 0; i < SHUNTER_PARTS_AHEAD; i++) {
        kept = series->places[i] == NO_ENTRY ? kept : function->series->count;
    }
    if (function->free <= kept) {
        function->series->lacks = true;
        return NO_ENTRY;
    }
    const uint32_t at = next_free(function, function->next);
    function->used[at] = 1;
    function->free--;
    function->next = at + 1 == function->entries ? 0 : at + 1;
    function->owners[at].session = series->session;
    function->owners[at].req_id = 0;
    return (int32_t)at;
}

/* Places for parts that were asked for go to the worker. */
static void give(const struct shunter_core *core, struct function *function, struct series *series) {
    while (series->call.state == RUNNING && !series->over && series->given < series->asked) {
        int32_t *place = shunter_place_of(series, series->given + 1);
        if (*place != NO_ENTRY || (*place = take_place(function, series)) == NO_ENTRY) {
            return;
        }
        series->given++;
        const struct shunter_action action = {
            .kind = SHUNTER_PART,
            .func_id = function->id,
            .entry = series->call.entry,
            .offset = (uint32_t)*place};
        emit(core, &action);
    }
}

/* A part that is there goes to who asks for it. */
static void send_part(
    struct shunter_core *core, const struct session *session, struct call *call,
    struct series *series, uint32_t number, uint64_t now_ns) {
    struct function *function = function_of(core, session);
    call->entry = *shunter_place_of(series, number);
    *shunter_place_of(series, number) = NO_ENTRY;
    function->owners[call->entry].req_id = call->req_id;
    shunter_become(core, function, call, RUNNING, now_ns);
    shunter_core_finished(
        core, function->id, (uint32_t)call->entry, SHUNTER_STATUS_OK, false,
        series->bytes[number % SHUNTER_PARTS_AHEAD], now_ns);
}

void shunter_series_runs(
    const struct shunter_core *core, struct function *function, struct series *series) {
    give(core, function, series);
}

void shunter_series_feed(const struct shunter_core *core, struct function *function) {
    if (!function->series || !function->series->lacks || !function->free) {
        return;
    }
    function->series->lacks = false;
    for (struct link *at = function->series->live.next; at != &function->series->live;) {
        struct series *series = OWNER_OF(at, series, of_function);
        at = at->next;
        give(core, function, series);
    }
}

void shunter_series_make_way(
    struct shunter_core *core, struct session *session, uint64_t now_ns) {
    if (4 * (session->grant - session->asked) > session->grant - session->done) {
        return;
    }
    for (uint64_t id = session->done + 1; id <= session->asked; id++) {
        struct call *call = call_of(session, id);
        if (call->req_id == id && call->state == RX_COMPLETE &&
            call->flags & SHUNTER_FLAG_NEXT && now_ns - call->begun_ns > WAITS_NS) {
            shunter_fail(core, session, call, SHUNTER_STATUS_NOT_YET, now_ns);
        }
    }
}

struct series *shunter_series_find(struct session *session, uint32_t low) {
    for (struct link *at = session->series.next; at != &session->series; at = at->next) {
        struct series *series = OWNER_OF(at, series, of_session);
        if ((uint32_t)series->call.req_id == low && series->call.state != FORGOTTEN) {
            return series;
        }
    }
    return NULL;
}

/* Its answer is a status, at once. */
static void answer(
    struct shunter_core *core, struct session *session, struct call *call, uint64_t req_id,
    uint16_t status, uint64_t now_ns) {
    struct function *function = function_of(core, session);
    call->req_id = req_id;
    call->entry = NO_ENTRY;
    call->status = status;
    shunter_become(core, function, call, FAILED, now_ns);
    shunter_allow_next(function, session);
    shunter_error(core, session, req_id, status);
}

static bool is_next(const struct shunter_x64 *header) {
    return header->count == 1 && !header->seq && !header->length && !header->tensor;
}

void shunter_series_next(
    struct shunter_core *core, struct session *session, struct call *call,
    const struct shunter_x64 *header, uint64_t now_ns) {
    struct function *function = function_of(core, session);
    struct series *series = shunter_series_find(session, header->offset);
    const uint32_t number = header->total;
    const bool comes = series && number - series->written - 1 < SHUNTER_WINDOW;
    if (!is_next(header) || !number || (comes && shunter_asks(session, series, number)) ||
        (series && number > series->written && !comes)) {
        answer(core, session, call, header->req_id, SHUNTER_STATUS_BAD_REQUEST, now_ns);
        return;
    }
    const bool ended = comes && (series->call.state == FAILED || series->over);
    if (!series || ended || (!comes && !is_there(series, number))) {
        const uint16_t status = ended ? series->status : SHUNTER_STATUS_LOST_ANSWER;
        answer(core, session, call, header->req_id, status, now_ns);
        if (ended) {
            series->told |= number == series->written + 1;
            shunter_series_end_if_told(core, session, series, now_ns);
        }
        return;
    }
    *call = (struct call){
        .req_id = header->req_id,
        .entry = NO_ENTRY,
        .flags = header->flags,
        .rows = 1,
        .priority = 1, // it holds nothing itself
        .begun_ns = now_ns,
        .arrived_ns = now_ns};
    shunter_become(core, function, call, RX_COMPLETE, now_ns);
    series->last_ns = now_ns;
    if (comes) {
        *shunter_next_of(series, number) = call->req_id;
        series->asked = number > series->asked ? number : series->asked;
    } else { // it is there, and where it would wait somebody may, for one far ahead
        send_part(core, session, call, series, number, now_ns);
    }
    if (series->call.state == FAILED) {
        shunter_series_end_if_told(core, session, series, now_ns);
        return;
    }
    give(core, function, series);
    shunter_series_make_way(core, session, now_ns);
}

void shunter_core_part(
    struct shunter_core *core, uint16_t func_id, uint32_t entry, uint32_t bytes,
    uint64_t now_ns) {
    struct function *function = core->functions[func_id];
    struct series *series = shunter_series_at(function, entry);
    if (!series || series->written == series->given) {
        return;
    }
    const uint32_t number = ++series->written;
    series->bytes[number % SHUNTER_PARTS_AHEAD] = bytes;
    series->last_ns = now_ns;
    if (series->call.state != FORGOTTEN) {
        struct session *session = find(core, series->session);
        struct call *call = shunter_asks(session, series, number);
        if (call) {
            *shunter_next_of(series, number) = 0;
            send_part(core, session, call, series, number, now_ns);
        }
        give(core, function, series);
    }
}
