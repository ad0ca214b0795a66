/*
 * Triton's dynamic batcher as its strategy library meets it: the order of the calls is that of
 * dynamic_batch_scheduler.cc, with a delay of 0. Requests come, batches wait for an instance and
 * grow meanwhile, run, and their memory is used again.
 *
 * fake_batcher CONFIG STEPS SEED RESETS CAP: RESETS 1 initializes anew before it asks, as Triton
 * 2.51 does; 2: never again, as none does. Prints "is_read 1" once the page has been read, and in
 * the end what came of it, by "name number".
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "batcher.h"

#define QUEUE 64
#define PAYLOADS 2
#define MOST 16 /* max_batch_size */

struct TRITONSERVER_Error {
    int code;
};
struct TRITONSERVER_Message {
    const char *text;
};
struct TRITONBACKEND_Model {
    struct TRITONSERVER_Message config;
};
struct TRITONBACKEND_Input {
    int64_t shape[2];
};
struct TRITONBACKEND_Request {
    struct TRITONBACKEND_Input input;
    const char *class; /* goes before the priority */
    double deadline_ms;
    uint64_t priority;
};

struct payload {
    void *user;
    struct TRITONBACKEND_Request *requests[QUEUE];
    int count;
    int64_t rows;
    bool is_scheduled;
};

static struct TRITONSERVER_Error failure = {TRITON_INTERNAL};

TRITONSERVER_Error *TRITONSERVER_ErrorNew(int code, const char *message) {
    (void)message;
    failure.code = code;
    return &failure;
}
void TRITONSERVER_ErrorDelete(TRITONSERVER_Error *error) {
    (void)error;
}
TRITONSERVER_Error *TRITONSERVER_LogMessage(
    int level, const char *file, int line, const char *message) {
    (void)level, (void)file, (void)line, (void)message;
    return NULL;
}
TRITONSERVER_Error *TRITONSERVER_MessageSerializeToJson(
    TRITONSERVER_Message *message, const char **base, size_t *size) {
    *base = message->text;
    *size = strlen(message->text);
    return NULL;
}
TRITONSERVER_Error *TRITONSERVER_MessageDelete(TRITONSERVER_Message *message) {
    free(message);
    return NULL;
}
TRITONSERVER_Error *TRITONBACKEND_ModelName(TRITONBACKEND_Model *model, const char **name) {
    (void)model;
    *name = "fake";
    return NULL;
}
TRITONSERVER_Error *TRITONBACKEND_ModelConfig(
    TRITONBACKEND_Model *model, uint32_t version, TRITONSERVER_Message **config) {
    (void)version;
    *config = malloc(sizeof **config);
    **config = model->config;
    return NULL;
}
TRITONSERVER_Error *TRITONBACKEND_RequestInputByIndex(
    TRITONBACKEND_Request *request, uint32_t index, TRITONBACKEND_Input **input) {
    (void)index;
    *input = &request->input;
    return NULL;
}
TRITONSERVER_Error *TRITONBACKEND_InputProperties(
    TRITONBACKEND_Input *input, const char **name, int *datatype, const int64_t **shape,
    uint32_t *dims_count, uint64_t *bytes, uint32_t *buffer_count) {
    *name = "x";
    *datatype = 1;
    *shape = input->shape;
    *dims_count = 2;
    *bytes = 1;
    *buffer_count = 1;
    return NULL;
}
TRITONSERVER_Error *TRITONBACKEND_RequestParameterCount(
    TRITONBACKEND_Request *request, uint32_t *count) {
    *count = (request->class ? 1u : 0u) + (request->deadline_ms > 0 ? 1u : 0u);
    return NULL;
}
TRITONSERVER_Error *TRITONBACKEND_RequestParameter(
    TRITONBACKEND_Request *request, uint32_t index, const char **key, int *type,
    const void **value) {
    const bool is_class = index == 0 && request->class;
    *key = is_class ? "slo_class" : "deadline_ms";
    *type = is_class ? TRITON_STRING : TRITON_DOUBLE;
    *value = is_class ? (const void *)request->class : &request->deadline_ms;
    return NULL;
}
TRITONSERVER_Error *TRITONBACKEND_InferenceRequestTimeoutMicroseconds(
    TRITONBACKEND_Request *request, uint64_t *timeout) {
    (void)request, (void)timeout;
    return TRITONSERVER_ErrorNew(TRITON_UNSUPPORTED, "");
}

TRITONSERVER_Error *TRITONSERVER_InferenceRequestPriorityUInt64(
    TRITONSERVER_InferenceRequest *request, uint64_t *priority) {
    *priority = ((struct TRITONBACKEND_Request *)(void *)request)->priority;
    return NULL;
}

/* ---- the scheduler */

