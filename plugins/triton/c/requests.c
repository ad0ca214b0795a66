/* What stands in a request: its tensors, its class and its deadline. */
#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "backend.h"

#define LONGEST_MS 86400000.0 /* one day */

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

/* ---- class and deadline */

static bool read_class(struct shunter_call *call, const char *key, int type, const char *value) {
    if (type == TRITON_STRING && !strcmp(value, "strict")) {
        call->class = 0;
    } else if (
        type == TRITON_STRING && (!strcmp(value, "best_effort") || !strcmp(value, "best-effort"))) {
        call->class = 1;
    } else {
        return shunter_wrong(
            call, SHUNTER_END_WRONG, "%s '%.40s'; allowed: strict, best_effort", key,
            type == TRITON_STRING ? value : "(not a string)");
    }
    return true;
}

/* As a number of any type, or as text: HTTP headers are text. */
static bool read_deadline(
    struct shunter_call *call, const char *key, int type, const void *value) {
    double ms = NAN;
    if (type == TRITON_INT) {
        ms = (double)*(const int64_t *)value;
    } else if (type == TRITON_DOUBLE) {
        ms = *(const double *)value;
    } else if (type == TRITON_STRING) {
        char *end = NULL;
        ms = strtod(value, &end);
        ms = end == value || *end ? NAN : ms;
    }
    if (!(ms > 0 && ms <= LONGEST_MS)) {
        char number[32];
        snprintf(number, sizeof number, "%g", ms);
        return shunter_wrong(
            call, SHUNTER_END_WRONG, "%s '%.40s'; allowed: milliseconds, above 0, up to one day",
            key, type == TRITON_STRING ? (const char *)value : number);
    }
    call->deadline_ns = call->came_ns + (uint64_t)(ms * 1e6);
    return true;
}

static bool read_parameters(struct shunter_call *call) {
    uint32_t count = 0;
    if (!is_there(TRITONBACKEND_RequestParameterCount(call->request, &count))) {
        return true;
    }
    for (uint32_t i = 0; i < count; i++) {
        const char *key = NULL;
        const void *value = NULL;
        int type = TRITON_STRING;
        bool is_right = true;
        if (!is_there(TRITONBACKEND_RequestParameter(call->request, i, &key, &type, &value))) {
            continue;
        }
        if (!strcmp(key, "slo_class") || !strcasecmp(key, "x-shunter-class")) {
            is_right = read_class(call, key, type, value);
        } else if (!strcmp(key, "deadline_ms") || !strcasecmp(key, "x-shunter-deadline-ms")) {
            is_right = read_deadline(call, key, type, value);
        } else if (!strcmp(key, "idempotent")) {
            if (type != TRITON_BOOL) {
                return shunter_wrong(call, SHUNTER_END_WRONG, "idempotent; allowed: true, false");
            }
            call->idempotent = *(const bool *)value;
        }
        if (!is_right) {
            return false;
        }
    }
    return true;
}

static void earlier(uint64_t *deadline_ns, uint64_t other_ns) {
    *deadline_ns = !*deadline_ns || other_ns < *deadline_ns ? other_ns : *deadline_ns;
}

/* The server's own timeout, and what the model says. */
static void complete_deadline(const struct shunter_function *function, struct shunter_call *call) {
    uint64_t timeout_us = 0;
    if (is_there(TRITONBACKEND_InferenceRequestTimeoutMicroseconds(call->request, &timeout_us)) &&
        timeout_us && timeout_us <= UINT64_MAX / 2000) {
        earlier(&call->deadline_ns, call->came_ns + timeout_us * 1000);
    }
    if (!call->deadline_ns && call->class == 0 && function->slo_ns) {
        call->deadline_ns = call->came_ns + function->slo_ns;
    }
    if (function->client_timeout_ns) {
        earlier(&call->deadline_ns, call->came_ns + function->client_timeout_ns);
    }
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
        return shunter_is_optional(function, tensor) ||
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
    const uint32_t most = told->batched ? function->most_rows : function->queue.entries;
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

bool shunter_read_request(
    const struct shunter_function *function, struct shunter_call *call) {
    call->class = function->class;
    if (!read_parameters(call)) {
        return false;
    }
    complete_deadline(function, call);
    for (uint32_t tensor = 0; tensor < function->told.inputs; tensor++) {
        if (!read_tensor(function, call, tensor)) {
            return false;
        }
    }
    call->entries = function->told.batched ? 1 : call->rows;
    return !function->told.packed || shunter_lay_out(function, call);
}
