/*
 * The split over a stream (TCP or Unix): header, then the payload straight into its entry.
 *
 * The fallback where datagrams do not pass, and the control of every benchmark: same core, same
 * workers, no loss to repair.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "server_parts.h"

#define ROUNDS 64
#define LOOK_NS 200000000ULL  /* streams are looked at so often, and when a session has ended */
#define LATE_NS 2000000000ULL /* a message that is not complete by then ends its stream */

void shunter_stream_peer(int socket, uint8_t peer[SHUNTER_PEER_BYTES]) {
    memset(peer, 0, SHUNTER_PEER_BYTES);
    memcpy(peer + 2, &socket, sizeof socket); // family 0: no datagram has such a sender
}

/* What came of a message that is not complete. */
static void let_go(struct shunter_server *server, struct shunter_stream *stream) {
    if (stream->block != SHUNTER_NO_BLOCK) {
        shunter_block_unref(&server->landing, stream->block);
        stream->block = SHUNTER_NO_BLOCK;
    }
    stream->has_place = false;
    stream->into = NULL;
}

void shunter_stream_close(struct shunter_server *server, struct shunter_stream *stream) {
    if (!stream->closed) {
        stream->closed = true;
        server->waiting_streams -= stream->waits;
        stream->waits = false;
        let_go(server, stream);
        server->closed_count++;
        server->kept_bytes -= stream->out_length - stream->out_at;
        epoll_ctl(server->epoll, EPOLL_CTL_DEL, stream->socket, NULL);
    }
}

/* ---- in */

enum header { BAD, LATER, TAKEN };

/* What waits is not heard of: what it could read would wake the loop for nothing, again and again. */
static void set_waits(struct shunter_server *server, struct shunter_stream *stream, bool waits) {
    stream->begun_ns = server->now_ns; // it is not the client that is late
    if (stream->waits != waits) {
        stream->waits = waits;
        server->waiting_streams += waits ? 1 : UINT32_MAX; // one less
        shunter_stream_watch(server, stream);
    }
}

/* Bytes that come behind its header. */
static uint32_t length_behind(const struct shunter_stream *stream) {
    struct shunter_x64 header;
    memcpy(&header, stream->header, sizeof header);
    return header.length + shunter_behind(header.flags);
}

/* Whether what it waits for is there. */
static bool has_room(const struct shunter_server *server, const struct shunter_stream *stream) {
    const struct shunter_slot *slot = &server->streams_slot;
    return server->landing.free_count ||
           (slot->block >= 0 && (server->landing.references[slot->block] == 1 ||
                                 shunter_slot_left(slot) >= length_behind(stream)));
}

/* What the header says comes next lands in the pool, as datagrams do: LATER, while it is full. */
static enum header header_is_whole(
    struct shunter_server *server, struct shunter_stream *stream) {
    struct shunter_x64 header;
    memcpy(&header, stream->header, sizeof header);
    const uint32_t length = length_behind(stream);
    if (header.session != stream->session || header.type == SHUNTER_TYPE_HELLO ||
        length > SHUNTER_BLOCK) {
        return BAD;
    }
    uint8_t *room = NULL; // nothing needs none
    if (length) {
        room = shunter_slot_room(&server->landing, &server->streams_slot, length);
        if (!room) {
            set_waits(server, stream, true);
            return LATER;
        }
    }
    stream->have = 0;
    stream->left = length;
    shunter_hand_over(
        server, stream->peer, stream->header, SHUNTER_HEADER_BYTES + (size_t)length);
    if (server->has_place) {
        stream->has_place = true;
        stream->place = server->place;
        stream->payload = stream->into = room;
    }
    if (server->has_place && room) {
        stream->block = server->streams_slot.block;
        shunter_block_ref(&server->landing, stream->block);
        shunter_slot_use(&server->streams_slot, length);
    }
    return TAKEN;
}

