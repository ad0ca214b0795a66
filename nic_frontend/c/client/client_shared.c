/*
 * Inputs in memory that the workers read: a request sends only where in it they lie.
 *
 * Each request has the part that its number says. No more of them are on their way than there are
 * parts, and a request that is cancelled is on its way until the server has said that it is not.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <string.h>

#include "client_parts.h"

uint32_t shunter_shared_offset(const struct shunter_client *client, uint64_t req_id) {
    const struct shunter_client_settings *settings = &client->settings;
    return (uint32_t)(req_id % settings->shared_requests *
                      shunter_shared_bytes(settings->input_bytes, settings->input_count));
}

int shunter_client_places(const struct shunter_client *client, void **inputs) {
    const struct shunter_client_settings *settings = &client->settings;
    uint64_t end = 0;
    if (!settings->shared) {
        return -ENOTSUP;
    }
    if (client->live.next_id - client->live.below >= settings->shared_requests) {
        return -EAGAIN;
    }
    uint8_t *part = settings->shared + shunter_shared_offset(client, client->live.next_id);
    for (uint32_t i = 0; i < settings->input_count; i++) {
        inputs[i] = part + shunter_shared_place(&end, settings->input_bytes[i]);
    }
    return 0;
}

int shunter_shared_put(
    struct shunter_client *client, uint64_t req_id, const void *const *inputs,
    const uint32_t *sizes) {
    const struct shunter_client_settings *settings = &client->settings;
    uint8_t *part = settings->shared + shunter_shared_offset(client, req_id);
    const uint64_t bytes = shunter_shared_bytes(settings->input_bytes, settings->input_count);
    uint64_t end = 0;
    for (uint32_t i = 0; i < settings->input_count; i++) {
        const uintptr_t from = (uintptr_t)inputs[i], begin = (uintptr_t)part;
        const uint32_t size = sizes[i];
        uint8_t *at = part + shunter_shared_place(&end, size);
        if (!size || from == (uintptr_t)at) {
            continue; // the caller has written it there
        }
        if (from + size > begin && from < begin + bytes) {
            return -EINVAL; // where another one belongs, or a piece of it
        }
        memcpy(at, inputs[i], size);
        client->live.copied += size;
    }
    return 0;
}

int shunter_shared_cancel(struct shunter_client *client, struct shunter_call *call) {
    call->cancelled = true;
    call->refused = false;
    call->due_ns = shunter_client_now_ns() + call->rto_ns;
    const int error =
        shunter_client_control(client, SHUNTER_TYPE_CANCEL, call->req_id, 0, NULL, 0);
    return error ? error
                 : shunter_client_control(
                       client, SHUNTER_TYPE_QUERY, call->req_id, SHUNTER_FLAG_ACK_REQ, NULL, 0);
}

void shunter_shared_heed(
    struct shunter_client *client, struct shunter_call *call, const struct shunter_x64 *header) {
    // A stream brings the segments in their order.
    const bool is_answered =
        header->type == SHUNTER_TYPE_RESP &&
        header->seq + 1U ==
            (shunter_client_is_packed(client) ? header->count : client->outputs.count);
    // An error ends it, and so does credit: the server has nothing of it.
    if (is_answered || header->type == SHUNTER_TYPE_ERROR ||
        header->type == SHUNTER_TYPE_CREDIT) {
        shunter_call_free(client, call);
    }
}
