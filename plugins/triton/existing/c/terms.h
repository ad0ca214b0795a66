/* What a request says of itself. */
#ifndef SHUNTER_STRATEGY_TERMS_H
#define SHUNTER_STRATEGY_TERMS_H

#include "batcher.h"
#include "rule.h"

/* Rows, class and deadline of a request that is seen for the first time. */
struct strategy_candidate strategy_terms(
    const struct strategy_numbers *numbers, TRITONBACKEND_Request *request, uint64_t now_ns);

#endif
