/*
 * The worker's end of answers in parts. A request's entry names, one after the other, entries that are
 * places for its parts: up to SHUNTER_PARTS_AHEAD that have none yet.
 */
#ifndef SHUNTER_PARTS_H
#define SHUNTER_PARTS_H

#include "worker.h"

/*
 * The entry that is the place of the part after the first ``written`` ones; -EAGAIN: there is none
 * yet; -ECANCELED: nobody waits for this answer any more; -EPROTO for what makes no sense.
 */
int shunter_part_place(
    const struct shunter_queue *queue, uint32_t entry, uint64_t written);

/* The part of this number (1: the first) is in its place. 0 or a negative errno. */
int shunter_part_is_there(
    const struct shunter_queue *queue, uint32_t entry, uint64_t number, int owner_doorbell);

/* After so many parts none follows, though its batch goes on. 0 or a negative errno. */
int shunter_parts_are_over(
    const struct shunter_queue *queue, uint32_t entry, uint64_t written, int owner_doorbell);

/* The same, because its client took them too slowly. */
int shunter_parts_are_late(
    const struct shunter_queue *queue, uint32_t entry, uint64_t written, int owner_doorbell);

/*
 * Sleep until one of these entries, of which so many parts are written, has a place for the next, or
 * is not wanted any more: 1; 0: the time is over, or something may have changed; -ECONNRESET when the
 * other end of ``wait``'s first descriptor is gone, or another negative errno.
 */
int shunter_parts_wait(
    const struct shunter_queue *queue, uint32_t worker, const struct shunter_wait *wait,
    const uint32_t *entries, const uint64_t *written, uint32_t count, uint64_t timeout_ns);

#endif
