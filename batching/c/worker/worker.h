/* The worker's end of a tensor queue: wait for a batch, bring its inputs together, say it is done. */
#ifndef SHUNTER_WORKER_H
#define SHUNTER_WORKER_H

#include "queue.h"

#define SHUNTER_REGIONS 128

/* Where pieces lie, by their region; as this process has mapped it. */
struct shunter_region {
    const uint8_t *base; /* NULL: none */
    uint64_t bytes;
};

struct shunter_batch {
    uint32_t *entries; /* room for as many as the queue has */
    uint32_t count;
    uint32_t follow_up; /* 1: they lie one behind the other in the rings of results */
    uint64_t number;
    uint32_t answered; /* of its entries the first so many: they are not the worker's any more */
};

struct shunter_wait {
    const int *other; /* descriptors that the caller also waits for */
    uint32_t other_count;
    int32_t doorbell;
    uint64_t spin_ns; /* how long it may look again and again */
    uint64_t spins;   /* not 0: waits are short at present */
    uint64_t taken;   /* batches taken so far; up to SHUNTER_AHEAD of them are held, not yet done */
};

/*
 * Wait for the next batch: by looking, while waits are shorter than ``spin_ns``, else by sleeping on
 * the doorbell and on ``other``, for ``timeout_ns`` at most; 0: one look. Returns 1 with a batch,
 * which may have run from now on, 0 when something else is up (a descriptor is ready, the time is
 * over, as many as may be held are held), or a negative errno.
 */
int shunter_worker_wait(
    const struct shunter_queue *queue, uint32_t worker, struct shunter_wait *wait,
    uint64_t timeout_ns, struct shunter_batch *batch);

/*
 * Bring the inputs of entries together, each byte copied once: tensor t of the entry i becomes row i
 * at ``into[t]``. 0; -EPROTO when the pieces of an entry are not its tensors, or lie nowhere.
 */
int shunter_worker_gather(
    const struct shunter_queue *queue, uint32_t worker, const struct shunter_region *regions,
    const uint32_t *entries, uint32_t count, uint8_t *const *into);

/*
 * Put results where they are sent from: row i at ``from[t]`` into the ring of tensor t, at the
 * entry i. NULL: they are there.
 */
void shunter_worker_scatter(
    const struct shunter_queue *queue, const uint32_t *entries, uint32_t count,
    uint8_t *const *from);

/* The batch is done, with what stands in its entries; ``wanted``: its owner has to know at once. 0
 * or a negative errno. */
int shunter_worker_done(
    const struct shunter_queue *queue, uint32_t worker, const struct shunter_batch *batch,
    int owner_doorbell, int wanted);

/* The next ``count`` entries of a batch that goes on are answered; else as above. */
int shunter_worker_early(
    const struct shunter_queue *queue, uint32_t worker, struct shunter_batch *batch,
    uint32_t count, int owner_doorbell, int wanted);

#endif
