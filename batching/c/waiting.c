/* Requests that wait for a worker: in the order of arrivals, and of deadlines. */
#include <stdlib.h>

#include "dispatch.h"

struct shunter_served *shunter_served_new(
    const struct shunter_queue *queue, const struct shunter_policy *policy,
    const struct shunter_owner *owner, struct shunter_counts *counts) {
    struct shunter_served *served = calloc(1, sizeof *served);
    if (!served) {
        return NULL;
    }
    served->queue = *queue;
    served->policy = *policy;
    served->owner = *owner;
    served->counts = counts;
    served->waiting = calloc(queue->entries, sizeof *served->waiting);
    served->scratch = calloc(queue->entries + 1, sizeof *served->scratch);
    shunter_latency_fit_init(&served->seen.fit, 0, 0);
    shunter_adaptive_threshold_init(
        &served->seen.threshold, policy->alpha, policy->threshold_cap);
    served->lists[SHUNTER_REFUSED].first = served->lists[SHUNTER_REFUSED].last = -1;
    bool is_whole = served->waiting && served->scratch;
    for (int class = 0; class < SHUNTER_CLASSES; class ++) {
        struct shunter_class_list *list = &served->lists[class];
        list->first = list->last = -1;
        list->heap = calloc(queue->entries, sizeof *list->heap);
        is_whole = is_whole && list->heap;
    }
    if (!is_whole) {
        shunter_served_free(served);
        return NULL;
    }
    for (uint32_t i = 0; i < queue->entries; i++) {
        served->waiting[i].class = -1;
    }
    return served;
}

void shunter_served_free(struct shunter_served *served) {
    if (served) {
        for (int class = 0; class < SHUNTER_CLASSES; class ++) {
            free(served->lists[class].heap);
        }
        for (uint32_t worker = 0; worker < served->worker_count; worker++) {
            shunter_worker_leaves_set(served, worker, 0);
        }
        free(served->scratch);
        free(served->waiting);
        free(served);
    }
}

/* ---- deadlines: a binary heap */

static bool is_earlier(const struct shunter_served *served, int32_t one, int32_t other) {
    const struct shunter_waiting *a = &served->waiting[one], *b = &served->waiting[other];
    return a->deadline_ns < b->deadline_ns ||
           (a->deadline_ns == b->deadline_ns && a->arrival < b->arrival);
}

static void place(
    struct shunter_served *served, struct shunter_class_list *list, uint32_t at, int32_t entry) {
    list->heap[at] = entry;
    served->waiting[entry].in_heap = (int32_t)at;
}

/* The entry belongs at this place, or nearer to the top. */
static void rise(
    struct shunter_served *served, struct shunter_class_list *list, uint32_t at, int32_t entry) {
    while (at && is_earlier(served, entry, list->heap[(at - 1) / 2])) {
        place(served, list, at, list->heap[(at - 1) / 2]);
        at = (at - 1) / 2;
    }
    place(served, list, at, entry);
}

static void leave_heap(
    struct shunter_served *served, struct shunter_class_list *list, uint32_t at) {
    const int32_t last = list->heap[--list->deadlines];
    if (at == list->deadlines) {
        return;
    }
    for (;;) { // the last one goes to the empty place, or where it belongs below
        uint32_t child = 2 * at + 1;
        if (child >= list->deadlines) {
            break;
        }
        if (child + 1 < list->deadlines &&
            is_earlier(served, list->heap[child + 1], list->heap[child])) {
            child++;
        }
        if (!is_earlier(served, list->heap[child], last)) {
            break;
        }
        place(served, list, at, list->heap[child]);
        at = child;
    }
    rise(served, list, at, last);
}

/* ---- arrivals */

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
    list->rows += entry->rows;
    served->most_waiting =
        entry->rows > served->most_waiting ? entry->rows : served->most_waiting;
    entry->in_heap = -1;
    if (entry->deadline_ns && list->heap) {
        rise(served, list, list->deadlines++, at);
    }
}

void shunter_enqueue(
    struct shunter_served *served, const struct shunter_arrival *arrival, uint64_t now_ns) {
    struct shunter_waiting *entry = &served->waiting[arrival->entry];
    const bool is_new = !arrival->returned && !arrival->again;
    const bool is_refused = is_new && !shunter_admits(served, arrival, now_ns);
    if (is_new && !is_refused) {
        struct shunter_seen *seen = &served->seen;
        shunter_adaptive_threshold_settle(
            &seen->threshold, (int64_t)now_ns, seen->arrivals);
        seen->arrivals += shunter_rows(arrival);
    }
    // Also one that is refused: it was too late because a long batch runs, and the next must be short.
    if (is_new && arrival->class == 0) {
        served->seen.strict = true;
        served->seen.last_strict_ns = now_ns;
    }
    if (!arrival->returned) {
        *entry = (struct shunter_waiting){
            .priority = arrival->class,
            .alone = arrival->again,
            .rows = shunter_rows(arrival),
            .arrival = ++served->arrivals,
            .arrival_ns = now_ns,
            .deadline_ns = arrival->deadline_ns,
            .came_ns = is_new ? now_ns : entry->came_ns};
        served->counts->requests += is_new;
        served->telemetry.arrivals[arrival->class] += is_new;
    }
    entry->class = (int8_t)(is_refused ? SHUNTER_REFUSED : arrival->class);
    put(served, (int32_t)arrival->entry);
}

