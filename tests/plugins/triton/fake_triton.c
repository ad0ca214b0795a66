/*
 * The few functions of a Triton server that the backend calls, and a load: threads that send requests
 * and check that each is answered once, with its own results. The host and the workers are real.
 *
 *     fake_triton SOCKET THREADS REQUESTS DIM SEED CANCELS
 *
 * With REQUESTS 0 they go on until its input ends. Prints how the requests ended, by error code. The
 * model m takes x [DIM] and b [1], and gives y [4] and z [1]: y = x + 1, z = 2 * b. With FAKE_PACKED=1
 * x has up to DIM numbers, y as many, and b and z are texts, the same ones; some of b are malformed.
 * With FAKE_STREAMED=1 an answer to n numbers has n % PARTS such parts. With FAKE_MODELS=2 there is
 * another model, n, which is like m.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "triton.h"

#define ROWS 4
#define OUT 4
#define FP32 11
#define INT64 9
#define BYTES 13
#define MALFORMED 16 /* one request of so many */
#define CODES 8
#define PARTS 7
#define TOGETHER 3 /* requests of one thread */
#define MODELS 2

struct TRITONSERVER_Error {
    int code;
    char text[300];
};
struct TRITONBACKEND_Backend {
    void *state;
};
struct TRITONBACKEND_Model {
    void *state;
    const char *name;
    TRITONBACKEND_Backend *backend;
};
struct TRITONBACKEND_ModelInstance {
    TRITONBACKEND_Model *model;
};
struct TRITONSERVER_Message {
    char json[300];
};
struct TRITONBACKEND_Input {
    const char *name;
    int dtype;
    int64_t shape[2];
    uint8_t *bytes;
    uint64_t size;
};
struct TRITONBACKEND_Output {
    uint8_t *bytes;
    uint64_t size;
};
struct TRITONBACKEND_Response {
    TRITONBACKEND_Request *request;
};
struct TRITONBACKEND_ResponseFactory {
    TRITONBACKEND_Request *request;
};
struct TRITONBACKEND_Request {
    TRITONBACKEND_Input inputs[2];
    TRITONBACKEND_Output outputs[2];
    TRITONBACKEND_Response response;
    _Atomic bool is_cancelled;
    const char *class;
    uint64_t timeout_us;
    bool is_malformed;
    int answers, releases, code, parts;
    bool has_wrong_part;
    bool ended;
    pthread_mutex_t lock;
    pthread_cond_t done;
};

static struct TRITONSERVER_Message config;
static bool is_packed, is_streamed;
static bool is_right_packed(const TRITONBACKEND_Request *request);
static uint32_t api_minor = TRITON_API_MINOR;
static _Atomic uint64_t told_requests, told_rows;

/* ---- the server */

