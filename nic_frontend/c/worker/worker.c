#define _GNU_SOURCE
#include "worker.h"

#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <stdbool.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "segments.h"
#include "siphash.h"

#define MOST_OTHER 8
/* The front end rings before a large request is complete: it is worth waiting for the rest. */
#define COMING_NS 100000ULL

static uint64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000ULL + (uint64_t)now.tv_nsec;
}

/* 1: a batch; 0: none yet; -1: one that cannot be. */
static int look(
    const struct shunter_queue *queue, uint32_t worker, struct shunter_batch *batch) {
    const uint64_t done = shunter_get(shunter_worker_word(queue, worker, SHUNTER_W_DONE_NUMBER));
    const uint64_t given =
        shunter_get(shunter_worker_word(queue, worker, SHUNTER_W_BATCH_NUMBER));
    if (given > done) {
        const uint32_t place = 8 * (uint32_t)((done + 1) % SHUNTER_AHEAD);
        batch->number = done + 1;
        batch->first = (uint32_t)shunter_get(
            shunter_worker_word(queue, worker, SHUNTER_W_BATCH_FIRST + place));
        batch->count = (uint32_t)shunter_get(
            shunter_worker_word(queue, worker, SHUNTER_W_BATCH_COUNT + place));
        // The page is another process's: a view outside of the rings must not come of it.
        return batch->first < queue->entries && batch->count >= 1 &&
                       batch->count <= queue->entries
                   ? 1
                   : -1;
    }
    return 0;
}

static int spin(
    const struct shunter_queue *queue, uint32_t worker, uint64_t spin_ns,
    struct shunter_batch *batch) {
    const uint64_t begin = spin_ns ? now_ns() : 0;
    int found = look(queue, worker, batch);
    while (found == 0 && spin_ns && now_ns() - begin < spin_ns) {
        sched_yield(); // the front end may be waiting for this very core
        found = look(queue, worker, batch);
    }
    return found;
}

int shunter_worker_wait(
    const struct shunter_queue *queue, uint32_t worker, int doorbell, const int *other,
    uint32_t other_count, uint64_t spin_ns, int timeout_ms, struct shunter_batch *batch) {
    if (other_count > MOST_OTHER) {
        return -EINVAL;
    }
    int found = spin(queue, worker, batch->spins ? spin_ns : 0, batch);
    if (found) {
        return found > 0;
    }
    batch->spins = 0; // it was not worth it
    _Atomic uint64_t *asleep = shunter_worker_word(queue, worker, SHUNTER_W_WORKER_ASLEEP);
    atomic_store(asleep, 1); // before the last look, so that one of the two sees the other
    found = look(queue, worker, batch);
    int result = 0;
    bool rung = false;
    if (!found) {
        struct pollfd fds[1 + MOST_OTHER] = {{.fd = doorbell, .events = POLLIN}};
        for (uint32_t i = 0; i < other_count; i++) {
            fds[1 + i] = (struct pollfd){.fd = other[i], .events = POLLIN};
        }
        const uint64_t slept_ns = now_ns();
        const int ready = poll(fds, 1 + other_count, timeout_ms);
        batch->spins = ready > 0 && now_ns() - slept_ns < spin_ns;
        uint64_t rings;
        if (ready < 0) {
            result = -errno;
        } else if (fds[0].revents & POLLIN) {
            rung = read(doorbell, &rings, sizeof rings) > 0;
            result = rung || errno == EAGAIN ? 0 : -errno;
        }
    }
    shunter_set(asleep, 0);
    if (!found && result == 0) {
        found = rung ? spin(queue, worker, COMING_NS, batch) : look(queue, worker, batch);
    }
    return found > 0 ? 1 : result;
}

