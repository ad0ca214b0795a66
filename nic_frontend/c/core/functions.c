/* The core itself, and the functions in it. */
#include <stdlib.h>

#include "series.h"

struct shunter_core *shunter_core_new(shunter_emit emitter, void *context) {
    struct shunter_core *core = calloc(1, sizeof *core);
    if (core) {
        core->emit = emitter;
        core->context = context;
        core->most[SESSIONS] = core->most[STREAMS] = SHUNTER_MOST_SESSIONS;
        link_alone(&core->all);
        link_alone(&core->sending);
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
        free(function->series);
        free(function);
    }
}

void shunter_core_free(struct shunter_core *core) {
    if (!core) {
        return;
    }
    for (uint32_t i = 0; i < SHUNTER_SESSIONS; i++) {
        if (core->sessions[i]) {
            shunter_congestion_free(&core->sessions[i]->path);
            free(core->sessions[i]);
        }
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

int shunter_core_set_runs(
    struct shunter_core *core, uint16_t func_id, const struct shunter_runs *runs) {
    struct function *function = core->functions[func_id];
    if (!function) {
        return -ENOENT;
    }
    const bool others = function->runs.least_request != runs->least_request ||
                        function->runs.least_answer != runs->least_answer ||
                        function->runs.streamed != runs->streamed;
    if (function->input_count != 1 || function->output_count != 1 || runs->rows < 1 ||
        runs->rows > UINT16_MAX || runs->least_request < 1 || runs->least_answer < 1 ||
        runs->least_request > function->inputs[0] || runs->least_answer > function->outputs[0]) {
        return -EINVAL;
    }
    if (function->sessions && (others || !function->runs.rows)) {
        return -EBUSY;
    }
    if (runs->streamed && !function->series) {
        function->series = shunter_series_table(function->entries);
        if (!function->series) {
            return -ENOMEM;
        }
    }
    function->runs = *runs;
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

uint32_t shunter_core_free_entries(const struct shunter_core *core, uint16_t func_id) {
    return core->functions[func_id] ? core->functions[func_id]->free : 0;
}

bool shunter_core_has_row(const struct shunter_core *core, uint16_t func_id) {
    return core->functions[func_id] && !is_alone(&core->functions[func_id]->waiting);
}

void shunter_core_load(
    const struct shunter_core *core, uint16_t func_id, uint32_t *sessions, uint64_t *credit) {
    const struct function *function = core->functions[func_id];
    *sessions = function ? function->open : 0;
    *credit = function ? function->credit : 0;
}
