/* Answers in parts: see series.h. */
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

/* ---- who asks */

static uint64_t *next_of(struct series *series, uint32_t number) {
    return &series->nexts[number % SHUNTER_WINDOW];
}

/* The request for a part, NULL: there is none, or its client wants no answer to it any more. */
static struct call *asks(struct session *session, struct series *series, uint32_t number) {
    const uint64_t req_id = *next_of(series, number);
    struct call *call = call_of(session, req_id);
    const bool is = req_id && call->req_id == req_id &&
                    (call->state == RX_COMPLETE || call->state == RUNNING ||
                     call->state == FORGOTTEN);
    return is ? call : NULL;
}

/* Places for the next parts go to the worker, also before it has begun. */
static void give(
    struct shunter_core *core, struct session *session, struct series *series, uint64_t now_ns) {
    struct function *function = function_of(core, session);
    if (series->call.state != RX_COMPLETE && series->call.state != RUNNING) {
        return;
    }
    while (series->given - series->written < SHUNTER_PARTS_AHEAD) {
        struct call *call = asks(session, series, series->given + 1);
        if (!call || call->state != RX_COMPLETE) {
            return;
        }
        series->given++;
        shunter_become(core, function, call, RUNNING, now_ns);
        const struct shunter_action action = {
            .kind = SHUNTER_PART,
            .func_id = function->id,
            .entry = series->call.entry,
            .offset = (uint32_t)call->entry};
        emit(core, &action);
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

/* Answer who asks for parts from this one on; whether somebody asked for the first of them. */
static bool tell(
    struct shunter_core *core, struct session *session, struct series *series, uint32_t from,
    uint16_t status, uint64_t now_ns) {
    bool told = false;
    for (uint32_t number = from; number <= series->written + SHUNTER_WINDOW; number++) {
        struct call *call = asks(session, series, number);
        *next_of(series, number) = 0;
        if (call && call->state == FORGOTTEN) {
            shunter_end_forgotten(core, session, call, now_ns);
        } else if (call) {
            shunter_fail(core, session, call, status, now_ns);
            told |= number == from;
        }
    }
    return told;
}

void shunter_series_end(
    struct shunter_core *core, struct session *session, struct series *series, uint16_t status,
    uint64_t now_ns) {
    const bool wanted = series->call.state != FORGOTTEN;
    series->status = wanted ? status : SHUNTER_STATUS_CANCELLED;
    const bool told = tell(core, session, series, series->written + 1, series->status, now_ns);
    if (told || !wanted) {
        end(core, session, series, now_ns);
        return;
    }
    let_go(core, session->func_id, series->call.entry);
    shunter_become(core, function_of(core, session), &series->call, FAILED, now_ns);
    series->last_ns = now_ns;
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
    const uint32_t number = header->total, ahead = series ? number - series->written - 1 : 0;
    if (!is_next(header) || !function->series || ahead >= SHUNTER_WINDOW ||
        (series && asks(session, series, number))) {
        answer(core, session, call, header->req_id, SHUNTER_STATUS_BAD_REQUEST, now_ns);
        return;
    }
    if (!series || series->call.state == FAILED) {
        const uint16_t status = series ? series->status : SHUNTER_STATUS_LOST_ANSWER;
        answer(core, session, call, header->req_id, status, now_ns);
        if (series && !ahead) { // now it was told
            end(core, session, series, now_ns);
        }
        return;
    }
    if (ahead && function->free <= function->series->count) {
        shunter_refuse_request(core, session, header, SHUNTER_DROP_CREDIT); // each gets its next part first
        return;
    }
    const int32_t entry = shunter_take_entry(core, function, session, now_ns);
    if (entry == NO_ENTRY) {
        shunter_refuse_request(core, session, header, SHUNTER_DROP_FULL);
        return;
    }
    *call = (struct call){
        .req_id = header->req_id,
        .entry = entry,
        .flags = header->flags,
        .rows = 1,
        .priority = 1, // it holds nothing itself
        .begun_ns = now_ns,
        .arrived_ns = now_ns};
    function->owners[entry].session = session->id;
    function->owners[entry].req_id = call->req_id;
    shunter_become(core, function, call, RX_COMPLETE, now_ns);
    *next_of(series, number) = call->req_id;
    series->last_ns = now_ns;
    give(core, session, series, now_ns);
}

void shunter_core_part(
    struct shunter_core *core, uint16_t func_id, uint32_t entry, uint32_t bytes,
    uint64_t now_ns) {
    struct series *series = shunter_series_at(core->functions[func_id], entry);
    if (!series || series->written == series->given) {
        return;
    }
    struct session *session = find(core, series->session);
    const struct call *call = asks(session, series, ++series->written);
    *next_of(series, series->written) = 0;
    series->last_ns = now_ns;
    shunter_core_finished(
        core, func_id, (uint32_t)call->entry, SHUNTER_STATUS_OK, false, bytes, now_ns);
    give(core, session, series, now_ns);
}

/* ---- nobody wants it */

static void let_end(
    struct shunter_core *core, struct session *session, struct series *series, uint64_t now_ns) {
    struct function *function = function_of(core, session);
    const int32_t entry = series->call.entry;
    if (series->call.state == RUNNING) {
        shunter_become(core, function, &series->call, FORGOTTEN, now_ns);
        session->forgotten++;
        tell(core, session, series, series->given + 1, SHUNTER_STATUS_CANCELLED, now_ns);
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
    for (struct link *at = function->series->live.next; at != &function->series->live;) {
        struct series *series = OWNER_OF(at, series, of_function);
        at = at->next;
        struct session *session = find(core, series->session);
        const bool waits = asks(session, series, series->written + 1);
        if (!waits && series->call.state != RX_COMPLETE &&
            now_ns - series->last_ns > function->runs.idle_ns) {
            let_end(core, session, series, now_ns);
        }
    }
}
