/* Datagrams to clients: answers, errors, and how a request stands. */
#include "actions.h"

#include "runs.h"
#include "siphash.h"

static void fill(
    struct session *session, struct shunter_action *action, struct shunter_x64 *header) {
    const uint64_t number = next_pkt_no(session, 1);
    header->magic = SHUNTER_WIRE_MAGIC;
    header->version = SHUNTER_WIRE_VERSION;
    header->words = SHUNTER_HEADER_BYTES / 8;
    header->func_id = session->func_id;
    header->session = session->id;
    header->credit = (uint32_t)session->grant;
    header->pkt_no = (uint32_t)number;
    if (action->entry != NO_ENTRY) {
        header->flags |= session->protect;
        action->guard = guard_of(session, number, session->keys.payload_to_client);
    }
    if (session->tagged) {
        header->flags |= SHUNTER_FLAG_HDR_TAG;
        header->tag = shunter_siphash24(session->keys.tag_to_client, header, SHUNTER_TAG_OFFSET);
    }
    memcpy(action->header, header, sizeof *header);
    memcpy(action->peer, session->peer, sizeof action->peer);
    action->kind = SHUNTER_SEND;
    action->session = session->id;
    action->length = header->length;
}

void shunter_send_segment(
    const struct shunter_core *core, struct session *session, const struct call *call,
    uint32_t seq, bool asks) {
    const uint32_t count = segments_of_answer(session, call);
    const struct shunter_segment segment = segment_of_answer(session, call, seq);
    struct shunter_x64 header = {
        .type = SHUNTER_TYPE_RESP,
        .flags = (uint16_t)((asks ? SHUNTER_FLAG_ACK_REQ : 0) |
                            (seq + 1 == count ? SHUNTER_FLAG_LAST : 0)),
        .req_id = call->req_id,
        .seq = (uint16_t)seq,
        .count = (uint16_t)count,
        .length = (uint16_t)segment.length,
        .total = session->packed ? call->bytes : session->outputs.sizes[segment.tensor],
        .offset = segment.offset,
        .status = SHUNTER_STATUS_OK,
        .tensor = segment.tensor};
    struct shunter_action action = {
        .entry = call->entry, .tensor = segment.tensor, .offset = segment.offset};
    fill(session, &action, &header);
    emit(core, &action);
}

void shunter_control(
    const struct shunter_core *core, struct session *session, uint8_t type, uint64_t req_id,
    uint16_t status, const void *payload, uint16_t length) {
    struct shunter_x64 header = {
        .type = type, .req_id = req_id, .count = 1, .length = length, .status = status};
    struct shunter_action action = {.entry = NO_ENTRY};
    if (length) {
        memcpy(action.payload, payload, length);
    }
    fill(session, &action, &header);
    emit(core, &action);
}

void shunter_error(
    const struct shunter_core *core, struct session *session, uint64_t req_id, uint16_t status) {
    shunter_control(core, session, SHUNTER_TYPE_ERROR, req_id, status, NULL, 0);
}

void shunter_sack(
    const struct shunter_core *core, struct session *session, const struct call *call) {
    shunter_control(
        core, session, SHUNTER_TYPE_SACK, call->req_id, call->state, call->received,
        (uint16_t)((segments_of_request(session, call) + 7) / 8));
}
