/*
 * What strict requests hold, and what a line of the control page says of it.
 *
 * Its twin, oracle/holding.py in the tests, says what everything means. All stores are releases: a
 * reader sees them in this order.
 */
#include "core_parts.h"
#include "runs.h"

#define STALL_NS 10000000ULL
#define SLOWEST_NS 160 /* for each byte: 50 Mbit/s */
#define LONGEST_NS 2000000000ULL

static void store(const struct shunter_core *core, uint32_t field, uint64_t value) {
    atomic_store_explicit(&core->line[field / 8], value, memory_order_release);
}

static bool is_up(const struct function *function) {
    return function->strict && function->somewhere;
}

static void store_models(const struct shunter_core *core, const uint64_t *models) {
    for (uint32_t i = 0; i < SHUNTER_SLOT_WORDS; i++) {
        store(core, SHUNTER_K_HOLD_MODELS + 8 * i, models[i]);
    }
}

/* What comes, then the number, then what goes: batching/page/hold_words.py says why. */
static void store_slices(struct shunter_core *core, const struct slice_set *slices, bool any) {
    uint64_t *said = core->held.words;
    const uint64_t *now = slices->words;
    uint64_t differs = 0;
    for (uint32_t i = 0; i < SHUNTER_SLICE_WORDS; i++) {
        differs |= said[i] ^ now[i];
    }
    if (!differs) {
        return;
    }
    core->hold_number++;
    for (uint32_t i = 0; any && i < SHUNTER_SLICE_WORDS; i++) {
        if (now[i] & ~said[i]) {
            store(core, SHUNTER_K_HOLD_SLICES + 8 * i, said[i] | now[i]);
        }
    }
    store(core, SHUNTER_K_HOLD_NUMBER, any ? core->hold_number : 0);
    for (uint32_t i = 0; i < SHUNTER_SLICE_WORDS; i++) {
        if (said[i] & ~now[i]) {
            store(core, SHUNTER_K_HOLD_SLICES + 8 * i, now[i]);
        }
        said[i] = now[i];
    }
}

static bool comes(const struct shunter_core *core, const struct slice_set *slices) {
    uint64_t more = 0;
    for (uint32_t i = 0; i < SHUNTER_SLICE_WORDS; i++) {
        more |= slices->words[i] & ~core->held.words[i];
    }
    return more != 0;
}

/* The slices are raised last, and lowered first. */
static void say(
    struct shunter_core *core, const struct slice_set *slices, bool any, const uint64_t *models,
    uint64_t now_ns, bool raises) {
    if (raises && any) {
        store(core, SHUNTER_K_HOLDER_HEARTBEAT_NS, now_ns);
        store_models(core, models);
        if (comes(core, slices)) {
            store(core, SHUNTER_K_HOLD_SINCE_NS, now_ns);
        }
        store(core, SHUNTER_K_HOLD_PROGRESS_NS, now_ns);
        store_slices(core, slices, any);
    } else {
        store_slices(core, slices, any);
        store_models(core, models);
    }
}

static void show(struct shunter_core *core, uint64_t now_ns, bool raises) {
    if (!core->line) {
        return;
    }
    struct slice_set slices = {{0}};
    uint64_t models[SHUNTER_SLOT_WORDS] = {0};
    bool any = false, nameless = false;
    for (const struct link *at = core->all.next; at != &core->all; at = at->next) {
        const struct function *function = OWNER_OF(at, function, link);
        if (!is_up(function)) {
            continue;
        }
        any = true;
        for (uint32_t i = 0; i < SHUNTER_SLICE_WORDS; i++) {
            slices.words[i] |= function->slices.words[i];
        }
        if (function->slot < 0) {
            nameless = true;
        } else {
            models[function->slot / 64] |= 1ULL << (function->slot % 64);
        }
    }
    if (nameless) { // beside whom nobody knows, nothing runs
        memset(models, 0, sizeof models);
    }
    say(core, &slices, any, models, now_ns, raises);
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
    if (progress && core->line && is_up(function)) {
        store(core, SHUNTER_K_HOLD_PROGRESS_NS, now_ns);
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
    if (core->line) {
        store(core, SHUNTER_K_HOLDER_HEARTBEAT_NS, now_ns);
    }
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
    const uint64_t models[SHUNTER_SLOT_WORDS] = {0};
    const struct slice_set none = {{0}};
    if (core->line) {
        say(core, &none, false, models, now_ns, false);
    }
    core->line = line;
    shunter_beat(core, now_ns);
    show(core, now_ns, true);
}
