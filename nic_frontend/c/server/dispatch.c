#include "dispatch.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define NEVER UINT64_MAX

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
        served->lines[class].first = served->lines[class].last = -1;
    }
    return served;
}

void shunter_served_free(struct shunter_served *served) {
    if (served) {
        free(served->waiting);
        free(served);
    }
}

/* ---- who waits */

/* Behind which of a line it belongs, -1: it is the first. */
static int32_t before(const struct shunter_served *served, const struct shunter_waiting *entry) {
    int32_t at = entry->alone ? -1 : served->lines[entry->class].last;
    while (at >= 0 && !served->waiting[at].alone &&
           served->waiting[at].arrival > entry->arrival) {
        at = served->waiting[at].prev;
    }
    return at;
}

static void put(struct shunter_served *served, int32_t at) {
    struct shunter_waiting *entry = &served->waiting[at];
    struct shunter_line *line = &served->lines[entry->class];
    entry->prev = before(served, entry);
    entry->next = entry->prev < 0 ? line->first : served->waiting[entry->prev].next;
    *(entry->prev < 0 ? &line->first : &served->waiting[entry->prev].next) = at;
    *(entry->next < 0 ? &line->last : &served->waiting[entry->next].prev) = at;
    line->count++;
    line->deadlines += entry->deadline_ns != 0;
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
    struct shunter_line *line = &served->lines[entry->class];
    if (entry->prev >= 0) {
        served->waiting[entry->prev].next = entry->next;
    } else {
        line->first = entry->next;
    }
    if (entry->next >= 0) {
        served->waiting[entry->next].prev = entry->prev;
    } else {
        line->last = entry->prev;
    }
    line->count--;
    line->deadlines -= entry->deadline_ns != 0;
    entry->class = -1;
}

static bool joins(const struct shunter_served *served, uint32_t at, int8_t class) {
    const struct shunter_waiting *entry = &served->waiting[at];
    return entry->class == class && !entry->alone;
}

/* What has been tried once goes first, then the earliest deadline, then the oldest. */
static uint32_t most_urgent(const struct shunter_served *served, uint8_t class) {
    const struct shunter_line *line = &served->lines[class];
    int32_t found = line->first;
    if (line->deadlines == 0 || served->waiting[found].alone) {
        return (uint32_t)found;
    }
    for (int32_t at = line->first; at >= 0; at = served->waiting[at].next) {
        const uint64_t deadline = served->waiting[at].deadline_ns;
        const uint64_t earliest = served->waiting[found].deadline_ns;
        if (deadline && (!earliest || deadline < earliest)) {
            found = at;
        }
    }
    return (uint32_t)found;
}

