/* The public interface: shunter_client.h. */
#define _GNU_SOURCE
#include "shunter_client.h"

#include <errno.h>
#include <poll.h>
#include <string.h>

#include "client_parts.h"
#include "hello.h"

#define SILENCE_NS 500000000ULL /* then it may be true that there is no such session */
#define MOST_ASK_NS 200000000ULL

_Static_assert(SHUNTER_MOST_TENSORS == SHUNTER_MAX_TENSORS, "tensors");
_Static_assert(SHUNTER_MOST_AT_ONCE == SHUNTER_WINDOW, "window");

const struct shunter_tensor *shunter_inputs(const shunter_session *session, unsigned *count) {
    *count = session->tensors.input_count;
    return session->tensors.inputs;
}

const struct shunter_tensor *shunter_outputs(const shunter_session *session, unsigned *count) {
    *count = session->tensors.output_count;
    return session->tensors.outputs;
}

const struct shunter_packing *shunter_packing(const shunter_session *session) {
    return session->tensors.packed ? &session->tensors.packing : NULL;
}

/* ---- requests */

static uint64_t least(uint64_t a, uint64_t b) { return a < b ? a : b; }

/* What is asked for: tensors, or where ``run`` is not NULL one run of bytes. */
struct request {
    const void *const *inputs;
    void *const *outputs;
    const void *run;
    size_t bytes;
    void *answer;
    const struct shunter_request_options *options;
    bool awaited; /* by who begins it: poll never says how it has ended */
};

/* Requests whose endings are still to be told: as many as this can be kept. */
static uint64_t unheard(const struct shunter_session *session) {
    return session->kept_count + session->client->live.pending + session->client->ended_count;
}

static int64_t begin_run(
    shunter_session *session, const struct request *request,
    const struct shunter_request_options *options) {
    struct shunter_client_run run = {
        .request = request->run, .answer = request->answer, .bytes = (uint32_t)request->bytes};
    if (!session->tensors.packed || session->tensors.packing.streamed ||
        request->bytes < sizeof run.rows) {
        return -EINVAL;
    }
    if (request->bytes > session->tensors.packing.request_bytes) {
        return -EMSGSIZE;
    }
    memcpy(&run.rows, request->run, sizeof run.rows);
    return shunter_client_begin_run(
        session->client, &run, (uint64_t)options->deadline_ms * 1000,
        (uint32_t)options->priority, options->idempotent != 0);
}

void shunter_session_begun(struct shunter_session *session) {
    session->asked_ns = 0;
    session->ask_wait_ns = SHUNTER_FIRST_ASK_NS;
}

static int64_t begin(shunter_session *session, const struct request *request) {
    const struct shunter_request_options *options =
        request->options ? request->options : &(struct shunter_request_options){0};
    if (options->priority < 0 || options->priority > 2) {
        return -EINVAL;
    }
    if (!shunter_session_is_ours(session)) {
        return -ECHILD;
    }
    if (!request->awaited && unheard(session) >= SHUNTER_WINDOW) {
        return -EAGAIN; // until somebody asks how those have ended
    }
    const int64_t begun = request->run
        ? begin_run(session, request, options)
        : shunter_client_begin(
              session->client, request->inputs, request->outputs,
              (uint64_t)options->deadline_ms * 1000, (uint32_t)options->priority,
              options->idempotent != 0);
    if (begun > 0) {
        shunter_session_begun(session);
    }
    return begun;
}

int64_t shunter_begin(
    shunter_session *session, const void *const *inputs, void *const *outputs,
    const struct shunter_request_options *options) {
    const struct request request = {.inputs = inputs, .outputs = outputs, .options = options};
    return begin(session, &request);
}

int shunter_cork(shunter_session *session, int corked) {
    return shunter_session_is_ours(session) ? shunter_client_cork(session->client, corked != 0)
                                            : -ECHILD;
}

