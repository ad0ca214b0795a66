/* Workers come and go. */
#include <errno.h>
#include <sys/eventfd.h>

#include "server_parts.h"

static struct shunter_served *served_of(struct shunter_server *server, uint16_t func_id) {
    return server->serving[func_id] ? server->serving[func_id]->served : NULL;
}

/* As a worker does: the loop goes on, and decides. */
static void ring(void *bell) {
    eventfd_write(((const struct shunter_server *)bell)->settings.doorbell, 1);
}

int shunter_server_add_worker(
    struct shunter_server *server, uint16_t func_id, uint32_t worker, uint32_t cap, int doorbell,
    uint32_t set, bool yields) {
    struct shunter_served *served = served_of(server, func_id);
    const uint64_t now_ns = shunter_now_ns();
    int error =
        served ? shunter_worker_comes(served, worker, cap, doorbell, now_ns) : -EINVAL;
    if (!error && set && server->settings.sets) {
        const struct shunter_wake wake = {ring, server};
        error = shunter_worker_joins(
            served, worker, shunter_set_join(server->settings.sets, set, served, yields, wake));
        if (error) {
            shunter_worker_goes(served, worker, now_ns);
        }
    }
    return error;
}

int shunter_server_drain_worker(
    struct shunter_server *server, uint16_t func_id, uint32_t worker) {
    struct shunter_served *served = served_of(server, func_id);
    return served ? shunter_worker_drains(served, worker) : -ENOENT;
}

bool shunter_server_idle(struct shunter_server *server, uint16_t func_id, uint32_t worker) {
    const struct shunter_served *served = served_of(server, func_id);
    return !served || shunter_worker_is_idle(served, worker);
}

uint64_t shunter_server_busy_ns(
    struct shunter_server *server, uint16_t func_id, uint32_t worker, uint64_t now_ns) {
    const struct shunter_served *served = served_of(server, func_id);
    return served ? shunter_worker_busy_ns(served, worker, now_ns) : 0;
}

int shunter_server_remove_worker(
    struct shunter_server *server, uint16_t func_id, uint32_t worker) {
    struct shunter_served *served = served_of(server, func_id);
    server->now_ns = shunter_now_ns();
    const int error = served ? shunter_worker_goes(served, worker, server->now_ns) : -ENOENT;
    shunter_flush(server);
    return error;
}

uint32_t shunter_server_give_up(
    struct shunter_server *server, uint16_t func_id, uint16_t status) {
    struct shunter_served *served = served_of(server, func_id);
    server->now_ns = shunter_now_ns();
    const uint32_t count = served ? shunter_fail_waiting(served, status, server->now_ns) : 0;
    shunter_flush(server);
    return count;
}

int shunter_server_set_runs(
    struct shunter_server *server, uint16_t func_id, const struct shunter_runs *runs) {
    struct shunter_serving *serving = server->serving[func_id];
    if (serving && runs->streamed && !serving->parts) {
        serving->parts = shunter_parts_new(serving->served->queue.entries);
        if (!serving->parts) {
            return -ENOMEM;
        }
    }
    const int error = shunter_core_set_runs(server->core, func_id, runs);
    if (!error) {
        serving->packed = true;
        serving->served->streamed = runs->streamed;
        serving->served->most_rows = runs->rows;
    }
    return error;
}
