/* A worker's answers, straight from the rings of results to the clients. */
#ifndef SHUNTER_ANSWER_H
#define SHUNTER_ANSWER_H

#include "datagrams.h"
#include "worker.h"

/*
 * Answer the batch: ``statuses`` of its entries, answers to those who are answered directly, then
 * that it is done. ``from``: results that lie elsewhere than in the rings, or NULL by tensor. Returns
 * the datagrams sent, or a negative errno (the batch is done anyway; the front end repeats what does
 * not arrive).
 */
int shunter_worker_answer(
    const struct shunter_queue *queue, uint32_t worker, const struct shunter_batch *batch,
    const uint16_t *statuses, uint8_t *const *from, struct shunter_datagrams *datagrams,
    int front_end_doorbell);

#endif
