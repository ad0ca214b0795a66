/* Addresses with their sessions: how many, who is awake, and who gives way to a new one. */
#include <stdlib.h>

#include "core_parts.h"

#define FIRST_PROMISES 4 /* of room at once to a new address */
#define REST_NS 5000000000ULL
#define MOST_LOOKS 1024

static struct address **row_of(struct shunter_core *core, uint64_t origin) {
    return &core->addresses[(origin * 0x9e3779b97f4a7c15ULL) >> 54];
}

struct address *shunter_address_of(struct shunter_core *core, uint64_t origin) {
    struct address *address = *row_of(core, origin);
    while (address && address->origin != origin) {
        address = address->next;
    }
    return address;
}

struct address *shunter_come_from(struct shunter_core *core, uint64_t origin) {
    struct address *address = shunter_address_of(core, origin);
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

struct line *shunter_line_of(struct address *address, const struct function *function) {
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
void shunter_count_session(struct shunter_core *core, struct session *session, int32_t more) {
    struct function *function = function_of(core, session);
    for (int kind = SESSIONS; kind <= (session->stream ? STREAMS : SESSIONS); kind++) {
        core->open[kind] += (uint32_t)more;
        session->address->open[kind] += (uint32_t)more;
    }
    function->open += (uint32_t)more;
    session->line->sessions += (uint32_t)more;
}

void shunter_forget_unused(struct shunter_core *core, struct address *address) {
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

void shunter_set_awake(struct shunter_core *core, struct session *session, bool awake) {
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
        shunter_set_awake(core, session, true);
    }
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
struct session *shunter_who_gives_way(
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
