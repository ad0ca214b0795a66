/* On which terms a request is served: its class, its deadline, and whether it may run twice. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "backend.h"

#define LONGEST_MS 86400000.0 /* one day */

static bool is_there(TRITONSERVER_Error *error) {
    if (error) {
        TRITONSERVER_ErrorDelete(error);
    }
    return !error;
}

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

/* As text, too, as above. What must not run twice does not, whatever happens to its worker. */
static bool read_idempotent(
    struct shunter_call *call, const char *key, int type, const void *value) {
    const char *text = type == TRITON_STRING ? value : "";
    const bool is_bool = type == TRITON_BOOL;
    const bool is_true = is_bool ? *(const bool *)value : !strcmp(text, "true");
    if (!is_bool && !is_true && strcmp(text, "false")) {
        return shunter_wrong(
            call, SHUNTER_END_WRONG, "%s '%.40s'; allowed: true, false", key,
            type == TRITON_STRING ? text : "(not a string)");
    }
    call->idempotent = is_true;
    call->once = !is_true;
    return true;
}

/* Where it says that it is strict, and what it brings for that. */
struct claim {
    const char *key, *secret;
};

static bool read_parameters(struct shunter_call *call, struct claim *claim) {
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
            claim->key = call->class == 0 ? key : NULL;
        } else if (!strcmp(key, "deadline_ms") || !strcasecmp(key, "x-shunter-deadline-ms")) {
            is_right = read_deadline(call, key, type, value);
        } else if (!strcmp(key, "idempotent") || !strcasecmp(key, "x-shunter-idempotent")) {
            is_right = read_idempotent(call, key, type, value);
        } else if (
            type == TRITON_STRING &&
            (!strcmp(key, "strict_key") || !strcasecmp(key, "x-shunter-strict-key"))) {
            claim->secret = value;
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

/* The server's own: 0 unless the model's configuration has levels of it, of which 1 is the highest. */
static uint8_t class_of(const struct shunter_function *function, const struct shunter_call *call) {
    uint64_t priority = 0;
    if (!is_there(TRITONSERVER_InferenceRequestPriorityUInt64(
            (TRITONSERVER_InferenceRequest *)(void *)call->request, &priority)) ||
        !priority) {
        return function->class;
    }
    return priority > 1;
}

bool shunter_read_terms(struct shunter_function *function, struct shunter_call *call) {
    call->class = class_of(function, call);
    call->once = function->once;
    struct claim claim = {.key = call->class < function->class ? "priority" : NULL};
    if (!read_parameters(call, &claim) ||
        (claim.key && !shunter_may_claim(function, call, claim.key, claim.secret))) {
        return false;
    }
    complete_deadline(function, call);
    return !function->asks_for_sequence || shunter_read_sequence(call);
}