TRITONSERVER_Error *TRITONSERVER_ErrorNew(int code, const char *message) {
    TRITONSERVER_Error *error = calloc(1, sizeof *error);
    error->code = code;
    snprintf(error->text, sizeof error->text, "%s", message);
    return error;
}
void TRITONSERVER_ErrorDelete(TRITONSERVER_Error *error) { free(error); }
TRITONSERVER_Error *TRITONSERVER_LogMessage(
    int level, const char *file, int line, const char *message) {
    fprintf(stderr, "%d %s:%d %s\n", level, file, line, message);
    return NULL;
}
TRITONSERVER_Error *TRITONSERVER_MessageSerializeToJson(
    TRITONSERVER_Message *message, const char **base, size_t *size) {
    *base = message->json;
    *size = strlen(message->json);
    return NULL;
}
TRITONSERVER_Error *TRITONBACKEND_ApiVersion(uint32_t *major, uint32_t *minor) {
    *major = TRITON_API_MAJOR;
    *minor = api_minor;
    return NULL;
}
TRITONSERVER_Error *TRITONBACKEND_BackendConfig(
    TRITONBACKEND_Backend *backend, TRITONSERVER_Message **message) {
    (void)backend;
    *message = &config;
    return NULL;
}
TRITONSERVER_Error *TRITONBACKEND_BackendState(TRITONBACKEND_Backend *backend, void **state) {
    *state = backend->state;
    return NULL;
}
TRITONSERVER_Error *TRITONBACKEND_BackendSetState(TRITONBACKEND_Backend *backend, void *state) {
    backend->state = state;
    return NULL;
}
TRITONSERVER_Error *TRITONBACKEND_ModelBackend(
    TRITONBACKEND_Model *model, TRITONBACKEND_Backend **backend) {
    *backend = model->backend;
    return NULL;
}
TRITONSERVER_Error *TRITONBACKEND_ModelName(TRITONBACKEND_Model *model, const char **name) {
    *name = model->name;
    return NULL;
}
TRITONSERVER_Error *TRITONBACKEND_ModelVersion(TRITONBACKEND_Model *model, uint64_t *version) {
    (void)model;
    *version = 1;
    return NULL;
}
TRITONSERVER_Error *TRITONBACKEND_ModelState(TRITONBACKEND_Model *model, void **state) {
    *state = model->state;
    return NULL;
}
TRITONSERVER_Error *TRITONBACKEND_ModelSetState(TRITONBACKEND_Model *model, void *state) {
    model->state = state;
    return NULL;
}
TRITONSERVER_Error *TRITONBACKEND_ModelInstanceModel(
    TRITONBACKEND_ModelInstance *instance, TRITONBACKEND_Model **model) {
    *model = instance->model;
    return NULL;
}
TRITONSERVER_Error *TRITONBACKEND_ModelInstanceReportStatistics(
    TRITONBACKEND_ModelInstance *instance, TRITONBACKEND_Request *request, bool success,
    uint64_t exec_start_ns, uint64_t compute_start_ns, uint64_t compute_end_ns,
    uint64_t exec_end_ns) {
    const bool rises = exec_start_ns <= compute_start_ns && compute_start_ns <= compute_end_ns &&
                       compute_end_ns <= exec_end_ns;
    if (!rises || !instance->model || request->releases) {
        abort();
    }
    told_requests += success;
    return NULL;
}
TRITONSERVER_Error *TRITONBACKEND_ModelInstanceReportBatchStatistics(
    TRITONBACKEND_ModelInstance *instance, uint64_t batch_size, uint64_t exec_start_ns,
    uint64_t compute_start_ns, uint64_t compute_end_ns, uint64_t exec_end_ns) {
    (void)compute_start_ns;
    (void)compute_end_ns;
    if (!instance->model || exec_end_ns < exec_start_ns) {
        abort();
    }
    told_rows += batch_size;
    return NULL;
}

/* ---- requests */

