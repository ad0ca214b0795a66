/* Workers come and go. */
#include <errno.h>

#include "server_parts.h"

static struct shunter_worker_state *state_of(
    struct shunter_server *server, uint16_t func_id, uint32_t worker) {
    struct shunter_served *served = server->served[func_id];
    return served && worker < SHUNTER_WORKER_COUNT ? &served->workers[worker] : NULL;
}

int shunter_server_add_worker(
    struct shunter_server *server, uint16_t func_id, uint32_t worker, uint32_t cap,
    int doorbell) {
    struct shunter_worker_state *state = state_of(server, func_id, worker);
    if (!state || cap < 1) {
        return -EINVAL;
    }
    if (state->present) {
        return -EEXIST;
    }
    struct shunter_served *served = server->served[func_id];
    *state = (struct shunter_worker_state){
        .present = true,
        .cap = cap < served->queue.entries ? cap : served->queue.entries,
        .doorbell = doorbell};
    const uint32_t words[] = {
        SHUNTER_W_BATCH_NUMBER, SHUNTER_W_DONE_NUMBER, SHUNTER_W_WORKER_ASLEEP};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        shunter_set(shunter_worker_word(&served->queue, worker, words[i]), 0);
    }
    served->worker_count = worker >= served->worker_count ? worker + 1 : served->worker_count;
    return 0;
}

int shunter_server_drain_worker(
    struct shunter_server *server, uint16_t func_id, uint32_t worker) {
    struct shunter_worker_state *state = state_of(server, func_id, worker);
    if (!state || !state->present) {
        return -ENOENT;
    }
    state->draining = true;
    return 0;
}

bool shunter_server_idle(struct shunter_server *server, uint16_t func_id, uint32_t worker) {
    const struct shunter_worker_state *state = state_of(server, func_id, worker);
    return !state || !state->present || state->given == state->done;
}

uint64_t shunter_server_busy_ns(
    struct shunter_server *server, uint16_t func_id, uint32_t worker, uint64_t now_ns) {
    const struct shunter_worker_state *state = state_of(server, func_id, worker);
    if (!state || !state->present || state->given == state->done || now_ns < state->began_ns) {
        return 0;
    }
    return now_ns - state->began_ns;
}

int shunter_server_remove_worker(
    struct shunter_server *server, uint16_t func_id, uint32_t worker) {
    const struct shunter_worker_state *state = state_of(server, func_id, worker);
    if (!state || !state->present) {
        return -ENOENT;
    }
    server->now_ns = shunter_now_ns();
    shunter_worker_gone(server->served[func_id], worker, server->now_ns);
    shunter_flush(server);
    return 0;
}

uint32_t shunter_server_give_up(
    struct shunter_server *server, uint16_t func_id, uint16_t status) {
    struct shunter_served *served = server->served[func_id];
    uint32_t count = 0;
    server->now_ns = shunter_now_ns();
    for (int class = 0; served && class < SHUNTER_CLASSES; class ++) {
        const struct shunter_class_list *list = &served->lists[class];
        for (; list->count; count++) {
            const uint32_t entry = (uint32_t)list->first;
            shunter_dequeue(served, entry);
            served->stats->failed++;
            shunter_core_finished(
                server->core, func_id, entry, status, false, server->now_ns);
        }
    }
    shunter_flush(server);
    return count;
}
