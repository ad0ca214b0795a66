/*
 * What strict requests hold, and what a line of the control page says of it.
 *
 * Its twin, oracle/holding.py in the tests, says what everything means.
 */
#include "core_parts.h"
#include "runs.h"

#define STALL_NS 10000000ULL
#define SLOWEST_NS 160 /* for each byte: 50 Mbit/s */
#define LONGEST_NS 2000000000ULL

static bool is_up(const struct function *function) {
    return function->strict && function->somewhere;
}

static void show(struct shunter_core *core, uint64_t now_ns, bool raises) {
    if (!core->line.words) {
        return;
    }
    struct shunter_hold hold = {0};
    for (const struct link *at = core->all.next; at != &core->all; at = at->next) {
        const struct function *function = OWNER_OF(at, function, link);
        if (is_up(function)) {
            shunter_hold_add(&hold, &function->slices, function->slot);
        }
    }
    shunter_hold_say(&core->line, &hold, now_ns, raises);
}

static void count(
    struct shunter_core *core, struct function *function, int more, uint64_t now_ns) {
    const bool was_up = is_up(function);
    function->strict += (uint32_t)more;
    if (is_up(function) != was_up) {
        show(core, now_ns, !was_up);
    }
}

void shunter_hold_changes(
    struct shunter_core *core, struct function *function, int more, bool progress,
    uint64_t now_ns) {
    if (progress && is_up(function)) {
        shunter_hold_progress(&core->line, now_ns);
    }
    count(core, function, more, now_ns);
}

/* Whether a request in parts comes so slowly that nobody stands still for it. */
static bool is_slow(const struct session *session, const struct call *call, uint64_t now_ns) {
    const uint64_t segments = segments_of_request(session, call) - call->missing;
    const uint64_t time_ns = STALL_NS + segments * session->inputs.segment * SLOWEST_NS;
    const uint64_t most_ns = time_ns < LONGEST_NS ? time_ns : LONGEST_NS;
    return now_ns - call->arrived_ns > STALL_NS || now_ns - call->begun_ns > most_ns;
}

void shunter_look_at_stall(
    struct shunter_core *core, struct session *session, struct call *call, uint64_t now_ns) {
    if (shunter_holds(call) && is_slow(session, call, now_ns)) {
        session->is_proven = false;
        call->stalled = true;
        count(core, function_of(core, session), -1, now_ns);
    }
}

void shunter_beat(const struct shunter_core *core, uint64_t now_ns) {
    shunter_hold_beat(&core->line, now_ns);
}

int shunter_core_set_hold(
    struct shunter_core *core, uint16_t func_id, int32_t slot, const uint64_t *slices,
    uint64_t now_ns) {
    struct function *function = core->functions[func_id];
    if (!function) {
        return -ENOENT;
    }
    if (slot < -1 || slot >= SHUNTER_SLOT_COUNT) {
        return -EINVAL;
    }
    if (function->slot == slot &&
        !memcmp(function->slices.words, slices, sizeof function->slices.words)) {
        return 0;
    }
    const bool was_up = is_up(function);
    function->slot = slot;
    function->somewhere = false;
    for (uint32_t i = 0; i < SHUNTER_SLICE_WORDS; i++) {
        function->slices.words[i] = slices[i];
        function->somewhere |= slices[i] != 0;
    }
    if (was_up || is_up(function)) { // at once: best effort must not slip in between
        show(core, now_ns, is_up(function));
    }
    return 0;
}

void shunter_core_hold_at(struct shunter_core *core, void *line, uint64_t now_ns) {
    shunter_hold_move(&core->line, line, now_ns);
    show(core, now_ns, true);
}
