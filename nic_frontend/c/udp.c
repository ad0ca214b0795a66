/*
 * Datagrams straight into their entries.
 *
 * The kernel is told, before a datagram comes, where its header and its payload go; the payload's
 * place is the one in which the next segment is expected: the next of the same request, or the
 * first of the next free entry. When something else comes, what landed is moved. Encrypted payloads
 * are decrypted in place, and count only when their tag is right.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <netinet/in.h>
#include <netinet/udp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "segments.h"
#include "server_parts.h"

#ifndef UDP_GRO
#define UDP_GRO 104
#endif
#ifndef SO_RXQ_OVFL
#define SO_RXQ_OVFL 40
#endif

#define MOST_MERGED 128 /* datagrams in one message; the kernel merges fewer */

int shunter_udp_init(struct shunter_udp *udp, bool gro) {
    memset(udp, 0, sizeof *udp);
    udp->gro = gro;
    const size_t pads = SHUNTER_PADS * (gro ? SHUNTER_GRO_SEGMENTS : 1);
    udp->headers = calloc(SHUNTER_PADS, sizeof *udp->headers);
    udp->pieces = calloc(3 * pads + SHUNTER_PADS, sizeof *udp->pieces);
    udp->pads = calloc(pads, sizeof *udp->pads);
    udp->peers = calloc(SHUNTER_PADS, sizeof *udp->peers);
    udp->controls = calloc(SHUNTER_PADS, sizeof *udp->controls);
    udp->spill = malloc((size_t)SHUNTER_PADS * SHUNTER_LARGEST);
    udp->flat = malloc((size_t)SHUNTER_PADS * SHUNTER_LARGEST);
    udp->aside = malloc((size_t)SHUNTER_PADS * SHUNTER_LARGEST);
    if (!udp->headers || !udp->pieces || !udp->pads || !udp->peers || !udp->controls ||
        !udp->spill || !udp->flat || !udp->aside) {
        shunter_udp_free(udp);
        return -ENOMEM;
    }
    return 0;
}

void shunter_udp_free(struct shunter_udp *udp) {
    free(udp->headers);
    free(udp->pieces);
    free(udp->pads);
    free(udp->peers);
    free(udp->controls);
    free(udp->spill);
    free(udp->flat);
    free(udp->aside);
    memset(udp, 0, sizeof *udp);
}

/* ---- what is expected */

/* Pieces of one datagram: header, payload, and the tag if one is expected. */
static size_t pieces_of(const struct shunter_udp *udp) { return udp->behind ? 3 : 2; }

/* Tell the kernel where the next datagrams go. */
static void lay_out(struct shunter_server *server) {
    struct shunter_udp *udp = &server->udp;
    const uint32_t segments = udp->merged ? SHUNTER_GRO_SEGMENTS : 1;
    struct shunter_forecast forecast;
    shunter_core_forecast(server->core, udp->session, udp->req_id, &forecast);
    const struct shunter_served *served = server->served[udp->func_id];
    udp->behind = forecast.behind;
    for (uint32_t m = 0; m < SHUNTER_PADS; m++) {
        struct iovec *piece = udp->pieces + (size_t)m * (pieces_of(udp) * segments + 1);
        uint32_t count = 0;
        for (uint32_t s = 0; s < segments; s++) {
            uint8_t *into = NULL;
            uint32_t length = 0;
            struct shunter_segment segment;
            uint32_t entry;
            if (served && shunter_forecast_next(&forecast, &entry, &segment)) {
                uint8_t *ring = served->queue.inputs[segment.tensor];
                const size_t size = served->queue.input_bytes[segment.tensor];
                into = ring ? ring + entry * size + segment.offset : NULL;
                length = segment.length;
            } else if (s) {
                break;
            }
            struct shunter_pad *pad = &udp->pads[(size_t)m * segments + s];
            piece[count++] = (struct iovec){pad->header, SHUNTER_HEADER_BYTES};
            piece[count++] = (struct iovec){into, length};
            if (udp->behind) {
                piece[count++] = (struct iovec){pad->tag, udp->behind};
            }
        }
        piece[count++] =
            (struct iovec){udp->spill + (size_t)m * SHUNTER_LARGEST, SHUNTER_LARGEST};
        udp->headers[m].msg_hdr = (struct msghdr){
            .msg_name = udp->peers[m],
            .msg_namelen = SHUNTER_PEER_BYTES,
            .msg_iov = piece,
            .msg_iovlen = count,
            .msg_control = udp->controls[m],
            .msg_controllen = sizeof udp->controls[m]};
    }
}

