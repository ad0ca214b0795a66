/* The description of a model's tensors in a HELLO_ACK, which is JSON. */
#ifndef SHUNTER_TENSORS_H
#define SHUNTER_TENSORS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "packed_run.h"
#include "shunter_client.h"

struct shunter_tensors {
    unsigned input_count, output_count;
    struct shunter_tensor inputs[SHUNTER_MOST_TENSORS], outputs[SHUNTER_MOST_TENSORS];
    bool packed;
    struct shunter_packing packing;
};

/* Requests, or answers, as packed_run.h wants them described. */
struct shunter_side {
    struct shunter_packed packed;
    uint32_t item[SHUNTER_MOST_TENSORS], ndim[SHUNTER_MOST_TENSORS];
    int64_t shape[SHUNTER_MOST_TENSORS * SHUNTER_MOST_DIMENSIONS];
};

/* Words of a row, at most. */
#define SHUNTER_MOST_WORDS \
    (1 + 2 * SHUNTER_MOST_TENSORS + SHUNTER_MOST_TENSORS * SHUNTER_MOST_DIMENSIONS)

/* False: it is not such a description, or one of more than this client takes. */
bool shunter_parse_tensors(const char *text, size_t length, struct shunter_tensors *tensors);

/* ---- packed.c */

/* Bytes of an element by its type's name, 0: byte strings have any, UINT64_MAX: not known. */
uint64_t shunter_item_bytes(const char *dtype);
/* Of a tensor, 0 where requests differ in that; false: they are too many. */
bool shunter_set_bytes(struct shunter_tensor *tensor);
/* Whether requests, or answers, may differ in the sizes of these tensors. */
bool shunter_varies(const struct shunter_tensor *tensors, unsigned count);
/* ``most_rows``: of a request. */
void shunter_make_side(
    struct shunter_side *side, const struct shunter_tensor *tensors, unsigned count,
    uint32_t most_rows);
/* Bytes of the shortest run of these tensors. */
uint64_t shunter_least_run(const struct shunter_tensor *tensors, unsigned count);

#endif
