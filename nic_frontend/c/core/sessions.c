/* Functions and sessions: what there is, who is silent, and whose place a new session takes. */
#include "core_parts.h"

#include <errno.h>
#include <stdlib.h>

#define AWAKE_NS 1000000000ULL
#define REST_NS 5000000000ULL
#define MOST_LOOKS 1024

/* ---- addresses */

static struct address **row_of(struct shunter_core *core, uint64_t origin) {
    return &core->addresses[(origin * 0x9e3779b97f4a7c15ULL) >> 54];
}

static struct address *address_of(struct shunter_core *core, uint64_t origin) {
    struct address *address = *row_of(core, origin);
    while (address && address->origin != origin) {
        address = address->next;
    }
    return address;
}

static struct address *come_from(struct shunter_core *core, uint64_t origin) {
    struct address *address = address_of(core, origin);
    if (!address && (address = calloc(1, sizeof *address))) {
        struct address **row = row_of(core, origin);
        address->origin = origin;
        link_alone(&address->quiet[0]);
        link_alone(&address->quiet[1]);
        address->next = *row;
        *row = address;
    }
    return address;
}

static struct line *line_of(struct address *address, const struct function *function) {
    struct line *line = address->lines;
    while (line && line->func_id != function->id) {
        line = line->next;
    }
    if (!line && (line = calloc(1, sizeof *line))) {
        line->func_id = function->id;
        line->most = FIRST_PROMISES;
        link_alone(&line->turn);
        link_alone(&line->waiting);
        line->next = address->lines;
        address->lines = line;
    }
    return line;
}

/* One more session, or one less (-1). */
static void count(struct shunter_core *core, struct session *session, int32_t more) {
    struct function *function = function_of(core, session);
    for (int kind = SESSIONS; kind <= (session->stream ? STREAMS : SESSIONS); kind++) {
        core->open[kind] += (uint32_t)more;
        session->address->open[kind] += (uint32_t)more;
    }
    function->open += (uint32_t)more;
    session->line->sessions += (uint32_t)more;
}

static void forget_unused(struct shunter_core *core, struct address *address) {
    for (struct line **at = &address->lines; *at;) {
        struct line *line = *at;
        if (line->sessions == 0) {
            *at = line->next;
            free(line);
        } else {
            at = &line->next;
        }
    }
    if (address->open[SESSIONS] == 0) {
        struct address **at = row_of(core, address->origin);
        while (*at != address) {
            at = &(*at)->next;
        }
        *at = address->next;
        free(address);
    }
}

/* ---- silence */

static void leave(struct shunter_core *core, struct session *session, uint64_t now_ns);

static void set_awake(struct shunter_core *core, struct session *session, bool awake) {
    struct function *function = function_of(core, session);
    struct line *line = session->line;
    function->awake -= line->awake > 0;
    line->awake += awake;
    line->awake -= session->awake;
    function->awake += line->awake > 0;
    session->awake = awake;
}

void shunter_is_heard(struct shunter_core *core, struct session *session, uint64_t now_ns) {
    session->last_ns = now_ns;
    if (core->awake[session->stream].prev != &session->silence) {
        link_last(&core->awake[session->stream], &session->silence);
    }
    if (session->address->quiet[session->stream].prev != &session->quiet) {
        link_last(&session->address->quiet[session->stream], &session->quiet);
    }
    if (!session->awake) {
        set_awake(core, session, true);
    }
}

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
        set_awake(core, session, false);
        link_last(&core->resting[stream], &session->silence);
    }
    while ((session = longest_silent(resting)) && now_ns - session->last_ns > IDLE_NS) {
        if (is_waiting_by_stream(session)) {
            shunter_is_heard(core, session, now_ns);
        } else {
            leave(core, session, now_ns); // to others room is offered when all of these are out
        }
    }
}

void shunter_look_at_silence(struct shunter_core *core, uint64_t now_ns) {
    look_at(core, 0, now_ns);
    look_at(core, 1, now_ns);
}

/* ---- who gives way */

static uint32_t open_of(const struct address *address, enum kind kind) {
    return address ? address->open[kind] : 0;
}

/* Of those with most sessions the one with the lowest number, NULL: there are none. */
static struct address *largest(const struct shunter_core *core, enum kind kind) {
    struct address *found = NULL;
    for (uint32_t i = 0; i < ADDRESS_ROWS; i++) {
        for (struct address *at = core->addresses[i]; at; at = at->next) {
            const uint32_t most = open_of(found, kind), its = at->open[kind];
            if (its > most || (its && its == most && at->origin < found->origin)) {
                found = at;
            }
        }
    }
    return found;
}

