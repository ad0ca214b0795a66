/* Requests that wait for a worker. */
#include <stdlib.h>

#include "dispatch.h"

struct shunter_served *shunter_served_new(
    const struct shunter_queue *queue, const struct shunter_policy *policy,
    struct shunter_core *core, struct shunter_stats *stats) {
    struct shunter_served *served = calloc(1, sizeof *served);
    if (!served) {
        return NULL;
    }
    served->waiting = calloc(queue->entries, sizeof *served->waiting);
    if (!served->waiting) {
        free(served);
        return NULL;
    }
    served->queue = *queue;
    served->policy = *policy;
    served->core = core;
    served->stats = stats;
    for (uint32_t i = 0; i < queue->entries; i++) {
        served->waiting[i].class = -1;
    }
    for (int class = 0; class < SHUNTER_CLASSES; class ++) {
        served->lists[class].first = served->lists[class].last = -1;
    }
    return served;
}

void shunter_served_free(struct shunter_served *served) {
    if (served) {
        free(served->waiting);
        free(served);
    }
}

/* Behind which of a list it belongs, -1: it is the first. */
static int32_t before(const struct shunter_served *served, const struct shunter_waiting *entry) {
    int32_t at = entry->alone ? -1 : served->lists[entry->class].last;
    while (at >= 0 && !served->waiting[at].alone &&
           served->waiting[at].arrival > entry->arrival) {
        at = served->waiting[at].prev;
    }
    return at;
}

static void put(struct shunter_served *served, int32_t at) {
    struct shunter_waiting *entry = &served->waiting[at];
    struct shunter_class_list *list = &served->lists[entry->class];
    entry->prev = before(served, entry);
    entry->next = entry->prev < 0 ? list->first : served->waiting[entry->prev].next;
    *(entry->prev < 0 ? &list->first : &served->waiting[entry->prev].next) = at;
    *(entry->next < 0 ? &list->last : &served->waiting[entry->next].prev) = at;
    list->count++;
    list->deadlines += entry->deadline_ns != 0;
}

void shunter_enqueue(
    struct shunter_served *served, const struct shunter_action *ready, uint64_t now_ns) {
    struct shunter_waiting *entry = &served->waiting[ready->entry];
    if (!ready->returned) {
        *entry = (struct shunter_waiting){
            .alone = ready->again,
            .arrival = ++served->arrivals,
            .arrival_ns = now_ns,
            .deadline_ns = ready->deadline_ns};
        served->stats->requests += !ready->again;
    }
    entry->class = (int8_t)ready->priority;
    put(served, ready->entry);
    shunter_set(
        shunter_entry_word(&served->queue, (uint32_t)ready->entry, SHUNTER_E_ENTRY_ARRIVAL),
        entry->arrival);
    shunter_set(
        shunter_front_end_word(&served->queue, SHUNTER_Q_FRONT_END_ARRIVALS),
        served->arrivals);
}

void shunter_dequeue(struct shunter_served *served, uint32_t at) {
    struct shunter_waiting *entry = &served->waiting[at];
    if (entry->class < 0) {
        return;
    }
    struct shunter_class_list *list = &served->lists[entry->class];
    if (entry->prev >= 0) {
        served->waiting[entry->prev].next = entry->next;
    } else {
        list->first = entry->next;
    }
    if (entry->next >= 0) {
        served->waiting[entry->next].prev = entry->prev;
    } else {
        list->last = entry->prev;
    }
    list->count--;
    list->deadlines -= entry->deadline_ns != 0;
    entry->class = -1;
}

static bool joins(const struct shunter_served *served, uint32_t at, int8_t class) {
    const struct shunter_waiting *entry = &served->waiting[at];
    return entry->class == class && !entry->alone;
}

/* What has been tried once goes first, then the earliest deadline, then the oldest. */
static uint32_t most_urgent(const struct shunter_served *served, uint8_t class) {
    const struct shunter_class_list *list = &served->lists[class];
    int32_t found = list->first;
    if (list->deadlines == 0 || served->waiting[found].alone) {
        return (uint32_t)found;
    }
    for (int32_t at = list->first; at >= 0; at = served->waiting[at].next) {
        const uint64_t deadline = served->waiting[at].deadline_ns;
        const uint64_t earliest = served->waiting[found].deadline_ns;
        if (deadline && (!earliest || deadline < earliest)) {
            found = at;
        }
    }
    return (uint32_t)found;
}

/* A run of entries that begins with the most urgent; they wait no more. */
struct shunter_held shunter_take(struct shunter_served *served, uint8_t class, uint32_t most) {
    struct shunter_held run = {
        .first = most_urgent(served, class), .count = 1, .class = class};
    const bool alone = served->waiting[run.first].alone;
    shunter_dequeue(served, run.first);
    while (!alone && run.count < most) {
        const uint32_t next = (run.first + run.count) % served->queue.entries;
        if (!joins(served, next, (int8_t)class)) {
            break;
        }
        shunter_dequeue(served, next);
        run.count++;
    }
    return run;
}
