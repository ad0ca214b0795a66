/* Batches on their way: to workers, and back. */
#include <string.h>
#include <unistd.h>

#include "dispatch.h"

static void ring(struct shunter_served *served, const struct shunter_worker_state *state) {
    const uint64_t one = 1;
    served->stats->rings++;
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

void shunter_give(
    struct shunter_served *served, uint32_t worker, struct shunter_held run, uint64_t now_ns) {
    struct shunter_worker_state *state = &served->workers[worker];
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
    const uint64_t number = ++state->given;
    if (shunter_in_flight(state) == 1) {
        state->began_ns = now_ns;
    }
    const uint32_t place = (uint32_t)(number % SHUNTER_AHEAD);
    state->held[place] = run;
    shunter_set(
        shunter_worker_word(queue, worker, SHUNTER_W_BATCH_FIRST + 8 * place), run.first);
    shunter_set(
        shunter_worker_word(queue, worker, SHUNTER_W_BATCH_COUNT + 8 * place), run.count);
    // Sequentially consistent, as the worker's sleep is: one of the two sees the other.
    atomic_store(shunter_worker_word(queue, worker, SHUNTER_W_BATCH_NUMBER), number);
    if (atomic_load(shunter_worker_word(queue, worker, SHUNTER_W_WORKER_ASLEEP))) {
        ring(served, state);
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
    for (uint32_t worker = 0; served->in_flight && worker < served->worker_count; worker++) {
        struct shunter_worker_state *state = &served->workers[worker];
        if (!state->present || !shunter_in_flight(state)) {
            continue;
        }
        uint64_t done =
            shunter_get(shunter_worker_word(&served->queue, worker, SHUNTER_W_DONE_NUMBER));
        // It is the worker's word: never believe more than was given.
        done = done > state->given ? state->given : done;
        while (state->done < done) {
            state->done++;
            state->began_ns = now_ns;
            served->in_flight--;
            batches++;
            finish(served, state->held[state->done % SHUNTER_AHEAD], now_ns, false);
        }
    }
    return batches;
}

void shunter_worker_gone(struct shunter_served *served, uint32_t worker, uint64_t now_ns) {
    struct shunter_worker_state *state = &served->workers[worker];
    shunter_collect(served, now_ns);
    state->present = false;
    for (bool running = true; state->done < state->given; running = false) {
        state->done++;
        served->in_flight--;
        const struct shunter_held run = state->held[state->done % SHUNTER_AHEAD];
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
