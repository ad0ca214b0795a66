#define _GNU_SOURCE
#include "worker.h"

#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <stdbool.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define MOST_OTHER 8
/* The front end rings before a large request is complete: it is worth waiting for the rest. */
#define COMING_NS 100000ULL

static uint64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000ULL + (uint64_t)now.tv_nsec;
}

/* The entries of a batch, each of which names the next. The page is another process's: nothing
 * outside of the queue must come of it. */
static bool entries_of(
    const struct shunter_queue *queue, uint64_t first, uint64_t count,
    struct shunter_batch *batch) {
    uint64_t entry = first;
    if (count < 1 || count > queue->entries) {
        return false;
    }
    batch->count = (uint32_t)count;
    batch->follow_up = 1;
    for (uint32_t i = 0; i < count; i++) {
        if (entry >= queue->entries) {
            return false;
        }
        batch->entries[i] = (uint32_t)entry;
        batch->follow_up &= entry == first + i;
        entry = shunter_get(shunter_entry_word(queue, (uint32_t)entry, SHUNTER_E_ENTRY_NEXT));
    }
    return true;
}

/* 1: a batch; 0: none yet; -1: one that cannot be. */
static int look(
    const struct shunter_queue *queue, uint32_t worker, struct shunter_wait *wait,
    struct shunter_batch *batch) {
    const uint64_t done = shunter_get(shunter_worker_word(queue, worker, SHUNTER_W_DONE_NUMBER));
    const uint64_t given =
        shunter_get(shunter_worker_word(queue, worker, SHUNTER_W_BATCH_NUMBER));
    const uint64_t number = wait->taken + 1;
    if (given < number || number - done > SHUNTER_AHEAD) {
        return 0;
    }
    const uint32_t place = 8 * (uint32_t)(number % SHUNTER_AHEAD);
    const uint64_t first =
        shunter_get(shunter_worker_word(queue, worker, SHUNTER_W_BATCH_FIRST + place));
    const uint64_t count =
        atomic_fetch_or(
            shunter_worker_word(queue, worker, SHUNTER_W_BATCH_COUNT + place),
            SHUNTER_BATCH_TAKEN) &
        ~SHUNTER_BATCH_TAKEN;
    if (!entries_of(queue, first, count, batch)) {
        return -1;
    }
    batch->number = wait->taken = number;
    batch->answered = 0;
    shunter_set(shunter_worker_word(queue, worker, SHUNTER_W_WORKER_TAKEN), number);
    return 1;
}

static int spin(
    const struct shunter_queue *queue, uint32_t worker, struct shunter_wait *wait,
    uint64_t spin_ns, struct shunter_batch *batch) {
    const uint64_t begin = spin_ns ? now_ns() : 0;
    int found = look(queue, worker, wait, batch);
    while (found == 0 && spin_ns && now_ns() - begin < spin_ns) {
        sched_yield(); // the front end may be waiting for this very core
        found = look(queue, worker, wait, batch);
    }
    return found;
}

/* Until a descriptor is ready. ``rung``: it is the doorbell. 0 or a negative errno. */
static int sleep_on(struct shunter_wait *wait, uint64_t timeout_ns, bool *rung) {
    struct pollfd fds[1 + MOST_OTHER] = {{.fd = wait->doorbell, .events = POLLIN}};
    for (uint32_t i = 0; i < wait->other_count; i++) {
        fds[1 + i] = (struct pollfd){.fd = wait->other[i], .events = POLLIN};
    }
    const struct timespec timeout = {
        .tv_sec = (time_t)(timeout_ns / 1000000000U), .tv_nsec = (long)(timeout_ns % 1000000000U)};
    const uint64_t slept_ns = now_ns();
    const int ready = ppoll(fds, 1 + wait->other_count, &timeout, NULL);
    if (ready < 0) {
        return -errno;
    }
    wait->spins = ready > 0 && now_ns() - slept_ns < wait->spin_ns;
    if (!(fds[0].revents & POLLIN)) {
        return 0;
    }
    uint64_t rings;
    *rung = read(wait->doorbell, &rings, sizeof rings) > 0;
    return *rung || errno == EAGAIN ? 0 : -errno;
}

int shunter_worker_wait(
    const struct shunter_queue *queue, uint32_t worker, struct shunter_wait *wait,
    uint64_t timeout_ns, struct shunter_batch *batch) {
    if (wait->other_count > MOST_OTHER) {
        return -EINVAL;
    }
    const uint64_t spin_ns = wait->spin_ns < timeout_ns ? wait->spin_ns : timeout_ns;
    int found = spin(queue, worker, wait, wait->spins ? spin_ns : 0, batch);
    if (found || !timeout_ns) {
        if (!found) {
            sched_yield(); // who only looks will soon look again
        }
        return found < 0 ? -EPROTO : found;
    }
    wait->spins = 0; // it was not worth it
    _Atomic uint64_t *asleep = shunter_worker_word(queue, worker, SHUNTER_W_WORKER_ASLEEP);
    atomic_store(asleep, 1); // before the last look, so that one of the two sees the other
    found = look(queue, worker, wait, batch);
    bool rung = false;
    const int result = found ? 0 : sleep_on(wait, timeout_ns, &rung);
    shunter_set(asleep, 0);
    if (!found && result == 0) {
        found = spin(queue, worker, wait, rung ? COMING_NS : 0, batch);
    }
    return found ? (found > 0 ? 1 : -EPROTO) : result;
}

