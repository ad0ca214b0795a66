/* What Triton calls. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "backend.h"

#define ADVICE                                                                                     \
    "start the server by `shunter serve --triton`, or give it --backend-config=shunter,socket=PATH"

void shunter_log(int level, const char *format, ...) {
    char text[512] = "shunter: ";
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text + 9, sizeof text - 9, format, arguments);
    va_end(arguments);
    TRITONSERVER_Error *error = TRITONSERVER_LogMessage(level, __FILE__, __LINE__, text);
    if (error) {
        TRITONSERVER_ErrorDelete(error);
    }
}

static TRITONSERVER_Error *failed(int code, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

static TRITONSERVER_Error *failed(int code, const char *format, ...) {
    char text[512];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    return TRITONSERVER_ErrorNew(code, text);
}

/* ---- the backend */

static TRITONSERVER_Error *check_version(void) {
    uint32_t major = 0, minor = 0;
    TRITONSERVER_Error *error = TRITONBACKEND_ApiVersion(&major, &minor);
    if (error) {
        return error;
    }
    if (major != TRITON_API_MAJOR || minor < TRITON_API_MINOR) {
        return failed(
            TRITON_UNSUPPORTED,
            "this server's interface for backends is %u.%u; the shunter backend knows %u.%u and "
            "later ones of %u: use Triton %s or later, or another version of shunter",
            major, minor, TRITON_API_MAJOR, TRITON_API_MINOR, TRITON_API_MAJOR, TRITON_OLDEST);
    }
    return NULL;
}

/* A text of the backend's configuration, which is JSON with texts only: "name":"text". */
static bool setting(const char *json, size_t size, const char *name, char *into, size_t room) {
    char key[64];
    snprintf(key, sizeof key, "\"%s\":\"", name);
    const char *found = memmem(json, size, key, strlen(key));
    const char *begin = found ? found + strlen(key) : NULL;
    const char *end = found ? memchr(begin, '"', size - (size_t)(begin - json)) : NULL;
    if (!end || (size_t)(end - begin) >= room || memchr(begin, '\\', (size_t)(end - begin))) {
        return false;
    }
    memcpy(into, begin, (size_t)(end - begin));
    into[end - begin] = 0;
    return true;
}

static TRITONSERVER_Error *read_settings(
    TRITONBACKEND_Backend *of, struct shunter_backend *backend) {
    TRITONSERVER_Message *message = NULL;
    const char *json = "";
    size_t size = 0;
    TRITONSERVER_Error *error = TRITONBACKEND_BackendConfig(of, &message);
    error = error ? error : TRITONSERVER_MessageSerializeToJson(message, &json, &size);
    if (error) {
        return error;
    }
    char wait[32] = "";
    if (!setting(json, size, "socket", backend->path, sizeof backend->path)) {
        const char *given = getenv("SHUNTER_TRITON_SOCKET");
        if (!given || strlen(given) >= sizeof backend->path) {
            return failed(
                TRITON_INVALID_ARG,
                "the shunter backend does not know where its host finds it (a path of at most %zu "
                "bytes): " ADVICE, sizeof backend->path - 1);
        }
        strcpy(backend->path, given);
    }
    if (setting(json, size, "wait-s", wait, sizeof wait)) {
        char *end = NULL;
        const double seconds = strtod(wait, &end);
        if (end == wait || *end || !(seconds >= 0 && seconds <= 86400)) {
            return failed(
                TRITON_INVALID_ARG, "wait-s '%s' of the shunter backend; allowed: 0 to 86400",
                wait);
        }
        backend->wait_ns = (uint64_t)(seconds * 1e9);
    }
    return NULL;
}

TRITONSERVER_Error *TRITONBACKEND_Initialize(TRITONBACKEND_Backend *of) {
    struct shunter_backend *backend = calloc(1, sizeof *backend);
    const bool has_memory = backend && (backend->sets = shunter_sets_new());
    TRITONSERVER_Error *error =
        has_memory ? check_version() : failed(TRITON_INTERNAL, "no memory for the shunter backend");
    error = error ? error : read_settings(of, backend);
    if (!error) {
        pthread_mutex_init(&backend->lock, NULL);
        backend->epoll = epoll_create1(EPOLL_CLOEXEC);
        const int number = shunter_start(backend);
        if (number) {
            error = failed(
                TRITON_UNAVAILABLE, "the shunter backend cannot listen at %s: %s", backend->path,
                number == -EADDRINUSE ? "another server does" : strerror(-number));
        }
    }
    if (error) {
        if (has_memory) {
            shunter_sets_free(backend->sets);
        }
        free(backend);
        return error;
    }
    return TRITONBACKEND_BackendSetState(of, backend);
}

