/* What every message goes through, whatever it comes by: the core, and the check of its payload. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "server_parts.h"
#include "siphash.h"

#define SEALED 64 /* encrypted datagrams; a backend holds back fewer */

uint64_t shunter_now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000ULL + (uint64_t)now.tv_nsec;
}

void shunter_flush(struct shunter_server *server) {
    server->flushes++;
    if (server->backend) {
        server->backend->flush(server->backend);
    }
}

uint32_t shunter_collect_all(struct shunter_server *server) {
    uint32_t batches = 0;
    for (uint32_t i = 0; i < server->func_count; i++) {
        const struct shunter_serving *serving = server->serving[server->func_ids[i]];
        batches += shunter_parts_collect(serving, server->now_ns);
        batches += shunter_collect(serving->served, server->now_ns);
    }
    return batches;
}

static bool can_encrypt(struct shunter_server *server) {
    server->aead = server->aead ? server->aead : shunter_aead_new();
    server->sealed = server->sealed ? server->sealed
                                    : malloc((size_t)(SEALED + 1) * SHUNTER_LARGEST);
    return server->aead && server->sealed;
}

ssize_t shunter_protect(
    struct shunter_server *server, const struct shunter_guard *guard, struct shunter_x64 *header,
    const uint8_t **payload, bool is_kept) {
    if (guard->protect == SHUNTER_FLAG_PAYLOAD_CRC) {
        header->crc = shunter_crc32c(*payload, header->length);
        if (header->flags & SHUNTER_FLAG_HDR_TAG) {
            header->tag = shunter_siphash24(guard->key, header, SHUNTER_TAG_OFFSET);
        }
    } else if (guard->protect) {
        if (!can_encrypt(server)) {
            return -1;
        }
        // A place for each datagram until they are flushed, which is done before SEALED wait; what
        // a stream carries is sent or copied at once, and has the last place.
        const uint32_t at = is_kept ? server->sealed_at : SEALED;
        uint8_t *into = server->sealed + (size_t)at * SHUNTER_LARGEST;
        server->sealed_at = (server->sealed_at + is_kept) % SEALED;
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
    if (server->has_place) {
        struct shunter_x64 header;
        memcpy(&header, datagram, sizeof header);
        server->place.seq = header.seq;
        server->place.count = header.count;
        server->place.total = header.total;
    }
}

static bool is_right(
    struct shunter_server *server, const struct shunter_guard *guard, const uint8_t *header,
    uint8_t *payload, uint32_t length) {
    if (guard->protect == SHUNTER_FLAG_PAYLOAD_CRC) {
        struct shunter_x64 said;
        memcpy(&said, header, sizeof said);
        return shunter_crc32c(payload, length) == said.crc;
    }
    return !guard->protect ||
           (can_encrypt(server) &&
            shunter_aead_open(server->aead, guard, header, payload, length, payload + length));
}

/* A piece of a request that has much of its block: the rest of it goes when this does. */
static bool is_of_many(const struct shunter_place *place, uint32_t together) {
    const uint64_t most = SHUNTER_BLOCK / 2;
    return together >= most && (uint64_t)place->count * place->length >= most;
}

/* Where it can stay, NULL: nowhere. Little things in large blocks are put together when blocks are
 * scarce, so that what waits long does not keep all of them. */
static uint8_t *stay(
    struct shunter_server *server, const struct shunter_place *place, uint8_t *payload,
    uint32_t together, int32_t *block) {
    const uint32_t length = place->length;
    const bool moves = *block != SHUNTER_NO_BLOCK &&
                       !shunter_server_payloads_are_far(server) && length <= SHUNTER_BLOCK / 16 &&
                       shunter_landing_is_scarce(&server->landing) &&
                       !is_of_many(place, together);
    if (!moves) {
        return *block == SHUNTER_NO_BLOCK ? NULL : payload;
    }
    uint8_t *into = shunter_slot_room(&server->landing, &server->packed, length);
    if (!into) {
        return payload;
    }
    shunter_slot_use(&server->packed, length);
    memcpy(into, payload, length);
    server->stats.copied_bytes += length;
    *block = server->packed.block;
    return into;
}

/* A request that its client has written where workers read it: a piece for each tensor, or one for
 * all of them where they are a run. */
static uint16_t point_at(
    const struct shunter_serving *serving, const struct shunter_place *place) {
    const struct shunter_queue *queue = &serving->served->queue;
    struct shunter_piece *pieces = shunter_pieces_of(queue, place->entry);
    if (serving->packed) {
        pieces[0] = (struct shunter_piece){place->offset, place->total, place->region};
        return 1;
    }
    uint64_t end = place->offset;
    uint16_t count = 0;
    for (uint32_t i = 0; i < queue->input_count; i++) {
        const uint64_t at = shunter_shared_place(&end, queue->input_bytes[i]);
        if (queue->input_bytes[i]) { // there is room for a piece of each that has bytes
            pieces[count++] =
                (struct shunter_piece){at, queue->input_bytes[i], place->region};
        }
    }
    return count;
}

void shunter_payload_is_there(
    struct shunter_server *server, const struct shunter_place *place, const uint8_t *header,
    uint8_t *payload, int32_t block, uint32_t together) {
    struct shunter_serving *serving = server->serving[place->func_id];
    const struct shunter_queue *queue = &serving->served->queue;
    const struct shunter_guard *guard = &place->guard;
    if (!is_right(server, guard, header, payload, place->length)) {
        server->stats.drops[guard->protect == SHUNTER_FLAG_PAYLOAD_CRC ? SHUNTER_DROP_CRC
                                                                        : SHUNTER_DROP_AEAD]++;
        return;
    }
    if (place->count > queue->most_pieces) {
        server->stats.drops[SHUNTER_DROP_SIZES]++;
        return;
    }
    uint16_t pieces = place->count;
    if (place->region) {
        pieces = point_at(serving, place);
        server->stats.placed_segments++;
    } else if (place->length) {
        payload = stay(server, place, payload, together, &block);
        if (!payload) { // it will be sent again
            server->stats.drops[SHUNTER_DROP_POOL]++;
            return;
        }
        shunter_block_ref(&server->landing, block);
        shunter_pieces_of(queue, place->entry)[place->seq] = (struct shunter_piece){
            (uint64_t)(payload - server->landing.base), place->length, 0};
        server->stats.placed_segments++;
    }
    // So many may be there, when one comes before the others.
    _Atomic uint64_t *count =
        shunter_entry_word(queue, place->entry, SHUNTER_E_ENTRY_PIECES);
    shunter_set(count, pieces);
    serving->pieces[place->entry] = pieces;
    shunter_core_accept(server->core, header, server->now_ns);
}

void shunter_let_go(struct shunter_server *server, uint16_t func_id, uint32_t entry) {
    struct shunter_serving *serving = server->serving[func_id];
    struct shunter_piece *pieces = shunter_pieces_of(&serving->served->queue, entry);
    for (uint32_t i = 0; i < serving->pieces[entry]; i++) {
        if (pieces[i].length && !pieces[i].region) {
            shunter_block_unref(
                &server->landing, shunter_block_of(&server->landing, pieces[i].offset));
        }
        pieces[i].length = 0;
    }
    serving->pieces[entry] = 0;
}