static void send_entry(
    const struct shunter_queue *queue, uint32_t entry, struct shunter_datagrams *datagrams) {
    uint64_t whom[6]; // req_id, session, flags, segment, pkt_no, credit
    memcpy(whom, shunter_entry_bytes(queue, entry, SHUNTER_E_ENTRY_REQ_ID), sizeof whom);
    const uint8_t *peer = shunter_entry_bytes(queue, entry, SHUNTER_E_ENTRY_PEER);
    const bool tagged = whom[2] & SHUNTER_FLAG_HDR_TAG;
    const uint8_t *key = shunter_entry_bytes(queue, entry, SHUNTER_E_ENTRY_KEY);
    struct shunter_plan plan;
    if (whom[3] < 1 || whom[3] > UINT16_MAX ||
        shunter_make_plan(
            &plan, queue->output_bytes, queue->output_count, (uint32_t)whom[3]) != 0) {
        return;
    }
    for (uint32_t seq = 0; seq < plan.count; seq++) {
        const struct shunter_segment segment = shunter_place(&plan, seq);
        const size_t size = queue->output_bytes[segment.tensor];
        struct shunter_x64 header = {
            .magic = SHUNTER_WIRE_MAGIC,
            .version = SHUNTER_WIRE_VERSION,
            .type = SHUNTER_TYPE_RESP,
            .flags = (uint16_t)((tagged ? SHUNTER_FLAG_HDR_TAG : 0) |
                                (seq + 1 < plan.count
                                     ? 0
                                     : SHUNTER_FLAG_LAST | (whom[2] & SHUNTER_FLAG_ACK_REQ))),
            .words = SHUNTER_HEADER_BYTES / 8,
            .req_id = whom[0],
            .func_id = (uint16_t)queue->func_id,
            .seq = (uint16_t)seq,
            .count = (uint16_t)plan.count,
            .length = (uint16_t)segment.length,
            .total = (uint32_t)size,
            .offset = segment.offset,
            .session = (uint32_t)whom[1],
            .credit = (uint32_t)whom[5],
            .status = SHUNTER_STATUS_OK,
            .tensor = segment.tensor,
            .pkt_no = (uint32_t)whom[4] + seq};
        if (tagged) {
            header.tag = shunter_siphash24(key, &header, SHUNTER_TAG_OFFSET);
        }
        const uint8_t *payload = segment.length
            ? queue->outputs[segment.tensor] + entry * size + segment.offset
            : NULL;
        shunter_datagrams_add(datagrams, &header, payload, segment.length, peer, 0);
    }
}

int shunter_worker_answer(
    const struct shunter_queue *queue, uint32_t worker, const struct shunter_batch *batch,
    const uint16_t *statuses, struct shunter_datagrams *datagrams, int front_end_doorbell) {
    const uint64_t sent = datagrams->sent;
    bool all_good = true;
    datagrams->error = 0;
    for (uint32_t i = 0; i < batch->count; i++) {
        const uint32_t entry = (batch->first + i) % queue->entries;
        // First, so that an answer that was sent is never followed by an error.
        shunter_set(shunter_entry_word(queue, entry, SHUNTER_E_ENTRY_STATUS), statuses[i]);
        if (statuses[i] != SHUNTER_STATUS_OK) {
            all_good = false;
        } else if (shunter_get(shunter_entry_word(queue, entry, SHUNTER_E_ENTRY_DIRECT))) {
            send_entry(queue, entry, datagrams);
        }
    }
    shunter_datagrams_flush(datagrams);
    // Sequentially consistent, as the front end's wish and sleep are: one sees the other.
    atomic_store(shunter_worker_word(queue, worker, SHUNTER_W_DONE_NUMBER), batch->number);
    const bool wanted =
        !all_good ||
        atomic_load(shunter_front_end_word(queue, SHUNTER_Q_FRONT_END_WANTS_DONE));
    if (wanted && atomic_load(shunter_front_end_word(queue, SHUNTER_Q_FRONT_END_ASLEEP))) {
        const uint64_t ring = 1;
        if (write(front_end_doorbell, &ring, sizeof ring) < 0 && errno != EAGAIN) {
            return -errno;
        }
    }
    return datagrams->error ? datagrams->error : (int)(datagrams->sent - sent);
}