TRITONSERVER_Error *TRITONBACKEND_RequestInput(
    TRITONBACKEND_Request *request, const char *name, TRITONBACKEND_Input **input) {
    for (int i = 0; i < 2; i++) {
        if (!strcmp(request->inputs[i].name, name)) {
            *input = &request->inputs[i];
            return NULL;
        }
    }
    return TRITONSERVER_ErrorNew(TRITON_INVALID_ARG, "no such input");
}
TRITONSERVER_Error *TRITONBACKEND_RequestOutputCount(
    TRITONBACKEND_Request *request, uint32_t *count) {
    (void)request;
    *count = 2;
    return NULL;
}
TRITONSERVER_Error *TRITONBACKEND_RequestOutputName(
    TRITONBACKEND_Request *request, uint32_t index, const char **name) {
    (void)request;
    *name = index ? "z" : "y";
    return NULL;
}
TRITONSERVER_Error *TRITONBACKEND_RequestParameterCount(
    TRITONBACKEND_Request *request, uint32_t *count) {
    *count = request->class ? 1 : 0;
    return NULL;
}
TRITONSERVER_Error *TRITONBACKEND_RequestParameter(
    TRITONBACKEND_Request *request, uint32_t index, const char **key, int *type,
    const void **value) {
    (void)index;
    *key = "slo_class";
    *type = TRITON_STRING;
    *value = request->class;
    return NULL;
}
TRITONSERVER_Error *TRITONBACKEND_InferenceRequestTimeoutMicroseconds(
    TRITONBACKEND_Request *request, uint64_t *timeout) {
    *timeout = request->timeout_us;
    return NULL;
}
TRITONSERVER_Error *TRITONBACKEND_RequestIsCancelled(
    TRITONBACKEND_Request *request, bool *is_cancelled) {
    if (request->timeout_us == 1) {
        usleep(10); // when it is known what it is, its time is over
    }
    *is_cancelled = request->is_cancelled;
    return NULL;
}
TRITONSERVER_Error *TRITONBACKEND_RequestCorrelationId(
    TRITONBACKEND_Request *request, uint64_t *id) {
    (void)request;
    *id = 0;
    return NULL;
}
TRITONSERVER_Error *TRITONBACKEND_RequestFlags(TRITONBACKEND_Request *request, uint32_t *flags) {
    (void)request;
    *flags = 0;
    return NULL;
}
TRITONSERVER_Error *TRITONSERVER_InferenceRequestPriorityUInt64(
    TRITONSERVER_InferenceRequest *request, uint64_t *priority) {
    (void)request;
    *priority = 0;
    return NULL;
}
TRITONSERVER_Error *TRITONBACKEND_InputProperties(
    TRITONBACKEND_Input *input, const char **name, int *datatype, const int64_t **shape,
    uint32_t *dims_count, uint64_t *bytes, uint32_t *buffer_count) {
    (void)name;
    if (datatype) {
        *datatype = input->dtype;
        *shape = input->shape;
        *dims_count = 2;
        *bytes = input->size;
    }
    *buffer_count = 2;
    return NULL;
}
/* In two parts, the first of which is odd; behind them there is nothing, without an error. */
TRITONSERVER_Error *TRITONBACKEND_InputBuffer(
    TRITONBACKEND_Input *input, uint32_t index, const void **buffer, uint64_t *bytes, int *memory,
    int64_t *memory_id) {
    (void)memory_id;
    const uint64_t first = input->size / 3;
    *memory = getenv("FAKE_GPU") ? TRITON_GPU : TRITON_CPU;
    *buffer = index > 1 ? NULL : index ? input->bytes + first : input->bytes;
    *bytes = index > 1 ? 0 : index ? input->size - first : first;
    return NULL;
}
TRITONSERVER_Error *TRITONBACKEND_RequestRelease(TRITONBACKEND_Request *request, uint32_t flags) {
    pthread_mutex_lock(&request->lock);
    request->releases += flags == TRITON_RELEASE_ALL;
    request->ended = true;
    pthread_cond_signal(&request->done);
    pthread_mutex_unlock(&request->lock);
    return NULL;
}

/* ---- responses */

