/* Sessions begin and end. */
#include <stdlib.h>

#include "answers.h"
#include "series.h"

/* End the one that gives way; false: there is none. */
static bool end_one(
    struct shunter_core *core, enum kind kind, uint64_t origin, uint64_t now_ns) {
    const struct session *session =
        shunter_who_gives_way(core, kind, shunter_address_of(core, origin), now_ns);
    if (session) {
        shunter_core_remove_session(core, session->id, now_ns);
    }
    return session;
}

static bool make_room(
    struct shunter_core *core, const struct shunter_opening *opening, uint64_t now_ns) {
    for (int kind = opening->stream ? STREAMS : SESSIONS; kind >= SESSIONS; kind--) {
        if (core->open[kind] >= core->most[kind] &&
            !end_one(core, (enum kind)kind, opening->origin, now_ns)) {
            return false;
        }
    }
    return true;
}

static struct session *new_session(const struct shunter_opening *opening) {
    struct session *session = calloc(1, sizeof *session);
    if (session) {
        session->id = opening->session;
        session->func_id = opening->func_id;
        session->window = opening->window;
        session->protect = opening->protect;
        session->stream = opening->stream;
        session->tagged = opening->tagged;
        session->may_be_strict = opening->may_be_strict;
        session->key = opening->key;
        session->region = opening->region;
        session->pkt_no = opening->pkt_no;
        session->patience_ns = PROMISE_NS;
        session->keys = opening->keys;
        memcpy(session->peer, opening->peer, sizeof session->peer);
        link_alone(&session->silence);
        link_alone(&session->quiet);
        link_alone(&session->row);
        link_alone(&session->sending);
        link_alone(&session->series);
        for (uint32_t k = 0; k < SHUNTER_WINDOW; k++) {
            session->calls[k].entry = NO_ENTRY;
        }
    }
    return session;
}

/* How its inputs come: in segments, or in memory that it shares. 0, -E2BIG or -EINVAL. */
static int plan_inputs(
    const struct function *function, struct session *session,
    const struct shunter_opening *opening) {
    const uint64_t bytes = shunter_shared_bytes(function->inputs, function->input_count);
    if (!session->region) {
        return shunter_make_plan(
            &session->inputs, function->inputs, function->input_count, opening->segment);
    }
    if (opening->region_bytes < bytes || opening->protect) {
        return -EINVAL;
    }
    session->last_offset = opening->region_bytes - bytes;
    return shunter_plan_nothing(&session->inputs, opening->segment);
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
    struct session *session = new_session(opening);
    if (!session) {
        return -ENOMEM;
    }
    session->packed = function->runs.rows;
    int error = plan_inputs(function, session, opening);
    if (!error) {
        error = shunter_make_plan(
            &session->outputs, function->outputs, function->output_count, segment);
    }
    if (!error && !make_room(core, opening, now_ns)) {
        error = -ENOSPC;
    }
    if (!error && !(session->address = shunter_come_from(core, opening->origin))) {
        error = -ENOMEM;
    }
    if (!error && !(session->line = shunter_line_of(session->address, function))) {
        shunter_forget_unused(core, session->address);
        error = -ENOMEM;
    }
    if (error) {
        free(session);
        return error;
    }
    shunter_answers_open(session, now_ns);
    core->sessions[place] = session;
    core->count++;
    function->sessions++;
    shunter_count_session(core, session, 1);
    shunter_is_heard(core, session, now_ns);
    shunter_allow(function, session);
    return 0;
}

/* Remove it, and offer what it had to nobody yet. */
void shunter_leave(struct shunter_core *core, struct session *session, uint64_t now_ns) {
    struct function *function = function_of(core, session);
    for (uint32_t k = 0; k < SHUNTER_WINDOW; k++) {
        shunter_forget(core, session, &session->calls[k], now_ns);
    }
    shunter_series_leave(core, session, now_ns);
    shunter_leave_row(core, function, session);
    shunter_set_awake(core, session, false);
    link_out(&session->silence);
    link_out(&session->quiet);
    link_out(&session->sending);
    shunter_count_session(core, session, -1);
    shunter_forget_unused(core, session->address);
    function->credit -= session->grant - session->done;
    session->closing = true;
    core->ended_streams += session->stream;
    if (session->forgotten == 0) {
        shunter_take_out(core, session);
    }
}

int shunter_core_remove_session(struct shunter_core *core, uint32_t id, uint64_t now_ns) {
    struct session *session = find(core, id);
    if (!session || session->closing) {
        return -ENOENT;
    }
    struct function *function = function_of(core, session);
    shunter_leave(core, session, now_ns);
    shunter_offer(core, function, now_ns);
    return 0;
}

uint32_t shunter_core_remove_key(struct shunter_core *core, uint32_t key, uint64_t now_ns) {
    uint32_t count = 0;
    for (uint32_t place = 0; place < SHUNTER_SESSIONS; place++) {
        const struct session *session = core->sessions[place];
        if (session && session->key == key && !session->closing) {
            shunter_core_remove_session(core, session->id, now_ns);
            count++;
        }
    }
    return count;
}

/* ---- what there is */

bool shunter_core_is_receiving(const struct shunter_core *core) { return core->receiving > 0; }

bool shunter_core_is_pressed(const struct shunter_core *core) {
    return core->receiving || core->in_rows || !is_alone(&core->sending);
}

uint32_t shunter_core_sessions(const struct shunter_core *core) { return core->count; }

uint64_t shunter_core_ended_streams(const struct shunter_core *core) {
    return core->ended_streams;
}

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

bool shunter_core_is_open(const struct shunter_core *core, uint32_t id) {
    const struct session *session = find(core, id);
    return session && !session->closing;
}

bool shunter_core_has(const struct shunter_core *core, uint32_t id) { return find(core, id); }

uint64_t shunter_core_grant(const struct shunter_core *core, uint32_t id) {
    const struct session *session = find(core, id);
    return session ? session->grant : 0;
}
