/* Hellos over a connection, again and again, until a session is open; and its end. */
#define _GNU_SOURCE
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "address.h"
#include "client_parts.h"
#include "hello.h"

#define FIRST_WAIT_NS 50000000ULL
#define MOST_WAIT_NS 1000000000ULL
#define LARGEST 65536
#define TIMEOUT_MS 5000u
#define ONE_ADDRESS_NS 1000000000ULL /* one that does not answer for so long is given up */
#define LEAST_KEY 32

/* Whole and not a byte of what is behind it; its length, 0: there is none yet. */
static ssize_t take_message(
    const struct shunter_client_settings *settings, uint8_t *into, size_t *have, int *memory) {
    if (!settings->stream) {
        const ssize_t length = recv(settings->socket, into, LARGEST, MSG_DONTWAIT);
        return length < 0 ? (errno == EAGAIN || errno == EINTR ? 0 : -errno) : length;
    }
    for (;;) {
        struct shunter_x64 header;
        size_t wanted = SHUNTER_HEADER_BYTES;
        if (*have >= SHUNTER_HEADER_BYTES) {
            memcpy(&header, into, sizeof header);
            wanted += header.length;
        }
        if (wanted > LARGEST) {
            return -EPROTO;
        }
        if (*have >= SHUNTER_HEADER_BYTES && *have == wanted) {
            *have = 0;
            return (ssize_t)wanted;
        }
        const ssize_t got =
            shunter_receive_memory(settings->socket, into + *have, wanted - *have, memory);
        if (got < 0) {
            return errno == EAGAIN || errno == EINTR ? 0 : -errno;
        }
        if (!got) {
            return -ECONNRESET;
        }
        *have += (size_t)got;
    }
}

static int say(const struct shunter_hello *hello, int socket) {
    const ssize_t sent =
        send(socket, hello->message, sizeof hello->message, MSG_NOSIGNAL | MSG_DONTWAIT);
    return sent == sizeof hello->message ? 0 : sent < 0 && errno != EAGAIN ? -errno : -EIO;
}

int shunter_hello_talk(
    struct shunter_hello *hello, struct shunter_client_settings *settings,
    struct shunter_tensors *tensors, uint64_t until_ns) {
    uint64_t wait_ns = FIRST_WAIT_NS, due_ns = 0, said_ns = 0;
    size_t have = 0;
    int result = -EAGAIN;
    uint8_t *message = malloc(LARGEST);
    if (!message) {
        return -ENOMEM;
    }
    while (result == -EAGAIN) {
        uint64_t now = shunter_client_now_ns();
        if (now >= until_ns) {
            result = -ETIMEDOUT;
            break;
        }
        if (now >= due_ns) {
            said_ns = said_ns ? said_ns : now;
            due_ns = settings->stream ? UINT64_MAX : now + wait_ns;
            wait_ns += wait_ns / 4;
            wait_ns = wait_ns < MOST_WAIT_NS ? wait_ns : MOST_WAIT_NS;
            const int error = say(hello, settings->socket);
            if (error) {
                result = error;
                break;
            }
        }
        const int ready =
            shunter_wait(settings->socket, POLLIN, due_ns < until_ns ? due_ns : until_ns);
        const ssize_t length =
            ready > 0 ? take_message(settings, message, &have, &hello->memory) : (ssize_t)ready;
        if (length < 0) {
            result = (int)length;
        } else if (length) {
            result = shunter_hello_take(hello, message, (size_t)length, settings, tensors);
        }
        if (result == 1) { // at once, with the cookie
            due_ns = said_ns = 0;
            wait_ns = FIRST_WAIT_NS;
            result = -EAGAIN;
        }
    }
    free(message);
    settings->trip_ns = shunter_client_now_ns() - said_ns; // to the server and back
    return result;
}

/* ---- opening */

static int make_client(
    const struct shunter_client_settings *settings, struct shunter_session *session) {
    const int error = shunter_client_new(settings, &session->client);
    return error == -E2BIG ? -SHUNTER_STATUS_TOO_LARGE : error;
}

static int begin_session(
    const struct shunter_client_settings *settings, struct shunter_session *session) {
    struct shunter_client_settings all = *settings;
    const struct shunter_tensors *tensors = &session->tensors;
    all.gso = !all.stream;
    if (tensors->packed) {
        const uint32_t rows = tensors->packing.batched ? INT32_MAX : 1; // a worker knows better
        shunter_make_side(&session->requests, tensors->inputs, tensors->input_count, rows);
        shunter_make_side(&session->answers, tensors->outputs, tensors->output_count, rows);
        const uint64_t least = shunter_least_run(tensors->outputs, tensors->output_count);
        if (least > tensors->packing.answer_bytes) {
            return -EPROTO;
        }
        all.input_count = all.output_count = 1;
        all.input_bytes[0] = tensors->packing.request_bytes;
        all.output_bytes[0] = tensors->packing.answer_bytes;
        all.least_answer = (uint32_t)least;
        return make_client(&all, session);
    }
    all.input_count = tensors->input_count;
    all.output_count = tensors->output_count;
    for (unsigned i = 0; i < all.input_count; i++) {
        all.input_bytes[i] = (uint32_t)tensors->inputs[i].bytes;
    }
    for (unsigned i = 0; i < all.output_count; i++) {
        all.output_bytes[i] = (uint32_t)tensors->outputs[i].bytes;
    }
    return make_client(&all, session);
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
    const uint64_t until_ns = shunter_client_now_ns() + timeout_ms * SHUNTER_NS_PER_MS;
    int error = open_anywhere(&address, model, options, session, until_ns);
    if (error == -SHUNTER_STATUS_TOO_LARGE && address.falls_back) {
        address.stream = true;
        error = open_anywhere(&address, model, options, session, until_ns);
    }
    if (error) {
        free(session);
        return error;
    }
    session->ask_wait_ns = SHUNTER_FIRST_ASK_NS;
    session->process = getpid();
    *result = session;
    return 0;
}

void shunter_close(shunter_session *session) {
    if (session) {
        shunter_session_streams_free(session);
        if (shunter_session_is_ours(session)) { // else it goes on where it was opened
            shunter_client_farewell(session->client);
        }
        shunter_client_free(session->client);
        shunter_unshare(&session->tensors, &session->settings);
        close(session->settings.socket);
        free(session);
    }
}
