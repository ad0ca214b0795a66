/* Sequences of requests: what the server knows of them reaches handlers that have inputs for it. */
#include <string.h>

#include "backend.h"

static const struct {
    const char *name;
    uint64_t dtype, other_dtype, bytes;
} INPUTS[SHUNTER_SEQUENCE_INPUTS] = {
    {"sequence_id", TRITON_UINT64, TRITON_INT64, sizeof(uint64_t)},
    {"sequence_start", TRITON_BOOLEAN, TRITON_BOOLEAN, 1},
    {"sequence_end", TRITON_BOOLEAN, TRITON_BOOLEAN, 1},
};

/* One number for each row; how many rows there are another input says, which comes before. */
static uint8_t input_of(const struct control_function *told, uint32_t tensor) {
    const bool is_one =
        !told->dims[tensor] ||
        (told->dims[tensor] == 1 && told->shape[tensor * SHUNTER_CONTROL_DIMS] == 1);
    for (uint8_t i = 0; tensor > 0 && is_one && i < SHUNTER_SEQUENCE_INPUTS; i++) {
        if (!strcmp(told->names + 64 * tensor, INPUTS[i].name) &&
            (told->dtype[tensor] == INPUTS[i].dtype ||
             told->dtype[tensor] == INPUTS[i].other_dtype) &&
            told->bytes[tensor] == INPUTS[i].bytes) {
            return i + 1;
        }
    }
    return SHUNTER_NO_SEQUENCE;
}

void shunter_find_sequence_inputs(
    struct shunter_function *function, const struct control_function *told) {
    function->asks_for_sequence = false;
    for (uint32_t tensor = 0; tensor < SHUNTER_MAX_TENSORS; tensor++) {
        function->sequence[tensor] = tensor < told->inputs ? input_of(told, tensor) : 0;
        function->asks_for_sequence |= function->sequence[tensor] != 0;
    }
}

bool shunter_read_sequence(struct shunter_call *call) {
    uint32_t flags = 0;
    TRITONSERVER_Error *error =
        TRITONBACKEND_RequestCorrelationId(call->request, &call->sequence[0]);
    if (error) {
        TRITONSERVER_ErrorDelete(error);
        return shunter_wrong(
            call, SHUNTER_END_WRONG, "sequence_id; this model takes numbers, no texts");
    }
    error = TRITONBACKEND_RequestFlags(call->request, &flags);
    if (error) {
        TRITONSERVER_ErrorDelete(error);
    }
    call->sequence[SHUNTER_SEQUENCE_START - 1] = (flags & TRITON_SEQUENCE_START) != 0;
    call->sequence[SHUNTER_SEQUENCE_END - 1] = (flags & TRITON_SEQUENCE_END) != 0;
    return true;
}
