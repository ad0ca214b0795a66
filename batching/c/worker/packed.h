/*
 * The worker's end of packed requests: runs of bytes as batching/queue/packed.py describes them.
 *
 * What runs say is a table, of each entry a row as batching/c/packed/packed_run.h has it; with 0 rows
 * the run is malformed.
 */
#ifndef SHUNTER_PACKED_H
#define SHUNTER_PACKED_H

#include "packed_run.h"
#include "worker.h"

/*
 * Copy and check what the requests of these entries say they are; a row of ``table`` for each, 0 all
 * over for a malformed one. The good ones, or -EPROTO when pieces lie nowhere or are not as long as
 * their entry.
 */
int shunter_packed_read(
    const struct shunter_queue *queue, uint32_t worker, const struct shunter_region *regions,
    const struct shunter_packed *packed, const uint32_t *entries, uint32_t count,
    uint64_t *table);

/* Rows of all requests; ``sizes``: the largest of each dimension. */
uint64_t shunter_packed_largest(
    const struct shunter_packed *packed, const uint64_t *table, uint32_t count,
    uint64_t *sizes);

/*
 * Copy tensors to where they belong, each byte once. ``into``: for each tensor the address of the
 * first request's, NULL: not this one. Those of the others follow: where ``padded`` has the sizes of
 * all dimensions there, row behind row, and what a request has not becomes 0; else, and byte strings
 * always, as they are, with their lengths, each at a multiple of SHUNTER_PACKED_ALIGN. 0, -EPROTO or
 * -EINVAL.
 */
int shunter_packed_gather(
    const struct shunter_queue *queue, uint32_t worker, const struct shunter_region *regions,
    const struct shunter_packed *packed, const uint32_t *entries, uint32_t count,
    const uint64_t *table, uint8_t *const *into, const uint64_t *padded);

/*
 * The byte strings of a tensor that was gathered at ``content``: begin and end of each there, one
 * behind the other. A request whose strings are not exactly its bytes has no rows any more, and none
 * here. How many there are.
 */
uint64_t shunter_packed_strings(
    const struct shunter_packed *packed, uint64_t *table, uint32_t count, uint32_t tensor,
    const uint8_t *content, uint64_t *places);

/*
 * Make the answers of entries where they are sent from: header and tensors of each as its row of
 * ``table`` says, but where a tensor lies it is told there. ``from``: for each entry and tensor where
 * it is, 0: it will be written there. An answer without rows is left out; one that has no room loses
 * its rows. How many lost them.
 */
uint32_t shunter_packed_put(
    const struct shunter_queue *queue, const struct shunter_packed *packed,
    const uint32_t *entries, uint32_t count, uint64_t *table, const uint64_t *from);

#endif
