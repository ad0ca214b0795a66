/* Answers in parts: see series.h. */
#include "series.h"

#include <stdlib.h>

#include "actions.h"

#define WAITS_NS 1000000ULL

struct series_table *shunter_series_table(uint32_t entries) {
    struct series_table *table = calloc(1, sizeof *table + entries * sizeof *table->at);
    if (table) {
        link_alone(&table->live);
        for (uint32_t i = 0; i < entries; i++) {
            link_alone(&table->at[i].of_session);
            link_alone(&table->at[i].of_function);
            table->at[i].call.entry = NO_ENTRY;
        }
    }
    return table;
}

struct series *shunter_series_at(const struct function *function, uint32_t entry) {
    struct series *series = function->series ? &function->series->at[entry] : NULL;
    return series && series->call.state != FREE ? series : NULL;
}

bool shunter_series_are_many(const struct function *function) {
    return 2 * (function->series->count + 1) > function->entries;
}

/* ---- who asks */

static uint64_t *next_of(struct series *series, uint32_t number) {
    return &series->nexts[number % SHUNTER_WINDOW];
}

/* The request for a part, NULL: there is none, or its client wants no answer to it any more. */
static struct call *asks(struct session *session, struct series *series, uint32_t number) {
    const uint64_t req_id = *next_of(series, number);
    struct call *call = call_of(session, req_id);
    return req_id && call->req_id == req_id && call->state == RX_COMPLETE ? call : NULL;
}

static int32_t *place_of(struct series *series, uint32_t number) {
    return &series->places[number % SHUNTER_PARTS_AHEAD];
}

