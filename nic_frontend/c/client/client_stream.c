#define _GNU_SOURCE
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "client_parts.h"

/* What follows a header on a stream: its payload, or something to be thrown away. */
static int begin_payload(struct shunter_client *client) {
    if (!shunter_call_is_ours(client, &client->head)) {
        return -EPROTO;
    }
    client->live.heard_ns = shunter_client_now_ns();
    shunter_call_heed_credit(client, &client->head);
    client->into = NULL;
    client->left = client->head.length;
    uint8_t *place = NULL;
    if (shunter_call_place(client, &client->head, &place)) {
        client->into = place;
    }
    return 0;
}

static int end_payload(struct shunter_client *client) {
    uint8_t *place = NULL;
    client->have = 0;
    client->live.packets++;
    if (shunter_call_place(client, &client->head, &place)) {
        shunter_call_received(client, &client->head, shunter_client_now_ns());
        return 0;
    }
    return shunter_call_heed(client, &client->head, client->spill, shunter_client_now_ns());
}

int shunter_client_receive_stream(struct shunter_client *client) {
    int count = 0;
    for (;;) {
        const bool in_head = client->have < SHUNTER_HEADER_BYTES;
        uint8_t *into = in_head ? (uint8_t *)&client->head + client->have
            : client->into      ? client->into
                                : client->spill + (client->head.length - client->left);
        const size_t wanted = in_head ? SHUNTER_HEADER_BYTES - client->have : client->left;
        if (wanted) {
            const ssize_t got = recv(client->settings.socket, into, wanted, MSG_DONTWAIT);
            if (got == 0) {
                return -ECONNRESET;
            }
            if (got < 0) {
                return errno == EAGAIN ? count : errno == EINTR ? count : -errno;
            }
            count++;
            if (in_head) {
                client->have += (uint32_t)got;
            } else {
                client->left -= (uint32_t)got;
                client->into = client->into ? client->into + got : NULL;
            }
        }
        if (in_head && client->have == SHUNTER_HEADER_BYTES) {
            const int error = begin_payload(client);
            if (error) {
                return error;
            }
        }
        if (client->have == SHUNTER_HEADER_BYTES && client->left == 0) {
            const int error = end_payload(client);
            if (error) {
                return error;
            }
        }
    }
}

int shunter_client_flush_stream(struct shunter_client *client) {
    while (client->live.kept) {
        const ssize_t sent = send(
            client->settings.socket, client->kept + client->kept_at, client->live.kept,
            MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent < 0) {
            return errno == EAGAIN || errno == EINTR ? 0 : -errno;
        }
        client->kept_at += (size_t)sent;
        client->live.kept -= (size_t)sent;
    }
    client->kept_at = 0;
    return 0;
}

static int keep(struct shunter_client *client, const struct iovec *pieces, size_t count) {
    size_t length = 0;
    for (size_t i = 0; i < count; i++) {
        length += pieces[i].iov_len;
    }
    if (client->kept_at) {
        memmove(client->kept, client->kept + client->kept_at, client->live.kept);
        client->kept_at = 0;
    }
    if (client->live.kept + length > client->kept_room) {
        uint8_t *room = realloc(client->kept, client->live.kept + length);
        if (!room) {
            return -ENOMEM;
        }
        client->kept = room;
        client->kept_room = client->live.kept + length;
    }
    for (size_t i = 0; i < count; i++) {
        if (pieces[i].iov_len) {
            memcpy(client->kept + client->live.kept, pieces[i].iov_base, pieces[i].iov_len);
            client->live.kept += pieces[i].iov_len;
        }
    }
    client->live.copied += length;
    return 0;
}

int shunter_client_send_stream(struct shunter_client *client, struct iovec *pieces, size_t count) {
    const int error = shunter_client_flush_stream(client);
    if (error) {
        return error;
    }
    while (count && !client->live.kept) {
        const struct msghdr message = {
            .msg_iov = pieces, .msg_iovlen = count < IOV_MAX ? count : IOV_MAX};
        ssize_t sent = sendmsg(client->settings.socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent < 0 && errno == EAGAIN) {
            break;
        }
        if (sent < 0 && errno != EINTR) {
            return -errno;
        }
        while (count && sent >= (ssize_t)pieces->iov_len) {
            sent -= (ssize_t)pieces->iov_len;
            pieces++;
            count--;
        }
        if (count && sent > 0) {
            pieces->iov_base = (uint8_t *)pieces->iov_base + sent;
            pieces->iov_len -= (size_t)sent;
        }
    }
    return count ? keep(client, pieces, count) : 0;
}
