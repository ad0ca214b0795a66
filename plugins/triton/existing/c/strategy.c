/*
 * A batching strategy for Triton's dynamic batcher, for models of any backend: the server asks of
 * each request in the order of its queue whether it joins the batch that is being formed.
 *
 * The server goes on adding to a batch that waits for an instance, and says so by nothing: it may
 * finalize and initialize its user pointer anew, or leave it empty. What is known of a batch is
 * therefore kept here until another one begins; which Initialize begins one is told by its address
 * and by what came before it (begins_anew). As one thread forms the batches of a model, one record
 * of a batch is enough.
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "batcher.h"
#include "control_layout.h"
#include "page.h"
#include "rule.h"
#include "terms.h"

/* What this library was built from; build.py looks for it in its bytes. */
#ifndef SHUNTER_STRATEGY_SOURCE
#define SHUNTER_STRATEGY_SOURCE "" /* not by build.py */
#endif
extern const char shunter_strategy_source[];
const char shunter_strategy_source[] = SHUNTER_STRATEGY_SOURCE;

#define MEMBERS 1024
/* A server that asks so long about one request has begun a batch of which it did not tell. Of one
 * that waits for an instance it asks as long as others run: some times the time of a batch. */
#ifndef STUCK_NS
#define STUCK_NS 60000000000ULL
#endif
#define STUCK_BATCHES 4

struct member {
    const void *request;
    struct strategy_candidate candidate;
};

struct strategy_batcher {
    struct strategy_file file;
    struct strategy_numbers numbers; /* of this batch */
    struct strategy_batch batch;
    struct member members[MEMBERS]; /* of the batch, the first ones */
    uint32_t count;
    void **where;    /* the server keeps the batch's user pointer */
    uint32_t begins; /* Initialize, since a request was asked about */
    bool is_open;    /* Initialize, and no Finalize since */
    bool is_new;     /* nothing of it is known yet */
    bool resets;     /* this server initializes a batch again before it asks */
    const void *refused;
    uint64_t refused_ns;
};

/* Where the server has emptied the user pointer. */
static _Thread_local struct strategy_batcher *of_this_thread;

static uint64_t now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000ULL + (uint64_t)time.tv_nsec;
}

/* The text of a parameter in the model's configuration as JSON. */
static bool parameter(const char *json, size_t size, char *into, size_t room) {
    static const char key[] = "\"" SHUNTER_PAGE_PARAMETER "\":{\"string_value\":\"";
    const char *found = memmem(json, size, key, sizeof key - 1);
    const char *end = json + size;
    size_t n = 0;
    into[0] = 0;
    for (found = found ? found + sizeof key - 1 : end; found < end && *found != '"'; found++) {
        const bool is_escaped = *found == '\\';
        found += is_escaped;
        if (found == end || n + 1 >= room || (is_escaped && *found != '/' && *found != '\\')) {
            into[0] = 0;
            return false;
        }
        into[n++] = *found;
        into[n] = 0;
    }
    return n > 0;
}

TRITONSERVER_Error *TRITONBACKEND_ModelBatcherInitialize(
    TRITONBACKEND_Batcher **of, TRITONBACKEND_Model *model) {
    TRITONSERVER_Message *config = NULL;
    const char *json = NULL, *name = "?";
    size_t size = 0;
    TRITONSERVER_Error *error = TRITONBACKEND_ModelName(model, &name);
    error = error ? error : TRITONBACKEND_ModelConfig(model, 1, &config);
    if (error) {
        return error;
    }
    struct strategy_batcher *batcher = calloc(1, sizeof *batcher);
    error = batcher ? TRITONSERVER_MessageSerializeToJson(config, &json, &size)
                    : TRITONSERVER_ErrorNew(TRITON_INTERNAL, "no memory for a batching strategy");
    if (!error) {
        char said[1024];
        const bool has_page = parameter(json, size, batcher->file.path, sizeof batcher->file.path);
        batcher->file.descriptor = -1;
        batcher->is_new = true;
        snprintf(
            said, sizeof said, "shunter: batches of %s heed %s", name,
            has_page ? batcher->file.path
                     : "nothing: its configuration lacks the parameter " SHUNTER_PAGE_PARAMETER);
        TRITONSERVER_Error *unsaid = TRITONSERVER_LogMessage(
            has_page ? TRITON_INFO : TRITON_WARN, __FILE__, __LINE__, said);
        if (unsaid) {
            TRITONSERVER_ErrorDelete(unsaid);
        }
        *of = (TRITONBACKEND_Batcher *)batcher;
    } else {
        free(batcher);
    }
    TRITONSERVER_Error *kept = TRITONSERVER_MessageDelete(config);
    if (kept) {
        TRITONSERVER_ErrorDelete(kept);
    }
    return error;
}