/* ---- what came */

static uint32_t segment_size(struct shunter_server *server, struct msghdr *message, uint32_t all) {
    uint32_t found = all;
    for (struct cmsghdr *c = CMSG_FIRSTHDR(message); c; c = CMSG_NXTHDR(message, c)) {
        int value;
        memcpy(&value, CMSG_DATA(c), sizeof value);
        if (c->cmsg_level == IPPROTO_UDP && c->cmsg_type == UDP_GRO && value > 0) {
            found = (uint32_t)value;
        } else if (c->cmsg_level == SOL_SOCKET && c->cmsg_type == SO_RXQ_OVFL) {
            const uint32_t total = (uint32_t)value;
            server->stats.overflows += total - server->udp.overflows;
            server->udp.overflows = total;
        }
    }
    return found;
}

/* Copy a message's bytes, which lie in several pieces, one behind the other. */
static void flatten(const struct msghdr *message, uint8_t *into, uint32_t length) {
    for (size_t i = 0; length; i++) {
        const size_t here = message->msg_iov[i].iov_len;
        const size_t count = here < length ? here : length;
        if (count) {
            memcpy(into, message->msg_iov[i].iov_base, count);
        }
        into += count;
        length -= (uint32_t)count;
    }
}

/* Bytes that this header says are behind its payload. */
static uint32_t behind_of(const uint8_t *header) {
    struct shunter_x64 said;
    memcpy(&said, header, sizeof said);
    return shunter_behind(said.flags);
}

/* Whether a datagram's payload, and what is behind it, lie each in one piece. */
static bool fits(const struct shunter_udp *udp, const struct iovec *pieces, uint32_t size) {
    const size_t room = SHUNTER_HEADER_BYTES + pieces[1].iov_len;
    return size <= room ||
           (udp->behind && size == room + udp->behind && behind_of(pieces[0].iov_base));
}

/* Whether the datagrams of a message lie in the pieces that were laid out for one each. */
static bool lies_as_laid(
    const struct shunter_udp *udp, const struct msghdr *message, uint32_t length,
    uint32_t size) {
    const size_t each = pieces_of(udp);
    const uint32_t count = (length + size - 1) / size;
    if (count > (message->msg_iovlen - 1) / each) {
        return false;
    }
    for (uint32_t i = 0; i + 1 < count; i++) {
        if (size != SHUNTER_HEADER_BYTES + message->msg_iov[each * i + 1].iov_len + udp->behind) {
            return false;
        }
    }
    for (uint32_t i = 0; i < count; i++) {
        const uint32_t here = i + 1 < count ? size : length - i * size;
        if (!fits(udp, message->msg_iov + each * i, here)) {
            return false;
        }
    }
    return true;
}

static void follow(struct shunter_udp *udp, const uint8_t *bytes) {
    struct shunter_x64 header;
    memcpy(&header, bytes, sizeof header);
    udp->func_id = header.func_id;
    udp->session = header.session;
    udp->req_id = header.req_id;
}

struct landed {
    const uint8_t *peer, *header, *payload;
    const uint8_t *tag; /* NULL: whatever is behind the payload follows it */
    uint32_t length;
};

/* Bytes that follow one another at ``payload``. */
static uint32_t payload_of(const struct landed *landed) {
    const uint32_t elsewhere = SHUNTER_HEADER_BYTES + (landed->tag ? SHUNTER_AEAD_TAG : 0);
    return landed->length > elsewhere ? landed->length - elsewhere : 0;
}

static void greet(struct shunter_server *server, const struct landed *landed) {
    if (server->hello_count == server->hello_most || landed->length > SHUNTER_HELLO_BYTES) {
        return; // it will be said again
    }
    struct shunter_hello *hello = &server->hellos[server->hello_count++];
    memcpy(hello->peer, landed->peer, SHUNTER_PEER_BYTES);
    memcpy(hello->datagram, landed->header, SHUNTER_HEADER_BYTES);
    const uint32_t payload = payload_of(landed);
    if (payload) {
        memcpy(hello->datagram + SHUNTER_HEADER_BYTES, landed->payload, payload);
    }
    hello->length = SHUNTER_HEADER_BYTES + payload;
}

