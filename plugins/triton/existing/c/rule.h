/*
 * Whether a request joins the batch that is being formed. Pure: numbers in, numbers out; the server
 * asks in the order of its queue, and the first refusal seals the batch.
 */
#ifndef SHUNTER_RULE_H
#define SHUNTER_RULE_H

#include <stdbool.h>
#include <stdint.h>

/* What the controller says; all zero: nothing, so that the server forms batches as it does. */
struct strategy_numbers {
    uint64_t cap;            /* most rows of a batch, 0: as many as the server takes */
    uint64_t apart;          /* 1: strict and best-effort requests in different batches */
    uint64_t class;          /* of requests that name none */
    uint64_t slo_ns;         /* deadline of strict requests that have none, 0: none */
    uint64_t fixed_ns;       /* a batch of n rows takes fixed + n * per_row; both 0: not known */
    uint64_t per_row_ns;
    uint64_t waited_ns;      /* how long a request has usually waited when it is asked about */
};

struct strategy_candidate {
    uint64_t rows;        /* at least 1 */
    uint64_t deadline_ns; /* a point in time, 0: none */
    uint8_t class;        /* 0: strict */
};

struct strategy_batch {
    uint64_t rows; /* 0: nothing is in it, so that whoever comes first goes in */
    uint64_t tightest_ns; /* earliest deadline that can be kept, 0: none */
    uint8_t class;
};

bool strategy_includes(
    const struct strategy_numbers *numbers, const struct strategy_batch *batch,
    const struct strategy_candidate *candidate, uint64_t now_ns);

/* Puts it in. */
void strategy_include(
    const struct strategy_numbers *numbers, struct strategy_batch *batch,
    const struct strategy_candidate *candidate, uint64_t now_ns);

#endif
