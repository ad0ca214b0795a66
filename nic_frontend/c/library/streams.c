/* Answers in parts: each part is asked for by a request of its own. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "client_parts.h"
#include "hello.h"

#define AHEAD 8 /* parts that a worker may write before the first of them is taken */

/* Part n is at n % AHEAD. */
struct part {
    uint64_t req_id; /* who asks for it; 0: nobody does */
    uint32_t status; /* of that; 0: it has not ended, or with NOT_YET, and is asked for again */
    uint32_t bytes;
    void *memory;
};

struct shunter_stream {
    struct shunter_session *session;
    struct shunter_stream *next;
    struct shunter_request_options options;
    uint64_t request; /* 0: it could not begin yet */
    uint32_t status;  /* of it; 0: not all of it is there */
    uint32_t taken;   /* parts that the caller got */
    bool held;        /* and has the last of */
    bool is_over;
    int result; /* then: 0, or the error */
    struct part parts[AHEAD];
    size_t bytes;
    uint8_t run[]; /* the request */
};

static struct part *part_of(struct shunter_stream *stream, uint32_t number) {
    return &stream->parts[number % AHEAD];
}

static int64_t ask(struct shunter_stream *stream, const struct shunter_client_run *run) {
    const struct shunter_request_options *options = &stream->options;
    const bool is_request = !run->part;
    if (!shunter_session_is_ours(stream->session)) {
        return -ECHILD;
    }
    const int64_t begun = shunter_client_begin_run(
        stream->session->client, run, is_request ? (uint64_t)options->deadline_ms * 1000 : 0,
        is_request ? (uint32_t)options->priority : 0, is_request && options->idempotent);
    if (begun > 0) {
        shunter_session_begun(stream->session);
    }
    return begun;
}

static int ask_request(struct shunter_stream *stream) {
    struct shunter_client_run run = {
        .request = stream->run, .bytes = (uint32_t)stream->bytes}; // only its parts are answers
    memcpy(&run.rows, stream->run, sizeof run.rows);
    const int64_t begun = ask(stream, &run);
    stream->request = begun > 0 ? (uint64_t)begun : 0;
    return begun < 0 ? (int)begun : 0;
}

static int ask_part(struct shunter_stream *stream, uint32_t number) {
    struct part *part = part_of(stream, number);
    if (!part->memory) {
        part->memory = malloc(stream->session->tensors.packing.answer_bytes);
        if (!part->memory) {
            return -ENOMEM;
        }
    }
    const struct shunter_client_run run = {
        .request = stream->run,
        .answer = part->memory,
        .rows = 1,
        .part = number,
        .of = stream->request};
    const int64_t begun = ask(stream, &run);
    part->req_id = begun > 0 ? (uint64_t)begun : 0;
    return begun < 0 ? (int)begun : 0;
}

/* Ask for what may be asked for. 0 or an error; what finds no room is asked for later. */
static int go_on(struct shunter_stream *stream) {
    int error = 0;
    if (!stream->is_over && !stream->request) {
        error = ask_request(stream);
    }
    if (!stream->is_over && stream->status == SHUNTER_STATUS_UNDER_WAY) {
        // While the model has not begun, one is enough: it shows that it has.
        const uint32_t most = stream->taken ? stream->taken + AHEAD - stream->held : 1;
        for (uint32_t n = stream->taken + 1; !error && n <= most; n++) {
            error = part_of(stream, n)->req_id ? 0 : ask_part(stream, n);
        }
    }
    return error == -EAGAIN ? 0 : error;
}

bool shunter_session_streams_take(struct shunter_session *session, const struct shunter_ended *ended) {
    for (struct shunter_stream *stream = session->streams; stream; stream = stream->next) {
        if (stream->request == ended->req_id) {
            stream->status = ended->status;
            return true;
        }
        for (uint32_t i = 0; i < AHEAD; i++) {
            struct part *part = &stream->parts[i];
            if (part->req_id == ended->req_id) {
                const bool again = ended->status == SHUNTER_STATUS_NOT_YET;
                part->req_id = again ? 0 : part->req_id;
                part->status = again ? 0 : ended->status;
                part->bytes = ended->bytes;
                return true;
            }
        }
    }
    return false;
}

void shunter_session_streams_go_on(struct shunter_session *session) {
    for (struct shunter_stream *stream = session->streams; stream; stream = stream->next) {
        go_on(stream); // what is wrong, it says itself when it is asked for its next part
    }
}