TRITONSERVER_Error *TRITONBACKEND_ResponseNew(
    TRITONBACKEND_Response **response, TRITONBACKEND_Request *request) {
    request->response.request = request;
    *response = &request->response;
    return NULL;
}
TRITONSERVER_Error *TRITONBACKEND_ResponseOutput(
    TRITONBACKEND_Response *response, TRITONBACKEND_Output **output, const char *name,
    int datatype, const int64_t *shape, uint32_t dims_count) {
    const bool is_z = !strcmp(name, "z");
    const int64_t width = is_packed ? response->request->inputs[0].shape[1] : OUT;
    if (dims_count != 2 || datatype != (!is_z ? FP32 : is_packed ? BYTES : INT64) ||
        shape[0] != response->request->inputs[0].shape[0] || shape[1] != (is_z ? 1 : width)) {
        return TRITONSERVER_ErrorNew(TRITON_INVALID_ARG, "not the model's output");
    }
    *output = &response->request->outputs[is_z];
    return NULL;
}
TRITONSERVER_Error *TRITONBACKEND_OutputBuffer(
    TRITONBACKEND_Output *output, void **buffer, uint64_t bytes, int *memory,
    int64_t *memory_id) {
    *memory = TRITON_CPU;
    *memory_id = 0;
    free(output->bytes);
    *buffer = output->bytes = malloc(bytes ? bytes : 1);
    output->size = bytes;
    return NULL;
}
static _Atomic uint64_t displaced; /* by strict ones */
TRITONSERVER_Error *TRITONBACKEND_ResponseSend(
    TRITONBACKEND_Response *response, uint32_t flags, TRITONSERVER_Error *error) {
    TRITONBACKEND_Request *request = response->request;
    if (flags != TRITON_FINAL && !error) {
        request->parts++;
        request->has_wrong_part |= request->answers || !is_right_packed(request);
    }
    request->answers += flags == TRITON_FINAL;
    request->code = error ? error->code : 0;
    displaced += error && strstr(error->text, "took this one's place");
    return NULL;
}
TRITONSERVER_Error *TRITONBACKEND_ResponseFactoryNew(
    TRITONBACKEND_ResponseFactory **factory, TRITONBACKEND_Request *request) {
    *factory = malloc(sizeof **factory);
    (*factory)->request = request;
    return NULL;
}
TRITONSERVER_Error *TRITONBACKEND_ResponseFactoryDelete(TRITONBACKEND_ResponseFactory *factory) {
    free(factory);
    return NULL;
}
TRITONSERVER_Error *TRITONBACKEND_ResponseFactorySendFlags(
    TRITONBACKEND_ResponseFactory *factory, uint32_t flags) {
    factory->request->answers += flags == TRITON_FINAL;
    return NULL;
}

/* ---- the load */

static struct {
    int requests, dim, cancels;
} wanted;
static pthread_rwlock_t reload = PTHREAD_RWLOCK_WRITER_NONRECURSIVE_INITIALIZER_NP;
static TRITONBACKEND_ModelInstance *instances[MODELS];
static uint32_t model_count = 1;
static _Atomic uint64_t ended[CODES];
static _Atomic uint64_t wrong;
static _Atomic bool is_over;

static uint32_t random_of(uint64_t *seed) {
    *seed = *seed * 6364136223846793005ULL + 1442695040888963407ULL;
    return (uint32_t)(*seed >> 33);
}

/* A text for each row; of a malformed request the length of one lies. */
static void write_texts(TRITONBACKEND_Request *request, uint64_t *seed) {
    TRITONBACKEND_Input *input = &request->inputs[1];
    const int64_t rows = request->inputs[0].shape[0];
    uint32_t lengths[ROWS];
    input->size = 0;
    for (int64_t i = 0; i < rows; i++) {
        lengths[i] = random_of(seed) % 100;
        input->size += 4 + lengths[i];
    }
    uint8_t *at = input->bytes = malloc(input->size);
    request->is_malformed = random_of(seed) % MALFORMED == 0;
    for (int64_t i = 0; i < rows; i++) {
        const uint32_t length = lengths[i];
        const uint32_t said = length + (request->is_malformed && i == rows - 1);
        memcpy(at, &said, 4);
        memset(at + 4, 'a' + (int)(random_of(seed) % 26), length);
        at += 4 + length;
    }
}

static void prepare(TRITONBACKEND_Request *request, uint64_t *seed) {
    static const char *const classes[] = {NULL, "strict", "best_effort"};
    const int64_t rows = is_streamed ? 1 : 1 + random_of(seed) % ROWS;
    const uint32_t most = (uint32_t)wanted.dim;
    const int64_t width = is_packed ? random_of(seed) % (most + 1) : most;
    const int64_t dims[] = {width, 1};
    memset(request, 0, sizeof *request);
    pthread_mutex_init(&request->lock, NULL);
    pthread_cond_init(&request->done, NULL);
    for (int i = 0; i < 2; i++) {
        const uint64_t size = (uint64_t)(rows * dims[i]) * (i ? 8 : 4);
        request->inputs[i] = (TRITONBACKEND_Input){
            i ? "b" : "x", !i ? FP32 : is_packed ? BYTES : INT64, {rows, dims[i]},
            i && is_packed ? NULL : malloc(size ? size : 1), size};
    }
    for (int64_t i = 0; i < rows * width; i++) {
        const float value = (float)(random_of(seed) % 1000000);
        memcpy(request->inputs[0].bytes + 4 * i, &value, 4);
    }
    for (int64_t i = 0; i < rows && !is_packed; i++) {
        const int64_t value = random_of(seed);
        memcpy(request->inputs[1].bytes + 8 * i, &value, 8);
    }
    if (is_packed) {
        write_texts(request, seed);
    }
    request->class = classes[random_of(seed) % 3];
    request->timeout_us = random_of(seed) % 4 ? 0 : 1 + random_of(seed) % 20000;
    const char *strict_us = getenv("FAKE_STRICT_US");
    if (strict_us) {
        const bool is_strict = !request->class || !strcmp(request->class, "strict");
        request->timeout_us = is_strict ? (uint64_t)atoll(strict_us) : 0;
    }
}

