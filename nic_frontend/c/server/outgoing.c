/* What the core says: places, entries that are ready, datagrams. */
#include <string.h>

#include "server_parts.h"

static struct shunter_stream *stream_of(struct shunter_server *server, const uint8_t *peer) {
    int socket;
    memcpy(&socket, peer + 2, sizeof socket);
    return socket >= 0 && socket < SHUNTER_STREAMS ? server->streams[socket] : NULL;
}

static void send_action(struct shunter_server *server, const struct shunter_action *action) {
    struct shunter_x64 header;
    memcpy(&header, action->header, sizeof header);
    const uint8_t *payload = action->payload;
    if (action->entry >= 0) {
        const struct shunter_queue *queue = &server->serving[header.func_id]->served->queue;
        const uint8_t *ring = queue->outputs[action->tensor];
        payload = ring ? ring + (size_t)action->entry * queue->output_bytes[action->tensor] +
                             action->offset
                       : NULL;
    }
    const bool is_datagram = action->peer[0] || action->peer[1]; // a stream has no family
    const ssize_t length =
        shunter_protect(server, &action->guard, &header, &payload, is_datagram);
    if (length < 0) {
        server->stats.send_failures++;
        return;
    }
    if (is_datagram) {
        server->stats.bytes_out += sizeof header + (size_t)length;
        if (action->entry >= 0) {
            shunter_parts_sent(server->serving[header.func_id], (uint32_t)action->entry);
        }
        server->backend->tx(
            server->backend, &header, payload, (size_t)length, action->peer, action->entry < 0);
        return;
    }
    struct shunter_stream *stream = stream_of(server, action->peer);
    if (stream && stream->session == action->session) {
        shunter_stream_send(server, stream, &header, payload, (size_t)length);
    }
}

static void enqueue(struct shunter_server *server, const struct shunter_action *action) {
    const struct shunter_serving *serving = server->serving[action->func_id];
    if (serving->packed) {
        const struct shunter_queue *queue = &serving->served->queue;
        const uint32_t entry = (uint32_t)action->entry;
        shunter_set(shunter_entry_word(queue, entry, SHUNTER_E_ENTRY_BYTES), action->length);
        shunter_set(shunter_entry_word(queue, entry, SHUNTER_E_ENTRY_ROWS), action->rows);
    }
    if (!action->returned) {
        shunter_parts_ready(serving, (uint32_t)action->entry);
    }
    const struct shunter_arrival arrival = {
        .entry = (uint32_t)action->entry,
        .class = action->priority,
        .again = action->again,
        .returned = action->returned,
        .deadline_ns = action->deadline_ns,
        .rows = action->rows};
    shunter_enqueue(serving->served, &arrival, server->now_ns);
}

void shunter_act(void *context, const struct shunter_action *action) {
    struct shunter_server *server = context;
    switch (action->kind) {
    case SHUNTER_PLACE:
        shunter_expect(
            server->serving[action->func_id]->served, action->left, action->length);
        server->has_place = true;
        server->place = (struct shunter_place){
            .func_id = action->func_id,
            .entry = (uint32_t)action->entry,
            .length = action->length,
            .region = action->region,
            .offset = action->offset,
            .guard = action->guard};
        break;
    case SHUNTER_READY:
        enqueue(server, action);
        break;
    case SHUNTER_WITHDRAW:
        shunter_withdraw(server->serving[action->func_id]->served, (uint32_t)action->entry);
        break;
    case SHUNTER_LET_GO:
        shunter_let_go(server, action->func_id, (uint32_t)action->entry);
        break;
    case SHUNTER_SEND:
        send_action(server, action);
        break;
    case SHUNTER_HELLO:
        server->is_hello = true;
        break;
    case SHUNTER_PART:
        shunter_parts_place(
            server->serving[action->func_id], (uint32_t)action->entry, action->offset);
        break;
    case SHUNTER_UNWANTED:
        shunter_parts_unwanted(server->serving[action->func_id], (uint32_t)action->entry);
        break;
    default:
        server->stats.drops[action->drop]++;
    }
}

/* ---- of the dispatcher */

_Static_assert(SHUNTER_NO_WORKER == SHUNTER_STATUS_NO_WORKER, "it goes to the client");
_Static_assert(SHUNTER_WOULD_BE_LATE == SHUNTER_STATUS_WOULD_BE_LATE, "it goes to the client");

/* Write down whom a worker answers, and how. */
static bool running(void *context, uint32_t entry, uint64_t now_ns) {
    const struct shunter_serving *serving = context;
    const struct shunter_queue *queue = &serving->served->queue;
    struct shunter_whom whom;
    shunter_core_running(serving->server->core, serving->func_id, entry, now_ns, &whom);
    shunter_parts_run(serving, entry);
    whom.direct = whom.direct && shunter_peer_length(whom.peer); // workers have only the socket
    const uint64_t direct = serving->packed ? whom.direct_bytes : 1;
    const uint64_t words[7] = {
        whom.req_id, whom.session,
        (whom.tagged ? SHUNTER_FLAG_HDR_TAG : 0) | (whom.asks ? SHUNTER_FLAG_ACK_REQ : 0) |
            (whom.idempotent ? SHUNTER_FLAG_IDEMPOTENT : 0),
        whom.segment, whom.pkt_no, whom.credit, whom.direct ? direct : 0};
    memcpy(shunter_entry_bytes(queue, entry, SHUNTER_E_ENTRY_REQ_ID), words, sizeof words);
    memcpy(shunter_entry_bytes(queue, entry, SHUNTER_E_ENTRY_KEY), whom.key, sizeof whom.key);
    memcpy(shunter_entry_bytes(queue, entry, SHUNTER_E_ENTRY_PEER), whom.peer, sizeof whom.peer);
    return whom.direct;
}

static void finished(
    void *context, uint32_t entry, uint16_t status, bool sent, uint64_t now_ns) {
    const struct shunter_serving *of = context;
    uint32_t bytes = 0;
    shunter_parts_end(of, entry, now_ns);
    if (of->packed) {
        const struct shunter_queue *queue = &of->served->queue;
        const uint64_t said =
            shunter_get(shunter_entry_word(queue, entry, SHUNTER_E_ENTRY_RESULT_BYTES));
        bytes = said < UINT32_MAX ? (uint32_t)said : UINT32_MAX;
        // What is too long for its worker is ours to send.
        sent = sent && said <= shunter_get(shunter_entry_word(queue, entry, SHUNTER_E_ENTRY_DIRECT));
    }
    shunter_core_finished(of->server->core, of->func_id, entry, status, sent, bytes, now_ns);
}

static void died(void *context, uint32_t entry, uint64_t now_ns) {
    const struct shunter_serving *of = context;
    shunter_parts_end(of, entry, now_ns);
    shunter_core_worker_died(of->server->core, of->func_id, entry, now_ns);
}

static void returned(void *context, uint32_t entry, uint64_t now_ns) {
    const struct shunter_serving *of = context;
    shunter_parts_end(of, entry, now_ns);
    shunter_core_returned(of->server->core, of->func_id, entry, now_ns);
}

static void expired(void *context, uint32_t entry, uint64_t now_ns) {
    const struct shunter_serving *of = context;
    shunter_core_expired(of->server->core, of->func_id, entry, now_ns);
}

const struct shunter_owner shunter_owner_is_core = {
    NULL, running, finished, died, returned, expired};
