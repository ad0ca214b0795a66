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

#define MOST_OUT (64u << 20)
#define ROUNDS 64

void shunter_stream_peer(int socket, uint8_t peer[SHUNTER_PEER_BYTES]) {
    memset(peer, 0, SHUNTER_PEER_BYTES);
    memcpy(peer + 2, &socket, sizeof socket); // family 0: no datagram has such a sender
}

void shunter_stream_close(struct shunter_server *server, struct shunter_stream *stream) {
    if (!stream->closed) {
        stream->closed = true;
        server->closed_count++;
        epoll_ctl(server->epoll, EPOLL_CTL_DEL, stream->socket, NULL);
    }
}

/* ---- in */

static bool header_is_whole(struct shunter_server *server, struct shunter_stream *stream) {
    struct shunter_x64 header;
    memcpy(&header, stream->header, sizeof header);
    stream->have = 0;
    stream->left = header.length;
    stream->into = NULL;
    stream->has_ready = false;
    if (header.session != stream->session || header.type == SHUNTER_TYPE_HELLO) {
        return false;
    }
    shunter_hand_over(
        server, stream->peer, stream->header, SHUNTER_HEADER_BYTES + (size_t)header.length);
    if (server->has_place) {
        stream->into = server->place;
        server->stats.placed_segments++;
    }
    stream->has_ready = server->has_ready;
    stream->ready = server->ready;
    server->has_ready = false;
    return true;
}

static void payload_is_whole(struct shunter_server *server, struct shunter_stream *stream) {
    if (stream->has_ready) {
        server->ready = stream->ready;
        server->has_ready = true;
        stream->has_ready = false;
        server->stats.streams_in++;
    }
    shunter_payload_is_there(server);
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
            const size_t most = stream->into || stream->left < sizeof waste
                ? stream->left
                : sizeof waste;
            count = take(server, stream, stream->into ? stream->into : waste, most);
            stream->left -= (uint32_t)count;
            stream->into = stream->into ? stream->into + count : NULL;
        } else {
            count = take(
                server, stream, stream->header + stream->have,
                SHUNTER_HEADER_BYTES - stream->have);
            stream->have += (uint32_t)count;
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
        if (!stream->left && !stream->have) {
            payload_is_whole(server, stream);
        }
    }
}

/* ---- out */

static void watch(struct shunter_server *server, struct shunter_stream *stream, bool writable) {
    struct epoll_event event = {
        .events = EPOLLIN | (writable ? EPOLLOUT : 0), .data.ptr = stream};
    epoll_ctl(server->epoll, EPOLL_CTL_MOD, stream->socket, &event);
}

static void keep(
    struct shunter_server *server, struct shunter_stream *stream, const struct iovec *pieces,
    size_t skip) {
    const size_t more = pieces[0].iov_len + pieces[1].iov_len - skip;
    if (stream->out_length + more > stream->out_room) {
        const size_t room = 2 * (stream->out_length + more);
        uint8_t *larger = room <= MOST_OUT ? realloc(stream->out, room) : NULL;
        if (!larger) { // it asks, and does not read
            shunter_stream_close(server, stream);
            return;
        }
        stream->out = larger;
        stream->out_room = room;
    }
    for (int i = 0; i < 2; i++) {
        const size_t from = skip < pieces[i].iov_len ? skip : pieces[i].iov_len;
        const size_t count = pieces[i].iov_len - from;
        if (count) {
            memcpy(
                stream->out + stream->out_length, (uint8_t *)pieces[i].iov_base + from, count);
        }
        stream->out_length += count;
        skip -= from;
    }
    server->stats.copied_bytes += more;
    watch(server, stream, true);
}

void shunter_stream_send(
    struct shunter_server *server, struct shunter_stream *stream,
    const struct shunter_x64 *header, const uint8_t *payload, size_t length) {
    struct iovec pieces[2] = {
        {(void *)(uintptr_t)header, sizeof *header}, {(void *)(uintptr_t)payload, length}};
    if (stream->closed) {
        return;
    }
    size_t done = 0;
    if (stream->out_at == stream->out_length) {
        const struct msghdr message = {.msg_iov = pieces, .msg_iovlen = 2};
        const ssize_t sent = sendmsg(stream->socket, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (sent < 0 && errno != EAGAIN && errno != EINTR) {
            shunter_stream_close(server, stream);
            return;
        }
        done = sent > 0 ? (size_t)sent : 0;
        stream->out_at = stream->out_length = 0;
    }
    server->stats.bytes_out += done;
    if (done < sizeof *header + length) {
        keep(server, stream, pieces, done);
    }
}

void shunter_stream_writable(struct shunter_server *server, struct shunter_stream *stream) {
    const ssize_t sent = send(
        stream->socket, stream->out + stream->out_at, stream->out_length - stream->out_at,
        MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent < 0) {
        if (errno != EAGAIN && errno != EINTR) {
            shunter_stream_close(server, stream);
        }
        return;
    }
    stream->out_at += (size_t)sent;
    server->stats.bytes_out += (uint64_t)sent;
    if (stream->out_at == stream->out_length) {
        stream->out_at = stream->out_length = 0;
        watch(server, stream, false);
    }
}