static void message_is_whole(struct shunter_server *server, struct shunter_stream *stream) {
    stream->begun_ns = 0;
    server->stats.streams_in++;
    // Its request may have been forgotten while the payload came.
    if (stream->has_place && shunter_core_awaits(server->core, stream->header)) {
        shunter_payload_is_there(
            server, &stream->place, stream->header, stream->payload, stream->block,
            stream->place.length);
    }
    let_go(server, stream);
}

/* Bytes read, 0 when there are none now; the stream is closed when it has ended. */
static size_t take(
    struct shunter_server *server, struct shunter_stream *stream, void *into, size_t most) {
    const ssize_t count = recv(stream->socket, into, most, MSG_DONTWAIT);
    if (count > 0) {
        server->stats.bytes_in += (uint64_t)count;
        return (size_t)count;
    }
    if (count == 0 || (errno != EAGAIN && errno != EINTR)) {
        shunter_stream_close(server, stream);
    }
    return 0;
}

/* Bytes of the payload; false when there are none now. */
static bool read_payload(struct shunter_server *server, struct shunter_stream *stream) {
    uint8_t waste[4096];
    const bool kept = stream->into != NULL;
    const size_t most = kept || stream->left < sizeof waste ? stream->left : sizeof waste;
    const size_t count = take(server, stream, kept ? stream->into : waste, most);
    stream->left -= (uint32_t)count;
    stream->into = kept ? stream->into + count : NULL;
    return count;
}

static bool read_header(struct shunter_server *server, struct shunter_stream *stream) {
    const size_t count = take(
        server, stream, stream->header + stream->have, SHUNTER_HEADER_BYTES - stream->have);
    stream->have += (uint32_t)count;
    if (count && !stream->begun_ns) {
        stream->begun_ns = server->now_ns;
    }
    return count;
}

void shunter_stream_readable(struct shunter_server *server, struct shunter_stream *stream) {
    // Some rounds, so that one stream does not keep the others waiting.
    for (int round = 0; round < ROUNDS && !stream->closed; round++) {
        if (stream->left) {
            if (!read_payload(server, stream)) {
                return;
            }
        } else if (stream->have < SHUNTER_HEADER_BYTES) {
            if (!read_header(server, stream)) {
                return;
            }
        }
        if (stream->have == SHUNTER_HEADER_BYTES) {
            const enum header found = header_is_whole(server, stream);
            if (found == BAD) {
                shunter_stream_close(server, stream);
            }
            if (found != TAKEN) {
                return;
            }
        }
        if (!stream->left && !stream->have) {
            message_is_whole(server, stream);
        }
    }
}

uint32_t shunter_streams_go_on(struct shunter_server *server) {
    uint32_t count = 0, left = server->waiting_streams;
    for (int i = 0; i < SHUNTER_STREAMS && left; i++) {
        const int place = (server->next_waiting + i) % SHUNTER_STREAMS;
        struct shunter_stream *stream = server->streams[place];
        if (!stream || !stream->waits) {
            continue;
        }
        left--;
        if (has_room(server, stream)) {
            set_waits(server, stream, false);
            shunter_stream_readable(server, stream);
            server->next_waiting = place + 1; // the next one's turn
            count++;
        }
    }
    return count;
}

void shunter_streams_close_late(struct shunter_server *server) {
    const uint64_t ended = shunter_core_ended_streams(server->core);
    if (ended == server->ended_streams && server->now_ns < server->next_look_ns) {
        return;
    }
    server->ended_streams = ended;
    server->next_look_ns = server->now_ns + LOOK_NS;
    uint32_t left = server->stream_count;
    for (int i = 0; left && i < SHUNTER_STREAMS; i++) {
        struct shunter_stream *stream = server->streams[i];
        left -= stream != NULL;
        if (!stream || stream->closed) {
            continue;
        }
        const bool late =
            stream->begun_ns && !stream->waits && server->now_ns - stream->begun_ns > LATE_NS;
        if (late || shunter_stream_reads_too_slowly(server, stream) ||
            !shunter_core_is_open(server->core, stream->session)) {
            shunter_stream_close(server, stream);
        }
    }
}