/* A run of entries that begins with the most urgent; they wait no more. */
static struct shunter_held take(struct shunter_served *served, uint8_t class, uint32_t most) {
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

/* ---- the rule */

bool shunter_should_release(
    uint64_t queued, uint64_t oldest_wait_us, bool has_deadline, int64_t slack_us,
    double threshold, uint64_t max_wait_us, uint64_t free_capacity, uint64_t predicted_us,
    uint64_t margin_us) {
    if (queued == 0 || free_capacity == 0) {
        return false;
    }
    const double least = threshold < (double)free_capacity ? threshold : (double)free_capacity;
    if ((double)queued >= least || oldest_wait_us >= max_wait_us) {
        return true;
    }
    return has_deadline && slack_us - (int64_t)predicted_us <= (int64_t)margin_us;
}

void shunter_split(uint32_t queued, const uint32_t *caps, uint32_t count, uint32_t *sizes) {
    uint64_t remaining_caps = 0;
    bool used[SHUNTER_WORKER_COUNT] = {false};
    for (uint32_t i = 0; i < count; i++) {
        sizes[i] = 0;
        remaining_caps += caps[i];
    }
    uint64_t remaining = queued < remaining_caps ? queued : remaining_caps;
    for (uint32_t step = 0; step < count && remaining; step++) {
        uint32_t best = count;
        for (uint32_t i = 0; i < count; i++) {
            if (!used[i] && (best == count || caps[i] > caps[best])) {
                best = i;
            }
        }
        used[best] = true;
        uint64_t size = (remaining * caps[best] + remaining_caps - 1) / remaining_caps;
        size = size < caps[best] ? size : caps[best];
        sizes[best] = (uint32_t)size;
        remaining -= size;
        remaining_caps -= caps[best];
    }
}

/* ---- workers */

static uint32_t in_flight(const struct shunter_hand *hand) {
    return (uint32_t)(hand->given - hand->done);
}

static void ring(struct shunter_served *served, const struct shunter_hand *hand) {
    const uint64_t one = 1;
    served->stats->rings++;
    if (write(hand->doorbell, &one, sizeof one) < 0) {
        // EAGAIN: it has not looked at the last one yet. Else it is gone, which its owner sees.
        return;
    }
}

/*
 * Waking a process takes about as long as receiving so many bytes: the worker that will get the
 * request wakes while they come.
 */
#define WAKE_BYTES (128U << 10)

void shunter_expect(struct shunter_served *served, uint32_t left, uint32_t length) {
    const uint64_t bytes = (uint64_t)left * length;
    if (bytes > WAKE_BYTES || bytes + length <= WAKE_BYTES || left < 2) {
        return; // once for each request, and not for those that are here at once
    }
    for (uint32_t i = 0; i < served->hand_count; i++) {
        const struct shunter_hand *hand = &served->hands[i];
        if (hand->present && !hand->draining && in_flight(hand) == 0) {
            if (atomic_load(shunter_worker_word(
                    &served->queue, i, SHUNTER_W_WORKER_ASLEEP))) {
                ring(served, hand);
            }
            return;
        }
    }
}

static void give(
    struct shunter_served *served, uint32_t worker, struct shunter_held run, uint64_t now_ns) {
    struct shunter_hand *hand = &served->hands[worker];
    const struct shunter_queue *queue = &served->queue;
    for (uint32_t i = 0; i < run.count; i++) {
        const uint32_t entry = (run.first + i) % queue->entries;
        struct shunter_whom whom;
        shunter_core_running(served->core, (uint16_t)queue->func_id, entry, now_ns, &whom);
        const uint64_t words[7] = {
            whom.req_id, whom.session,
            (whom.tagged ? SHUNTER_FLAG_HDR_TAG : 0) | (whom.asks ? SHUNTER_FLAG_ACK_REQ : 0) |
                (whom.idempotent ? SHUNTER_FLAG_IDEMPOTENT : 0),
            whom.segment, whom.pkt_no, whom.credit, whom.direct};
        memcpy(
            shunter_entry_bytes(queue, entry, SHUNTER_E_ENTRY_REQ_ID), words, sizeof words);
        memcpy(
            shunter_entry_bytes(queue, entry, SHUNTER_E_ENTRY_KEY), whom.key, sizeof whom.key);
        memcpy(
            shunter_entry_bytes(queue, entry, SHUNTER_E_ENTRY_PEER), whom.peer,
            sizeof whom.peer);
        shunter_set(
            shunter_entry_word(queue, entry, SHUNTER_E_ENTRY_ARRIVAL),
            -served->waiting[entry].arrival);
        shunter_set(shunter_entry_word(queue, entry, SHUNTER_E_ENTRY_STATUS), 0);
        served->waiting[entry].indirect = !whom.direct;
        served->indirect += !whom.direct;
    }
    const uint64_t number = ++hand->given;
    if (in_flight(hand) == 1) {
        hand->began_ns = now_ns;
    }
    const uint32_t place = (uint32_t)(number % SHUNTER_AHEAD);
    hand->held[place] = run;
    shunter_set(
        shunter_worker_word(queue, worker, SHUNTER_W_BATCH_FIRST + 8 * place), run.first);
    shunter_set(
        shunter_worker_word(queue, worker, SHUNTER_W_BATCH_COUNT + 8 * place), run.count);
    // Sequentially consistent, as the worker's sleep is: one of the two sees the other.
    atomic_store(shunter_worker_word(queue, worker, SHUNTER_W_BATCH_NUMBER), number);
    if (atomic_load(shunter_worker_word(queue, worker, SHUNTER_W_WORKER_ASLEEP))) {
        ring(served, hand);
    }
    served->in_flight++;
    served->stats->batches++;
}

static void finish(
    struct shunter_served *served, struct shunter_held run, uint64_t now_ns, bool died) {
    const struct shunter_queue *queue = &served->queue;
    const uint16_t func_id = (uint16_t)queue->func_id;
    for (uint32_t i = 0; i < run.count; i++) {
        const uint32_t entry = (run.first + i) % queue->entries;
        const uint64_t status =
            shunter_get(shunter_entry_word(queue, entry, SHUNTER_E_ENTRY_STATUS));
        const bool direct = !served->waiting[entry].indirect;
        served->indirect -= !direct;
        if (status == SHUNTER_STATUS_OK) {
            // Of a worker that died it is not known whether the answer left: it is sent again.
            served->stats->answered++;
            shunter_core_finished(
                served->core, func_id, entry, SHUNTER_STATUS_OK, direct && !died, now_ns);
        } else if (died && status == 0) {
            shunter_core_worker_died(served->core, func_id, entry, now_ns);
        } else {
            served->stats->failed++;
            shunter_core_finished(
                served->core, func_id, entry, SHUNTER_STATUS_HANDLER_FAILED, false, now_ns);
        }
    }
}

uint32_t shunter_collect(struct shunter_served *served, uint64_t now_ns) {
    uint32_t batches = 0;
    for (uint32_t worker = 0; served->in_flight && worker < served->hand_count; worker++) {
        struct shunter_hand *hand = &served->hands[worker];
        if (!hand->present || !in_flight(hand)) {
            continue;
        }
        uint64_t done =
            shunter_get(shunter_worker_word(&served->queue, worker, SHUNTER_W_DONE_NUMBER));
        // It is the worker's word: never believe more than was given.
        done = done > hand->given ? hand->given : done;
        while (hand->done < done) {
            hand->done++;
            hand->began_ns = now_ns;
            served->in_flight--;
            batches++;
            finish(served, hand->held[hand->done % SHUNTER_AHEAD], now_ns, false);
        }
    }
    return batches;
}

void shunter_hand_gone(struct shunter_served *served, uint32_t worker, uint64_t now_ns) {
    struct shunter_hand *hand = &served->hands[worker];
    shunter_collect(served, now_ns);
    hand->present = false;
    for (bool running = true; hand->done < hand->given; running = false) {
        hand->done++;
        served->in_flight--;
        const struct shunter_held run = hand->held[hand->done % SHUNTER_AHEAD];
        if (running) {
            finish(served, run, now_ns, true);
            continue;
        }
        for (uint32_t i = 0; i < run.count; i++) {
            const uint32_t entry = (run.first + i) % served->queue.entries;
            served->indirect -= served->waiting[entry].indirect;
            shunter_core_returned(
                served->core, (uint16_t)served->queue.func_id, entry, now_ns);
        }
    }
}

/* ---- who works on what */

static uint64_t us(uint64_t ns) { return ns / 1000; }

static void expire(struct shunter_served *served, uint64_t now_ns) {
    for (int class = 0; class < SHUNTER_CLASSES; class ++) {
        struct shunter_line *line = &served->lines[class];
        for (int32_t at = line->first; line->deadlines && at >= 0;) {
            const struct shunter_waiting entry = served->waiting[at];
            if (entry.deadline_ns && entry.deadline_ns <= now_ns) {
                shunter_dequeue(served, (uint32_t)at);
                served->stats->expired++;
                shunter_core_expired(
                    served->core, (uint16_t)served->queue.func_id, (uint32_t)at, now_ns);
            }
            at = entry.next;
        }
    }
}

static uint64_t tightest(const struct shunter_served *served, const struct shunter_line *line) {
    uint64_t found = NEVER;
    for (int32_t at = line->first; line->deadlines && at >= 0; at = served->waiting[at].next) {
        const uint64_t deadline = served->waiting[at].deadline_ns;
        if (deadline && deadline < found) {
            found = deadline;
        }
    }
    return found;
}

/* Free workers; their caps in order. */
static uint32_t free_hands(
    const struct shunter_served *served, uint32_t *workers, uint32_t *caps) {
    uint32_t count = 0;
    for (uint32_t i = 0; i < served->hand_count; i++) {
        const struct shunter_hand *hand = &served->hands[i];
        if (hand->present && !hand->draining && !in_flight(hand)) {
            workers[count] = i;
            caps[count++] = hand->cap;
        }
    }
    return count;
}

static uint64_t predicted_ns(
    const struct shunter_served *served, const struct shunter_line *line, uint64_t capacity) {
    const uint64_t size = line->count < capacity ? line->count : capacity;
    return served->policy.fixed_ns + size * served->policy.per_request_ns;
}

static bool release_class(struct shunter_served *served, uint8_t class, uint64_t now_ns) {
    const struct shunter_policy *policy = &served->policy;
    struct shunter_line *line = &served->lines[class];
    uint32_t workers[SHUNTER_WORKER_COUNT], caps[SHUNTER_WORKER_COUNT];
    uint32_t sizes[SHUNTER_WORKER_COUNT];
    const uint32_t count = free_hands(served, workers, caps);
    uint64_t capacity = 0;
    for (uint32_t i = 0; i < count; i++) {
        capacity += caps[i];
    }
    if (!line->count || !count) {
        return false;
    }
    const uint64_t deadline = tightest(served, line);
    const uint64_t predicted = predicted_ns(served, line, capacity);
    if (!shunter_should_release(
            line->count, us(now_ns - served->waiting[line->first].arrival_ns),
            deadline != NEVER, ((int64_t)deadline - (int64_t)now_ns) / 1000, policy->threshold,
            us(policy->max_wait_ns), capacity, us(predicted), us(policy->margin_ns))) {
        return false;
    }
    shunter_split(line->count, caps, count, sizes);
    bool given = false;
    for (uint32_t i = 0; i < count && line->count; i++) {
        if (sizes[i]) {
            give(served, workers[i], take(served, class, sizes[i]), now_ns);
            given = true;
        }
    }
    return given;
}

/* The next batch of a busy worker: as many requests as are worth one, when nobody is free. */
static bool send_ahead(struct shunter_served *served, uint8_t class, uint64_t now_ns) {
    uint32_t workers[SHUNTER_WORKER_COUNT], caps[SHUNTER_WORKER_COUNT];
    const struct shunter_line *line = &served->lines[class];
    if (!served->policy.ahead || !line->count || free_hands(served, workers, caps)) {
        return false;
    }
    for (uint32_t i = 0; i < served->hand_count; i++) {
        const struct shunter_hand *hand = &served->hands[i];
        if (!hand->present || hand->draining || in_flight(hand) != 1) {
            continue;
        }
        const uint8_t runs = hand->held[hand->given % SHUNTER_AHEAD].class;
        const bool behind_strict = class == 0 && runs == 0;
        const double least =
            served->policy.threshold < hand->cap ? served->policy.threshold : hand->cap;
        if ((behind_strict || !served->lines[0].count) && line->count >= least) {
            give(served, i, take(served, class, hand->cap), now_ns);
            return true;
        }
    }
    return false;
}

/* Best effort goes first once in ``ageing_ns`` if it has waited as long. */
static bool aged(struct shunter_served *served, uint64_t now_ns) {
    const struct shunter_line *line = &served->lines[1];
    const uint64_t ageing = served->policy.ageing_ns;
    return ageing && line->count && now_ns - served->aged_ns >= ageing &&
           now_ns - served->waiting[line->first].arrival_ns >= ageing;
}

/* When time alone changes something. */
static uint64_t next_ns(const struct shunter_served *served) {
    uint32_t workers[SHUNTER_WORKER_COUNT], caps[SHUNTER_WORKER_COUNT];
    const uint32_t free_count = free_hands(served, workers, caps);
    uint64_t next = NEVER, capacity = 0;
    for (uint32_t i = 0; i < free_count; i++) {
        capacity += caps[i];
    }
    for (uint8_t class = 0; class < SHUNTER_CLASSES; class ++) {
        const struct shunter_line *line = &served->lines[class];
        uint64_t deadline = tightest(served, line);
        if (line->count && free_count) { // held back; it goes when its deadline is near
            const uint64_t early =
                predicted_ns(served, line, capacity) + served->policy.margin_ns;
            const uint64_t waited =
                served->waiting[line->first].arrival_ns + served->policy.max_wait_ns;
            if (deadline != NEVER) {
                deadline = deadline > early ? deadline - early : 0;
            }
            next = waited < next ? waited : next;
        }
        next = deadline < next ? deadline : next;
    }
    return next;
}

uint64_t shunter_dispatch(struct shunter_served *served, uint64_t now_ns) {
    expire(served, now_ns);
    if (aged(served, now_ns) && release_class(served, 1, now_ns)) {
        served->aged_ns = now_ns;
    }
    for (uint8_t class = 0; class < SHUNTER_CLASSES; class ++) {
        while (release_class(served, class, now_ns)) {
        }
        while (send_ahead(served, class, now_ns)) {
        }
    }
    const bool wants = served->lines[0].count || served->lines[1].count || served->indirect;
    atomic_store(
        shunter_front_end_word(&served->queue, SHUNTER_Q_FRONT_END_WANTS_DONE), wants);
    return next_ns(served);
}