/* Whether a part is there, and was not yet sent to anybody. */
static bool is_there(struct series *series, uint32_t number) {
    return number - 1 < series->written && series->given - number < SHUNTER_PARTS_AHEAD &&
           *place_of(series, number) != NO_ENTRY;
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

static void free_place(struct function *function, int32_t *place) {
    if (*place != NO_ENTRY) {
        function->used[*place] = 0;
        function->free++;
        *place = NO_ENTRY;
    }
}

/* Places for parts that were asked for go to the worker. */
static void give(const struct shunter_core *core, struct function *function, struct series *series) {
    while (series->call.state == RUNNING && series->given < series->asked) {
        int32_t *place = place_of(series, series->given + 1);
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
    struct shunter_core *core, struct session *session, struct series *series, uint32_t number,
    uint64_t now_ns) {
    struct call *call = asks(session, series, number);
    if (!call || !is_there(series, number)) {
        return;
    }
    struct function *function = function_of(core, session);
    call->entry = *place_of(series, number);
    *place_of(series, number) = NO_ENTRY;
    *next_of(series, number) = 0;
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

/*
 * Requests for parts that nobody writes yet hold places in their session's window. When these run
 * short, others could not go on for whom they wait: who has waited is told to ask again.
 */
static void make_way(struct shunter_core *core, struct session *session, uint64_t now_ns) {
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

/* ---- begin and end */

void shunter_series_begin(
    struct shunter_core *core, struct session *session, struct call *call, uint64_t now_ns) {
    struct function *function = function_of(core, session);
    if (shunter_series_are_many(function)) {
        shunter_fail(core, session, call, SHUNTER_STATUS_WOULD_BE_LATE, now_ns);
        return;
    }
    struct series *series = &function->series->at[call->entry];
    *series = (struct series){.call = *call, .session = session->id, .last_ns = now_ns};
    for (uint32_t i = 0; i < SHUNTER_PARTS_AHEAD; i++) {
        series->places[i] = NO_ENTRY;
    }
    link_alone(&series->of_session);
    link_alone(&series->of_function);
    link_last(&session->series, &series->of_session);
    link_last(&function->series->live, &series->of_function);
    function->series->count++;
    call->entry = NO_ENTRY; // it is the series', with what it holds
    call->state = FAILED;
    call->changed_ns = now_ns;
    call->status = SHUNTER_STATUS_UNDER_WAY;
    shunter_allow_next(function, session);
    shunter_error(core, session, call->req_id, call->status);
    ready(core, function->id, &series->call, false, false);
}

/* Nothing of it is left. Its session may be gone after that. */
static void end(
    struct shunter_core *core, struct session *session, struct series *series, uint64_t now_ns) {
    struct function *function = function_of(core, session);
    const bool was_forgotten = series->call.state == FORGOTTEN;
    for (uint32_t i = 0; i < SHUNTER_PARTS_AHEAD; i++) {
        free_place(function, &series->places[i]);
    }
    shunter_release(core, function, &series->call);
    shunter_become(core, function, &series->call, FREE, now_ns);
    link_out(&series->of_session);
    link_out(&series->of_function);
    function->series->count--;
    session->forgotten -= was_forgotten;
    if (session->closing && session->forgotten == 0) {
        shunter_take_out(core, session);
    }
    shunter_offer(core, function, now_ns);
}

/* Answer who asks for parts that do not come. */
static void tell(
    struct shunter_core *core, struct session *session, struct series *series, uint32_t from,
    uint16_t status, uint64_t now_ns) {
    for (uint32_t number = from; number <= series->written + SHUNTER_WINDOW; number++) {
        struct call *call = asks(session, series, number);
        *next_of(series, number) = 0;
        if (call) {
            series->told |= number == series->written + 1;
            shunter_fail(core, session, call, status, now_ns);
        }
    }
}

/* It has ended: nothing of it is left when that is known, and all parts have gone. */
static void end_if_told(
    struct shunter_core *core, struct session *session, struct series *series, uint64_t now_ns) {
    bool left = !series->told;
    for (uint32_t i = 0; i < SHUNTER_PARTS_AHEAD; i++) {
        left |= series->places[i] != NO_ENTRY;
    }
    if (!left) {
        end(core, session, series, now_ns);
    }
}

void shunter_series_end(
    struct shunter_core *core, struct session *session, struct series *series, uint16_t status,
    uint64_t now_ns) {
    struct function *function = function_of(core, session);
    if (series->call.state == FORGOTTEN) {
        end(core, session, series, now_ns);
        return;
    }
    series->status = status;
    tell(core, session, series, series->written + 1, status, now_ns);
    for (; series->given > series->written; series->given--) {
        free_place(function, place_of(series, series->given));
    }
    let_go(core, session->func_id, series->call.entry);
    shunter_become(core, function, &series->call, FAILED, now_ns);
    series->last_ns = now_ns;
    end_if_told(core, session, series, now_ns);
}

/* ---- parts */

static struct series *find_series(struct session *session, uint32_t low) {
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
    struct series *series = find_series(session, header->offset);
    const uint32_t number = header->total;
    const bool comes = series && number - series->written - 1 < SHUNTER_WINDOW;
    if (!is_next(header) || !number || (comes && asks(session, series, number)) ||
        (series && number > series->written && !comes)) {
        answer(core, session, call, header->req_id, SHUNTER_STATUS_BAD_REQUEST, now_ns);
        return;
    }
    const bool ended = comes && series->call.state == FAILED;
    if (!series || ended || (!comes && !is_there(series, number))) {
        const uint16_t status = ended ? series->status : SHUNTER_STATUS_LOST_ANSWER;
        answer(core, session, call, header->req_id, status, now_ns);
        if (ended) {
            series->told |= number == series->written + 1;
            end_if_told(core, session, series, now_ns);
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
    *next_of(series, number) = call->req_id;
    series->last_ns = now_ns;
    series->asked = number > series->asked ? number : series->asked;
    session->asked = call->req_id > session->asked ? call->req_id : session->asked;
    send_part(core, session, series, number, now_ns);
    if (series->call.state == FAILED) {
        end_if_told(core, session, series, now_ns);
        return;
    }
    give(core, function, series);
    make_way(core, session, now_ns);
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
        send_part(core, find(core, series->session), series, number, now_ns);
        give(core, function, series);
    }
}

/* ---- nobody wants it */

static void let_end(
    struct shunter_core *core, struct session *session, struct series *series, uint64_t now_ns) {
    struct function *function = function_of(core, session);
    const int32_t entry = series->call.entry;
    if (series->call.state == RUNNING) {
        shunter_become(core, function, &series->call, FORGOTTEN, now_ns);
        session->forgotten++;
        tell(core, session, series, series->written + 1, SHUNTER_STATUS_CANCELLED, now_ns);
        const struct shunter_action action = {
            .kind = SHUNTER_UNWANTED, .func_id = function->id, .entry = entry};
        emit(core, &action);
    } else if (series->call.state != FORGOTTEN) {
        const bool waits = series->call.state == RX_COMPLETE;
        tell(core, session, series, series->written + 1, SHUNTER_STATUS_CANCELLED, now_ns);
        end(core, session, series, now_ns);
        if (waits) {
            withdraw(core, function->id, entry);
        }
    }
}

bool shunter_series_cancel(
    struct shunter_core *core, struct session *session, uint64_t req_id, uint64_t now_ns) {
    struct series *series = find_series(session, (uint32_t)req_id);
    if (!series || series->call.req_id != req_id) {
        return false;
    }
    let_end(core, session, series, now_ns);
    return true;
}

void shunter_series_leave(struct shunter_core *core, struct session *session, uint64_t now_ns) {
    for (struct link *at = session->series.next; at != &session->series;) {
        struct series *series = OWNER_OF(at, series, of_session);
        at = at->next;
        let_end(core, session, series, now_ns);
    }
}

void shunter_series_tick(
    struct shunter_core *core, struct function *function, uint64_t now_ns) {
    if (!function->series) {
        return;
    }
    shunter_series_feed(core, function);
    for (struct link *at = function->series->live.next; at != &function->series->live;) {
        struct series *series = OWNER_OF(at, series, of_function);
        at = at->next;
        struct session *session = find(core, series->session);
        if (series->call.state == RX_COMPLETE && !session->closing) {
            make_way(core, session, now_ns);
        }
        const bool waits = asks(session, series, series->written + 1);
        if (!waits && series->call.state != RX_COMPLETE &&
            now_ns - series->last_ns > function->runs.idle_ns) {
            let_end(core, session, series, now_ns);
        }
    }
}
