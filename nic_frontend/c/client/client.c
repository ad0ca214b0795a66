#define _GNU_SOURCE
#include "client.h"

#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "client_parts.h"

/* ``run``: NULL where the function is not packed. */
static int64_t begin(
    struct shunter_client *client, const void *const *inputs, void *const *outputs,
    const struct shunter_client_run *run, uint64_t deadline_us, uint32_t priority,
    uint32_t idempotent) {
    if (client->settings.stream && shunter_client_flush_stream(client) < 0) {
        return -ECONNRESET;
    }
    if (client->live.kept || client->live.next_id > client->live.grant ||
        client->live.next_id - client->live.below >= SHUNTER_WINDOW ||
        client->live.pending + client->ended_count >= SHUNTER_WINDOW) {
        return -EAGAIN;
    }
    const struct shunter_client_settings *settings = &client->settings;
    if (settings->shared) {
        if (client->live.next_id - client->live.below >= settings->shared_requests) {
            return -EAGAIN;
        }
        const int error = shunter_shared_put(
            client, client->live.next_id, inputs, run ? &run->bytes : settings->input_bytes);
        if (error) {
            return error;
        }
    }
    struct shunter_call *call = &client->calls[client->live.next_id % SHUNTER_WINDOW];
    const uint64_t now = shunter_client_now_ns();
    call->req_id = client->live.next_id++;
    call->sent_ns = now;
    call->rto_ns = shunter_call_rto(client);
    call->due_ns = now + call->rto_ns;
    call->deadline_ns = deadline_us ? now + deadline_us * 1000 : 0;
    call->asked_ns = 0;
    call->got = 0;
    call->count = run && run->part ? 1 : client->inputs.count;
    call->answer_count = client->outputs.count;
    if (run) {
        call->bytes = run->bytes;
        call->rows = (uint16_t)run->rows;
        call->answer_count = 0;
        if (!settings->shared && !run->part) {
            call->count = shunter_run_count(run->bytes, client->inputs.segment);
        }
    }
    call->part = run ? run->part : 0;
    call->of = run ? run->of : 0;
    call->flags = (uint16_t)((idempotent ? SHUNTER_FLAG_IDEMPOTENT : 0) |
                             (call->part ? SHUNTER_FLAG_NEXT : 0));
    call->priority = (uint8_t)priority;
    call->again = call->refused = call->cancelled = false;
    memcpy(call->inputs, inputs, client->inputs.tensors * sizeof *inputs);
    memcpy(call->outputs, outputs, client->outputs.tensors * sizeof *outputs);
    memset(call->received, 0, (client->outputs.count + 7) / 8);
    client->live.pending++;
    shunter_flow_begin(call);
    const int error = shunter_flow_want_all(client, call, now);
    if (error) { // it has not begun: nobody would hear how it ends, and its memory is the caller's
        shunter_call_free(client, call);
        return error;
    }
    return (int64_t)call->req_id;
}

int64_t shunter_client_begin(
    struct shunter_client *client, const void *const *inputs, void *const *outputs,
    uint64_t deadline_us, uint32_t priority, uint32_t idempotent) {
    return shunter_client_is_packed(client)
        ? -EINVAL
        : begin(client, inputs, outputs, NULL, deadline_us, priority, idempotent);
}

int64_t shunter_client_begin_run(
    struct shunter_client *client, const struct shunter_client_run *run, uint64_t deadline_us,
    uint32_t priority, uint32_t idempotent) {
    const bool asks = run->part && !run->bytes;
    if (!shunter_client_is_packed(client) || (run->bytes < 1 && !asks) || run->rows < 1 ||
        run->bytes > client->settings.input_bytes[0] || run->rows > UINT16_MAX) {
        return -EINVAL;
    }
    return begin(client, &run->request, &run->answer, run, deadline_us, priority, idempotent);
}

static int wait_for_data(struct shunter_client *client, uint64_t now, uint64_t until) {
    const uint64_t ns = until > now ? until - now : 0;
    const struct timespec time = {
        .tv_sec = (time_t)(ns / 1000000000ULL), .tv_nsec = (long)(ns % 1000000000ULL)};
    struct pollfd data = {.fd = client->settings.socket, .events = POLLIN};
    if (client->live.kept) {
        data.events |= POLLOUT;
    }
    return ppoll(&data, 1, &time, NULL) < 0 && errno != EINTR ? -errno : 0;
}

int shunter_client_poll(
    struct shunter_client *client, struct shunter_ended *ended, uint32_t most, uint64_t until_ns,
    uint32_t spin) {
    while (!client->ended_count && !client->hello_length) {
        const bool kept = client->live.kept;
        int error = shunter_client_flush(client);
        if (error) {
            return error;
        }
        if (kept && !client->live.kept) {
            break; // there is room again: the caller may be waiting to begin
        }
        const int came =
            client->settings.stream ? shunter_client_receive_stream(client)
                                    : shunter_client_receive_datagrams(client);
        if (came < 0 && !client->ended_count) {
            return came;
        }
        if (came && !client->ended_count && !client->live.pending) {
            break; // a sign of life, or credit: the caller may be waiting for it
        }
        if (came || client->ended_count) {
            continue;
        }
        const uint64_t now = shunter_client_now_ns(), due = shunter_client_due_ns(client);
        if (due <= now) {
            error = shunter_calls_tick(client, now);
            if (error) {
                return error;
            }
            continue;
        }
        if (now >= until_ns) {
            return 0;
        }
        if (spin) {
            sched_yield();
            continue;
        }
        error = wait_for_data(client, now, due < until_ns ? due : until_ns);
        if (error) {
            return error;
        }
    }
    const uint32_t count = client->ended_count < most ? client->ended_count : most;
    memcpy(ended, client->ended, count * sizeof *ended);
    client->ended_count -= count;
    memmove(client->ended, client->ended + count, client->ended_count * sizeof *ended);
    return (int)count;
}

