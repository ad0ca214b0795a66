/* Answers in parts begin, end, and are given up: see series.h. */
#include "series.h"

#include <stdlib.h>

#include "actions.h"

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

/* ---- begin and end */

static void free_place(struct function *function, int32_t *place) {
    if (*place != NO_ENTRY) {
        function->used[*place] = 0;
        function->free++;
        *place = NO_ENTRY;
    }
}

void shunter_series_begin(
    struct shunter_core *core, struct session *session, struct call *call, uint64_t now_ns) {
    struct function *function = function_of(core, session);
    if (session->unwanted[call->req_id % SHUNTER_WINDOW] == call->req_id) {
        shunter_fail(core, session, call, SHUNTER_STATUS_CANCELLED, now_ns);
        return;
    }
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
        struct call *call = shunter_asks(session, series, number);
        *shunter_next_of(series, number) = 0;
        if (call) {
            series->told |= number == series->written + 1;
            shunter_fail(core, session, call, status, now_ns);
        }
    }
}

void shunter_series_end_if_told(
    struct shunter_core *core, struct session *session, struct series *series, uint64_t now_ns) {
    bool left = !series->told || series->call.state != FAILED;
    for (uint32_t i = 0; i < SHUNTER_PARTS_AHEAD; i++) {
        left |= series->places[i] != NO_ENTRY;
    }
    if (!left) {
        end(core, session, series, now_ns);
    }
}

/* How it ends is known: nothing is written any more, and who asks for more is told. */
static void conclude(
    struct shunter_core *core, struct session *session, struct series *series, uint64_t now_ns) {
    for (; series->given > series->written; series->given--) {
        free_place(function_of(core, session), shunter_place_of(series, series->given));
    }
    series->last_ns = now_ns;
    tell(core, session, series, series->written + 1, series->status, now_ns);
}

void shunter_core_parts_over(
    struct shunter_core *core, uint16_t func_id, uint32_t entry, uint16_t status,
    uint64_t now_ns) {
    struct series *series = shunter_series_at(core->functions[func_id], entry);
    if (series && series->call.state == RUNNING && !series->over) {
        series->over = true; // first: what others give back must not become its own places again
        series->status = status;
        conclude(core, find(core, series->session), series, now_ns);
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
    series->status = series->over ? series->status : status;
    shunter_become(core, function, &series->call, FAILED, now_ns); // first, as above
    let_go(core, session->func_id, series->call.entry);
    conclude(core, session, series, now_ns);
    shunter_series_end_if_told(core, session, series, now_ns);
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
        if (series->call.state == RX_COMPLETE) {
            withdraw(core, function->id, entry); // first: it may become the place of a part
        }
        tell(core, session, series, series->written + 1, SHUNTER_STATUS_CANCELLED, now_ns);
        end(core, session, series, now_ns);
    }
}

bool shunter_series_cancel(
    struct shunter_core *core, struct session *session, uint64_t req_id, uint64_t now_ns) {
    struct series *series = shunter_series_find(session, (uint32_t)req_id);
    if (!series || series->call.req_id != req_id) {
        const struct call *call = call_of(session, req_id);
        const bool is_here = call->req_id == req_id && call->state != FREE;
        if (!is_here && req_id > session->done && may_come(session, req_id)) {
            session->unwanted[req_id % SHUNTER_WINDOW] = req_id;
        }
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
        if (!session->closing) {
            shunter_series_make_way(core, session, now_ns);
        }
        const bool waits = shunter_asks(session, series, series->written + 1);
        if (!waits && series->call.state != RX_COMPLETE &&
            now_ns - series->last_ns > function->runs.idle_ns) {
            let_end(core, session, series, now_ns);
        }
    }
}