void shunter_dequeue(struct shunter_served *served, uint32_t at) {
    struct shunter_waiting *entry = &served->waiting[at];
    if (entry->class < 0) {
        return;
    }
    struct shunter_class_list *list = &served->lists[entry->class];
    *(entry->prev < 0 ? &list->first : &served->waiting[entry->prev].next) = entry->next;
    *(entry->next < 0 ? &list->last : &served->waiting[entry->next].prev) = entry->prev;
    list->count--;
    list->rows -= entry->rows;
    if (entry->in_heap >= 0) {
        leave_heap(served, list, (uint32_t)entry->in_heap);
    }
    entry->class = -1;
}

void shunter_withdraw(struct shunter_served *served, uint32_t at) {
    const struct shunter_waiting *entry = &served->waiting[at];
    if (entry->class >= 0) {
        served->telemetry.abandoned[entry->priority]++;
        served->telemetry.slo_abandoned[entry->priority] += entry->deadline_ns != 0;
        shunter_dequeue(served, at);
    }
}

void shunter_expire(struct shunter_served *served, uint32_t at, uint64_t now_ns) {
    shunter_dequeue(served, at);
    served->counts->expired++;
    served->telemetry.expired[served->waiting[at].priority]++;
    served->owner.expired(served->owner.context, at, now_ns);
}

void shunter_count_failure(struct shunter_served *served, uint32_t at) {
    const struct shunter_waiting *entry = &served->waiting[at];
    served->counts->failed++;
    served->telemetry.failed[entry->priority]++;
    served->telemetry.slo_failed[entry->priority] += entry->deadline_ns != 0;
}

uint32_t shunter_fail_waiting(struct shunter_served *served, uint16_t status, uint64_t now_ns) {
    uint32_t count = 0;
    for (int class = 0; class < SHUNTER_CLASSES; class ++) {
        const struct shunter_class_list *list = &served->lists[class];
        for (; list->count; count++) {
            const uint32_t entry = (uint32_t)list->first;
            shunter_dequeue(served, entry);
            shunter_count_failure(served, entry);
            served->owner.finished(served->owner.context, entry, status, false, now_ns);
        }
    }
    return count;
}

/* ---- batches */

int32_t shunter_most_urgent(const struct shunter_served *served, uint8_t class) {
    const struct shunter_class_list *list = &served->lists[class];
    const bool by_arrival = !list->deadlines || served->waiting[list->first].alone;
    return by_arrival ? list->first : list->heap[0];
}

int32_t shunter_most_urgent_of(
    const struct shunter_served *served, uint8_t class, uint32_t limit) {
    const struct shunter_class_list *list = &served->lists[class];
    int32_t found = list->count ? shunter_most_urgent(served, class) : -1;
    if (found < 0 || served->waiting[found].rows <= limit) {
        return found;
    }
    found = -1;
    for (int32_t at = list->first; at >= 0; at = served->waiting[at].next) {
        const struct shunter_waiting *entry = &served->waiting[at];
        if (entry->rows > limit) {
            continue;
        }
        if (entry->alone) {
            return at; // these are the first ones
        }
        if (found < 0 || (entry->deadline_ns && (!served->waiting[found].deadline_ns ||
                                                 is_earlier(served, at, found)))) {
            found = at;
        }
    }
    return found;
}

/* The earliest of some places of the heap; those right below it take its place among them. */
static uint32_t next_place(
    const struct shunter_served *served, const struct shunter_class_list *list,
    uint32_t *places, uint32_t *count) {
    uint32_t best = 0;
    for (uint32_t i = 1; i < *count; i++) {
        if (is_earlier(served, list->heap[places[i]], list->heap[places[best]])) {
            best = i;
        }
    }
    const uint32_t found = places[best];
    places[best] = places[--*count];
    for (uint32_t child = 2 * found + 1; child <= 2 * found + 2; child++) {
        if (child < list->deadlines) {
            places[(*count)++] = child;
        }
    }
    return found;
}

uint32_t shunter_first_deadlines(
    struct shunter_served *served, uint8_t class, int64_t *deadlines_ns, uint32_t *rows,
    uint32_t count) {
    const struct shunter_class_list *list = &served->lists[class];
    uint32_t *places = (uint32_t *)served->scratch, candidates = list->deadlines != 0;
    int32_t without = list->first;
    count = count < list->count ? count : list->count;
    places[0] = 0;
    for (uint32_t i = 0; i < count; i++) {
        if (candidates) {
            const uint32_t place = next_place(served, list, places, &candidates);
            const struct shunter_waiting *entry = &served->waiting[list->heap[place]];
            deadlines_ns[i] = (int64_t)entry->deadline_ns;
            rows[i] = entry->rows;
            continue;
        }
        while (served->waiting[without].in_heap >= 0) {
            without = served->waiting[without].next;
        }
        deadlines_ns[i] = SHUNTER_FORMING_NEVER;
        rows[i] = served->waiting[without].rows;
        without = served->waiting[without].next;
    }
    return count;
}
