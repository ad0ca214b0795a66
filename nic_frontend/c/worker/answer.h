/* A worker's answers, straight from the rings of results to the clients. */
#ifndef SHUNTER_ANSWER_H
#define SHUNTER_ANSWER_H

#include "datagrams.h"
#include "worker.h"

/*
 * Answer what is left of the batch: ``statuses`` of its entries, answers to those who are answered directly, then
 * that it is done. ``from``: results that lie elsewhere than in the rings, or NULL by tensor. Returns
 * the datagrams sent, or a negative errno (the batch is done anyway; the front end repeats what does
 * not arrive).
 */
int shunter_worker_answer(
    const struct shunter_queue *queue, uint32_t worker, const struct shunter_batch *batch,
    const uint16_t *statuses, uint8_t *const *from, struct shunter_datagrams *datagrams,
    int front_end_doorbell);

/* The same of the next ``count`` entries of a batch that goes on; their results are in the rings. */
int shunter_worker_answer_early(
    const struct shunter_queue *queue, uint32_t worker, struct shunter_batch *batch,
    uint32_t count, const uint16_t *statuses, struct shunter_datagrams *datagrams,
    int front_end_doorbell);

#endif
