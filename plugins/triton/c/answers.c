/* Answers: results from the entries of their rows, or an error that users of Triton know. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "packed_calls.h"
#include "streams.h"

static const struct {
    int code;
    const char *text; /* NULL: the call has one */
} ENDS[SHUNTER_ENDS] = {
    [SHUNTER_END_WRONG] = {TRITON_INVALID_ARG, NULL},
    [SHUNTER_END_UNSUPPORTED] = {TRITON_UNSUPPORTED, NULL},
    [SHUNTER_END_UNREAD] = {TRITON_UNAVAILABLE, NULL},
    [SHUNTER_END_BAD] = {TRITON_INVALID_ARG, "the tensors are not what the model takes"},
    [SHUNTER_END_LATE] = {TRITON_UNAVAILABLE, "Request timeout expired: its deadline cannot be met any more"},
    [SHUNTER_END_REFUSED] = {TRITON_UNAVAILABLE, "refused: it would be answered after its deadline"},
    [SHUNTER_END_FULL] = {TRITON_UNAVAILABLE, NULL},
    [SHUNTER_END_NO_WORKER] = {TRITON_UNAVAILABLE, "no worker has the model loaded: see `shunter status`"},
    [SHUNTER_END_FAILED] = {TRITON_INTERNAL, "the model's handler failed; the worker's log says how"},
    [SHUNTER_END_DIED] = {TRITON_INTERNAL, "the worker died of this request, twice"},
    [SHUNTER_END_DIED_ONCE] = {TRITON_INTERNAL, "the worker died; the request must not run twice"},
    [SHUNTER_END_SLOW] = {TRITON_UNAVAILABLE, "the server did not take its parts in time"},
    [SHUNTER_END_DIED_STREAM] = {TRITON_INTERNAL, "the worker died in the midst of its answer"},
    [SHUNTER_END_CANCELLED] = {TRITON_CANCELLED, "the client cancelled it"},
};

static TRITONSERVER_Error *error_of(
    const struct shunter_function *function, const struct shunter_call *call) {
    const char *text = ENDS[call->end].text;
    TRITONSERVER_Error *said = NULL;
    if (call->end == SHUNTER_END_FAILED && function->told.packed) {
        said = shunter_read_refusal(function, call);
    }
    return said ? said : TRITONSERVER_ErrorNew(ENDS[call->end].code, text ? text : call->said);
}

/* An output by its name, -1: there is none. */
static int32_t output_of(const struct control_function *told, const char *name) {
    for (uint32_t i = 0; i < told->outputs; i++) {
        if (!strcmp(told->names + 64 * (SHUNTER_MAX_TENSORS + i), name)) {
            return (int32_t)i;
        }
    }
    return -1;
}

TRITONSERVER_Error *shunter_output_room(
    const struct shunter_function *function, const struct shunter_call *call,
    TRITONBACKEND_Response *response, uint32_t number, const int64_t *shape, uint64_t bytes,
    uint8_t **room) {
    const struct control_function *told = &function->told;
    const uint32_t at = SHUNTER_MAX_TENSORS + number;
    TRITONBACKEND_Output *output = NULL;
    TRITONSERVER_Error *error = TRITONBACKEND_ResponseOutput(
        response, &output, told->names + 64 * at, (int)told->dtype[at], shape,
        (uint32_t)told->dims[at] + call->has_batch);
    int memory = TRITON_CPU;
    int64_t memory_id = 0;
    void *buffer = NULL;
    if (!error) {
        error = TRITONBACKEND_OutputBuffer(output, &buffer, bytes, &memory, &memory_id);
    }
    if (!error && memory == TRITON_GPU) {
        error = TRITONSERVER_ErrorNew(
            TRITON_UNSUPPORTED, "results cannot be written to memory of a GPU yet");
    }
    *room = buffer;
    return error;
}

/* Its rows lie in their entries; the server says where they go. */
static TRITONSERVER_Error *write_output(
    const struct shunter_function *function, const struct shunter_call *call,
    TRITONBACKEND_Response *response, uint32_t number) {
    const struct control_function *told = &function->told;
    const uint32_t at = SHUNTER_MAX_TENSORS + number;
    const uint64_t bytes = told->bytes[at];
    int64_t shape[1 + SHUNTER_CONTROL_DIMS] = {call->rows};
    memcpy(
        shape + call->has_batch, told->shape + at * SHUNTER_CONTROL_DIMS,
        told->dims[at] * sizeof *shape);
    uint8_t *into = NULL;
    TRITONSERVER_Error *error = shunter_output_room(
        function, call, response, number, shape, bytes * call->rows, &into);
    for (int32_t row = call->first; !error && bytes && row >= 0; row = function->rows[row].next) {
        memcpy(into, function->queue.outputs[number] + (size_t)row * bytes, bytes);
        into += bytes;
    }
    return error;
}

