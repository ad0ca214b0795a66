/* Workers that do not run whenever they are free: those of one process, and those that take turns where
 * the control page asks for it. */
#include "turns.h"

#include <sys/eventfd.h>

#include "backend.h"

static void ring(void *bell) {
    const struct shunter_function *function = bell;
    eventfd_write(function->bell, 1);
}

bool shunter_join_set(
    struct shunter_function *function, uint32_t index, const struct control_worker *told) {
    struct shunter_served *served = function->served;
    const struct shunter_wake wake = {ring, function};
    struct shunter_sets *sets = function->backend->sets;
    return !told->pool ||
           !shunter_worker_joins(
               served, index,
               shunter_set_join(
                   sets, (uint32_t)told->pool, served, shunter_gives_way(told), wake));
}

static bool is_somewhere(const struct shunter_slice_set *slices) {
    uint64_t any = 0;
    for (uint32_t i = 0; i < SHUNTER_SLICE_WORDS; i++) {
        any |= slices->words[i];
    }
    return any != 0;
}

void shunter_join_turns(struct shunter_function *function) {
    struct shunter_served *served = function->served;
    const struct shunter_wake wake = {ring, function};
    struct shunter_sets *sets = function->backend->sets;
    for (uint32_t i = 0; shunter_turns_apply(sets) && i < SHUNTER_WORKER_COUNT; i++) {
        const struct shunter_attached *worker = &function->workers[i];
        if (worker->connection >= 0 && served->workers[i].present && !served->workers[i].member &&
            is_somewhere(&worker->place)) { // without memory it tries again
            shunter_worker_joins(
                served, i, shunter_turns_join(sets, served, wake, &worker->place));
        }
    }
}

static uint32_t word_at(const struct shunter_backend *backend, uint32_t field) {
    const uint64_t word = shunter_get(shunter_word(backend->page, field));
    return word < UINT32_MAX ? (uint32_t)word : UINT32_MAX;
}

void shunter_see_turns(struct shunter_backend *backend) {
    struct shunter_turn_rules rules = {.exclusive = false};
    pthread_mutex_lock(&backend->lock);
    if (backend->page) {
        rules.strict = word_at(backend, SHUNTER_H_STRICT_ORDER);
        rules.best_effort = word_at(backend, SHUNTER_H_BEST_EFFORT_ORDER);
        rules.exclusive = word_at(backend, SHUNTER_H_EXCLUSIVE) == 1;
    }
    pthread_mutex_unlock(&backend->lock);
    shunter_turns_obey(backend->sets, rules);
}
