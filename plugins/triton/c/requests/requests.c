/* What stands in a request: its tensors. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "packed_calls.h"

bool shunter_wrong(struct shunter_call *call, enum shunter_end end, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(call->said, sizeof call->said, format, arguments);
    va_end(arguments);
    call->end = end;
    return false;
}

static bool is_there(TRITONSERVER_Error *error) {
    if (error) {
        TRITONSERVER_ErrorDelete(error);
    }
    return !error;
}

/* ---- tensors */

static bool is_shape(
    const struct control_function *told, uint32_t tensor, const int64_t *shape) {
    const int64_t *wanted = told->shape + tensor * SHUNTER_CONTROL_DIMS;
    for (uint64_t i = 0; i < told->dims[tensor]; i++) {
        if (wanted[i] < 0 ? shape[i] < 0 || shape[i] > UINT32_MAX : shape[i] != wanted[i]) {
            return false;
        }
    }
    return true;
}

/* Bytes that a tensor of a request must have, of texts at least; false beyond all bounds. */
static bool bytes_of(
    const struct control_function *told, uint32_t tensor, uint64_t rows, const int64_t *shape,
    uint64_t *bytes) {
    *bytes = rows * told->bytes[tensor];
    if (told->packed) {
        *bytes = rows * (told->bytes[tensor] ? told->bytes[tensor] : SHUNTER_STRING_LENGTH);
        for (uint64_t i = 0; i < told->dims[tensor]; i++) {
            if (__builtin_mul_overflow(*bytes, (uint64_t)shape[i], bytes)) {
                return false;
            }
        }
    }
    return true;
}

static bool has_bytes(
    struct shunter_call *call, const struct control_function *told, uint32_t tensor,
    const int64_t *shape, uint64_t bytes) {
    const bool is_text = told->packed && !told->bytes[tensor];
    uint64_t wanted;
    if (!bytes_of(told, tensor, call->rows, shape, &wanted) ||
        (is_text ? bytes < wanted : bytes != wanted)) {
        return shunter_wrong(
            call, SHUNTER_END_WRONG, "input '%s' has %llu bytes, which its shape has not",
            told->names + 64 * tensor, (unsigned long long)bytes);
    }
    return true;
}

/* Its buffers must be ones that the processor can read. */
static bool is_near(TRITONBACKEND_Input *input, uint32_t buffers) {
    for (uint32_t i = 0; i < buffers; i++) {
        const void *buffer;
        uint64_t bytes;
        int memory = TRITON_CPU;
        int64_t memory_id = 0;
        if (!is_there(TRITONBACKEND_InputBuffer(input, i, &buffer, &bytes, &memory, &memory_id)) ||
            memory == TRITON_GPU) {
            return false;
        }
    }
    return true;
}

static bool read_tensor(
    const struct shunter_function *function, struct shunter_call *call, uint32_t tensor) {
    const struct control_function *told = &function->told;
    const char *name = told->names + 64 * tensor;
    TRITONBACKEND_Input *input = NULL;
    const int64_t *shape = NULL;
    uint32_t dims = 0, buffers = 0;
    uint64_t bytes = 0;
    int dtype = 0;
    if (!is_there(TRITONBACKEND_RequestInput(call->request, name, &input))) {
        return shunter_is_optional(function, tensor) || function->sequence[tensor] ||
               shunter_wrong(call, SHUNTER_END_WRONG, "input '%s' of the model is missing", name);
    }
    if (!is_there(TRITONBACKEND_InputProperties(
            input, NULL, &dtype, &shape, &dims, &bytes, &buffers))) {
        return shunter_wrong(call, SHUNTER_END_WRONG, "input '%s' cannot be read", name);
    }
    const bool has_batch = dims == told->dims[tensor] + 1;
    if ((uint64_t)dtype != told->dtype[tensor] || (!has_batch && dims != told->dims[tensor]) ||
        !is_shape(told, tensor, shape + has_batch)) {
        return shunter_wrong(
            call, SHUNTER_END_WRONG,
            "input '%s' has another type or shape than the model's worker takes", name);
    }
    const int64_t rows = has_batch ? shape[0] : 1;
    const uint32_t most = told->batched    ? function->most_rows
                          : told->streamed ? 1
                                           : function->queue.entries;
    if (rows < 1 || rows > most) {
        return shunter_wrong(
            call, SHUNTER_END_WRONG, "a batch of %lld in one request; allowed: 1 to %u",
            (long long)rows, most);
    }
    if (tensor > 0 && (call->has_batch != has_batch || call->rows != (uint32_t)rows)) {
        return shunter_wrong(call, SHUNTER_END_WRONG, "input '%s' has another batch size", name);
    }
    call->has_batch = has_batch;
    call->rows = (uint32_t)rows;
    if (!has_bytes(call, told, tensor, shape + has_batch, bytes)) {
        return false;
    }
    return is_near(input, buffers) ||
           shunter_wrong(
               call, SHUNTER_END_UNSUPPORTED,
               "input '%s' is in memory of a GPU, which this backend does not take yet: send it "
               "from the host", name);
}

bool shunter_read_request(struct shunter_function *function, struct shunter_call *call) {
    if (!shunter_read_terms(function, call)) {
        return false;
    }
    for (uint32_t tensor = 0; tensor < function->told.inputs; tensor++) {
        if (!read_tensor(function, call, tensor)) {
            return false;
        }
    }
    call->entries = function->told.batched ? 1 : call->rows;
    return !function->told.packed || shunter_lay_out(function, call);
}
