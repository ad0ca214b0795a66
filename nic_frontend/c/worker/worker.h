/* The worker's end of a tensor queue: wait for a batch, send the answers. */
#ifndef SHUNTER_WORKER_H
#define SHUNTER_WORKER_H

#include <stdint.h>

#include "datagrams.h"
#include "queue.h"

struct shunter_batch {
    uint32_t first;
    uint32_t count;
    uint64_t number;
    uint64_t spins; /* not 0: waits are short at present */
};

/*
 * Wait for the next batch: by looking, while waits are shorter than ``spin_ns``, else by sleeping on the doorbell and on
 * ``other``, descriptors that the caller also waits for. Returns 1 with a batch, 0 when something
 * else is up (a descriptor is ready, the time is over), or a negative errno.
 */
int shunter_worker_wait(
    const struct shunter_queue *queue, uint32_t worker, int doorbell, const int *other,
    uint32_t other_count, uint64_t spin_ns, int timeout_ms, struct shunter_batch *batch);

/*
 * Answer the batch: ``statuses`` by entry, answers straight from the output entries to those who
 * are answered directly, then the word that says that it is done, and the front end's doorbell if
 * it wants to know. Returns the datagrams sent, or a negative errno (the batch is done anyway; the
 * front end repeats what does not arrive).
 */
int shunter_worker_answer(
    const struct shunter_queue *queue, uint32_t worker, const struct shunter_batch *batch,
    const uint16_t *statuses, struct shunter_datagrams *datagrams, int front_end_doorbell);

#endif
