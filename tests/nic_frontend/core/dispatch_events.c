/*
 * The C dispatcher, driven by events on its input; what it does is its output. There is no core:
 * what the core would answer is the test's to say.
 *
 *   P threshold max_wait margin ageing fixed per_request ahead   policy, times in ns
 *   W worker cap          it is there        D worker            it drains
 *   G worker              it is gone         A worker count      it has answered batches
 *   E entry class deadline again now         it waits (again 2: it was returned)
 *   R entry                                  it does not
 *   T now                 dispatch: batches, what is too late, when to wake
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "dispatch.h"

static struct shunter_served *served;
static uint64_t shown[SHUNTER_WORKER_COUNT];

void shunter_core_running(
    struct shunter_core *core, uint16_t func_id, uint32_t entry, uint64_t now_ns,
    struct shunter_whom *whom) {
    (void)core, (void)func_id, (void)entry, (void)now_ns;
    memset(whom, 0, sizeof *whom);
}

void shunter_core_finished(
    struct shunter_core *core, uint16_t func_id, uint32_t entry, uint16_t status, bool sent,
    uint64_t now_ns) {
    (void)core, (void)func_id, (void)entry, (void)status, (void)sent, (void)now_ns;
}

void shunter_core_worker_died(
    struct shunter_core *core, uint16_t func_id, uint32_t entry, uint64_t now_ns) {
    (void)core, (void)func_id, (void)now_ns;
    printf("died %u\n", entry);
}

void shunter_core_returned(
    struct shunter_core *core, uint16_t func_id, uint32_t entry, uint64_t now_ns) {
    (void)core, (void)func_id, (void)now_ns;
    printf("returned %u\n", entry);
}

void shunter_core_expired(
    struct shunter_core *core, uint16_t func_id, uint32_t entry, uint64_t now_ns) {
    (void)core, (void)func_id, (void)now_ns;
    printf("expired %u\n", entry);
}

static void show(uint32_t worker) {
    const struct shunter_worker_state *state = &served->workers[worker];
    while (shown[worker] < state->given) {
        const struct shunter_held *run = &state->held[++shown[worker] % SHUNTER_AHEAD];
        printf("batch %u %" PRIu64 " %u %u\n", worker, shown[worker], run->first, run->count);
    }
}

static void worker_comes(uint32_t worker, uint32_t cap, int doorbell) {
    served->workers[worker] =
        (struct shunter_worker_state){.present = true, .cap = cap, .doorbell = doorbell};
    shunter_set(shunter_worker_word(&served->queue, worker, SHUNTER_W_DONE_NUMBER), 0);
    served->worker_count = worker >= served->worker_count ? worker + 1 : served->worker_count;
    shown[worker] = 0;
}

static void event(const char *line, int doorbell) {
    struct shunter_policy *policy = &served->policy;
    struct shunter_action ready = {.kind = SHUNTER_READY};
    uint32_t worker, number;
    unsigned class, again;
    uint64_t now;
    if (sscanf(
            line, "P %lf %" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu64 " %u",
            &policy->threshold, &policy->max_wait_ns, &policy->margin_ns, &policy->ageing_ns,
            &policy->fixed_ns, &policy->per_request_ns, &policy->ahead) == 7) {
        return;
    }
    if (sscanf(
            line, "E %" SCNi32 " %u %" SCNu64 " %u %" SCNu64, &ready.entry, &class,
            &ready.deadline_ns, &again, &now) == 5) {
        ready.priority = (uint8_t)class;
        ready.again = again == 1;
        ready.returned = again == 2;
        shunter_enqueue(served, &ready, now);
    } else if (sscanf(line, "R %u", &number) == 1) {
        shunter_dequeue(served, number);
    } else if (sscanf(line, "W %u %u", &worker, &number) == 2) {
        worker_comes(worker, number, doorbell);
    } else if (sscanf(line, "D %u", &worker) == 1) {
        served->workers[worker].draining = true;
    } else if (sscanf(line, "G %u", &worker) == 1) {
        shunter_worker_gone(served, worker, 0);
    } else if (sscanf(line, "A %u %u", &worker, &number) == 2) {
        shunter_set(
            shunter_worker_word(&served->queue, worker, SHUNTER_W_DONE_NUMBER),
            served->workers[worker].done + number);
        shunter_collect(served, 0);
    } else if (sscanf(line, "T %" SCNu64, &now) == 1) {
        const uint64_t next = shunter_dispatch(served, now);
        for (worker = 0; worker < served->worker_count; worker++) {
            show(worker);
        }
        printf("next %" PRId64 "\n", (int64_t)next);
    }
}

int main(int argc, char **argv) {
    const uint32_t entries = argc > 1 ? (uint32_t)atoi(argv[1]) : 8;
    const size_t bytes = SHUNTER_QUEUE_ENTRIES_OFFSET + (size_t)entries * SHUNTER_ENTRY_SIZE;
    const struct shunter_queue queue = {
        .page = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096), .entries = entries};
    struct shunter_stats stats = {0};
    const struct shunter_policy policy = {.threshold = 1, .ahead = 1};
    int pipes[2];
    char line[256];
    if (!queue.page || pipe(pipes)) {
        return 1;
    }
    memset(queue.page, 0, bytes);
    served = shunter_served_new(&queue, &policy, NULL, &stats);
    while (served && fgets(line, sizeof line, stdin)) {
        event(line, pipes[1]);
    }
    shunter_served_free(served);
    free(queue.page);
    return 0;
}
