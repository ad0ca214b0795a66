/*
 * How many segments a request has, and its answer: what their session says, or, where the function
 * is packed and each is a run of bytes of a length of its own, what this length says.
 */
#ifndef SHUNTER_RUNS_H
#define SHUNTER_RUNS_H

#include "core_parts.h"

/* Of a request that is being received, waits or runs. */
static inline uint32_t segments_of_request(const struct session *session, const struct call *call) {
    return session->packed && !session->region
        ? shunter_run_count(call->bytes, session->inputs.segment)
        : session->inputs.count;
}

static inline uint32_t segments_of_answer(const struct session *session, const struct call *call) {
    return session->packed ? shunter_run_count(call->bytes, session->outputs.segment)
                           : session->outputs.count;
}

static inline struct shunter_segment segment_of_answer(
    const struct session *session, const struct call *call, uint32_t seq) {
    return session->packed ? shunter_run_place(call->bytes, session->outputs.segment, seq)
                           : shunter_place(&session->outputs, seq);
}

#endif