static bool is_right_packed(const TRITONBACKEND_Request *request) {
    const TRITONBACKEND_Input *x = &request->inputs[0], *b = &request->inputs[1];
    const TRITONBACKEND_Output *y = &request->outputs[0], *z = &request->outputs[1];
    bool is = !request->is_malformed && y->size == x->size && z->size == b->size &&
              !memcmp(z->bytes, b->bytes, b->size);
    for (uint64_t i = 0; is && i < x->size; i += 4) {
        float given, found;
        memcpy(&given, x->bytes + i, 4);
        memcpy(&found, y->bytes + i, 4);
        is = found == given + 1;
    }
    return is;
}

/* However it ended, the parts before are the first ones. */
static bool is_right_stream(const TRITONBACKEND_Request *request) {
    const int wanted_parts = (int)(request->inputs[0].shape[1] % PARTS);
    const bool is_whole = request->parts == wanted_parts && !request->is_malformed;
    return !request->has_wrong_part && request->parts <= wanted_parts &&
           (request->code || is_whole);
}

static bool is_right(const TRITONBACKEND_Request *request) {
    const int64_t rows = request->inputs[0].shape[0];
    bool is = request->outputs[0].size == (uint64_t)rows * OUT * 4 &&
              request->outputs[1].size == (uint64_t)rows * 8;
    for (int64_t row = 0; is && row < rows; row++) {
        for (int64_t i = 0; is && i < OUT; i++) {
            float x, y;
            memcpy(&x, request->inputs[0].bytes + 4 * (row * wanted.dim + i), 4);
            memcpy(&y, request->outputs[0].bytes + 4 * (row * OUT + i), 4);
            is = y == x + 1;
        }
        int64_t b, z;
        memcpy(&b, request->inputs[1].bytes + 8 * row, 8);
        memcpy(&z, request->outputs[1].bytes + 8 * row, 8);
        is = is && z == 2 * b;
    }
    return is;
}

static void finish(TRITONBACKEND_Request *request) {
    pthread_mutex_lock(&request->lock);
    while (!request->ended) {
        pthread_cond_wait(&request->done, &request->lock);
    }
    pthread_mutex_unlock(&request->lock);
    ended[request->code]++;
    wrong += request->answers != 1 || request->releases != 1 ||
             (is_streamed && !is_right_stream(request)) ||
             (!is_streamed && request->code == 0 &&
              !(is_packed ? is_right_packed : is_right)(request));
    for (int i = 0; i < 2; i++) {
        free(request->inputs[i].bytes);
        free(request->outputs[i].bytes);
    }
    pthread_mutex_destroy(&request->lock);
    pthread_cond_destroy(&request->done);
}

