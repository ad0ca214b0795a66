/*
 * See terms.h. The names are those that our own backend takes. What cannot be counts as not said:
 * whoever forms batches cannot refuse a request.
 */
#define _GNU_SOURCE
#include "terms.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define LONGEST_MS 86400000.0 /* one day */

static bool is_there(TRITONSERVER_Error *error) {
    if (error) {
        TRITONSERVER_ErrorDelete(error);
    }
    return !error;
}

/* All inputs have the batch as first dimension: models without it are never batched. */
static uint64_t rows_of(TRITONBACKEND_Request *request) {
    TRITONBACKEND_Input *input = NULL;
    const char *name = NULL;
    const int64_t *shape = NULL;
    int datatype = 0;
    uint32_t dims = 0, buffers = 0;
    uint64_t bytes = 0;
    if (!is_there(TRITONBACKEND_RequestInputByIndex(request, 0, &input)) ||
        !is_there(TRITONBACKEND_InputProperties(
            input, &name, &datatype, &shape, &dims, &bytes, &buffers)) ||
        !dims || shape[0] < 1) {
        return 1;
    }
    return (uint64_t)shape[0];
}

static void read_class(struct strategy_candidate *found, int type, const char *value) {
    if (type == TRITON_STRING && !strcmp(value, "strict")) {
        found->class = 0;
    } else if (
        type == TRITON_STRING && (!strcmp(value, "best_effort") || !strcmp(value, "best-effort"))) {
        found->class = 1;
    }
}

/* In ns, 0: none. */
static uint64_t read_deadline(int type, const void *value) {
    double ms = 0;
    if (type == TRITON_INT) {
        ms = (double)*(const int64_t *)value;
    } else if (type == TRITON_DOUBLE) {
        ms = *(const double *)value;
    } else if (type == TRITON_STRING) {
        char *end = NULL;
        ms = strtod(value, &end);
        ms = end == (const char *)value || *end ? 0 : ms;
    }
    return ms > 0 && ms <= LONGEST_MS ? (uint64_t)(ms * 1e6) : 0;
}

static uint64_t earlier(uint64_t left, uint64_t right) {
    return !left || (right && right < left) ? right : left;
}

/* The server's own priority: 0 unless the model's configuration has levels, of which 1 is first. */
static uint8_t class_of(const struct strategy_numbers *numbers, TRITONBACKEND_Request *request) {
    uint64_t priority = 0;
    if (!is_there(TRITONSERVER_InferenceRequestPriorityUInt64(
            (TRITONSERVER_InferenceRequest *)(void *)request, &priority)) ||
        !priority) {
        return (uint8_t)numbers->class;
    }
    return priority > 1;
}

struct strategy_candidate strategy_terms(
    const struct strategy_numbers *numbers, TRITONBACKEND_Request *request, uint64_t now_ns) {
    struct strategy_candidate found = {
        .rows = rows_of(request), .class = class_of(numbers, request)};
    uint64_t within_ns = 0, timeout_us = 0;
    uint32_t count = 0;
    if (!is_there(TRITONBACKEND_RequestParameterCount(request, &count))) {
        count = 0;
    }
    for (uint32_t i = 0; i < count; i++) {
        const char *key = NULL;
        const void *value = NULL;
        int type = TRITON_STRING;
        if (!is_there(TRITONBACKEND_RequestParameter(request, i, &key, &type, &value))) {
            continue;
        }
        if (!strcmp(key, "slo_class") || !strcasecmp(key, "x-shunter-class")) {
            read_class(&found, type, value);
        } else if (!strcmp(key, "deadline_ms") || !strcasecmp(key, "x-shunter-deadline-ms")) {
            within_ns = read_deadline(type, value);
        }
    }
    if (is_there(TRITONBACKEND_InferenceRequestTimeoutMicroseconds(request, &timeout_us)) &&
        timeout_us <= (uint64_t)LONGEST_MS * 1000) {
        within_ns = earlier(within_ns, timeout_us * 1000);
    }
    if (!within_ns && found.class == 0) {
        within_ns = numbers->slo_ns;
    }
    if (within_ns) {
        /* When it came nobody says; it waited since. */
        const uint64_t waited_ns = numbers->waited_ns;
        found.deadline_ns = now_ns + (within_ns > waited_ns ? within_ns - waited_ns : 0);
    }
    return found;
}
