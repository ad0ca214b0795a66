/* The public interface: shunter_client.h. */
#define _GNU_SOURCE
#include "shunter_client.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "address.h"
#include "client_parts.h"
#include "hello.h"

#define NS_PER_MS 1000000ULL
#define TIMEOUT_MS 5000u
#define ONE_ADDRESS_NS 1000000000ULL /* one that does not answer for so long is given up */
#define SILENCE_NS 500000000ULL      /* then it may be true that there is no such session */
#define FIRST_ASK_NS 5000000ULL
#define MOST_ASK_NS 200000000ULL
#define LEAST_KEY 32

_Static_assert(SHUNTER_MOST_TENSORS == SHUNTER_MAX_TENSORS, "tensors");
_Static_assert(SHUNTER_MOST_AT_ONCE == SHUNTER_WINDOW, "window");

struct shunter_session {
    struct shunter_client *client;
    struct shunter_tensors tensors;
    struct shunter_client_settings settings; /* without its keys */
    uint64_t asked_ns, ask_wait_ns; /* for credit */
};

/* ---- opening */

static int begin_session(
    const struct shunter_client_settings *settings, struct shunter_session *session) {
    struct shunter_client_settings all = *settings;
    const struct shunter_tensors *tensors = &session->tensors;
    all.gso = !all.stream;
    all.input_count = tensors->input_count;
    all.output_count = tensors->output_count;
    for (unsigned i = 0; i < all.input_count; i++) {
        all.input_bytes[i] = (uint32_t)tensors->inputs[i].bytes;
    }
    for (unsigned i = 0; i < all.output_count; i++) {
        all.output_bytes[i] = (uint32_t)tensors->outputs[i].bytes;
    }
    const int error = shunter_client_new(&all, &session->client);
    return error == -E2BIG ? -SHUNTER_STATUS_TOO_LARGE : error;
}

/* At one socket address. */
static int open_at(
    const struct shunter_address *address, const struct addrinfo *where, const char *model,
    const struct shunter_open_options *options, struct shunter_session *session,
    uint64_t until_ns) {
    struct shunter_client_settings settings = {.stream = address->stream};
    struct shunter_hello hello = {0};
    uint32_t segment;
    int error = shunter_hello_make(&hello, model, options);
    if (error) {
        return error;
    }
    settings.socket = shunter_connect(address, where, until_ns, &segment);
    if (settings.socket < 0) {
        return settings.socket;
    }
    shunter_hello_set_path(&hello, segment, address->unix_socket);
    error = shunter_hello_talk(&hello, &settings, &session->tensors, until_ns);
    if (!error && settings.shared_requests) {
        error = shunter_share(hello.memory, &session->tensors, &settings);
    }
    if (!error) {
        error = begin_session(&settings, session);
    }
    if (hello.memory >= 0) {
        close(hello.memory);
    }
    explicit_bzero(&hello, sizeof hello);
    explicit_bzero(&settings.keys, sizeof settings.keys);
    if (error) {
        shunter_unshare(&session->tensors, &settings);
        close(settings.socket);
        return error;
    }
    session->settings = settings;
    return 0;
}

/* A status of the server is an answer; who says nothing may have another address. */
static bool is_answer(int error) { return !error || error <= -SHUNTER_STATUS_BAD_REQUEST; }

static int open_anywhere(
    const struct shunter_address *address, const char *model,
    const struct shunter_open_options *options, struct shunter_session *session,
    uint64_t until_ns) {
    struct addrinfo *found;
    int error = shunter_resolve(address, &found);
    if (error || address->unix_socket) {
        return error ? error : open_at(address, NULL, model, options, session, until_ns);
    }
    for (const struct addrinfo *at = found; at; at = at->ai_next) {
        const uint64_t soon = shunter_client_now_ns() + ONE_ADDRESS_NS;
        error = open_at(
            address, at, model, options, session,
            at->ai_next && soon < until_ns ? soon : until_ns);
        if (is_answer(error)) {
            break;
        }
    }
    freeaddrinfo(found);
    return error;
}

int shunter_open(
    const char *url, const char *model, const struct shunter_open_options *options,
    shunter_session **result) {
    static const struct shunter_open_options DEFAULTS = {0};
    struct shunter_address address;
    options = options ? options : &DEFAULTS;
    const unsigned timeout_ms = options->timeout_ms ? options->timeout_ms : TIMEOUT_MS;
    *result = NULL;
    if (!url || !model || shunter_parse_url(url, &address) ||
        options->protection < SHUNTER_PLAIN || options->protection > SHUNTER_ENCRYPTED ||
        options->window > UINT16_MAX || (options->key && options->key_bytes < LEAST_KEY) ||
        (!options->key && options->protection == SHUNTER_ENCRYPTED)) {
        return -EINVAL;
    }
    struct shunter_session *session = calloc(1, sizeof *session);
    if (!session) {
        return -ENOMEM;
    }
    const uint64_t until_ns = shunter_client_now_ns() + timeout_ms * NS_PER_MS;
    int error = open_anywhere(&address, model, options, session, until_ns);
    if (error == -SHUNTER_STATUS_TOO_LARGE && address.falls_back) {
        address.stream = true;
        error = open_anywhere(&address, model, options, session, until_ns);
    }
    if (error) {
        free(session);
        return error;
    }
    session->ask_wait_ns = FIRST_ASK_NS;
    *result = session;
    return 0;
}

void shunter_close(shunter_session *session) {
    if (session) {
        shunter_client_farewell(session->client);
        shunter_client_free(session->client);
        shunter_unshare(&session->tensors, &session->settings);
        close(session->settings.socket);
        free(session);
    }
}

