/*
 * Datagrams of a backend straight into their entries.
 *
 * The backend is told, before a datagram comes, where its payload goes: to the place in which the
 * next segment is expected, the next of the same request, or the first of the next free entry. When
 * something else comes, what landed is moved. Encrypted payloads are decrypted in place, and count
 * only when their tag is right.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "segments.h"
#include "server_parts.h"

struct forecaster {
    const struct shunter_served *served;
    struct shunter_forecast forecast;
};

static bool next_place(void *context, struct shunter_expected *expected) {
    struct forecaster *forecaster = context;
    const struct shunter_served *served = forecaster->served;
    struct shunter_segment segment;
    uint32_t entry;
    if (!served || !shunter_forecast_next(&forecaster->forecast, &entry, &segment)) {
        return false;
    }
    uint8_t *ring = served->queue.inputs[segment.tensor];
    const size_t size = served->queue.input_bytes[segment.tensor];
    expected->into = ring ? ring + entry * size + segment.offset : NULL;
    expected->length = segment.length;
    return true;
}

/* What comes next is likely to follow this one. */
static void follow(struct shunter_server *server, const uint8_t *bytes) {
    struct shunter_x64 header;
    memcpy(&header, bytes, sizeof header);
    server->next_func_id = header.func_id;
    server->next_session = header.session;
    server->next_req_id = header.req_id;
}

/* Bytes that follow one another at ``payload``. */
static uint32_t payload_of(const struct shunter_landed *landed) {
    const uint32_t elsewhere = SHUNTER_HEADER_BYTES + (landed->tag ? SHUNTER_AEAD_TAG : 0);
    return landed->length > elsewhere ? landed->length - elsewhere : 0;
}

/*
 * Payloads that wait may lie where an earlier one belongs that landed elsewhere. Set them aside.
 */
static void set_aside(struct shunter_server *server, struct shunter_landed *landed, uint32_t count) {
    uint8_t *at = server->aside;
    for (uint32_t i = 0; i < count; i++) {
        const uint32_t length = payload_of(&landed[i]);
        if (length) {
            memcpy(at, landed[i].payload, length);
            landed[i].payload = at;
            at += length;
            server->stats.copied_bytes += length;
        }
    }
}

/* The payload of the first of ``count`` datagrams goes where the core says. */
static bool put_in_place(
    struct shunter_server *server, struct shunter_landed *landed, uint32_t count, bool aside) {
    const uint32_t length = server->place_length;
    uint8_t tag[SHUNTER_AEAD_TAG] = {0}; // it may lie where the payload goes
    if (server->guard.protect == SHUNTER_FLAG_PAYLOAD_AEAD) {
        memcpy(tag, landed->tag ? landed->tag : landed->payload + length, sizeof tag);
    }
    if (length == 0 || server->place == landed->payload) {
        server->stats.placed_segments++;
    } else {
        if (!aside) {
            set_aside(server, landed + 1, count - 1);
            aside = true;
        }
        memmove(server->place, landed->payload, length);
        server->stats.copied_segments++;
        server->stats.copied_bytes += length;
    }
    shunter_payload_is_there(
        server, &server->guard, landed->header, server->place, length, tag);
    follow(server, landed->header);
    return aside;
}

/* The first of ``count`` datagrams. Whether the others had to be set aside for it. */
static bool take_in(
    struct shunter_server *server, struct shunter_landed *landed, uint32_t count, bool aside) {
    uint8_t small[SHUNTER_HEADER_BYTES + SHUNTER_BITMAP_BYTES];
    const uint32_t payload = payload_of(landed);
    memcpy(
        small, landed->header,
        landed->length < SHUNTER_HEADER_BYTES ? landed->length : SHUNTER_HEADER_BYTES);
    if (payload) { // of a QUERY; the core looks at no other
        memcpy(
            small + SHUNTER_HEADER_BYTES, landed->payload,
            payload < SHUNTER_BITMAP_BYTES ? payload : SHUNTER_BITMAP_BYTES);
    }
    server->stats.datagrams_in++;
    server->stats.bytes_in += landed->length;
    shunter_hand_over(server, landed->peer, small, landed->length);
    if (server->is_hello) {
        shunter_greet(server, landed->peer, landed->header, landed->payload, payload);
    }
    return server->has_place ? put_in_place(server, landed, count, aside) : aside;
}

int shunter_receive(struct shunter_server *server, uint32_t *messages) {
    struct shunter_backend *backend = server->backend;
    struct forecaster forecaster = {.served = server->served[server->next_func_id]};
    shunter_core_forecast(
        server->core, server->next_session, server->next_req_id, &forecaster.forecast);
    struct shunter_rx rx = {next_place, &forecaster, forecaster.forecast.behind};
    backend->post_rx(backend, &rx);
    const int count = backend->poll(backend, server->landed, messages);
    if (count <= 0) {
        return count;
    }
    server->now_ns = shunter_now_ns();
    shunter_collect_all(server); // a client may say that it has an answer before its worker does
    bool aside = false;
    for (int i = 0; i < count; i++) {
        aside = take_in(server, server->landed + i, (uint32_t)(count - i), aside);
    }
    return count;
}
