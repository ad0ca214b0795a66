/*
 * What the strategy library needs of Triton's interface for custom batching, beside triton.h,
 * declared anew as there.
 */
#ifndef SHUNTER_BATCHER_H
#define SHUNTER_BATCHER_H

#include "triton.h"

typedef struct TRITONBACKEND_Batcher TRITONBACKEND_Batcher;

/* ---- the server's */

TRITONSERVER_Error *TRITONBACKEND_ModelConfig(
    TRITONBACKEND_Model *model, uint32_t version, TRITONSERVER_Message **config);
TRITONSERVER_Error *TRITONSERVER_MessageDelete(TRITONSERVER_Message *message);
TRITONSERVER_Error *TRITONBACKEND_RequestInputByIndex(
    TRITONBACKEND_Request *request, uint32_t index, TRITONBACKEND_Input **input);

/* ---- ours, which the server calls: all from the one thread that forms the batches of a model, but
 * for those of the batcher itself and the first BatchInitialize, which come before it runs */

TRITON_EXPORT TRITONSERVER_Error *TRITONBACKEND_ModelBatcherInitialize(
    TRITONBACKEND_Batcher **batcher, TRITONBACKEND_Model *model);
TRITON_EXPORT TRITONSERVER_Error *TRITONBACKEND_ModelBatcherFinalize(
    TRITONBACKEND_Batcher *batcher);
TRITON_EXPORT TRITONSERVER_Error *TRITONBACKEND_ModelBatchInitialize(
    const TRITONBACKEND_Batcher *batcher, void **batch);
TRITON_EXPORT TRITONSERVER_Error *TRITONBACKEND_ModelBatchIncludeRequest(
    TRITONBACKEND_Request *request, void *batch, bool *should_include);
TRITON_EXPORT TRITONSERVER_Error *TRITONBACKEND_ModelBatchFinalize(void *batch);

#endif
