/*
 * The C dispatcher, driven by events on its input; what it does is its output. What its owner would
 * answer is the test's to say: entries with an odd number are answered by the owner.
 *
 *   P threshold alpha threshold_cap max_wait margin ageing fixed per_request slo ahead mixes
 *     admission         policy, times in ns
 *   W worker cap now      it is there        D worker            it drains
 *   L worker              from now on it does not take its batches at once
 *   K worker              it takes what it was given
 *   B worker              it does so just when the next request is about to join its batch
 *   G worker taken        it is gone, having taken so many batches of those that it held
 *   A worker count now    it has answered batches
 *   Y worker entry at [status [now]]      it has answered an entry of a batch that goes on
 *   E entry class deadline again now rows    it waits (again 2: it was returned)
 *   R entry                                  it does not         F now    nothing waits any more
 *   C                     what was counted    O at    since then some wait outside, 0: none
 *   T now                 dispatch: batches as workers read them, what is too late, when to wake
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "dispatch.h"

static struct shunter_served *served;
static uint64_t shown[SHUNTER_WORKER_COUNT]; /* batches that it has taken */
static bool slow[SHUNTER_WORKER_COUNT];

static int racing = -1; /* a worker */

static bool running(void *context, uint32_t entry, uint64_t now_ns) {
    (void)context, (void)now_ns;
    if (racing >= 0) {
        const uint64_t place = served->workers[racing].given % SHUNTER_AHEAD;
        atomic_fetch_or(
            shunter_worker_word(
                &served->queue, (uint32_t)racing, SHUNTER_W_BATCH_COUNT + 8 * (uint32_t)place),
            SHUNTER_BATCH_TAKEN);
        racing = -1;
    }
    return entry % 2 == 0;
}

static void finished(
    void *context, uint32_t entry, uint16_t status, bool sent, uint64_t now_ns) {
    (void)context, (void)now_ns;
    printf("finished %u %u %d\n", entry, status, sent);
}

static void died(void *context, uint32_t entry, uint64_t now_ns) {
    (void)context, (void)now_ns;
    printf("died %u\n", entry);
}

static void returned(void *context, uint32_t entry, uint64_t now_ns) {
    (void)context, (void)now_ns;
    printf("returned %u\n", entry);
}

static void expired(void *context, uint32_t entry, uint64_t now_ns) {
    (void)context, (void)now_ns;
    printf("expired %u\n", entry);
}

static uint64_t word_of(uint32_t entry, uint32_t field) {
    return shunter_get(shunter_entry_word(&served->queue, entry, field));
}

/* The worker takes what it was given; what it finds in shared memory. */
static void take(uint32_t worker) {
    const struct shunter_queue *queue = &served->queue;
    const struct shunter_worker_state *state = &served->workers[worker];
    while (shown[worker] < state->given) {
        const uint32_t place = (uint32_t)(++shown[worker] % SHUNTER_AHEAD) * 8;
        uint64_t count =
            atomic_fetch_or(
                shunter_worker_word(queue, worker, SHUNTER_W_BATCH_COUNT + place),
                SHUNTER_BATCH_TAKEN) &
            ~SHUNTER_BATCH_TAKEN;
        uint64_t entry =
            shunter_get(shunter_worker_word(queue, worker, SHUNTER_W_BATCH_FIRST + place));
        printf("batch %u %" PRIu64, worker, shown[worker]);
        for (; count; count--) {
            const uint64_t rows = word_of((uint32_t)entry, SHUNTER_E_ENTRY_ROWS);
            printf(" %" PRIu64, entry);
            if (rows != 1) {
                printf(":%" PRIu64, rows);
            }
            entry = word_of((uint32_t)entry, SHUNTER_E_ENTRY_NEXT);
        }
        printf("\n");
    }
}

static void answer(uint32_t worker, uint32_t number, uint64_t now) {
    struct shunter_worker_state *state = &served->workers[worker];
    take(worker);
    for (uint32_t i = 1; i <= number; i++) {
        shunter_set(
            shunter_worker_word(
                &served->queue, worker,
                SHUNTER_W_DONE_NS + 8 * (uint32_t)((state->done + i) % SHUNTER_AHEAD)),
            now);
        int32_t entry = state->held[(state->done + i) % SHUNTER_AHEAD].first;
        for (; entry >= 0; entry = served->waiting[entry].next) {
            shunter_set(
                shunter_entry_word(&served->queue, (uint32_t)entry, SHUNTER_E_ENTRY_STATUS),
                entry % 5 ? SHUNTER_ENTRY_OK : SHUNTER_ENTRY_FAILED);
        }
    }
    shunter_set(
        shunter_worker_word(&served->queue, worker, SHUNTER_W_DONE_NUMBER), state->done + number);
    shunter_collect(served, now);
}

static void answer_early(
    uint32_t worker, uint32_t entry, uint64_t at, bool has_status, uint64_t now) {
    const struct shunter_queue *queue = &served->queue;
    _Atomic uint64_t *early = shunter_worker_word(queue, worker, SHUNTER_W_WORKER_EARLY);
    const uint64_t status = entry % 5 ? SHUNTER_ENTRY_OK : SHUNTER_ENTRY_FAILED;
    shunter_set(
        shunter_entry_word(queue, entry, SHUNTER_E_ENTRY_STATUS), has_status ? status : 0);
    shunter_set(shunter_entry_word(queue, entry, SHUNTER_E_ENTRY_EARLY_NS), at);
    shunter_set(early, shunter_get(early) + 1);
    printf("early %u\n", shunter_collect(served, now));
}

