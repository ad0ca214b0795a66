/*
 * A dispatcher and a worker, each in a thread: batches grow until the worker takes them.
 *
 *     growing SEED REQUESTS
 *
 * Every request must run once, in a batch that is no larger than the worker takes. Output: requests
 * done, batches, how often a batch grew, how many came too late for it.
 */
#define _GNU_SOURCE
#include <inttypes.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "dispatch.h"
#include "worker.h"

#define ENTRIES 32
#define CAP 8

enum { FREE, WAITS, RAN };

static struct shunter_queue queue;
static _Atomic int state[ENTRIES];
static _Atomic bool over;
static int doorbell, back;
static uint32_t came_back[ENTRIES];
static uint32_t came_back_count;
static uint64_t done, too_late;
static unsigned seed;

static void fail(const char *what, uint32_t entry) {
    printf("%s %u\n", what, entry);
    fflush(stdout);
    _exit(1);
}

static bool running(void *context, uint32_t entry, uint64_t now_ns) {
    (void)context, (void)now_ns;
    if (seed % 2 && entry % 4 == 0) {
        sched_yield(); // just before it joins: the worker may take the batch now
    }
    return entry % 2;
}

static void finished(
    void *context, uint32_t entry, uint16_t status, bool sent, uint64_t now_ns) {
    (void)context, (void)sent, (void)now_ns;
    if (status != SHUNTER_ENTRY_OK || atomic_exchange(&state[entry], FREE) != RAN) {
        fail("finished without having run", entry);
    }
    done++;
}

static void returned(void *context, uint32_t entry, uint64_t now_ns) {
    (void)context, (void)now_ns;
    came_back[came_back_count++] = entry;
    too_late++;
}

static void never(void *context, uint32_t entry, uint64_t now_ns) {
    (void)context, (void)now_ns;
    fail("died or expired", entry);
}

static void *work(void *unused) {
    struct shunter_wait wait = {.doorbell = doorbell};
    unsigned own = seed;
    (void)unused;
    while (!atomic_load(&over)) {
        uint32_t entries[ENTRIES];
        struct shunter_batch batch = {.entries = entries};
        const int found = shunter_worker_wait(&queue, 0, &wait, 10000000, &batch);
        if (found < 0 || (found && batch.count > CAP)) {
            fail("a batch that cannot be", (uint32_t)found);
        }
        for (uint32_t i = 0; found && i < batch.count; i++) {
            if (atomic_exchange(&state[batch.entries[i]], RAN) != WAITS) {
                fail("runs twice", batch.entries[i]);
            }
            shunter_set(
                shunter_entry_word(&queue, batch.entries[i], SHUNTER_E_ENTRY_STATUS),
                SHUNTER_ENTRY_OK);
        }
        if (found && rand_r(&own) % 4 == 0) {
            usleep((unsigned)rand_r(&own) % 50);
        }
        if (found) {
            shunter_worker_done(&queue, 0, &batch, back, 1);
        }
        if (rand_r(&own) % 2) {
            usleep((unsigned)rand_r(&own) % 50); // it is woken, and something else runs first
        }
    }
    return NULL;
}

static void arrive(struct shunter_served *served, uint32_t entry, bool again, uint64_t now_ns) {
    const struct shunter_arrival arrival = {
        .entry = entry, .returned = again, .rows = 1};
    atomic_store(&state[entry], WAITS);
    shunter_enqueue(served, &arrival, now_ns);
}

int main(int argc, char **argv) {
    const uint64_t wanted = argc > 2 ? strtoull(argv[2], NULL, 10) : 1000;
    const size_t bytes = SHUNTER_QUEUE_ENTRIES_OFFSET + ENTRIES * SHUNTER_ENTRY_SIZE;
    const struct shunter_owner owner = {NULL, running, finished, never, returned, never};
    const struct shunter_policy policy = {
        .threshold = 1, .alpha = 0.5, .threshold_cap = 1e9, .ahead = 1};
    struct shunter_counts counts = {0};
    uint64_t came = 0, grew = 0, now = 1;
    pthread_t thread;
    seed = argc > 1 ? (unsigned)atoi(argv[1]) : 1;
    unsigned own = seed + 1;
    queue = (struct shunter_queue){
        .page = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096), .entries = ENTRIES};
    doorbell = eventfd(0, EFD_NONBLOCK);
    back = eventfd(0, EFD_NONBLOCK);
    if (!queue.page || doorbell < 0 || back < 0) {
        return 1;
    }
    memset(queue.page, 0, bytes);
    struct shunter_served *served = shunter_served_new(&queue, &policy, &owner, &counts);
    if (!served || shunter_worker_comes(served, 0, CAP, doorbell, now) ||
        pthread_create(&thread, NULL, work, NULL)) {
        return 1;
    }
    while (done < wanted) {
        now++;
        while (came_back_count) {
            arrive(served, came_back[--came_back_count], true, now);
        }
        for (uint32_t few = (uint32_t)rand_r(&own) % 3, entry = 0;
             few && entry < ENTRIES && came < wanted; entry++) {
            if (atomic_load(&state[entry]) == FREE) {
                arrive(served, entry, false, now);
                came++;
                few--;
            }
        }
        const struct shunter_held *open = shunter_open_batch(served, 0);
        const uint32_t before = open ? open->count : 0;
        const uint64_t given = served->workers[0].given;
        shunter_dispatch(served, now);
        grew += open && (served->workers[0].held[given % SHUNTER_AHEAD].count > before);
        shunter_collect(served, now);
        if (rand_r(&own) % 4 == 0) {
            sched_yield();
        }
    }
    atomic_store(&over, true);
    pthread_join(thread, NULL);
    printf("%" PRIu64 " %" PRIu64 " %" PRIu64 " %" PRIu64 "\n", done, counts.batches, grew, too_late);
    shunter_served_free(served);
    free(queue.page);
    return 0;
}
