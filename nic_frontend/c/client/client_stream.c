/*
 * What a stream is sent, and what it does not take at once: a request stays where it lies, small
 * messages are copied.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "client_parts.h"

/* Send pieces as far as the socket takes them, and leave what it did not. Bytes, or a negative errno. */
static ssize_t send_some(const struct shunter_client *client, struct iovec **pieces, size_t *count) {
    ssize_t all = 0;
    while (*count) {
        const struct msghdr message = {
            .msg_iov = *pieces, .msg_iovlen = *count < IOV_MAX ? *count : IOV_MAX};
        ssize_t sent = sendmsg(client->settings.socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent < 0 && errno == EINTR) {
            continue;
        }
        if (sent < 0) {
            return errno == EAGAIN ? all : -errno;
        }
        all += sent;
        while (*count && sent >= (ssize_t)(*pieces)->iov_len) {
            sent -= (ssize_t)(*pieces)->iov_len;
            ++*pieces;
            --*count;
        }
        if (*count && sent > 0) {
            (*pieces)->iov_base = (uint8_t *)(*pieces)->iov_base + sent;
            (*pieces)->iov_len -= (size_t)sent;
        }
    }
    return all;
}

int shunter_client_flush_stream(struct shunter_client *client) {
    struct iovec own = {
        client->kept_own ? client->kept + client->kept_at : NULL, client->kept_own};
    struct iovec *rest = &own;
    size_t count = client->kept_own ? 1 : 0;
    ssize_t sent = 0;
    if (client->lent_count) {
        sent = send_some(client, &client->lent, &client->lent_count);
        client->live.kept -= sent > 0 ? (size_t)sent : 0;
    }
    if (sent < 0 || client->lent_count) {
        return sent < 0 ? (int)sent : 0;
    }
    sent = send_some(client, &rest, &count);
    if (sent > 0) {
        client->kept_at += (size_t)sent;
        client->kept_own -= (size_t)sent;
        client->live.kept -= (size_t)sent;
    }
    client->kept_at = client->kept_own ? client->kept_at : 0;
    return sent < 0 ? (int)sent : 0;
}

/* Room for ``length`` bytes more, behind or before those that are kept. NULL: no memory. */
static uint8_t *room_for(struct shunter_client *client, size_t length, bool before) {
    if (client->kept_at) {
        memmove(client->kept, client->kept + client->kept_at, client->kept_own);
        client->kept_at = 0;
    }
    if (client->kept_own + length > client->kept_room) {
        uint8_t *room = realloc(client->kept, client->kept_own + length);
        if (!room) {
            return NULL;
        }
        client->kept = room;
        client->kept_room = client->kept_own + length;
    }
    if (before) {
        memmove(client->kept + length, client->kept, client->kept_own);
    }
    client->kept_own += length;
    client->live.copied += length;
    return before ? client->kept : client->kept + client->kept_own - length;
}

static size_t length_of(const struct iovec *pieces, size_t count) {
    size_t length = 0;
    for (size_t i = 0; i < count; i++) {
        length += pieces[i].iov_len;
    }
    return length;
}

static int copy(
    struct shunter_client *client, const struct iovec *pieces, size_t count, bool before) {
    uint8_t *at = room_for(client, length_of(pieces, count), before);
    for (size_t i = 0; at && i < count; i++) {
        if (pieces[i].iov_len) {
            memcpy(at, pieces[i].iov_base, pieces[i].iov_len);
            at += pieces[i].iov_len;
        }
    }
    return at ? 0 : -ENOMEM;
}

int shunter_client_return(struct shunter_client *client) {
    const int error =
        client->lent_count ? copy(client, client->lent, client->lent_count, true) : 0;
    client->lent_count = 0;
    if (error) { // the rest of a message is lost: nothing behind it would be understood
        shutdown(client->settings.socket, SHUT_RDWR);
    }
    return error;
}

int shunter_client_send_stream(
    struct shunter_client *client, struct iovec *pieces, size_t count, bool lends) {
    const int error = shunter_client_flush_stream(client);
    const ssize_t sent = error || client->live.kept ? 0 : send_some(client, &pieces, &count);
    if (error || sent < 0 || !count) {
        return error ? error : sent < 0 ? (int)sent : 0;
    }
    lends = lends && !client->live.kept;
    client->live.kept += length_of(pieces, count);
    if (!lends) {
        return copy(client, pieces, count, false);
    }
    client->lent = pieces;
    client->lent_count = count;
    return 0;
}
