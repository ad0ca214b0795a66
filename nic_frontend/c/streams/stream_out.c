/*
 * What streams are sent: at once what the socket takes, the rest when it takes more.
 *
 * A client that reads slowly, or not at all, hurts only itself: of each no more is kept than the
 * answers that it may have on their way, of all together no more than there is for all, and who does
 * not read what waits for it is closed.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include "server_parts.h"

#ifndef SHUNTER_MOST_OUT
#define SHUNTER_MOST_OUT ((size_t)256 << 20) /* of all streams together */
#endif
#ifndef SHUNTER_WRITE_LATE_NS
#define SHUNTER_WRITE_LATE_NS 10000000000ULL /* in so long a time as much has to be read as: */
#endif
#define LEAST_TAKEN 65536
#define CONTROL_BYTES 65536 /* of one: room for what is no answer */

static size_t kept_of(const struct shunter_stream *stream) {
    return stream->out_length - stream->out_at;
}

void shunter_stream_watch(struct shunter_server *server, struct shunter_stream *stream) {
    struct epoll_event event = {
        .events = (stream->waits ? 0 : EPOLLIN) | (kept_of(stream) ? EPOLLOUT : 0),
        .data.ptr = stream};
    epoll_ctl(server->epoll, EPOLL_CTL_MOD, stream->socket, &event);
}

static void empty(struct shunter_stream *stream) {
    free(stream->out);
    stream->out = NULL;
    stream->out_at = stream->out_length = stream->out_room = 0;
}

/* The stream for which most is kept; ``stream`` would have ``more``. */
static struct shunter_stream *largest(
    const struct shunter_server *server, struct shunter_stream *stream, size_t more) {
    struct shunter_stream *found = stream;
    size_t most = kept_of(stream) + more;
    uint32_t left = server->stream_count;
    for (int i = 0; left && i < SHUNTER_STREAMS; i++) {
        struct shunter_stream *other = server->streams[i];
        left -= other != NULL;
        if (other && !other->closed && kept_of(other) > most) {
            found = other;
            most = kept_of(other);
        }
    }
    return found;
}

/*
 * Whether ``more`` bytes may be kept: no more than its answers, and its share of what all have
 * together. Whoever has most is closed when that is not enough, and nobody else.
 */
static bool may_keep(struct shunter_server *server, struct shunter_stream *stream, size_t more) {
    const size_t most =
        shunter_core_answer_bytes(server->core, stream->session) + CONTROL_BYTES;
    if (kept_of(stream) + more > most) {
        return false;
    }
    while (server->kept_bytes + more > SHUNTER_MOST_OUT) {
        struct shunter_stream *other = largest(server, stream, more);
        if (other == stream) {
            return false;
        }
        shunter_stream_close(server, other);
        empty(other);
    }
    return true;
}

/* Room for ``more`` bytes behind what is kept. */
static bool make_room(struct shunter_stream *stream, size_t more) {
    const size_t kept = kept_of(stream);
    if (stream->out_length + more <= stream->out_room) {
        return true;
    }
    if (stream->out_at) {
        memmove(stream->out, stream->out + stream->out_at, kept);
        stream->out_at = 0;
        stream->out_length = kept;
    }
    if (kept + more > stream->out_room) {
        const size_t room = 2 * (kept + more);
        uint8_t *larger = realloc(stream->out, room);
        if (!larger) {
            return false;
        }
        stream->out = larger;
        stream->out_room = room;
    }
    return true;
}

static void keep(
    struct shunter_server *server, struct shunter_stream *stream, const struct iovec *pieces,
    size_t skip) {
    const size_t more = pieces[0].iov_len + pieces[1].iov_len - skip;
    if (!may_keep(server, stream, more) || !make_room(stream, more)) {
        shunter_stream_close(server, stream);
        return;
    }
    if (!kept_of(stream)) {
        stream->behind_ns = server->now_ns;
        stream->taken = 0;
    }
    server->kept_bytes += more;
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
    shunter_stream_watch(server, stream);
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
    }
    server->stats.bytes_out += done;
    if (done < sizeof *header + length) {
        keep(server, stream, pieces, done);
    }
}

void shunter_stream_writable(struct shunter_server *server, struct shunter_stream *stream) {
    if (stream->closed || stream->out_at == stream->out_length) {
        return;
    }
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
    stream->taken += (size_t)sent;
    server->kept_bytes -= (size_t)sent;
    server->stats.bytes_out += (uint64_t)sent;
    if (stream->out_at == stream->out_length) {
        empty(stream);
        shunter_stream_watch(server, stream);
    }
}

bool shunter_stream_reads_too_slowly(
    const struct shunter_server *server, struct shunter_stream *stream) {
    if (!kept_of(stream) || server->now_ns - stream->behind_ns <= SHUNTER_WRITE_LATE_NS) {
        return false;
    }
    const bool late = stream->taken < LEAST_TAKEN;
    stream->behind_ns = server->now_ns;
    stream->taken = 0;
    return late;
}