/* The longest silent of an address, NULL: there is none. */
static struct session *quietest(const struct address *address, enum kind kind) {
    struct session *found = NULL;
    for (int stream = kind == STREAMS; address && stream < 2; stream++) {
        const struct link *ring = &address->quiet[stream];
        if (!is_alone(ring)) {
            struct session *session = OWNER_OF(ring->next, session, quiet);
            found = found && found->last_ns <= session->last_ns ? found : session;
        }
    }
    return found;
}

static bool rests(const struct session *session, uint64_t now_ns) {
    return now_ns - session->last_ns >= REST_NS;
}

/* One that rests, and whose address has more than ``most``. */
static struct session *resting(
    const struct shunter_core *core, enum kind kind, uint32_t most, uint64_t now_ns) {
    for (int stream = kind == STREAMS; stream < 2; stream++) {
        const struct link *ring = &core->resting[stream];
        uint32_t looks = 0;
        for (const struct link *at = ring->next; at != ring; at = at->next) {
            struct session *session = OWNER_OF(at, session, silence);
            if (!rests(session, now_ns) || looks++ == MOST_LOOKS) {
                break;
            }
            if (session->address->open[kind] > most) {
                return session;
            }
        }
    }
    return NULL;
}

/*
 * Whose place a new session of this address takes: that of the address with most, if it has more
 * than the newcomer's would have then; or of its own that rests; or of one that rests and whose
 * address has more. NULL: nobody gives way.
 */
static struct session *who_gives_way(
    const struct shunter_core *core, enum kind kind, const struct address *mine,
    uint64_t now_ns) {
    const uint32_t most = open_of(mine, kind);
    const struct address *other = largest(core, kind);
    if (open_of(other, kind) > most + 1) {
        return quietest(other, kind);
    }
    struct session *own = quietest(mine, kind);
    return own && rests(own, now_ns) ? own : resting(core, kind, most, now_ns);
}