int shunter_client_exchange(struct shunter_client *client, struct shunter_exchange *exchange) {
    struct shunter_ended ended;
    exchange->status = 0;
    exchange->req_id = 0;
    const struct shunter_client_run run = {
        .request = exchange->inputs[0], .answer = exchange->outputs[0], .bytes = exchange->bytes,
        .rows = exchange->rows};
    const int64_t begun = shunter_client_is_packed(client)
        ? shunter_client_begin_run(
              client, &run, exchange->deadline_us, exchange->priority, exchange->idempotent)
        : shunter_client_begin(
              client, exchange->inputs, exchange->outputs, exchange->deadline_us,
              exchange->priority, exchange->idempotent);
    if (begun < 0) {
        return (int)begun;
    }
    exchange->req_id = (uint64_t)begun;
    if (!exchange->spin) { // the answer cannot be here yet
        const uint64_t due = shunter_client_due_ns(client), until = exchange->until_ns;
        const int error = wait_for_data(
            client, shunter_call_of(client, exchange->req_id)->sent_ns, due < until ? due : until);
        if (error) {
            return error;
        }
    }
    int count;
    do {
        count = shunter_client_poll(client, &ended, 1, exchange->until_ns, exchange->spin);
    } while (count > 0 && ended.req_id != exchange->req_id);
    if (count > 0) {
        exchange->status = ended.status;
        exchange->bytes = ended.bytes;
    }
    return count < 0 ? count : 0;
}

/* ---- what is rare */

uint32_t shunter_client_hello(struct shunter_client *client, const uint8_t **datagram) {
    const uint32_t length = client->hello_length;
    client->hello_length = 0;
    *datagram = client->hello;
    return length;
}

int shunter_client_cancel(struct shunter_client *client, uint64_t req_id) {
    struct shunter_call *call = shunter_call_of(client, req_id);
    if (!call || call->cancelled) {
        return -ENOENT;
    }
    const bool is_streamed = shunter_call_has_no_answer(client, call);
    if (!client->settings.shared) {
        shunter_call_free(client, call);
    }
    // An answer that is on its way must not be written to memory that is the caller's again.
    if (client->settings.stream && client->have == SHUNTER_HEADER_BYTES &&
        client->head.req_id == req_id) {
        client->into = NULL;
    }
    if (client->settings.shared) {
        return shunter_shared_cancel(client, call);
    }
    return is_streamed ? shunter_client_unwanted(client, req_id)
                       : shunter_client_control(client, SHUNTER_TYPE_CANCEL, req_id, 0, NULL, 0);
}

int shunter_client_ask(struct shunter_client *client) {
    return client->live.kept
        ? 0 // nobody would hear it now
        : shunter_client_control(client, SHUNTER_TYPE_ACK, 0, SHUNTER_FLAG_ACK_REQ, NULL, 0);
}

int shunter_client_farewell(struct shunter_client *client) {
    return shunter_client_control(client, SHUNTER_TYPE_ACK, 0, SHUNTER_FLAG_LAST, NULL, 0);
}

const struct shunter_client_numbers *shunter_client_numbers(const struct shunter_client *client) {
    return &client->live;
}

int shunter_client_new(
    const struct shunter_client_settings *settings, struct shunter_client **result) {
    struct shunter_client *client = calloc(1, sizeof *client);
    if (!client) {
        return -ENOMEM;
    }
    client->settings = *settings;
    client->settings.gso = settings->gso && !settings->stream;
    client->live.next_id = client->live.below = 1;
    client->live.grant = settings->grant;
    client->asks = 1;
    client->live.trip_ns = settings->trip_ns;
    client->pkt_no = settings->pkt_no;
    client->live.heard_ns = shunter_client_now_ns();
    int error = 0;
    if (settings->segment < 1 || settings->input_count < 1 || settings->output_count < 1 ||
        settings->input_count > SHUNTER_MAX_TENSORS ||
        settings->output_count > SHUNTER_MAX_TENSORS ||
        (settings->least_answer && settings->input_count + settings->output_count != 2) ||
        (settings->shared && (!settings->stream || settings->shared_requests < 1))) {
        error = -EINVAL;
    } else {
        error = settings->shared
            ? shunter_plan_nothing(&client->inputs, settings->segment)
            : shunter_make_plan(
                  &client->inputs, client->settings.input_bytes, settings->input_count,
                  settings->segment);
        error = error ? error
                      : shunter_make_plan(
                            &client->outputs, client->settings.output_bytes,
                            settings->output_count, settings->segment);
    }
    if (!error) {
        shunter_flow_open(client);
        client->headers = calloc(client->inputs.count, sizeof *client->headers);
        client->pieces = calloc((size_t)2 * client->inputs.count, sizeof *client->pieces);
        client->spill = malloc((size_t)SHUNTER_CLIENT_PADS * SHUNTER_CLIENT_SPILL);
        client->aside = malloc((size_t)SHUNTER_CLIENT_PADS * SHUNTER_CLIENT_SPILL);
        error = shunter_client_guard_new(client);
        if (!client->headers || !client->pieces || !client->spill || !client->aside) {
            error = -ENOMEM;
        }
    }
    if (error) {
        shunter_client_free(client);
        return error;
    }
    *result = client;
    return 0;
}

void shunter_client_free(struct shunter_client *client) {
    if (client) {
        shunter_page_sender_close(&client->sender);
        shunter_congestion_free(&client->path);
        shunter_client_guard_free(client);
        free(client->headers);
        free(client->pieces);
        free(client->spill);
        free(client->aside);
        free(client->kept);
        free(client->hello);
        free(client);
    }
}
