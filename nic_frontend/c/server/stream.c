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

void shunter_stream_close(struct shunter_server *server, struct shunter_stream *stream) {
    if (!stream->closed) {
        stream->closed = true;
        server->closed_count++;
        server->kept_bytes -= stream->out_length - stream->out_at;
        epoll_ctl(server->epoll, EPOLL_CTL_DEL, stream->socket, NULL);
    }
}

/* ---- in */

static bool header_is_whole(struct shunter_server *server, struct shunter_stream *stream) {
    struct shunter_x64 header;
    memcpy(&header, stream->header, sizeof header);
    stream->have = 0;
    stream->left = header.length;
    stream->behind = shunter_behind(header.flags);
    if (header.session != stream->session || header.type == SHUNTER_TYPE_HELLO) {
        return false;
    }
    shunter_hand_over(
        server, stream->peer, stream->header,
        SHUNTER_HEADER_BYTES + (size_t)stream->left + stream->behind);
    stream->has_place = server->has_place;
    stream->place = stream->into = server->has_place ? server->place : NULL;
    stream->place_length = header.length;
    stream->guard = server->guard;
    server->stats.placed_segments += server->has_place;
    return true;
}

/* Its request may be forgotten while the payload comes: the place is another's then. */
static void look_after_place(struct shunter_server *server, struct shunter_stream *stream) {
    if (stream->has_place && !shunter_core_awaits(server->core, stream->header)) {
        stream->has_place = false;
        stream->into = NULL;
    }
}

static void message_is_whole(struct shunter_server *server, struct shunter_stream *stream) {
    stream->begun_ns = 0;
    server->stats.streams_in++;
    look_after_place(server, stream);
    if (stream->has_place) {
        stream->has_place = false;
        shunter_payload_is_there(
            server, &stream->guard, stream->header, stream->place, stream->place_length,
            stream->tag);
    }
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

void shunter_stream_readable(struct shunter_server *server, struct shunter_stream *stream) {
    uint8_t waste[4096];
    // Some rounds, so that one stream does not keep the others waiting.
    for (int round = 0; round < ROUNDS && !stream->closed; round++) {
        size_t count;
        if (stream->left) {
            look_after_place(server, stream);
            const size_t most = stream->into || stream->left < sizeof waste
                ? stream->left
                : sizeof waste;
            count = take(server, stream, stream->into ? stream->into : waste, most);
            stream->left -= (uint32_t)count;
            stream->into = stream->into ? stream->into + count : NULL;
        } else if (stream->behind) {
            uint8_t *at = stream->tag + sizeof stream->tag - stream->behind;
            count = take(server, stream, at, stream->behind);
            stream->behind -= (uint32_t)count;
        } else {
            count = take(
                server, stream, stream->header + stream->have,
                SHUNTER_HEADER_BYTES - stream->have);
            stream->have += (uint32_t)count;
            if (count && !stream->begun_ns) {
                stream->begun_ns = server->now_ns;
            }
            if (stream->have < SHUNTER_HEADER_BYTES) {
                if (count) {
                    continue;
                }
                return;
            }
            if (!header_is_whole(server, stream)) {
                shunter_stream_close(server, stream);
                return;
            }
        }
        if (!count) {
            return;
        }
        if (!stream->left && !stream->behind && !stream->have) {
            message_is_whole(server, stream);
        }
    }
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
        const bool late = stream->begun_ns && server->now_ns - stream->begun_ns > LATE_NS;
        if (late || shunter_stream_reads_too_slowly(server, stream) ||
            !shunter_core_is_open(server->core, stream->session)) {
            shunter_stream_close(server, stream);
        }
    }
}