/*
 * Payloads that wait may lie where an earlier one belongs that landed elsewhere. Set them aside.
 */
static void set_aside(struct shunter_server *server, struct landed *landed, uint32_t count) {
    uint8_t *at = server->udp.aside;
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
    struct shunter_server *server, struct landed *landed, uint32_t count, bool aside) {
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
    follow(&server->udp, landed->header);
    return aside;
}

/* The first of ``count`` datagrams. Whether the others had to be set aside for it. */
static bool take_in(
    struct shunter_server *server, struct landed *landed, uint32_t count, bool aside) {
    uint8_t small[SHUNTER_HEADER_BYTES + SHUNTER_BITMAP_BYTES];
    const uint32_t payload = payload_of(landed);
    memcpy(
        small, landed->header,
        landed->length < SHUNTER_HEADER_BYTES ? landed->length : SHUNTER_HEADER_BYTES);
    if (payload) { // of a SACK; the core looks at no other
        memcpy(
            small + SHUNTER_HEADER_BYTES, landed->payload,
            payload < SHUNTER_BITMAP_BYTES ? payload : SHUNTER_BITMAP_BYTES);
    }
    server->stats.datagrams_in++;
    server->stats.bytes_in += landed->length;
    shunter_hand_over(server, landed->peer, small, landed->length);
    if (server->is_hello) {
        greet(server, landed);
    }
    return server->has_place ? put_in_place(server, landed, count, aside) : aside;
}

/* Where the pieces of a message lie; ``flat`` is used when they do not lie as they were laid. */
static uint32_t look_at(
    struct shunter_server *server, uint32_t m, uint8_t *flat, struct landed *landed) {
    struct shunter_udp *udp = &server->udp;
    struct msghdr *message = &udp->headers[m].msg_hdr;
    const uint32_t all = udp->headers[m].msg_len;
    const uint32_t size = segment_size(server, message, all);
    uint32_t count = 0;
    if (message->msg_flags & MSG_TRUNC || all == 0 || all / size >= MOST_MERGED) {
        server->stats.drops[all ? SHUNTER_DROP_LENGTH : SHUNTER_DROP_SHORT]++;
        return 0;
    }
    const bool laid = lies_as_laid(udp, message, all, size);
    const size_t each = pieces_of(udp);
    udp->merged = size < all; // as this one was, the next will be
    if (!laid) {
        flatten(message, flat, all);
        server->stats.copied_bytes += all;
    }
    for (uint32_t at = 0; at < all; at += size, count++) {
        const uint32_t length = all - at < size ? all - at : size;
        landed[count] = (struct landed){
            udp->peers[m], flat + at, flat + at + SHUNTER_HEADER_BYTES, NULL, length};
        if (laid) {
            const struct iovec *pieces = message->msg_iov + each * count;
            landed[count].header = pieces[0].iov_base;
            landed[count].payload = pieces[1].iov_base;
            landed[count].tag =
                length > SHUNTER_HEADER_BYTES + pieces[1].iov_len ? pieces[2].iov_base : NULL;
        }
    }
    return count;
}

int shunter_udp_receive(struct shunter_server *server) {
    struct shunter_udp *udp = &server->udp;
    static _Thread_local struct landed landed[SHUNTER_PADS * MOST_MERGED];
    lay_out(server);
    const int messages = recvmmsg(
        server->settings.udp, udp->headers, SHUNTER_PADS, MSG_DONTWAIT, NULL);
    if (messages < 0) {
        const bool passes = errno == EAGAIN || errno == EINTR || errno == ECONNREFUSED ||
                            errno == ENOMEM || errno == ENOBUFS;
        return passes ? 0 : -errno;
    }
    server->now_ns = shunter_now_ns();
    uint32_t count = 0;
    for (int m = 0; m < messages; m++) {
        count += look_at(
            server, (uint32_t)m, udp->flat + (size_t)m * SHUNTER_LARGEST, landed + count);
    }
    bool aside = false;
    for (uint32_t i = 0; i < count; i++) {
        aside = take_in(server, landed + i, count - i, aside);
    }
    return (int)count;
}