int shunter_stream_begin(
    shunter_session *session, const void *run, size_t bytes,
    const struct shunter_request_options *options, shunter_stream **result) {
    const struct shunter_tensors *tensors = &session->tensors;
    *result = NULL;
    if (!tensors->packed || !tensors->packing.streamed || !run || bytes < sizeof(uint32_t) ||
        (options && (options->priority < 0 || options->priority > 2))) {
        return -EINVAL;
    }
    if (bytes > tensors->packing.request_bytes) {
        return -EMSGSIZE;
    }
    struct shunter_stream *stream = calloc(1, sizeof *stream + bytes);
    if (!stream) {
        return -ENOMEM;
    }
    memcpy(stream->run, run, bytes);
    stream->bytes = bytes;
    stream->session = session;
    if (options) {
        stream->options = *options;
    }
    const int error = go_on(stream);
    if (error) {
        free(stream);
        return error;
    }
    stream->next = session->streams;
    session->streams = stream;
    *result = stream;
    return 0;
}

static int finish(struct shunter_stream *stream, int result) {
    stream->is_over = true;
    stream->result = result;
    return result;
}

/* 1 with the next part, 0 or an error at the end, -EAGAIN: nothing came yet. */
static int look(struct shunter_stream *stream, const void **run, size_t *bytes) {
    if (stream->is_over) {
        return stream->result;
    }
    if (stream->status && stream->status != SHUNTER_STATUS_UNDER_WAY) {
        const bool is_whole = stream->status == SHUNTER_STATUS_OK;
        return finish(stream, is_whole ? -EPROTO : -(int)stream->status);
    }
    const struct part *part = part_of(stream, stream->taken + 1);
    if (part->status == SHUNTER_STATUS_OK) {
        stream->taken++;
        stream->held = true;
        *run = part->memory;
        *bytes = part->bytes;
        const int error = go_on(stream);
        return error ? finish(stream, error) : 1;
    }
    if (part->status) {
        return finish(stream, part->status == SHUNTER_STATUS_END ? 0 : -(int)part->status);
    }
    const int error = go_on(stream);
    return error ? finish(stream, error) : -EAGAIN;
}

int shunter_stream_next(
    shunter_stream *stream, const void **run, size_t *bytes, unsigned timeout_ms) {
    uint64_t now = shunter_client_now_ns();
    const uint64_t until_ns = now + timeout_ms * SHUNTER_NS_PER_MS;
    if (stream->held) {
        struct part *last = part_of(stream, stream->taken);
        last->req_id = 0;
        last->status = 0;
        stream->held = false;
    }
    for (bool has_polled = false;; has_polled = true) {
        const int found = look(stream, run, bytes);
        if (found != -EAGAIN || stream->is_over) {
            return found;
        }
        if (has_polled && now >= until_ns) {
            return timeout_ms ? -ETIMEDOUT : -EAGAIN;
        }
        struct shunter_result none;
        const uint64_t soon = now + SHUNTER_LOOK_NS;
        const int polled =
            shunter_session_poll(stream->session, &none, 0, soon < until_ns ? soon : until_ns);
        if (polled < 0) {
            return polled;
        }
        now = shunter_client_now_ns();
    }
}

static void free_stream(struct shunter_stream *stream) {
    for (uint32_t i = 0; i < AHEAD; i++) {
        free(stream->parts[i].memory);
    }
    free(stream);
}

/* Nobody wants the rest of it. */
static void give_up(struct shunter_stream *stream) {
    struct shunter_client *client = stream->session->client;
    if (stream->request && !stream->status) {
        shunter_client_cancel(client, stream->request);
    } else if (stream->status == SHUNTER_STATUS_UNDER_WAY && !stream->is_over) {
        shunter_client_unwanted(client, stream->request);
    }
    for (uint32_t i = 0; i < AHEAD; i++) {
        const struct part *part = &stream->parts[i];
        if (part->req_id && !part->status) {
            shunter_client_cancel(client, part->req_id);
        }
    }
}

void shunter_stream_end(shunter_stream *stream) {
    if (!stream) {
        return;
    }
    if (shunter_session_is_ours(stream->session)) { // else its parent may want it
        give_up(stream);
    }
    struct shunter_stream **at = &stream->session->streams;
    while (*at != stream) {
        at = &(*at)->next;
    }
    *at = stream->next;
    free_stream(stream);
}

void shunter_session_streams_free(struct shunter_session *session) {
    while (session->streams) {
        struct shunter_stream *stream = session->streams;
        session->streams = stream->next;
        free_stream(stream);
    }
}