/* Those that the client wants. */
static TRITONSERVER_Error *write_outputs(
    const struct shunter_function *function, const struct shunter_call *call,
    TRITONBACKEND_Response *response) {
    uint32_t count = 0;
    TRITONSERVER_Error *error = TRITONBACKEND_RequestOutputCount(call->request, &count);
    uint64_t *answers = NULL;
    if (!error && function->told.packed) {
        answers = shunter_read_answers(function, call, &error);
    }
    for (uint32_t i = 0; !error && i < count; i++) {
        const char *name = NULL;
        error = TRITONBACKEND_RequestOutputName(call->request, i, &name);
        const int32_t number = error ? -1 : output_of(&function->told, name);
        if (!error && number < 0) {
            char text[200];
            snprintf(text, sizeof text, "the model's worker has no output '%.100s'", name);
            error = TRITONSERVER_ErrorNew(TRITON_INVALID_ARG, text);
        }
        if (!error) {
            error = answers ? shunter_write_run_output(
                                  function, call, response, (uint32_t)number, answers)
                            : write_output(function, call, response, (uint32_t)number);
        }
    }
    free(answers);
    return error;
}

static void forget(TRITONSERVER_Error *error) {
    if (error) {
        TRITONSERVER_ErrorDelete(error);
    }
}

/* The instance may have gone meanwhile, with a reload. */
static void tell(const struct shunter_call *call, bool success, uint64_t now_ns) {
    struct shunter_model *model = call->model;
    const uint64_t began_ns = call->began_ns ? call->began_ns : call->came_ns;
    pthread_mutex_lock(&model->lock);
    if (model->instance) {
        forget(TRITONBACKEND_ModelInstanceReportStatistics(
            model->instance, call->request, success, call->came_ns, began_ns,
            call->done_ns > began_ns ? call->done_ns : began_ns, now_ns));
    }
    pthread_mutex_unlock(&model->lock);
}

/* Tell the server that a batch of so many rows ran, of which this is one request. */
static void tell_batch(const struct shunter_call *call, uint32_t rows) {
    struct shunter_model *model = call->model;
    pthread_mutex_lock(&model->lock);
    if (model->instance) {
        forget(TRITONBACKEND_ModelInstanceReportBatchStatistics(
            model->instance, rows, call->began_ns, call->began_ns, call->done_ns, call->done_ns));
    }
    pthread_mutex_unlock(&model->lock);
}

bool shunter_respond(
    const struct shunter_function *function, const struct shunter_call *call, uint32_t flags) {
    TRITONBACKEND_Response *response = NULL;
    TRITONSERVER_Error *error = TRITONBACKEND_ResponseNew(&response, call->request);
    if (!error) {
        error = call->end == SHUNTER_END_OK ? write_outputs(function, call, response)
                                            : error_of(function, call);
        forget(TRITONBACKEND_ResponseSend(response, flags, error));
    }
    const bool is_good = !error;
    forget(error);
    return is_good;
}

void shunter_answer(const struct shunter_function *function, struct shunter_call *call) {
    const bool is_good = function->streams ? shunter_end_stream(function, call)
                                           : shunter_respond(function, call, TRITON_FINAL);
    tell(call, is_good, shunter_now_ns());
    forget(TRITONBACKEND_RequestRelease(call->request, TRITON_RELEASE_ALL));
}

void shunter_tell_batches(const struct shunter_function *function, struct shunter_calls calls) {
    const struct shunter_call *of_batch = NULL;
    uint64_t batch = 0;
    uint32_t size = 0;
    for (const struct shunter_call *call = calls.first; call; call = call->next) {
        for (int32_t at = call->end == SHUNTER_END_OK ? call->first : -1; at >= 0;
             at = function->rows[at].next) {
            if (of_batch && function->rows[at].batch != batch) {
                tell_batch(of_batch, size);
                size = 0;
            }
            batch = function->rows[at].batch;
            of_batch = call;
            size += shunter_rows_each(function, call);
        }
    }
    if (of_batch) {
        tell_batch(of_batch, size);
    }
}
