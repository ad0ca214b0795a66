#define _GNU_SOURCE
#include <errno.h>
#include <netinet/in.h>
#include <netinet/udp.h>
#include <poll.h>
#include <string.h>

#include "client_parts.h"

#ifndef UDP_SEGMENT
#define UDP_SEGMENT 103
#endif

#define MOST_MERGED 64 /* segments in one message, UDP_MAX_SEGMENTS of older kernels */
#define LARGEST_MESSAGE 65507

static struct shunter_x64 header_of(struct shunter_client *client, uint8_t type, uint64_t req_id) {
    return (struct shunter_x64){
        .magic = SHUNTER_WIRE_MAGIC,
        .version = SHUNTER_WIRE_VERSION,
        .type = type,
        .words = SHUNTER_HEADER_BYTES / 8,
        .req_id = req_id,
        .func_id = client->settings.func_id,
        .count = 1,
        .session = client->settings.session,
        .credit = (uint32_t)client->live.below,
        .pkt_no = (uint32_t)++client->pkt_no};
}

/* What fits into no buffer or meets a dead port counts as lost: it is sent again. */
static int sent_or_lost(int error) {
    return error == EAGAIN || error == ECONNREFUSED || error == ENOBUFS ? 0 : -error;
}

static int send_pieces(struct shunter_client *client, struct iovec *pieces, size_t count) {
    if (client->settings.stream) {
        return shunter_client_send_stream(client, pieces, count, false);
    }
    const struct msghdr message = {.msg_iov = pieces, .msg_iovlen = count};
    for (int tries = 0; tries < 2; tries++) {
        if (sendmsg(client->settings.socket, &message, MSG_NOSIGNAL) >= 0) {
            return 0;
        }
        if (errno != ECONNREFUSED) { // that is of an earlier datagram: once more
            break;
        }
    }
    return sent_or_lost(errno);
}

int shunter_client_control(
    struct shunter_client *client, uint8_t type, uint64_t req_id, uint16_t flags,
    const void *payload, uint16_t length) {
    struct shunter_x64 header = header_of(client, type, req_id);
    header.flags = flags;
    header.length = length;
    shunter_client_sign(client, &header);
    client->live.packets++;
    struct iovec pieces[2] = {
        {&header, sizeof header}, {(void *)(uintptr_t)payload, length}};
    const int error = shunter_client_send_held(client); // it may be about what is held back
    return error ? error : send_pieces(client, pieces, length ? 2 : 1);
}

int shunter_client_prepare(
    struct shunter_client *client, const struct shunter_call *call, uint32_t seq, uint16_t flags,
    uint64_t now) {
    struct shunter_x64 *header = &client->headers[seq];
    struct iovec *pieces = client->pieces + (size_t)2 * seq;
    const struct shunter_plan *plan = &client->inputs;
    const struct shunter_segment segment = shunter_request_segment(client, call, seq);
    if (client->lent_count && shunter_client_return(client)) { // it may be this very header
        return -EIO;
    }
    client->lent_id = call->req_id;
    *header = header_of(client, SHUNTER_TYPE_REQ, call->req_id);
    header->flags =
        (uint16_t)(call->flags | flags | (seq + 1 == call->count ? SHUNTER_FLAG_LAST : 0));
    header->priority = call->priority;
    header->seq = (uint16_t)seq;
    header->count = (uint16_t)call->count;
    header->length = (uint16_t)segment.length;
    header->total = plan->sizes[segment.tensor];
    header->offset =
        client->settings.shared ? shunter_shared_offset(client, call->req_id) : segment.offset;
    header->tensor = segment.tensor;
    if (shunter_client_is_packed(client)) {
        header->total = call->bytes;
        header->status = call->rows;
    }
    if (call->part) {
        header->total = call->part;
        header->offset = (uint32_t)call->of;
        header->status = 0;
    }
    if (call->deadline_ns) {
        const uint64_t left =
            call->deadline_ns > now + 1000 ? (call->deadline_ns - now) / 1000 : 1;
        header->deadline_us = left > UINT32_MAX ? UINT32_MAX : (uint32_t)left;
    }
    const uint8_t *payload =
        segment.length ? call->inputs[segment.tensor] + segment.offset : NULL;
    const int error = shunter_client_protect(client, header, &payload);
    pieces[0] = (struct iovec){header, sizeof *header};
    pieces[1] = (struct iovec){
        (void *)(uintptr_t)payload, segment.length + shunter_behind(header->flags)};
    client->live.packets++;
    return error;
}