const struct shunter_tensor *shunter_inputs(const shunter_session *session, unsigned *count) {
    *count = session->tensors.input_count;
    return session->tensors.inputs;
}

const struct shunter_tensor *shunter_outputs(const shunter_session *session, unsigned *count) {
    *count = session->tensors.output_count;
    return session->tensors.outputs;
}

int shunter_next_inputs(const shunter_session *session, void **inputs) {
    return shunter_client_places(session->client, inputs);
}

/* ---- requests */

static uint64_t least(uint64_t a, uint64_t b) { return a < b ? a : b; }

int64_t shunter_begin(
    shunter_session *session, const void *const *inputs, void *const *outputs,
    const struct shunter_request_options *options) {
    static const struct shunter_request_options DEFAULTS = {0};
    options = options ? options : &DEFAULTS;
    if (options->priority < 0 || options->priority > 2) {
        return -EINVAL;
    }
    const int64_t begun = shunter_client_begin(
        session->client, inputs, outputs, (uint64_t)options->deadline_ms * 1000,
        (uint32_t)options->priority, options->idempotent != 0);
    if (begun > 0) {
        session->asked_ns = 0;
        session->ask_wait_ns = FIRST_ASK_NS;
    }
    return begun;
}

/*
 * When to ask for credit: where there is none, and nothing on its way that would bring some.
 * UINT64_MAX: not.
 */
static uint64_t ask_due_ns(const struct shunter_session *session) {
    const struct shunter_client_numbers *live = shunter_client_numbers(session->client);
    if (live->pending || live->next_id <= live->grant) {
        return UINT64_MAX;
    }
    return session->asked_ns ? session->asked_ns + session->ask_wait_ns : 0;
}

static int ask(struct shunter_session *session, uint64_t now) {
    if (now < ask_due_ns(session)) {
        return 0;
    }
    if (session->asked_ns) { // ever more seldom
        session->ask_wait_ns = least(2 * session->ask_wait_ns, MOST_ASK_NS);
    }
    session->asked_ns = now;
    return shunter_client_ask(session->client);
}

static bool is_forgotten(const struct shunter_session *session, uint64_t now) {
    const struct shunter_client_numbers *live = shunter_client_numbers(session->client);
    return live->unknown_ns > live->heard_ns && now > live->heard_ns + SILENCE_NS;
}

int shunter_poll(
    shunter_session *session, struct shunter_result *results, unsigned most, int timeout_ms) {
    struct shunter_ended ended[SHUNTER_WINDOW];
    const uint8_t *unused;
    uint64_t now = shunter_client_now_ns();
    const uint64_t until_ns = now + (timeout_ms > 0 ? (unsigned)timeout_ms * NS_PER_MS : 0);
    int count;
    do {
        const int error = ask(session, now);
        if (error) {
            return error;
        }
        shunter_client_hello(session->client, &unused); // a late answer to one is of no use
        count = shunter_client_poll(
            session->client, ended, most < SHUNTER_WINDOW ? most : SHUNTER_WINDOW,
            least(until_ns, ask_due_ns(session)), 0);
        now = shunter_client_now_ns();
    } while (!count && now < until_ns && now >= ask_due_ns(session));
    for (int i = 0; i < count; i++) {
        const int status = (int)ended[i].status;
        results[i] = (struct shunter_result){
            (int64_t)ended[i].req_id, status == SHUNTER_STATUS_OK ? 0 : -status};
    }
    return count || !is_forgotten(session, now) ? count : -SHUNTER_STATUS_UNKNOWN_SESSION;
}

int shunter_cancel(shunter_session *session, int64_t request) {
    return request > 0 ? shunter_client_cancel(session->client, (uint64_t)request) : -ENOENT;
}

static int left_ms(uint64_t until_ns) {
    const uint64_t now = shunter_client_now_ns();
    const uint64_t ms = until_ns > now ? (until_ns - now + NS_PER_MS - 1) / NS_PER_MS : 0;
    return ms < 10 ? (int)ms : 10; // to look whether the server has forgotten the session
}

int shunter_infer(
    shunter_session *session, const void *const *inputs, void *const *outputs,
    const struct shunter_request_options *options, unsigned timeout_ms) {
    const uint64_t until_ns = shunter_client_now_ns() + timeout_ms * NS_PER_MS;
    int64_t request = 0;
    int wait_ms = 1;
    while (wait_ms) {
        struct shunter_result result;
        if (!request) {
            const int64_t begun = shunter_begin(session, inputs, outputs, options);
            if (begun < 0 && begun != -EAGAIN) {
                return (int)begun;
            }
            request = begun > 0 ? begun : 0;
        }
        wait_ms = left_ms(until_ns);
        const int count = shunter_poll(session, &result, 1, wait_ms);
        if (count < 0) {
            shunter_cancel(session, request);
            return count;
        }
        if (count && result.request == request) {
            return result.error;
        }
    }
    shunter_cancel(session, request);
    return -ETIMEDOUT;
}

/* ---- event loops */

int shunter_descriptor(const shunter_session *session) { return session->settings.socket; }

int shunter_wants_write(const shunter_session *session) {
    return shunter_client_numbers(session->client)->kept > 0;
}

int shunter_due_ms(const shunter_session *session) {
    const uint64_t now = shunter_client_now_ns();
    const uint64_t due = least(shunter_client_due_ns(session->client), ask_due_ns(session));
    const uint64_t ms = due > now ? (due - now + NS_PER_MS - 1) / NS_PER_MS : 0;
    return due == UINT64_MAX || ms > INT32_MAX ? INT32_MAX : (int)ms;
}