TRITONSERVER_Error *TRITONBACKEND_ModelBatcherFinalize(TRITONBACKEND_Batcher *of) {
    struct strategy_batcher *batcher = (struct strategy_batcher *)of;
    if (of_this_thread == batcher) {
        of_this_thread = NULL;
    }
    strategy_close(&batcher->file);
    free(batcher);
    return NULL;
}

/* Not so where the server initializes once more, after Finalize, what waits for an instance. */
static bool begins_anew(const struct strategy_batcher *batcher, void **where) {
    return where != batcher->where || batcher->is_open || batcher->begins > 1 || !batcher->resets;
}

TRITONSERVER_Error *TRITONBACKEND_ModelBatchInitialize(
    const TRITONBACKEND_Batcher *of, void **batch) {
    struct strategy_batcher *batcher = (struct strategy_batcher *)(uintptr_t)of;
    batcher->begins++;
    batcher->resets |= batcher->begins > 1 && !batcher->is_open;
    batcher->is_new |= begins_anew(batcher, batch);
    batcher->where = batch;
    batcher->is_open = true;
    of_this_thread = batcher;
    *batch = batcher;
    return NULL;
}

TRITONSERVER_Error *TRITONBACKEND_ModelBatchFinalize(void *batch) {
    struct strategy_batcher *batcher = batch;
    batcher->is_open = false;
    return NULL;
}

static void begin(struct strategy_batcher *batcher, uint64_t now_ns) {
    batcher->numbers = strategy_read(&batcher->file, now_ns);
    batcher->batch = (struct strategy_batch){0};
    batcher->count = 0;
    batcher->is_new = false;
}

static bool is_member(
    const struct strategy_batcher *batcher, const void *request,
    const struct strategy_candidate *candidate) {
    for (uint32_t i = 0; i < batcher->count; i++) {
        const struct member *each = &batcher->members[i];
        /* An address may come again with another request. */
        if (each->request == request && each->candidate.class == candidate->class &&
            each->candidate.rows == candidate->rows) {
            return true;
        }
    }
    return false;
}

static bool is_stuck(struct strategy_batcher *batcher, const void *request, uint64_t now_ns) {
    if (batcher->refused != request) {
        batcher->refused = request;
        batcher->refused_ns = now_ns;
    }
    const struct strategy_numbers *numbers = &batcher->numbers;
    const uint64_t batch_ns = numbers->fixed_ns + batcher->batch.rows * numbers->per_row_ns;
    return now_ns - batcher->refused_ns > STUCK_NS + STUCK_BATCHES * batch_ns;
}

TRITONSERVER_Error *TRITONBACKEND_ModelBatchIncludeRequest(
    TRITONBACKEND_Request *request, void *batch, bool *should_include) {
    struct strategy_batcher *batcher = batch ? batch : of_this_thread;
    *should_include = true;
    if (!batcher) {
        return NULL;
    }
    const uint64_t now_ns = now();
    batcher->begins = 0;
    if (batcher->is_new) {
        begin(batcher, now_ns);
    }
    const struct strategy_candidate candidate =
        strategy_terms(&batcher->numbers, request, now_ns);
    if (is_member(batcher, request, &candidate)) {
        return NULL;
    }
    if (!strategy_includes(&batcher->numbers, &batcher->batch, &candidate, now_ns)) {
        *should_include = is_stuck(batcher, request, now_ns);
        if (!*should_include) {
            return NULL;
        }
        begin(batcher, now_ns);
    }
    batcher->refused = NULL;
    strategy_include(&batcher->numbers, &batcher->batch, &candidate, now_ns);
    if (batcher->count < MEMBERS) {
        batcher->members[batcher->count++] = (struct member){request, candidate};
    }
    return NULL;
}