/* ---- inputs */

/* The input of one entry, each tensor into its row. */
static bool gather_one(
    const struct shunter_queue *queue, const struct shunter_region *regions, uint32_t entry,
    uint32_t row, uint8_t *const *into, uint64_t *copied) {
    const struct shunter_piece *piece = shunter_pieces_of(queue, entry);
    const uint64_t count = shunter_get(shunter_entry_word(queue, entry, SHUNTER_E_ENTRY_PIECES));
    uint32_t tensor = 0, at = 0; // what comes next, and of its bytes
    if (count > queue->most_pieces) {
        return false;
    }
    for (uint64_t i = 0; i < count; i++) {
        const struct shunter_piece here = piece[i];
        if (here.length == 0) {
            continue; // of a tensor without bytes
        }
        while (tensor < queue->input_count && at == queue->input_bytes[tensor]) {
            tensor++;
            at = 0;
        }
        const struct shunter_region *region =
            here.region < SHUNTER_REGIONS ? &regions[here.region] : NULL;
        if (!region || !region->base || here.offset > region->bytes ||
            here.length > region->bytes - here.offset || tensor == queue->input_count ||
            here.length > queue->input_bytes[tensor] - at) {
            return false;
        }
        memcpy(
            into[tensor] + (size_t)row * queue->input_bytes[tensor] + at,
            region->base + here.offset, here.length);
        at += here.length;
        *copied += here.length;
    }
    while (tensor < queue->input_count && at == queue->input_bytes[tensor]) {
        tensor++;
        at = 0;
    }
    return tensor == queue->input_count;
}

int shunter_worker_gather(
    const struct shunter_queue *queue, uint32_t worker, const struct shunter_region *regions,
    const uint32_t *entries, uint32_t count, uint8_t *const *into) {
    _Atomic uint64_t *word = shunter_worker_word(queue, worker, SHUNTER_W_WORKER_GATHERED);
    uint64_t copied = shunter_get(word);
    bool is_right = true;
    for (uint32_t row = 0; row < count && is_right; row++) {
        is_right = gather_one(queue, regions, entries[row], row, into, &copied);
    }
    shunter_set(word, copied);
    return is_right ? 0 : -EPROTO;
}

/* ---- results */

void shunter_worker_scatter(
    const struct shunter_queue *queue, const uint32_t *entries, uint32_t count,
    uint8_t *const *from) {
    for (uint32_t tensor = 0; tensor < queue->output_count; tensor++) {
        const size_t size = queue->output_bytes[tensor];
        for (uint32_t row = 0; row < count && size && from[tensor]; row++) {
            memcpy(
                queue->outputs[tensor] + entries[row] * size, from[tensor] + row * size, size);
        }
    }
}

/* ``wanted``: the owner has to know at once what was written before this. */
static int tell_owner(const struct shunter_queue *queue, int owner_doorbell, int wanted) {
    wanted = wanted || atomic_load(shunter_front_end_word(queue, SHUNTER_Q_FRONT_END_WANTS_DONE));
    if (wanted && atomic_load(shunter_front_end_word(queue, SHUNTER_Q_FRONT_END_ASLEEP))) {
        const uint64_t ring = 1;
        if (write(owner_doorbell, &ring, sizeof ring) < 0 && errno != EAGAIN) {
            return -errno;
        }
    }
    return 0;
}

int shunter_worker_done(
    const struct shunter_queue *queue, uint32_t worker, const struct shunter_batch *batch,
    int owner_doorbell, int wanted) {
    const uint32_t place = 8 * (uint32_t)(batch->number % SHUNTER_AHEAD);
    shunter_set(shunter_worker_word(queue, worker, SHUNTER_W_DONE_NS + place), now_ns());
    // Sequentially consistent, as the owner's wish and sleep are: one sees the other.
    atomic_store(shunter_worker_word(queue, worker, SHUNTER_W_DONE_NUMBER), batch->number);
    return tell_owner(queue, owner_doorbell, wanted);
}

int shunter_worker_early(
    const struct shunter_queue *queue, uint32_t worker, struct shunter_batch *batch,
    uint32_t count, int owner_doorbell, int wanted) {
    _Atomic uint64_t *early = shunter_worker_word(queue, worker, SHUNTER_W_WORKER_EARLY);
    const uint64_t now = now_ns();
    for (; count; count--, batch->answered++) {
        const uint32_t entry = batch->entries[batch->answered];
        shunter_set(shunter_entry_word(queue, entry, SHUNTER_E_ENTRY_EARLY_NS), now);
    }
    atomic_store(early, shunter_get(early) + 1); // as above
    return tell_owner(queue, owner_doorbell, wanted);
}