/* Segments from ``seq`` on that may go as one message: all as long as the first, but the last. */
static uint32_t merged(
    const struct shunter_client *client, const struct iovec *pieces, uint32_t seq, uint32_t to) {
    const size_t size = SHUNTER_HEADER_BYTES + pieces[2 * seq + 1].iov_len;
    uint32_t count = 1;
    if (!client->settings.gso) {
        return 1;
    }
    while (seq + count < to && count < MOST_MERGED &&
           size * (count + 1) <= LARGEST_MESSAGE) {
        const size_t next = SHUNTER_HEADER_BYTES + pieces[2 * (seq + count) + 1].iov_len;
        if (next > size) {
            break;
        }
        count++;
        if (next < size) {
            break;
        }
    }
    return count;
}

static unsigned make_messages(
    struct shunter_client *client, struct iovec *pieces, uint32_t *seq, uint32_t to) {
    unsigned messages = 0;
    while (*seq < to && messages < SHUNTER_CLIENT_MESSAGES) {
        const uint32_t count = merged(client, pieces, *seq, to);
        struct msghdr *message = &client->messages[messages].msg_hdr;
        *message = (struct msghdr){
            .msg_iov = pieces + (size_t)2 * *seq, .msg_iovlen = (size_t)2 * count};
        if (count > 1) {
            message->msg_control = client->controls[messages];
            message->msg_controllen = sizeof client->controls[messages];
            struct cmsghdr *about = CMSG_FIRSTHDR(message);
            about->cmsg_level = IPPROTO_UDP;
            about->cmsg_type = UDP_SEGMENT;
            about->cmsg_len = CMSG_LEN(sizeof(uint16_t));
            const uint16_t size =
                (uint16_t)(SHUNTER_HEADER_BYTES + pieces[(size_t)2 * *seq + 1].iov_len);
            memcpy(CMSG_DATA(about), &size, sizeof size);
        }
        *seq += count;
        messages++;
    }
    return messages;
}

/* Segments from ``seq`` on as datagrams. */
static int send_datagrams(
    struct shunter_client *client, struct iovec *pieces, uint32_t seq, uint32_t to) {
    struct iovec *first_piece = pieces + (size_t)2 * seq;
    // Encrypted ones lie where those of the next request will.
    if (first_piece[1].iov_len >= SHUNTER_PAGE_SEND_LEAST && !client->sealed) {
        seq += shunter_page_send(&client->sender, client->settings.socket, first_piece, to - seq);
    }
    while (seq < to) {
        const uint32_t first = seq;
        const unsigned count = make_messages(client, pieces, &seq, to);
        unsigned at = 0;
        while (at < count) {
            const int sent =
                sendmmsg(client->settings.socket, client->messages + at, count - at, MSG_NOSIGNAL);
            if (sent > 0) {
                at += (unsigned)sent;
            } else if (errno == EAGAIN) {
                struct pollfd room = {.fd = client->settings.socket, .events = POLLOUT};
                if (poll(&room, 1, 100) <= 0) {
                    return 0; // it counts as lost
                }
            } else if (
                client->settings.gso && (errno == EIO || errno == EINVAL || errno == EMSGSIZE)) {
                client->settings.gso = false; // this path cannot: once more, one by one
                seq = first;
                break;
            } else if (errno != ECONNREFUSED && errno != EINTR) {
                return sent_or_lost(errno);
            }
        }
    }
    return 0;
}

/* ---- what goes together */

int shunter_client_send_held(struct shunter_client *client) {
    const uint32_t count = client->held;
    client->held = 0;
    return count ? send_datagrams(client, client->held_pieces, 0, count) : 0;
}

/* One datagram, which the next ones may go with: where it is encrypted its place is the next one's. */
static bool may_be_held(const struct shunter_client *client, uint32_t from, uint32_t to) {
    return client->corked && !from && to == 1 && !client->sealed &&
           client->pieces[1].iov_len < SHUNTER_PAGE_SEND_LEAST;
}

static int hold(struct shunter_client *client) {
    const uint32_t at = client->held++;
    client->held_headers[at] = client->headers[0];
    client->held_pieces[2 * at] =
        (struct iovec){&client->held_headers[at], SHUNTER_HEADER_BYTES};
    client->held_pieces[2 * at + 1] = client->pieces[1];
    return client->held == SHUNTER_CLIENT_MESSAGES ? shunter_client_send_held(client) : 0;
}

int shunter_client_flush(struct shunter_client *client) {
    return client->settings.stream ? shunter_client_flush_stream(client)
                                   : shunter_client_send_held(client);
}

int shunter_client_cork(struct shunter_client *client, uint32_t corked) {
    client->corked = corked && !client->settings.stream;
    return client->corked ? 0 : shunter_client_send_held(client);
}

int shunter_client_send_prepared(struct shunter_client *client, uint32_t from, uint32_t to) {
    if (client->settings.stream) {
        return shunter_client_send_stream(
            client, client->pieces + (size_t)2 * from, (size_t)2 * (to - from), true);
    }
    if (may_be_held(client, from, to)) {
        return hold(client);
    }
    const int error = shunter_client_send_held(client);
    return error ? error : send_datagrams(client, client->pieces, from, to);
}