static void *client(void *context) {
    uint64_t seed = (uint64_t)(uintptr_t)context;
    TRITONBACKEND_Request requests[TOGETHER];
    for (int n = 0; wanted.requests ? n < wanted.requests : !is_over; n += TOGETHER) {
        TRITONBACKEND_Request *all[TOGETHER];
        for (int i = 0; i < TOGETHER; i++) {
            prepare(&requests[i], &seed);
            all[i] = &requests[i];
        }
        // As the server does: a model goes only when all of its requests have been let go of.
        pthread_rwlock_rdlock(&reload);
        TRITONBACKEND_ModelInstance *instance =
            instances[model_count > 1 ? random_of(&seed) % model_count : 0];
        TRITONSERVER_Error *error = TRITONBACKEND_ModelInstanceExecute(instance, all, TOGETHER);
        if (error) {
            abort();
        }
        for (int i = 0; i < TOGETHER; i++) {
            if (wanted.cancels && random_of(&seed) % (uint32_t)wanted.cancels == 0) {
                requests[i].is_cancelled = true;
            }
        }
        for (int i = 0; i < TOGETHER; i++) {
            finish(&requests[i]);
        }
        pthread_rwlock_unlock(&reload);
    }
    return NULL;
}

static void check(TRITONSERVER_Error *error) {
    if (error) {
        printf("refused %d %s\n", error->code, error->text);
        free(error);
        exit(0);
    }
}

static void load(TRITONBACKEND_Backend *backend, uint32_t number) {
    static const char *const names[MODELS] = {"m", "n"};
    TRITONBACKEND_Model *model = calloc(1, sizeof *model);
    model->backend = backend;
    model->name = names[number];
    check(TRITONBACKEND_ModelInitialize(model));
    instances[number] = calloc(1, sizeof *instances[number]);
    instances[number]->model = model;
    check(TRITONBACKEND_ModelInstanceInitialize(instances[number]));
}

static void unload(TRITONBACKEND_ModelInstance *old) {
    TRITONBACKEND_Model *model = old->model;
    check(TRITONBACKEND_ModelInstanceFinalize(old));
    check(TRITONBACKEND_ModelFinalize(model));
    free(old);
    free(model);
}

int main(int count, char **given) {
    if (count < 7) {
        return 2;
    }
    const int threads = atoi(given[2]);
    wanted.requests = atoi(given[3]);
    wanted.dim = atoi(given[4]);
    wanted.cancels = atoi(given[6]);
    const char *minor = getenv("FAKE_API_MINOR"), *wait = getenv("FAKE_WAIT_S");
    is_streamed = getenv("FAKE_STREAMED");
    is_packed = is_streamed || getenv("FAKE_PACKED");
    model_count = getenv("FAKE_MODELS") ? MODELS : 1;
    api_minor = minor ? (uint32_t)atoi(minor) : TRITON_API_MINOR;
    snprintf(
        config.json, sizeof config.json, "{\"cmdline\":{\"socket\":\"%s\",\"wait-s\":\"%s\"}}",
        given[1], wait ? wait : "60");
    TRITONBACKEND_Backend backend = {0};
    check(TRITONBACKEND_Initialize(&backend));
    for (uint32_t i = 0; i < model_count; i++) {
        load(&backend, i);
    }
    pthread_t clients[64];
    for (int i = 0; i < threads; i++) {
        const uintptr_t seed = (uintptr_t)(atoi(given[5]) * 1000 + i + 1);
        pthread_create(&clients[i], NULL, client, (void *)seed);
    }
    for (int i = 0; i < 5; i++) { // reloads in the midst of it
        usleep(20000);
        pthread_rwlock_wrlock(&reload);
        for (uint32_t each = 0; each < model_count; each++) {
            TRITONBACKEND_ModelInstance *old = instances[each];
            load(&backend, each);
            unload(old);
        }
        pthread_rwlock_unlock(&reload);
    }
    while (!wanted.requests && getchar() != EOF) {
    }
    is_over = true;
    for (int i = 0; i < threads; i++) {
        pthread_join(clients[i], NULL);
    }
    for (uint32_t i = 0; i < model_count; i++) {
        unload(instances[i]);
    }
    check(TRITONBACKEND_Finalize(&backend));
    for (int i = 0; i < CODES; i++) {
        printf("%d %llu\n", i, (unsigned long long)ended[i]);
    }
    printf("wrong %llu\n", (unsigned long long)wrong);
    printf("displaced %llu\n", (unsigned long long)displaced);
    printf("told %llu %llu\n", (unsigned long long)told_requests, (unsigned long long)told_rows);
    return 0;
}
