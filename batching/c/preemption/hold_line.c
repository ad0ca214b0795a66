/* What a holder's line says, and in which order. */
#include "hold_line.h"

#include <stdatomic.h>
#include <string.h>

static void store(const struct shunter_hold_line *line, uint32_t field, uint64_t value) {
    atomic_store_explicit(&line->words[field / 8], value, memory_order_release);
}

void shunter_hold_add(
    struct shunter_hold *hold, const struct shunter_slice_set *slices, int32_t slot) {
    hold->any = true;
    for (uint32_t i = 0; i < SHUNTER_SLICE_WORDS; i++) {
        hold->slices.words[i] |= slices->words[i];
    }
    if (slot < 0) {
        hold->nameless = true;
    } else {
        hold->models[slot / 64] |= 1ULL << (slot % 64);
    }
}

/* Beside whom nobody knows, nothing runs. */
static void store_models(const struct shunter_hold_line *line, const struct shunter_hold *hold) {
    for (uint32_t i = 0; i < SHUNTER_SLOT_WORDS; i++) {
        store(line, SHUNTER_K_HOLD_MODELS + 8 * i, hold->nameless ? 0 : hold->models[i]);
    }
}

/* What comes, then the number, then what goes: batching/page/hold_words.py says why. */
static void store_slices(struct shunter_hold_line *line, const struct shunter_hold *hold) {
    uint64_t *said = line->said.words;
    const uint64_t *now = hold->slices.words;
    if (!memcmp(said, now, sizeof line->said)) {
        return;
    }
    line->number++;
    for (uint32_t i = 0; hold->any && i < SHUNTER_SLICE_WORDS; i++) {
        if (now[i] & ~said[i]) {
            store(line, SHUNTER_K_HOLD_SLICES + 8 * i, said[i] | now[i]);
        }
    }
    store(line, SHUNTER_K_HOLD_NUMBER, hold->any ? line->number : 0);
    for (uint32_t i = 0; i < SHUNTER_SLICE_WORDS; i++) {
        if (said[i] & ~now[i]) {
            store(line, SHUNTER_K_HOLD_SLICES + 8 * i, now[i]);
        }
        said[i] = now[i];
    }
}

static bool comes(const struct shunter_hold_line *line, const struct shunter_hold *hold) {
    uint64_t more = 0;
    for (uint32_t i = 0; i < SHUNTER_SLICE_WORDS; i++) {
        more |= hold->slices.words[i] & ~line->said.words[i];
    }
    return more != 0;
}

void shunter_hold_say(
    struct shunter_hold_line *line, const struct shunter_hold *hold, uint64_t now_ns, bool raises) {
    if (!line->words) {
        return;
    }
    if (raises && hold->any) {
        store(line, SHUNTER_K_HOLDER_HEARTBEAT_NS, now_ns);
        store_models(line, hold);
        if (comes(line, hold)) {
            store(line, SHUNTER_K_HOLD_SINCE_NS, now_ns);
        }
        store(line, SHUNTER_K_HOLD_PROGRESS_NS, now_ns);
        store_slices(line, hold);
    } else {
        store_slices(line, hold);
        store_models(line, hold);
    }
}

void shunter_hold_move(struct shunter_hold_line *line, void *words, uint64_t now_ns) {
    const struct shunter_hold nothing = {0};
    shunter_hold_say(line, &nothing, now_ns, false);
    line->words = words;
    shunter_hold_beat(line, now_ns);
}

void shunter_hold_progress(const struct shunter_hold_line *line, uint64_t now_ns) {
    if (line->words) {
        store(line, SHUNTER_K_HOLD_PROGRESS_NS, now_ns);
    }
}

void shunter_hold_beat(const struct shunter_hold_line *line, uint64_t now_ns) {
    if (line->words) {
        store(line, SHUNTER_K_HOLDER_HEARTBEAT_NS, now_ns);
    }
}