int64_t shunter_begin_packed(
    shunter_session *session, const void *run, size_t bytes, void *answer,
    const struct shunter_request_options *options) {
    const struct request request = {
        .run = run, .bytes = bytes, .answer = answer, .options = options};
    return run && answer ? begin(session, &request) : -EINVAL;
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

/* Who waits for one request, or reads a stream, does not hear how others have ended. */
static void keep(struct shunter_session *session, struct shunter_result result) {
    if (session->kept_count < SHUNTER_WINDOW) { // no more have begun
        session->kept[session->kept_count++] = result;
    }
}

static int kept_of(struct shunter_session *session, struct shunter_result *results, unsigned most) {
    const unsigned found = session->kept_count < most ? session->kept_count : most;
    memcpy(results, session->kept, found * sizeof *results);
    session->kept_count -= found;
    memmove(session->kept, session->kept + found, session->kept_count * sizeof *results);
    return (int)found;
}

/* How many of those that have ended are of no stream. */
static int told(
    struct shunter_session *session, const struct shunter_ended *ended, int count,
    struct shunter_result *results, unsigned most) {
    unsigned found = 0;
    for (int i = 0; i < count; i++) {
        if (!shunter_session_streams_take(session, &ended[i])) {
            const int status = (int)ended[i].status;
            const struct shunter_result result = {
                (int64_t)ended[i].req_id, status == SHUNTER_STATUS_OK ? 0 : -status,
                ended[i].bytes};
            if (found < most) {
                results[found++] = result;
            } else {
                keep(session, result);
            }
        }
    }
    return (int)found;
}

int shunter_session_poll(
    struct shunter_session *session, struct shunter_result *results, unsigned most,
    uint64_t until_ns) {
    struct shunter_ended ended[SHUNTER_WINDOW];
    const unsigned room = session->streams || most > SHUNTER_WINDOW ? SHUNTER_WINDOW : most;
    const uint8_t *unused;
    uint64_t now = shunter_client_now_ns();
    int count;
    do {
        const int error = shunter_session_is_ours(session) ? ask(session, now) : -ECHILD;
        if (error) {
            return error;
        }
        shunter_client_hello(session->client, &unused); // a late answer to one is of no use
        count = shunter_client_poll(
            session->client, ended, room, least(until_ns, ask_due_ns(session)), 0);
        now = shunter_client_now_ns();
    } while (!count && now < until_ns && now >= ask_due_ns(session));
    if (count < 0) {
        return count;
    }
    const int found = told(session, ended, count, results, most);
    shunter_session_streams_go_on(session);
    return count || !is_forgotten(session, now) ? found : -SHUNTER_STATUS_UNKNOWN_SESSION;
}

int shunter_poll(
    shunter_session *session, struct shunter_result *results, unsigned most, int timeout_ms) {
    const uint64_t now = shunter_client_now_ns();
    if (!shunter_session_is_ours(session)) {
        return -ECHILD;
    }
    if (session->kept_count || session->client->ended_count) {
        (void)shunter_client_flush(session->client); // what is wrong the next poll says too
    }
    if (session->kept_count && most) {
        return kept_of(session, results, most);
    }
    return shunter_session_poll(
        session, results, most,
        now + (timeout_ms > 0 ? (unsigned)timeout_ms * SHUNTER_NS_PER_MS : 0));
}

int shunter_cancel(shunter_session *session, int64_t request) {
    return !shunter_session_is_ours(session) ? -ECHILD
        : request > 0 ? shunter_client_cancel(session->client, (uint64_t)request)
                      : -ENOENT;
}

/* ``bytes``: of the answer. */
static int infer(
    shunter_session *session, const struct request *asked, size_t *bytes, unsigned timeout_ms) {
    uint64_t now = shunter_client_now_ns();
    const uint64_t until_ns = now + timeout_ms * SHUNTER_NS_PER_MS;
    int64_t request = 0;
    int error;
    do {
        struct shunter_result results[SHUNTER_WINDOW];
        const int64_t begun = request ? request : begin(session, asked);
        if (begun < 0 && begun != -EAGAIN) {
            return (int)begun;
        }
        request = begun > 0 ? begun : 0;
        const uint64_t soon = least(until_ns, now + SHUNTER_LOOK_NS);
        const int count = shunter_session_poll(session, results, SHUNTER_WINDOW, soon);
        error = count < 0 ? count : 1;
        for (int i = 0; i < count; i++) {
            if (results[i].request == request) {
                *bytes = results[i].bytes;
                error = results[i].error;
            } else {
                keep(session, results[i]);
            }
        }
        now = shunter_client_now_ns();
    } while (error > 0 && now < until_ns);
    shunter_cancel(session, request); // if it has not ended
    return error > 0 ? -ETIMEDOUT : error;
}

int shunter_infer(
    shunter_session *session, const void *const *inputs, void *const *outputs,
    const struct shunter_request_options *options, unsigned timeout_ms) {
    const struct request request = {
        .inputs = inputs, .outputs = outputs, .options = options, .awaited = true};
    size_t unused;
    return infer(session, &request, &unused, timeout_ms);
}

int shunter_infer_packed(
    shunter_session *session, const void *run, size_t bytes, void *answer, size_t *answered,
    const struct shunter_request_options *options, unsigned timeout_ms) {
    const struct request request = {
        .run = run, .bytes = bytes, .answer = answer, .options = options, .awaited = true};
    return run && answer ? infer(session, &request, answered, timeout_ms) : -EINVAL;
}

/* ---- event loops */

int shunter_descriptor(const shunter_session *session) { return session->settings.socket; }

int shunter_wants_write(const shunter_session *session) {
    return shunter_client_numbers(session->client)->kept > 0;
}

int shunter_due_ms(const shunter_session *session) {
    const uint64_t now = shunter_client_now_ns();
    const uint64_t later = least(shunter_client_due_ns(session->client), ask_due_ns(session));
    const uint64_t due = session->kept_count ? 0 : later;
    const uint64_t ms = due > now ? (due - now + SHUNTER_NS_PER_MS - 1) / SHUNTER_NS_PER_MS : 0;
    return due == UINT64_MAX || ms > INT32_MAX ? INT32_MAX : (int)ms;
}
