/*
 * Who may send, and who gets an entry.
 *
 * As long as there is room, credit is divided among the sessions that have said something lately.
 * When there is none, those that have something to send wait, in a line for each address; an entry
 * that becomes free is kept for the first of the next line, who is told so. See
 * oracle/credit.py in the tests.
 */
#include "actions.h"
#include "series.h"

#define MOST_PROMISE_NS 500000000ULL

/* Entries that are not kept for somebody. */
static uint32_t room(const struct function *function) {
    return function->free > function->promises ? function->free - function->promises : 0;
}

bool shunter_has_room(const struct function *function, const struct session *session) {
    // What was promised may have become the place of a part.
    return (session->turn == PROMISED && function->free) || room(function);
}

/* ---- lines */

/* A line is in the row while somebody in it waits for whom room may be kept. */
static void take_turns(struct function *function, struct line *line) {
    const bool waits = !is_alone(&line->waiting) && line->promises < line->most;
    if (waits && is_alone(&line->turn)) {
        link_last(&function->waiting, &line->turn);
    } else if (!waits) {
        link_out(&line->turn);
    }
}

void shunter_wasted(struct function *function, struct session *session) {
    struct line *line = session->line;
    line->most = line->most > 1 ? line->most / 2 : 1;
    take_turns(function, line);
}

/* How long its requests need when it is told of room. */
static void learn_patience(struct session *session, uint64_t now_ns) {
    if (session->told_ns) {
        const uint64_t twice = 2 * (now_ns - session->told_ns);
        const uint64_t most = twice < MOST_PROMISE_NS ? twice : MOST_PROMISE_NS;
        session->patience_ns = most > PROMISE_NS ? most : PROMISE_NS;
        session->told_ns = 0;
    }
}

int32_t shunter_take_entry(
    struct shunter_core *core, struct function *function, struct session *session,
    uint64_t now_ns) {
    learn_patience(session, now_ns);
    if (!shunter_has_room(function, session)) {
        return NO_ENTRY;
    }
    if (session->turn == PROMISED && session->line->most < function->entries) {
        session->line->most++;
    }
    shunter_leave_row(core, function, session);
    const uint32_t at = next_free(function, function->next);
    function->used[at] = 1;
    function->free--;
    function->next = at + 1 == function->entries ? 0 : at + 1;
    return (int32_t)at;
}

/* Whether its input is needed. */
static bool needs_input(const struct call *call) {
    return call->state == RECEIVING || call->state == RX_COMPLETE || call->state == RUNNING ||
           call->state == FORGOTTEN;
}

void shunter_release(
    const struct shunter_core *core, struct function *function, struct call *call) {
    if (call->entry != NO_ENTRY) {
        if (needs_input(call)) {
            let_go(core, function->id, call->entry);
        }
        link_out(&function->owners[call->entry].link);
        function->used[call->entry] = 0;
        function->free++;
        call->entry = NO_ENTRY;
    }
}

/* ---- credit */

/* Requests that a session may have on their way. */
static uint32_t share(const struct function *function, const struct session *session) {
    const uint32_t lines = function->awake ? function->awake : 1;
    const uint32_t sessions = session->line->awake ? session->line->awake : 1;
    const uint64_t each = function->burst / ((uint64_t)lines * sessions); // one division for two
    const uint32_t most = each ? (uint32_t)each : 1;
    return most < session->window ? most : session->window;
}

static void raise_grant(struct function *function, struct session *session, uint64_t upto) {
    const uint64_t last = session->done + SHUNTER_WINDOW; // each has a place of its own
    upto = upto < last ? upto : last;
    if (upto > session->grant) {
        function->credit += upto - session->grant;
        session->grant = upto;
    }
}

/* What it asks for is there, or will be, without another entry; and others may wait for that. */
static bool asks_for_parts(const struct session *session) { return !is_alone(&session->series); }

void shunter_allow(struct function *function, struct session *session) {
    if (asks_for_parts(session) || (is_alone(&function->waiting) && room(function))) {
        raise_grant(function, session, session->answered + share(function, session));
    }
}

static bool is_answered(const struct call *call) {
    return call->state == TX_COMPLETE || call->state == FAILED ||
           (call->state == RUNNING && call->direct);
}

void shunter_allow_next(struct function *function, struct session *session) {
    const uint64_t before = session->answered;
    const uint64_t most = share(function, session);
    // A client that never says what it has gets no more than this ahead.
    while (session->answered < session->done + most) {
        const struct call *call = call_of(session, session->answered + 1);
        if (call->req_id != session->answered + 1 || !is_answered(call)) {
            break;
        }
        session->answered++;
    }
    if (!is_alone(&function->waiting) && !asks_for_parts(session)) {
        return; // whoever waits comes first
    }
    uint64_t ahead = most;
    if (!room(function) && !asks_for_parts(session)) { // what follows an answer takes its entry: not more than there were
        const uint64_t were = session->grant > before ? session->grant - before : 0;
        ahead = were < most ? were : most;
    }
    raise_grant(function, session, session->answered + ahead);
}

/* ---- the row */

void shunter_wait_in_row(
    struct shunter_core *core, struct function *function, struct session *session,
    uint64_t wanted) {
    if (session->turn == NO_TURN) {
        session->turn = WAITS;
        session->wanted = wanted;
        link_last(&session->line->waiting, &session->row);
        take_turns(function, session->line);
        core->in_rows++;
    } else if (session->turn == WAITS && !session->wanted) {
        session->wanted = wanted;
    } else if (session->turn == PROMISED && !wanted) {
        raise_grant(function, session, session->answered + 1);
    }
}

void shunter_leave_row(
    struct shunter_core *core, struct function *function, struct session *session) {
    if (session->turn != NO_TURN) {
        const bool promised = session->turn == PROMISED;
        function->promises -= promised;
        session->line->promises -= promised;
        session->turn = NO_TURN;
        link_out(&session->row);
        take_turns(function, session->line);
        core->in_rows--;
    }
}

static void promise(
    struct shunter_core *core, struct function *function, struct line *line,
    uint64_t now_ns) {
    struct session *session = OWNER_OF(line->waiting.next, session, row);
    session->turn = PROMISED;
    session->promised_ns = now_ns;
    session->told_ns = session->told_ns ? session->told_ns : now_ns;
    link_last(&function->promised, &session->row);
    function->promises++;
    line->promises++;
    link_out(&line->turn); // the others' turns come before its next
    take_turns(function, line);
    const uint64_t wanted = session->wanted > session->done ? session->wanted : 0;
    if (!wanted) {
        raise_grant(function, session, session->answered + 1);
    }
    shunter_control(core, session, SHUNTER_TYPE_CREDIT, wanted, 0, NULL, 0);
}

void shunter_end_promises(
    struct shunter_core *core, struct function *function, uint64_t now_ns) {
    for (struct link *at = function->promised.next; at != &function->promised;) {
        struct session *session = OWNER_OF(at, session, row);
        at = at->next;
        if (now_ns - session->promised_ns > session->patience_ns) {
            shunter_leave_row(core, function, session);
            shunter_wasted(function, session);
        }
    }
}

void shunter_offer(struct shunter_core *core, struct function *function, uint64_t now_ns) {
    shunter_series_feed(core, function);
    while (!is_alone(&function->waiting) && room(function)) {
        promise(core, function, OWNER_OF(function->waiting.next, line, turn), now_ns);
    }
}
