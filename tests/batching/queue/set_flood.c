/*
 * set_flood CLASS OTHER_CLASS FULL_AGO OTHER_AGO [turns]: rows of a batch of 8 requests of a model whose batches take
 * 4 ms and 1 ms for each row, when FULL_AGO ms ago its line was full, and OTHER_AGO ms ago another model of its process was
 * asked. 0: never.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dispatch.h"
#include "hold_line.h"
#include "turns.h"

#define ENTRIES 16
#define MS 1000000ULL
#define NOW_NS (100000 * MS)

static bool running(void *context, uint32_t entry, uint64_t at_ns) {
    (void)context, (void)entry, (void)at_ns;
    return false;
}

static void finished(void *context, uint32_t entry, uint16_t status, bool sent, uint64_t at_ns) {
    (void)context, (void)entry, (void)status, (void)sent, (void)at_ns;
}

static void ended(void *context, uint32_t entry, uint64_t at_ns) {
    (void)context, (void)entry, (void)at_ns;
}

static void ring(void *bell) { (void)bell; }

static struct shunter_member *join(
    struct shunter_sets *sets, const void *model, uint64_t slice, bool turns) {
    const struct shunter_wake wake = {ring, NULL};
    const struct shunter_slice_set slices = {{slice}};
    return turns ? shunter_turns_join(sets, model, wake, &slices)
                 : shunter_set_join(sets, 1, model, false, wake);
}

static void ask_other(struct shunter_member *other, uint8_t class, uint64_t now_ns) {
    const bool none[SHUNTER_CLASSES] = {false};
    const struct shunter_want want = {.class = class, .since_ns = now_ns};
    shunter_set_ask(other, &want, now_ns);
    shunter_set_settle(other, none, now_ns);
}

int main(int count, char **given) {
    const size_t bytes = SHUNTER_QUEUE_ENTRIES_OFFSET + ENTRIES * SHUNTER_ENTRY_SIZE;
    struct shunter_queue queue = {
        .page = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096), .entries = ENTRIES};
    struct shunter_counts counts = {0};
    const struct shunter_policy policy = {
        .threshold = 1, .alpha = 0.5, .fixed_ns = 4 * MS, .per_request_ns = MS};
    const struct shunter_owner owner = {NULL, running, finished, ended, ended, ended};
    const bool turns = count > 5;
    if (count < 5) {
        return 2;
    }
    const uint64_t full = strtoull(given[3], NULL, 10), other = strtoull(given[4], NULL, 10);
    memset(queue.page, 0, bytes);
    struct shunter_sets *sets = shunter_sets_new();
    struct shunter_served *served = shunter_served_new(&queue, &policy, &owner, &counts);
    struct shunter_member *of_other = join(sets, &counts, 2, turns);
    shunter_worker_comes(served, 0, ENTRIES, -1, 1);
    shunter_worker_joins(served, 0, join(sets, served, 1, turns));
    if (other) {
        ask_other(of_other, (uint8_t)atoi(given[2]), NOW_NS - other * MS);
    }
    served->seen.full_ns = full ? NOW_NS - full * MS : 0;
    for (uint32_t entry = 0; entry < 8; entry++) {
        const struct shunter_arrival arrival = {
            .entry = entry, .class = (uint8_t)atoi(given[1]), .rows = 1};
        shunter_enqueue(served, &arrival, NOW_NS);
    }
    shunter_dispatch(served, NOW_NS);
    printf("%u\n", served->workers[0].held[1].rows);
    shunter_worker_goes(served, 0, NOW_NS);
    shunter_set_leave(of_other, NOW_NS);
    shunter_served_free(served);
    shunter_sets_free(sets);
    free(queue.page);
    return 0;
}
