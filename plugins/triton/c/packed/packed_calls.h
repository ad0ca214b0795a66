/* Requests and answers that are runs of bytes (packed_requests.c, packed_answers.c). */
#ifndef SHUNTER_TRITON_PACKED_CALLS_H
#define SHUNTER_TRITON_PACKED_CALLS_H

#include "backend.h"

void shunter_make_forms(struct shunter_function *function, const struct control_function *told);
/* Where the tensors of a request, which are right, lie in its runs; its dimensions are those of each
 * tensor behind one another. False: ``call`` says what is wrong. */
bool shunter_lay_out(const struct shunter_function *function, struct shunter_call *call);
/* As shunter_fill. */
bool shunter_fill_runs(const struct shunter_function *function, struct shunter_call *call);

/* What the answers of a call say, a row of packed_run.h for each entry; the caller frees it. NULL: see
 * ``error``. */
uint64_t *shunter_read_answers(
    const struct shunter_function *function, const struct shunter_call *call,
    TRITONSERVER_Error **error);
/* Why a request failed, in the words of a worker; NULL: it says nothing. */
TRITONSERVER_Error *shunter_read_refusal(
    const struct shunter_function *function, const struct shunter_call *call);
/* The output of that number. */
TRITONSERVER_Error *shunter_write_run_output(
    const struct shunter_function *function, const struct shunter_call *call,
    TRITONBACKEND_Response *response, uint32_t number, const uint64_t *answers);

#endif