static TRITONBACKEND_Batcher *batcher;
static struct TRITONBACKEND_Request *queue[QUEUE];
static int queued, cursor; /* of these so many are pending */
static bool is_cursor_valid, is_saturated;
static int resets;
static struct payload payloads[PAYLOADS], *current;
static int64_t cap;
static uint64_t seed, batches, rows, mixed, over, asked, refused_alone;

static uint32_t pick(uint32_t below) {
    seed = seed * 6364136223846793005ULL + 1442695040888963407ULL;
    return (uint32_t)(seed >> 33) % below;
}

static void initialize(void) {
    static bool is_told;
    if (resets == 2 && is_told) {
        return;
    }
    is_told = true;
    TRITONBACKEND_ModelBatchInitialize(batcher, &current->user);
}

static void finalize(void) {
    if (current->user) {
        TRITONBACKEND_ModelBatchFinalize(current->user);
        current->user = NULL;
    }
}

static void new_payload(void) {
    current = &payloads[pick(PAYLOADS)]; /* perhaps the very memory of the last one */
    *current = (struct payload){0};
    is_saturated = false;
    initialize();
}

static void enqueue(void) {
    static const char *const classes[] = {NULL, "strict", "best_effort", "best_effort"};
    if (queued == QUEUE) {
        return;
    }
    struct TRITONBACKEND_Request *request = malloc(sizeof *request);
    *request = (struct TRITONBACKEND_Request){
        .input.shape = {1 + pick(3), 4},
        .class = classes[pick(4)],
        .deadline_ms = pick(3) ? 0 : 1 + pick(100),
        .priority = pick(4)};
    queue[queued++] = request;
}

/* GetDynamicBatch and what follows it. */
static void form(void) {
    if (!is_cursor_valid) {
        cursor = 0;
        is_cursor_valid = true;
        if (resets == 1) {
            finalize();
            initialize();
        }
    }
    int64_t pending = 0;
    bool is_sealed = false;
    while (cursor < queued && !is_sealed) {
        bool is_in = false;
        const int64_t more = queue[cursor]->input.shape[0];
        is_sealed = current->count + cursor > 0 && current->rows + pending + more > MOST;
        if (!is_sealed) {
            TRITONBACKEND_ModelBatchIncludeRequest(queue[cursor], current->user, &is_in);
            asked++;
            refused_alone += !is_in && !current->count && !cursor;
            is_sealed = !is_in;
        }
        if (!is_sealed) {
            pending += more;
            cursor++;
        }
    }
    if (!cursor) {
        return; /* asked again until the batch runs */
    }
    is_saturated = is_sealed || current->rows + pending >= MOST;
    for (int i = 0; i < cursor; i++) {
        current->requests[current->count++] = queue[i];
    }
    current->rows += pending;
    queued -= cursor;
    memmove(queue, queue + cursor, (size_t)queued * sizeof *queue);
    cursor = 0;
    is_cursor_valid = false;
    if (!current->is_scheduled) {
        current->is_scheduled = true;
        finalize();
    }
}

static bool is_best_effort(const struct TRITONBACKEND_Request *request) {
    return request->class ? request->class[0] == 'b' : request->priority > 1;
}

static void run(struct payload *payload) {
    const bool is_first = is_best_effort(payload->requests[0]);
    batches++;
    rows += (uint64_t)payload->rows;
    over += cap && payload->rows > cap && payload->count > 1;
    for (int i = 0; i < payload->count; i++) {
        mixed += is_best_effort(payload->requests[i]) != is_first;
        free(payload->requests[i]);
    }
    *payload = (struct payload){0};
}

int main(int count, char **given) {
    if (count < 6) {
        return 2;
    }
    struct TRITONBACKEND_Model model = {{given[1]}};
    seed = strtoull(given[3], NULL, 10);
    resets = atoi(given[4]);
    cap = atoi(given[5]);
    if (TRITONBACKEND_ModelBatcherInitialize(&batcher, &model)) {
        return 3;
    }
    new_payload();
    for (long i = 0, steps = atol(given[2]); i < steps || queued || current->count; i++) {
        if (i < steps && pick(2)) {
            enqueue();
        }
        if (is_saturated && current->is_scheduled) {
            run(current); /* in truth another thread's; what was scheduled runs in order */
            new_payload();
        }
        if (queued && pick(3)) {
            const bool is_first = !asked;
            form();
            if (is_first && asked) {
                printf("is_read 1\n");
                fflush(stdout);
            }
        }
        if (current->is_scheduled && !pick(4)) {
            run(current);
            new_payload();
        }
    }
    TRITONBACKEND_ModelBatcherFinalize(batcher);
    printf("batches %llu\nrows %llu\nmixed %llu\nover %llu\nasked %llu\nrefused_alone %llu\n",
        (unsigned long long)batches, (unsigned long long)rows, (unsigned long long)mixed,
        (unsigned long long)over, (unsigned long long)asked, (unsigned long long)refused_alone);
    return 0;
}