TRITONSERVER_Error *TRITONBACKEND_Finalize(TRITONBACKEND_Backend *of) {
    void *state = NULL;
    TRITONSERVER_Error *error = TRITONBACKEND_BackendState(of, &state);
    struct shunter_backend *backend = state;
    if (error || !backend) {
        return error;
    }
    shunter_stop(backend);
    for (struct shunter_function *each = backend->functions, *next; each; each = next) {
        next = each->next;
        shunter_function_free(each);
    }
    for (uint32_t i = 0; i < SHUNTER_SOURCES; i++) {
        if (backend->hosts[i].connection >= 0) {
            close(backend->hosts[i].connection);
            free(backend->hosts[i].states);
        }
    }
    unlink(backend->path);
    close(backend->listener);
    close(backend->stop);
    close(backend->nowhere);
    close(backend->epoll);
    pthread_mutex_destroy(&backend->lock);
    shunter_sets_free(backend->sets);
    free(backend);
    return NULL;
}

/* ---- models */

/* So that a server that says it is ready has somebody who answers. */
static TRITONSERVER_Error *wait_for_worker(struct shunter_function *function, uint64_t wait_ns) {
    const uint64_t until_ns = shunter_now_ns() + wait_ns;
    const struct timespec until = {
        (time_t)(until_ns / 1000000000), (long)(until_ns % 1000000000)};
    pthread_mutex_lock(&function->lock);
    while (!function->worker_count && shunter_now_ns() < until_ns) {
        pthread_cond_timedwait(&function->came, &function->lock, &until);
    }
    const bool has_worker = function->worker_count || !wait_ns;
    function->loaded += has_worker;
    pthread_mutex_unlock(&function->lock);
    return has_worker ? NULL
                      : failed(
                            TRITON_UNAVAILABLE,
                            "no worker of %s/%llu has come within wait-s=%g: the host starts them, "
                            "and its log says why not; " ADVICE,
                            function->model, (unsigned long long)function->version,
                            (double)wait_ns / 1e9);
}

TRITONSERVER_Error *TRITONBACKEND_ModelInitialize(TRITONBACKEND_Model *of) {
    TRITONBACKEND_Backend *owner = NULL;
    const char *name = NULL;
    uint64_t version = 0;
    void *state = NULL;
    TRITONSERVER_Error *error = TRITONBACKEND_ModelName(of, &name);
    error = error ? error : TRITONBACKEND_ModelVersion(of, &version);
    error = error ? error : TRITONBACKEND_ModelBackend(of, &owner);
    error = error ? error : TRITONBACKEND_BackendState(owner, &state);
    if (error) {
        return error;
    }
    struct shunter_backend *backend = state;
    struct shunter_function *function = shunter_function_of(backend, name, version);
    struct shunter_model *model = calloc(1, sizeof *model);
    if (!function || !model || strlen(name) >= sizeof function->model) {
        free(model);
        return failed(TRITON_INTERNAL, "the model %.100s cannot be served", name);
    }
    error = wait_for_worker(function, backend->wait_ns);
    if (error) {
        free(model);
        return error;
    }
    model->function = function;
    pthread_mutex_init(&model->lock, NULL);
    return TRITONBACKEND_ModelSetState(of, model);
}

static struct shunter_model *model_of(TRITONBACKEND_Model *of) {
    void *state = NULL;
    TRITONSERVER_Error *error = TRITONBACKEND_ModelState(of, &state);
    if (error) {
        TRITONSERVER_ErrorDelete(error);
    }
    return state;
}

/* Triton waits with it until all requests have been let go of. */
TRITONSERVER_Error *TRITONBACKEND_ModelFinalize(TRITONBACKEND_Model *of) {
    struct shunter_model *model = model_of(of);
    if (model) {
        pthread_mutex_lock(&model->function->lock);
        model->function->loaded--;
        pthread_mutex_unlock(&model->function->lock);
        pthread_mutex_destroy(&model->lock);
        free(model);
    }
    return NULL;
}

static struct shunter_model *model_of_instance(TRITONBACKEND_ModelInstance *instance) {
    TRITONBACKEND_Model *of = NULL;
    TRITONSERVER_Error *error = TRITONBACKEND_ModelInstanceModel(instance, &of);
    if (error) {
        TRITONSERVER_ErrorDelete(error);
    }
    return error ? NULL : model_of(of);
}

TRITONSERVER_Error *TRITONBACKEND_ModelInstanceInitialize(TRITONBACKEND_ModelInstance *instance) {
    struct shunter_model *model = model_of_instance(instance);
    if (!model) {
        return failed(TRITON_INTERNAL, "an instance without a model");
    }
    pthread_mutex_lock(&model->lock);
    model->instance = instance;
    pthread_mutex_unlock(&model->lock);
    return NULL;
}

TRITONSERVER_Error *TRITONBACKEND_ModelInstanceFinalize(TRITONBACKEND_ModelInstance *instance) {
    struct shunter_model *model = model_of_instance(instance);
    if (model) {
        pthread_mutex_lock(&model->lock);
        model->instance = model->instance == instance ? NULL : model->instance;
        pthread_mutex_unlock(&model->lock);
    }
    return NULL;
}

TRITONSERVER_Error *TRITONBACKEND_ModelInstanceExecute(
    TRITONBACKEND_ModelInstance *instance, TRITONBACKEND_Request **requests, uint32_t count) {
    struct shunter_model *model = model_of_instance(instance);
    if (!model) {
        return failed(TRITON_INTERNAL, "an instance without a model"); // they stay the server's
    }
    shunter_submit(model, requests, count);
    return NULL;
}
