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
        const struct shunter_queue *queue = &server->served[header.func_id]->queue;
        const uint8_t *ring = queue->outputs[action->tensor];
        payload = ring ? ring + (size_t)action->entry * queue->output_bytes[action->tensor] +
                             action->offset
                       : NULL;
    }
    const ssize_t length = shunter_protect(server, &action->guard, &header, &payload);
    if (length < 0) {
        server->stats.send_failures++;
        return;
    }
    if (shunter_peer_length(action->peer)) {
        server->stats.bytes_out += sizeof header + (size_t)length;
        server->backend->tx(
            server->backend, &header, payload, (size_t)length, action->peer, action->entry < 0);
        return;
    }
    struct shunter_stream *stream = stream_of(server, action->peer);
    if (stream && stream->session == action->session) {
        shunter_stream_send(server, stream, &header, payload, (size_t)length);
    }
}

void shunter_act(void *context, const struct shunter_action *action) {
    struct shunter_server *server = context;
    struct shunter_served *served = server->served[action->func_id];
    switch (action->kind) {
    case SHUNTER_PLACE: {
        uint8_t *ring = served->queue.inputs[action->tensor];
        shunter_expect(served, action->left, action->length);
        server->has_place = true;
        server->guard = action->guard;
        server->place_length = action->length;
        server->place = ring
            ? ring + (size_t)action->entry * served->queue.input_bytes[action->tensor] +
                  action->offset
            : NULL;
        break;
    }
    case SHUNTER_READY:
        shunter_enqueue(served, action, server->now_ns);
        break;
    case SHUNTER_WITHDRAW:
        shunter_dequeue(served, (uint32_t)action->entry);
        break;
    case SHUNTER_SEND:
        send_action(server, action);
        break;
    case SHUNTER_HELLO:
        server->is_hello = true;
        break;
    default:
        server->stats.drops[action->drop]++;
    }
}
