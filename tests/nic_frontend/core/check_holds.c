/* For fuzz_core.c: whether what is held is exactly what the requests that there are hold. */
#include "series.h"

bool holds_are_right(
    const struct shunter_core *core, uint16_t func_id, uint32_t sessions, const uint64_t *line);

static bool holds(const struct call *call) {
    const bool works = call->state >= RECEIVING && call->state <= RUNNING;
    return works && !call->priority && !(call->state == RECEIVING && call->stalled);
}

bool holds_are_right(
    const struct shunter_core *core, uint16_t func_id, uint32_t sessions, const uint64_t *line) {
    const struct function *function = core->functions[func_id];
    uint32_t strict = 0;
    for (uint32_t n = 0; n < sessions; n++) {
        const struct session *session = core->sessions[n];
        for (uint32_t k = 0; session && k < SHUNTER_WINDOW; k++) {
            strict += holds(&session->calls[k]);
        }
    }
    for (uint32_t i = 0; function->series && i < function->entries; i++) {
        strict += holds(&function->series->at[i].call);
    }
    uint64_t any = 0;
    for (uint32_t i = 0; i < SHUNTER_SLICE_WORDS; i++) {
        const uint64_t word = strict && core->line.words ? function->slices.words[i] : 0;
        any |= word;
        if (line[SHUNTER_K_HOLD_SLICES / 8 + i] != word) {
            return false;
        }
    }
    const uint64_t model = any && function->slot >= 0 ? 1ULL << function->slot % 64 : 0;
    const uint64_t *models = line + SHUNTER_K_HOLD_MODELS / 8;
    const bool second = function->slot >= 64;
    return strict == function->strict && !line[SHUNTER_K_HOLD_NUMBER / 8] == !any &&
           models[second] == model && models[!second] == 0;
}
