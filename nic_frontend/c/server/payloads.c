/* What every message goes through, whatever it comes by: the core, and the check of its payload. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "server_parts.h"
#include "siphash.h"

#define SEALED 64 /* encrypted payloads; a backend holds back fewer datagrams */

uint64_t shunter_now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000ULL + (uint64_t)now.tv_nsec;
}

void shunter_flush(struct shunter_server *server) {
    if (server->backend) {
        server->backend->flush(server->backend);
    }
}

uint32_t shunter_collect_all(struct shunter_server *server) {
    uint32_t batches = 0;
    for (uint32_t i = 0; i < server->func_count; i++) {
        batches += shunter_collect(server->served[server->func_ids[i]], server->now_ns);
    }
    return batches;
}

static bool can_encrypt(struct shunter_server *server) {
    server->aead = server->aead ? server->aead : shunter_aead_new();
    server->sealed = server->sealed ? server->sealed
                                    : malloc((size_t)SEALED * SHUNTER_LARGEST);
    return server->aead && server->sealed;
}

/* Protect a payload that is about to be sent; its length, or -1 when it cannot be. */
ssize_t shunter_protect(
    struct shunter_server *server, const struct shunter_guard *guard, struct shunter_x64 *header,
    const uint8_t **payload) {
    if (guard->protect == SHUNTER_FLAG_PAYLOAD_CRC) {
        header->crc = shunter_crc32c(*payload, header->length);
        if (header->flags & SHUNTER_FLAG_HDR_TAG) {
            header->tag = shunter_siphash24(guard->key, header, SHUNTER_TAG_OFFSET);
        }
    } else if (guard->protect) {
        if (!can_encrypt(server)) {
            return -1;
        }
        // A place for each datagram until they are flushed, which is done before SEALED wait.
        uint8_t *into = server->sealed + (size_t)server->sealed_at * SHUNTER_LARGEST;
        server->sealed_at = (server->sealed_at + 1) % SEALED;
        if (!shunter_aead_seal(server->aead, guard, header, *payload, header->length, into)) {
            return -1;
        }
        server->stats.copied_bytes += header->length;
        *payload = into;
    }
    return (ssize_t)(header->length + shunter_behind(guard->protect));
}

void shunter_hand_over(
    struct shunter_server *server, const uint8_t *peer, const uint8_t *datagram, size_t length) {
    server->is_hello = server->has_place = false;
    shunter_core_receive(server->core, peer, datagram, length, server->now_ns);
}

static bool is_right(
    struct shunter_server *server, const struct shunter_guard *guard, const uint8_t *header,
    uint8_t *place, uint32_t length, const uint8_t *tag) {
    if (guard->protect == SHUNTER_FLAG_PAYLOAD_CRC) {
        struct shunter_x64 said;
        memcpy(&said, header, sizeof said);
        return shunter_crc32c(place, length) == said.crc;
    }
    return !guard->protect ||
           (can_encrypt(server) &&
            shunter_aead_open(server->aead, guard, header, place, length, tag));
}

void shunter_payload_is_there(
    struct shunter_server *server, const struct shunter_guard *guard, const uint8_t *header,
    uint8_t *place, uint32_t length, const uint8_t *tag) {
    if (is_right(server, guard, header, place, length, tag)) {
        shunter_core_accept(server->core, header, server->now_ns);
    } else {
        server->stats.drops[guard->protect == SHUNTER_FLAG_PAYLOAD_CRC
                                ? SHUNTER_DROP_CRC
                                : SHUNTER_DROP_AEAD]++;
    }
}
