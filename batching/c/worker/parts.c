#define _GNU_SOURCE
#include "parts.h"

#include <errno.h>
#include <poll.h>
#include <stdbool.h>
#include <time.h>
#include <unistd.h>

int shunter_part_place(
    const struct shunter_queue *queue, uint32_t entry, uint64_t written) {
    // Sequentially consistent: this is also the last look before the worker sleeps.
    if (atomic_load(shunter_entry_word(queue, entry, SHUNTER_E_ENTRY_UNWANTED))) {
        return -ECANCELED;
    }
    const uint64_t given = atomic_load(shunter_entry_word(queue, entry, SHUNTER_E_ENTRY_GIVEN));
    if (given == written) {
        return -EAGAIN;
    }
    if (given - written > SHUNTER_PARTS_AHEAD) { // also less than that
        return -EPROTO;
    }
    const uint32_t at = 8 * (uint32_t)(written % SHUNTER_PARTS_AHEAD);
    const uint64_t place =
        shunter_get(shunter_entry_word(queue, entry, SHUNTER_E_ENTRY_PLACES + at));
    return place < queue->entries ? (int)place : -EPROTO;
}

static int say(
    const struct shunter_queue *queue, uint32_t entry, uint64_t parts, int owner_doorbell) {
    // Sequentially consistent, as the owner's sleep is: one of the two sees the other.
    atomic_store(shunter_entry_word(queue, entry, SHUNTER_E_ENTRY_PARTS), parts);
    if (atomic_load(shunter_front_end_word(queue, SHUNTER_Q_FRONT_END_ASLEEP))) {
        const uint64_t ring = 1;
        if (write(owner_doorbell, &ring, sizeof ring) < 0 && errno != EAGAIN) {
            return -errno;
        }
    }
    return 0;
}

int shunter_part_is_there(
    const struct shunter_queue *queue, uint32_t entry, uint64_t number, int owner_doorbell) {
    return say(queue, entry, number, owner_doorbell);
}

int shunter_parts_are_over(
    const struct shunter_queue *queue, uint32_t entry, uint64_t written, int owner_doorbell) {
    return say(queue, entry, written | SHUNTER_PARTS_ARE_OVER, owner_doorbell);
}

int shunter_parts_are_late(
    const struct shunter_queue *queue, uint32_t entry, uint64_t written, int owner_doorbell) {
    return say(
        queue, entry, written | SHUNTER_PARTS_ARE_OVER | SHUNTER_PARTS_ARE_LATE, owner_doorbell);
}

static bool any(
    const struct shunter_queue *queue, const uint32_t *entries, const uint64_t *written,
    uint32_t count) {
    bool found = false;
    for (uint32_t i = 0; i < count; i++) {
        found = found || shunter_part_place(queue, entries[i], written[i]) != -EAGAIN;
    }
    return found;
}

/* Until the doorbell rings, or the other end is gone. */
static int sleep_on(const struct shunter_wait *wait, uint64_t timeout_ns) {
    struct pollfd fds[2] = {
        {.fd = wait->doorbell, .events = POLLIN},
        {.fd = wait->other_count ? wait->other[0] : -1, .events = POLLRDHUP}};
    const struct timespec timeout = {
        .tv_sec = (time_t)(timeout_ns / 1000000000U), .tv_nsec = (long)(timeout_ns % 1000000000U)};
    if (ppoll(fds, 2, &timeout, NULL) < 0) {
        return errno == EINTR ? 0 : -errno;
    }
    uint64_t rings;
    if (fds[0].revents & POLLIN && read(wait->doorbell, &rings, sizeof rings) < 0 &&
        errno != EAGAIN) {
        return -errno;
    }
    return fds[1].revents ? -ECONNRESET : 0;
}

int shunter_parts_wait(
    const struct shunter_queue *queue, uint32_t worker, const struct shunter_wait *wait,
    const uint32_t *entries, const uint64_t *written, uint32_t count, uint64_t timeout_ns) {
    _Atomic uint64_t *asleep = shunter_worker_word(queue, worker, SHUNTER_W_WORKER_ASLEEP);
    atomic_store(asleep, 1); // before the last look, so that one of the two sees the other
    int result = 0;
    if (!any(queue, entries, written, count)) {
        result = sleep_on(wait, timeout_ns);
    }
    shunter_set(asleep, 0);
    return result ? result : any(queue, entries, written, count);
}
