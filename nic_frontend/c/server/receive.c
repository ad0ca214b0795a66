/*
 * What a backend has received: headers to the core, payloads stay where they landed.
 */
#include <string.h>

#include "server_parts.h"

#define AHEAD 4 /* datagrams whose headers are fetched meanwhile */

/* Header and payload in one piece, as far as the core looks at them. */
static const uint8_t *in_one_piece(
    const struct shunter_landed *landed, uint8_t small[SHUNTER_HEADER_BYTES + SHUNTER_BITMAP_BYTES]) {
    const uint32_t length = landed->length;
    const uint32_t here = length < SHUNTER_HEADER_BYTES ? length : SHUNTER_HEADER_BYTES;
    const uint32_t payload = length - here;
    if (!payload || (!landed->far && landed->payload == landed->header + SHUNTER_HEADER_BYTES)) {
        return landed->header;
    }
    memcpy(small, landed->header, here);
    if (landed->far) { // it is as if nothing were there of what a QUERY asks for
        memset(small + SHUNTER_HEADER_BYTES, 0, SHUNTER_BITMAP_BYTES);
    } else { // of a QUERY; it looks at no other
        memcpy(
            small + SHUNTER_HEADER_BYTES, landed->payload,
            payload < SHUNTER_BITMAP_BYTES ? payload : SHUNTER_BITMAP_BYTES);
    }
    return small;
}

static void take_in(struct shunter_server *server, const struct shunter_landed *landed) {
    uint8_t small[SHUNTER_HEADER_BYTES + SHUNTER_BITMAP_BYTES];
    const uint32_t length = landed->length;
    server->stats.datagrams_in++;
    server->stats.bytes_in += length;
    shunter_hand_over(server, landed->peer, in_one_piece(landed, small), length);
    if (server->is_hello) {
        server->stats.hellos++;
        shunter_greet(
            server, landed->peer, landed->header, landed->far ? NULL : landed->payload,
            length - SHUNTER_HEADER_BYTES);
    }
    if (server->has_place) {
        shunter_payload_is_there(
            server, &server->place, landed->header, landed->payload, landed->block,
            landed->together);
    }
}

int shunter_receive_by(
    struct shunter_server *server, struct shunter_backend *backend,
    struct shunter_landed *landed, uint32_t *messages) {
    const int count = backend->poll(backend, landed, messages);
    if (count <= 0) {
        return count;
    }
    server->now_ns = shunter_now_ns();
    shunter_collect_all(server); // a client may say that it has an answer before its worker does
    for (int i = 0; i < count; i++) {
        if (i + AHEAD < count) {
            __builtin_prefetch(landed[i + AHEAD].header);
        }
        take_in(server, landed + i);
    }
    return count;
}