/* End the one that gives way; false: there is none. */
static bool end_one(
    struct shunter_core *core, enum kind kind, uint64_t origin, uint64_t now_ns) {
    const struct session *session =
        who_gives_way(core, kind, address_of(core, origin), now_ns);
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

/* ---- what there is */

struct shunter_core *shunter_core_new(shunter_emit emitter, void *context) {
    struct shunter_core *core = calloc(1, sizeof *core);
    if (core) {
        core->emit = emitter;
        core->context = context;
        core->most[SESSIONS] = core->most[STREAMS] = SHUNTER_MOST_SESSIONS;
        link_alone(&core->all);
        for (int stream = 0; stream < 2; stream++) {
            link_alone(&core->awake[stream]);
            link_alone(&core->resting[stream]);
        }
    }
    return core;
}

static void free_function(struct function *function) {
    if (function) {
        free(function->used);
        free(function->owners);
        free(function);
    }
}

void shunter_core_free(struct shunter_core *core) {
    if (!core) {
        return;
    }
    for (uint32_t i = 0; i < SHUNTER_SESSIONS; i++) {
        free(core->sessions[i]);
    }
    for (uint32_t i = 0; i < SHUNTER_FUNCTIONS; i++) {
        free_function(core->functions[i]);
    }
    for (uint32_t i = 0; i < ADDRESS_ROWS; i++) {
        while (core->addresses[i]) {
            struct address *address = core->addresses[i];
            core->addresses[i] = address->next;
            while (address->lines) {
                struct line *line = address->lines;
                address->lines = line->next;
                free(line);
            }
            free(address);
        }
    }
    free(core);
}

void shunter_core_limit(struct shunter_core *core, uint32_t sessions, uint32_t streams) {
    core->most[SESSIONS] = sessions;
    core->most[STREAMS] = streams;
}

int shunter_core_add_function(
    struct shunter_core *core, uint16_t func_id, const uint32_t *inputs, unsigned input_count,
    const uint32_t *outputs, unsigned output_count, uint32_t entries, uint32_t burst) {
    if (input_count < 1 || input_count > SHUNTER_MAX_TENSORS || output_count < 1 ||
        output_count > SHUNTER_MAX_TENSORS || entries < 1 || entries > SHUNTER_MAX_ENTRIES) {
        return -EINVAL;
    }
    if (core->functions[func_id]) {
        return -EEXIST;
    }
    struct function *function = calloc(1, sizeof *function);
    if (function) {
        function->used = calloc(entries, 1);
        function->owners = calloc(entries, sizeof *function->owners);
    }
    if (!function || !function->used || !function->owners) {
        free_function(function);
        return -ENOMEM;
    }
    function->id = func_id;
    function->slot = -1;
    function->input_count = input_count;
    function->output_count = output_count;
    memcpy(function->inputs, inputs, input_count * sizeof *inputs);
    memcpy(function->outputs, outputs, output_count * sizeof *outputs);
    function->entries = function->free = entries;
    function->burst = burst < entries ? burst : entries;
    struct link *rings[] = {
        &function->receiving, &function->kept, &function->waiting, &function->promised};
    for (size_t i = 0; i < sizeof rings / sizeof *rings; i++) {
        link_alone(rings[i]);
    }
    for (uint32_t i = 0; i < entries; i++) {
        link_alone(&function->owners[i].link);
    }
    link_alone(&function->link);
    link_last(&core->all, &function->link);
    core->functions[func_id] = function;
    return 0;
}

int shunter_core_set_defaults(
    struct shunter_core *core, uint16_t func_id, const struct shunter_defaults *defaults) {
    if (!core->functions[func_id]) {
        return -ENOENT;
    }
    if (defaults->priority > 1) {
        return -EINVAL;
    }
    core->functions[func_id]->defaults = *defaults;
    return 0;
}

int shunter_core_remove_function(struct shunter_core *core, uint16_t func_id) {
    if (!core->functions[func_id]) {
        return -ENOENT;
    }
    if (core->functions[func_id]->sessions) {
        return -EBUSY;
    }
    link_out(&core->functions[func_id]->link);
    free_function(core->functions[func_id]);
    core->functions[func_id] = NULL;
    return 0;
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
        session->pkt_no = opening->pkt_no;
        session->patience_ns = PROMISE_NS;
        memcpy(session->key, opening->key, sizeof session->key);
        memcpy(session->to_server, opening->to_server, sizeof session->to_server);
        memcpy(session->to_client, opening->to_client, sizeof session->to_client);
        memcpy(session->peer, opening->peer, sizeof session->peer);
        link_alone(&session->silence);
        link_alone(&session->quiet);
        link_alone(&session->row);
        for (uint32_t k = 0; k < SHUNTER_WINDOW; k++) {
            session->calls[k].entry = NO_ENTRY;
        }
    }
    return session;
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
    int error = 0;
    if (shunter_make_plan(&session->inputs, function->inputs, function->input_count, segment) ||
        shunter_make_plan(&session->outputs, function->outputs, function->output_count, segment)) {
        error = -E2BIG;
    } else if (!make_room(core, opening, now_ns)) {
        error = -ENOSPC;
    } else if (!(session->address = come_from(core, opening->origin))) {
        error = -ENOMEM;
    } else if (!(session->line = line_of(session->address, function))) {
        forget_unused(core, session->address);
        error = -ENOMEM;
    }
    if (error) {
        free(session);
        return error;
    }
    core->sessions[place] = session;
    core->count++;
    function->sessions++;
    count(core, session, 1);
    shunter_is_heard(core, session, now_ns);
    shunter_allow(function, session);
    return 0;
}

void shunter_take_out(struct shunter_core *core, struct session *session) {
    core->sessions[session->id & (SHUNTER_SESSIONS - 1)] = NULL;
    core->count--;
    function_of(core, session)->sessions--;
    free(session);
}

/* Remove it, and offer what it had to nobody yet. */
static void leave(struct shunter_core *core, struct session *session, uint64_t now_ns) {
    struct function *function = function_of(core, session);
    for (uint32_t k = 0; k < SHUNTER_WINDOW; k++) {
        shunter_forget(core, session, &session->calls[k], now_ns);
    }
    shunter_leave_row(core, function, session);
    set_awake(core, session, false);
    link_out(&session->silence);
    link_out(&session->quiet);
    count(core, session, -1);
    forget_unused(core, session->address);
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
    leave(core, session, now_ns);
    shunter_offer(core, function, now_ns);
    return 0;
}

bool shunter_core_is_receiving(const struct shunter_core *core) { return core->receiving > 0; }

bool shunter_core_is_pressed(const struct shunter_core *core) {
    return core->receiving || core->in_rows;
}

uint32_t shunter_core_free_entries(const struct shunter_core *core, uint16_t func_id) {
    return core->functions[func_id] ? core->functions[func_id]->free : 0;
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

void shunter_core_load(
    const struct shunter_core *core, uint16_t func_id, uint32_t *sessions, uint64_t *credit) {
    const struct function *function = core->functions[func_id];
    *sessions = function ? function->open : 0;
    *credit = function ? function->credit : 0;
}

bool shunter_core_is_open(const struct shunter_core *core, uint32_t id) {
    const struct session *session = find(core, id);
    return session && !session->closing;
}

uint64_t shunter_core_grant(const struct shunter_core *core, uint32_t id) {
    const struct session *session = find(core, id);
    return session ? session->grant : 0;
}