static void pass(uint64_t now) {
    const uint64_t next = shunter_dispatch(served, now);
    for (uint32_t worker = 0; worker < served->worker_count; worker++) {
        if (!slow[worker]) {
            take(worker);
        }
    }
    printf(
        "next %" PRId64 " wants %" PRIu64 " since %" PRIu64 "\n", (int64_t)next,
        shunter_get(shunter_front_end_word(&served->queue, SHUNTER_Q_FRONT_END_WANTS_DONE)),
        shunter_get(shunter_front_end_word(&served->queue, SHUNTER_Q_FRONT_END_SINCE_NS)));
}

static void count(void) {
    const uint64_t *words = (const uint64_t *)&served->telemetry;
    const struct shunter_counts *all = served->counts;
    printf("counted");
    for (size_t i = 0; i < sizeof served->telemetry / sizeof *words; i++) {
        printf(" %" PRIu64, words[i]);
    }
    printf(
        "\ncounts %" PRIu64 " %" PRIu64 " %" PRIu64 " %" PRIu64 " %" PRIu64 "\n", all->requests,
        all->answered, all->failed, all->expired, all->rejected);
}

static void event(const char *line, int doorbell) {
    struct shunter_policy *policy = &served->policy;
    struct shunter_arrival arrival = {0};
    uint32_t worker, number;
    unsigned class, again;
    uint64_t now;
    if (sscanf(
            line,
            "P %lf %lf %lf %" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu64
            " %u %u %u",
            &policy->threshold, &policy->alpha, &policy->threshold_cap, &policy->max_wait_ns,
            &policy->margin_ns, &policy->ageing_ns, &policy->fixed_ns, &policy->per_request_ns,
            &policy->slo_ns, &policy->ahead, &policy->mixes, &policy->admission) == 12) {
        return;
    }
    if (sscanf(
            line, "E %" SCNu32 " %u %" SCNu64 " %u %" SCNu64 " %" SCNu32, &arrival.entry,
            &class, &arrival.deadline_ns, &again, &now, &arrival.rows) >= 5) {
        arrival.class = (uint8_t)class;
        arrival.again = again == 1;
        arrival.returned = again == 2;
        shunter_enqueue(served, &arrival, now);
    } else if (sscanf(line, "R %u", &number) == 1) {
        shunter_withdraw(served, number);
    } else if (sscanf(line, "F %" SCNu64, &now) == 1) {
        printf("failed %u\n", shunter_fail_waiting(served, 503, now));
    } else if (sscanf(line, "W %u %u %" SCNu64, &worker, &number, &now) == 3) {
        if (shunter_worker_comes(served, worker, number, doorbell, now) != 0) {
            printf("worker %u is refused\n", worker);
        } else {
            shown[worker] = 0;
            slow[worker] = false;
        }
    } else if (sscanf(line, "L %u", &worker) == 1) {
        slow[worker] = true;
    } else if (sscanf(line, "K %u", &worker) == 1) {
        take(worker);
    } else if (sscanf(line, "B %u", &worker) == 1) {
        racing = (int)worker;
    } else if (sscanf(line, "O %" SCNu64, &now) == 1) {
        served->outside_ns = now;
    } else if (sscanf(line, "D %u", &worker) == 1) {
        shunter_worker_drains(served, worker);
    } else if (sscanf(line, "G %u %u", &worker, &number) == 2) {
        const uint64_t taken = served->workers[worker].done + number;
        shunter_set(shunter_worker_word(&served->queue, worker, SHUNTER_W_WORKER_TAKEN), taken);
        shunter_worker_goes(served, worker, 0);
    } else if (line[0] == 'Y') {
        uint64_t at = 0;
        unsigned has_status = 1;
        now = 0;
        sscanf(
            line, "Y %u %u %" SCNu64 " %u %" SCNu64, &worker, &number, &at, &has_status, &now);
        answer_early(worker, number, at, has_status, now ? now : at);
    } else if (sscanf(line, "A %u %u %" SCNu64, &worker, &number, &now) == 3) {
        answer(worker, number, now);
    } else if (sscanf(line, "T %" SCNu64, &now) == 1) {
        pass(now);
    } else if (line[0] == 'C') {
        count();
    }
}

int main(int argc, char **argv) {
    const uint32_t entries = argc > 1 ? (uint32_t)atoi(argv[1]) : 8;
    const size_t bytes = SHUNTER_QUEUE_ENTRIES_OFFSET + (size_t)entries * SHUNTER_ENTRY_SIZE;
    const struct shunter_queue queue = {
        .page = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096),
        .entries = entries};
    const struct shunter_owner owner = {NULL, running, finished, died, returned, expired};
    struct shunter_counts counts = {0};
    const struct shunter_policy policy = {
        .alpha = 0.5, .threshold_cap = 1e9, .ahead = 1};
    int pipes[2];
    char line[256];
    if (!queue.page || pipe(pipes)) {
        return 1;
    }
    memset(queue.page, 0, bytes);
    served = shunter_served_new(&queue, &policy, &owner, &counts);
    if (served) {
        served->most_rows = argc > 2 ? (uint32_t)atoi(argv[2]) : 1;
    }
    while (served && fgets(line, sizeof line, stdin)) {
        event(line, pipes[1]);
    }
    shunter_served_free(served);
    free(queue.page);
    return 0;
}
