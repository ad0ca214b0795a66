/*
 * A backend that answers at once with zeros: what Triton's front end costs by itself, the limit of
 * every backend. Input x of [n, …] bytes, output y of [n, 40] bytes (bench/models/rpc, "empty784").
 */
#include <string.h>

#include "triton.h"

#define REPLY 40
#define UINT8 2 /* TRITONSERVER_DataType */

TRITONSERVER_Error *TRITONBACKEND_Initialize(TRITONBACKEND_Backend *backend) {
    (void)backend;
    return NULL;
}

TRITONSERVER_Error *TRITONBACKEND_ModelInstanceInitialize(TRITONBACKEND_ModelInstance *instance) {
    (void)instance;
    return NULL;
}

static TRITONSERVER_Error *answer(TRITONBACKEND_Request *request, TRITONBACKEND_Response *response) {
    TRITONBACKEND_Input *input = NULL;
    TRITONBACKEND_Output *output = NULL;
    const int64_t *shape = NULL;
    void *buffer = NULL;
    int memory = TRITON_CPU;
    int64_t memory_id = 0;
    TRITONSERVER_Error *error = TRITONBACKEND_RequestInput(request, "x", &input);
    error = error ? error
                  : TRITONBACKEND_InputProperties(input, NULL, NULL, &shape, NULL, NULL, NULL);
    if (error) {
        return error;
    }
    const int64_t reply[] = {shape[0], REPLY};
    error = TRITONBACKEND_ResponseOutput(response, &output, "y", UINT8, reply, 2);
    error = error ? error
                  : TRITONBACKEND_OutputBuffer(
                        output, &buffer, (uint64_t)shape[0] * REPLY, &memory, &memory_id);
    if (!error) {
        memset(buffer, 0, (size_t)shape[0] * REPLY);
    }
    return error;
}

static void drop(TRITONSERVER_Error *error) {
    if (error) {
        TRITONSERVER_ErrorDelete(error);
    }
}

TRITONSERVER_Error *TRITONBACKEND_ModelInstanceExecute(
    TRITONBACKEND_ModelInstance *instance, TRITONBACKEND_Request **requests, uint32_t count) {
    (void)instance;
    for (uint32_t i = 0; i < count; i++) {
        TRITONBACKEND_Response *response = NULL;
        TRITONSERVER_Error *error = TRITONBACKEND_ResponseNew(&response, requests[i]);
        if (error) {
            drop(error);
        } else {
            error = answer(requests[i], response);
            drop(TRITONBACKEND_ResponseSend(response, TRITON_FINAL, error));
            drop(error);
        }
        drop(TRITONBACKEND_RequestRelease(requests[i], TRITON_RELEASE_ALL));
    }
    return NULL;
}
