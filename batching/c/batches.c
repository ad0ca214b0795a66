/* Batches on their way: to workers, and back. */
#include <errno.h>
#include <unistd.h>

#include "dispatch.h"

static void ring(struct shunter_served *served, const struct shunter_worker_state *state) {
    const uint64_t one = 1;
    served->counts->rings++;
    if (write(state->doorbell, &one, sizeof one) < 0) {
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
    for (uint32_t i = 0; i < served->worker_count; i++) {
        const struct shunter_worker_state *state = &served->workers[i];
        if (state->present && !state->draining && shunter_in_flight(state) == 0) {
            if (atomic_load(shunter_worker_word(
                    &served->queue, i, SHUNTER_W_WORKER_ASLEEP))) {
                ring(served, state);
            }
            return;
        }
    }
}

/* Its entries name one another, in memory that the worker reads. */
static void write_batch(
    struct shunter_served *served, uint32_t worker, struct shunter_held batch, uint64_t now_ns) {
    const struct shunter_queue *queue = &served->queue;
    const struct shunter_owner *owner = &served->owner;
    for (int32_t at = batch.first; at >= 0; at = served->waiting[at].next) {
        const uint32_t entry = (uint32_t)at;
        struct shunter_waiting *waiting = &served->waiting[entry];
        waiting->indirect = !owner->running(owner->context, entry, now_ns);
        served->indirect += waiting->indirect;
        waiting->worker = (uint8_t)worker;
        const uint32_t next = waiting->next < 0 ? 0 : (uint32_t)waiting->next;
        shunter_set(shunter_entry_word(queue, entry, SHUNTER_E_ENTRY_NEXT), next);
        shunter_set(shunter_entry_word(queue, entry, SHUNTER_E_ENTRY_ROWS), waiting->rows);
        shunter_set(shunter_entry_word(queue, entry, SHUNTER_E_ENTRY_STATUS), 0);
        shunter_set(shunter_entry_word(queue, entry, SHUNTER_E_ENTRY_EARLY_NS), 0);
    }
}

void shunter_give(
    struct shunter_served *served, uint32_t worker, struct shunter_held batch, uint64_t now_ns) {
    struct shunter_worker_state *state = &served->workers[worker];
    const struct shunter_queue *queue = &served->queue;
    write_batch(served, worker, batch, now_ns);
    const uint64_t number = ++state->given;
    if (shunter_in_flight(state) == 1) {
        state->began_ns = now_ns;
        state->disturbed = false;
        state->excused_ns = 0;
    }
    const uint32_t place = (uint32_t)(number % SHUNTER_AHEAD);
    batch.given_ns = now_ns;
    batch.in_set = state->member && shunter_set_give(state->member, batch.class, now_ns);
    state->held[place] = batch;
    shunter_set(
        shunter_worker_word(queue, worker, SHUNTER_W_BATCH_FIRST + 8 * place),
        (uint64_t)batch.first);
    shunter_set(
        shunter_worker_word(queue, worker, SHUNTER_W_BATCH_COUNT + 8 * place), batch.count);
    // Sequentially consistent, as the worker's sleep is: one of the two sees the other.
    atomic_store(shunter_worker_word(queue, worker, SHUNTER_W_BATCH_NUMBER), number);
    if (atomic_load(shunter_worker_word(queue, worker, SHUNTER_W_WORKER_ASLEEP))) {
        ring(served, state);
    }
    served->in_flight++;
    served->counts->batches++;
    served->strict_steps += batch.class == 0;
}

static _Atomic uint64_t *newest_count(const struct shunter_served *served, uint32_t worker) {
    const uint32_t place = (uint32_t)(served->workers[worker].given % SHUNTER_AHEAD);
    return shunter_worker_word(&served->queue, worker, SHUNTER_W_BATCH_COUNT + 8 * place);
}

const struct shunter_held *shunter_open_batch(
    const struct shunter_served *served, uint32_t worker) {
    const struct shunter_worker_state *state = &served->workers[worker];
    const struct shunter_held *newest = &state->held[state->given % SHUNTER_AHEAD];
    const bool is_open =
        shunter_in_flight(state) && atomic_load(newest_count(served, worker)) == newest->count;
    return is_open ? newest : NULL;
}

static void give_back(
    struct shunter_served *served, struct shunter_held batch, uint64_t now_ns) {
    for (int32_t at = batch.first; at >= 0;) {
        const int32_t next = served->waiting[at].next;
        served->indirect -= served->waiting[at].indirect;
        served->owner.returned(served->owner.context, (uint32_t)at, now_ns);
        at = next;
    }
}

void shunter_join(
    struct shunter_served *served, uint32_t worker, struct shunter_held more, uint64_t now_ns) {
    struct shunter_worker_state *state = &served->workers[worker];
    struct shunter_held *batch = &state->held[state->given % SHUNTER_AHEAD];
    const uint32_t last = (uint32_t)batch->last;
    uint64_t count = batch->count;
    write_batch(served, worker, more, now_ns);
    shunter_set(
        shunter_entry_word(&served->queue, last, SHUNTER_E_ENTRY_NEXT), (uint64_t)more.first);
    if (!atomic_compare_exchange_strong(
            newest_count(served, worker), &count, count + more.count)) {
        give_back(served, more, now_ns); // it was taken just now
        return;
    }
    served->waiting[last].next = more.first;
    batch->last = more.last;
    batch->count += more.count;
    batch->rows += more.rows;
    batch->deadline_ns = shunter_earlier(batch->deadline_ns, more.deadline_ns);
}

void shunter_nudge(struct shunter_served *served, uint32_t entry) {
    const uint32_t worker = served->waiting[entry].worker;
    if (atomic_load(shunter_worker_word(&served->queue, worker, SHUNTER_W_WORKER_ASLEEP))) {
        ring(served, &served->workers[worker]);
    }
}

/* ``done_ns``: when its worker says that it was done. */
static void finish_one(
    struct shunter_served *served, uint32_t entry, uint64_t done_ns, uint64_t now_ns, bool died) {
    const struct shunter_owner *owner = &served->owner;
    const uint64_t status =
        shunter_get(shunter_entry_word(&served->queue, entry, SHUNTER_E_ENTRY_STATUS));
    const bool direct = !served->waiting[entry].indirect;
    served->indirect -= !direct;
    if (status == SHUNTER_ENTRY_OK) {
        // Of a worker that died it is not known whether the answer left: it is sent again.
        const struct shunter_waiting *waiting = &served->waiting[entry];
        served->counts->answered++;
        shunter_count_answer(
            &served->telemetry, waiting->priority, waiting->came_ns, waiting->deadline_ns,
            direct ? done_ns : now_ns);
        owner->finished(owner->context, entry, SHUNTER_ENTRY_OK, direct && !died, now_ns);
    } else if (died && status == 0) {
        owner->died(owner->context, entry, now_ns);
        if (served->waiting[entry].class < 0) { // it does not run again
            shunter_count_failure(served, entry);
        }
    } else {
        shunter_count_failure(served, entry);
        const bool is_bad = status == SHUNTER_ENTRY_BAD;
        owner->finished(
            owner->context, entry, is_bad ? SHUNTER_ENTRY_BAD : SHUNTER_ENTRY_FAILED, false,
            now_ns);
    }
}

/* What becomes of one may be that it waits again: its ``next`` is read before. */
static void finish(
    struct shunter_served *served, struct shunter_held batch, uint64_t done_ns, uint64_t now_ns,
    bool died) {
    for (int32_t at = batch.first; at >= 0;) {
        const int32_t next = served->waiting[at].next;
        finish_one(served, (uint32_t)at, done_ns, now_ns, died);
        at = next;
    }
}

/* When a batch was done: what its worker says, if it can be. */
static uint64_t done_ns(
    const struct shunter_served *served, uint32_t worker, uint64_t began_ns, uint64_t now_ns) {
    const struct shunter_worker_state *state = &served->workers[worker];
    const uint32_t place = 8 * (uint32_t)(state->done % SHUNTER_AHEAD);
    const uint64_t said =
        shunter_get(shunter_worker_word(&served->queue, worker, SHUNTER_W_DONE_NS + place));
    return said >= began_ns && said <= now_ns ? said : now_ns;
}

/* Requests of a batch that runs whose answers its worker did not hold back for the others. */
static uint32_t finish_early(
    struct shunter_served *served, uint32_t worker, uint64_t early, uint64_t now_ns) {
    struct shunter_worker_state *state = &served->workers[worker];
    if (early == state->early || !shunter_in_flight(state)) {
        return 0;
    }
    state->early = early;
    struct shunter_held *batch = &state->held[(state->done + 1) % SHUNTER_AHEAD];
    uint32_t count = 0;
    for (int32_t at = batch->first, before = -1, next; at >= 0; at = next) {
        next = served->waiting[at].next;
        uint64_t at_ns = shunter_get(
            shunter_entry_word(&served->queue, (uint32_t)at, SHUNTER_E_ENTRY_EARLY_NS));
        // Both are the worker's word. Without a status it may still write to the entry.
        if (!at_ns || !shunter_get(shunter_entry_word(
                          &served->queue, (uint32_t)at, SHUNTER_E_ENTRY_STATUS))) {
            before = at;
            continue;
        }
        *(before < 0 ? &batch->first : &served->waiting[before].next) = next;
        batch->last = next < 0 ? before : batch->last;
        batch->count--;
        count++;
        at_ns = at_ns > state->began_ns ? at_ns : state->began_ns;
        finish_one(served, (uint32_t)at, at_ns < now_ns ? at_ns : now_ns, now_ns, false);
    }
    state->progress_ns = count ? now_ns : state->progress_ns;
    return count;
}

static void one_is_done(struct shunter_served *served, uint32_t worker, uint64_t now_ns) {
    struct shunter_worker_state *state = &served->workers[worker];
    uint64_t began_ns = state->began_ns;
    state->done++;
    served->in_flight--;
    const struct shunter_held *batch = &state->held[state->done % SHUNTER_AHEAD];
    const uint64_t at_ns = done_ns(served, worker, began_ns, now_ns);
    if (batch->in_set) {
        state->disturbed |=
            !shunter_set_end(state->member, batch->class, at_ns, now_ns, &began_ns);
    }
    const bool more = shunter_in_flight(state) > 0;
    const struct shunter_held *next = &state->held[(state->done + 1) % SHUNTER_AHEAD];
    state->free_since_ns = at_ns;
    state->began_ns = more && next->given_ns > at_ns ? next->given_ns : at_ns;
    shunter_learn(
        served, batch, state->disturbed, began_ns, more ? next->rows : 0, at_ns);
    state->disturbed = false;
    state->excused_ns = 0;
    shunter_count_batch(&served->telemetry, batch->rows);
    shunter_count_service(&served->service, batch->class, batch->rows, at_ns - began_ns);
    served->strict_steps += batch->class == 0;
    finish(served, *batch, at_ns, now_ns, false);
}

uint32_t shunter_collect(struct shunter_served *served, uint64_t now_ns) {
    uint32_t count = 0;
    for (uint32_t worker = 0; served->in_flight && worker < served->worker_count; worker++) {
        struct shunter_worker_state *state = &served->workers[worker];
        if (!state->present || !shunter_in_flight(state)) {
            continue;
        }
        // First, so that what it has answered early is of a batch that is done, or of the next.
        const uint64_t early =
            shunter_get(shunter_worker_word(&served->queue, worker, SHUNTER_W_WORKER_EARLY));
        uint64_t done =
            shunter_get(shunter_worker_word(&served->queue, worker, SHUNTER_W_DONE_NUMBER));
        // It is the worker's word: never believe more than was given.
        done = done > state->given ? state->given : done;
        for (; state->done < done; count++) {
            one_is_done(served, worker, now_ns);
        }
        count += finish_early(served, worker, early, now_ns);
    }
    return count;
}

int shunter_worker_goes(struct shunter_served *served, uint32_t worker, uint64_t now_ns) {
    if (worker >= SHUNTER_WORKER_COUNT || !served->workers[worker].present) {
        return -ENOENT;
    }
    struct shunter_worker_state *state = &served->workers[worker];
    shunter_collect(served, now_ns);
    shunter_worker_leaves_set(served, worker, now_ns);
    state->present = false;
    served->gathered_bytes +=
        shunter_get(shunter_worker_word(&served->queue, worker, SHUNTER_W_WORKER_GATHERED));
    // What it took may have run. That is its word; what it has held longest is believed to run.
    uint64_t taken =
        shunter_get(shunter_worker_word(&served->queue, worker, SHUNTER_W_WORKER_TAKEN));
    taken = taken > state->done ? taken : state->done + 1;
    while (state->done < state->given) {
        state->done++;
        served->in_flight--;
        const struct shunter_held batch = state->held[state->done % SHUNTER_AHEAD];
        if (state->done <= taken) {
            finish(served, batch, now_ns, now_ns, true);
        } else {
            give_back(served, batch, now_ns);
        }
    }
    return 0;
}
