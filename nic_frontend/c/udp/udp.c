/*
 * The kernel's UDP: datagrams straight into their entries.
 *
 * The kernel is told, before a datagram comes, where its header and its payload go. Where the kernel
 * merges datagrams (GRO), one message is laid out as many.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <netinet/in.h>
#include <netinet/udp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "backend.h"
#include "datagrams.h"
#include "queue.h"

#ifndef UDP_GRO
#define UDP_GRO 104
#endif
#ifndef SO_RXQ_OVFL
#define SO_RXQ_OVFL 40
#endif

#define PADS 32
#define GRO_SEGMENTS 64
#define LARGEST 65536
#define LARGEST_DATAGRAM 65507
#define MOST_MERGED 128 /* datagrams in one message; the kernel merges fewer */

/* Where one datagram lands but for its payload, which goes to the entry that is expected. */
struct pad {
    uint8_t header[SHUNTER_HEADER_BYTES];
    uint8_t tag[SHUNTER_AEAD_TAG];
};

struct udp {
    struct shunter_backend backend;
    int socket;
    bool gro;
    bool merged;     /* messages hold several datagrams */
    uint32_t behind; /* bytes that are expected behind each payload */
    struct mmsghdr *headers;
    struct iovec *pieces;
    struct pad *pads;
    uint8_t (*peers)[SHUNTER_PEER_BYTES];
    uint8_t (*controls)[128];
    uint8_t *spill; /* of each message: what no one expected */
    uint8_t *flat;  /* messages that did not lie as they were laid */
    uint32_t overflows;
    struct shunter_backend_stats stats;
    struct shunter_datagrams out;
};

/* ---- what is expected */

/* Pieces of one datagram: header, payload, and the tag if one is expected. */
static size_t pieces_of(const struct udp *udp) { return udp->behind ? 3 : 2; }

static void post_rx(struct shunter_backend *backend, struct shunter_rx *rx) {
    struct udp *udp = (struct udp *)backend;
    const uint32_t segments = udp->merged ? GRO_SEGMENTS : 1;
    udp->behind = rx->behind;
    for (uint32_t m = 0; m < PADS; m++) {
        struct iovec *piece = udp->pieces + (size_t)m * (pieces_of(udp) * segments + 1);
        uint32_t count = 0;
        for (uint32_t s = 0; s < segments; s++) {
            struct shunter_expected expected = {NULL, 0};
            if (!rx->next(rx->context, &expected) && s) {
                break;
            }
            struct pad *pad = &udp->pads[(size_t)m * segments + s];
            piece[count++] = (struct iovec){pad->header, SHUNTER_HEADER_BYTES};
            piece[count++] = (struct iovec){expected.into, expected.length};
            if (udp->behind) {
                piece[count++] = (struct iovec){pad->tag, udp->behind};
            }
        }
        piece[count++] = (struct iovec){udp->spill + (size_t)m * LARGEST, LARGEST};
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

static uint32_t segment_size(struct udp *udp, struct msghdr *message, uint32_t all) {
    uint32_t found = all;
    for (struct cmsghdr *c = CMSG_FIRSTHDR(message); c; c = CMSG_NXTHDR(message, c)) {
        int value;
        memcpy(&value, CMSG_DATA(c), sizeof value);
        if (c->cmsg_level == IPPROTO_UDP && c->cmsg_type == UDP_GRO && value > 0) {
            found = (uint32_t)value;
        } else if (c->cmsg_level == SOL_SOCKET && c->cmsg_type == SO_RXQ_OVFL) {
            const uint32_t total = (uint32_t)value;
            udp->stats.overflows += total - udp->overflows;
            udp->overflows = total;
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
static bool fits(const struct udp *udp, const struct iovec *pieces, uint32_t size) {
    const size_t room = SHUNTER_HEADER_BYTES + pieces[1].iov_len;
    return size <= room ||
           (udp->behind && size == room + udp->behind && behind_of(pieces[0].iov_base));
}

/* Whether the datagrams of a message lie in the pieces that were laid out for one each. */
static bool lies_as_laid(
    const struct udp *udp, const struct msghdr *message, uint32_t length,
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

/* Where the pieces of a message lie; ``flat`` is used when they do not lie as they were laid. */
static uint32_t look_at(
    struct udp *udp, uint32_t m, uint8_t *flat, struct shunter_landed *landed) {
    struct msghdr *message = &udp->headers[m].msg_hdr;
    const uint32_t all = udp->headers[m].msg_len;
    const uint32_t size = segment_size(udp, message, all);
    uint32_t count = 0;
    if (message->msg_flags & MSG_TRUNC || all == 0 || all / size >= MOST_MERGED) {
        udp->stats.too_long += all != 0;
        udp->stats.empty += all == 0;
        return 0;
    }
    const bool laid = lies_as_laid(udp, message, all, size);
    const size_t each = pieces_of(udp);
    udp->merged = size < all; // as this one was, the next will be
    if (!laid) {
        flatten(message, flat, all);
        udp->stats.copied_bytes += all;
    }
    for (uint32_t at = 0; at < all; at += size, count++) {
        const uint32_t length = all - at < size ? all - at : size;
        landed[count] = (struct shunter_landed){
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

static int poll(
    struct shunter_backend *backend, struct shunter_landed *landed, uint32_t *messages) {
    struct udp *udp = (struct udp *)backend;
    const int came = recvmmsg(udp->socket, udp->headers, PADS, MSG_DONTWAIT, NULL);
    *messages = came > 0 ? (uint32_t)came : 0;
    if (came < 0) {
        const bool passes = errno == EAGAIN || errno == EINTR || errno == ECONNREFUSED ||
                            errno == ENOMEM || errno == ENOBUFS;
        return passes ? 0 : -errno;
    }
    uint32_t count = 0;
    for (uint32_t m = 0; m < *messages; m++) {
        count += look_at(udp, m, udp->flat + (size_t)m * LARGEST, landed + count);
    }
    return (int)count;
}

/* ---- what is sent */

static void tx(
    struct shunter_backend *backend, const struct shunter_x64 *header, const void *payload,
    size_t length, const uint8_t *peer, bool copied) {
    struct udp *udp = (struct udp *)backend;
    shunter_datagrams_add(&udp->out, header, payload, length, peer, copied);
}

static void flush(struct shunter_backend *backend) {
    shunter_datagrams_flush(&((struct udp *)backend)->out);
}

/* ---- what there is */

static uint32_t mtu(const struct shunter_backend *backend) {
    (void)backend; // whom a path's limit concerns has said it in its hello
    return LARGEST_DATAGRAM;
}

static void stats(const struct shunter_backend *backend, struct shunter_backend_stats *found) {
    const struct udp *udp = (const struct udp *)backend;
    *found = udp->stats;
    found->sent = udp->out.sent;
    found->failed = udp->out.failed;
}

static void close_udp(struct shunter_backend *backend) {
    struct udp *udp = (struct udp *)backend;
    shunter_datagrams_free(&udp->out);
    free(udp->headers);
    free(udp->pieces);
    free(udp->pads);
    free(udp->peers);
    free(udp->controls);
    free(udp->spill);
    free(udp->flat);
    free(udp);
}

struct shunter_backend *shunter_udp_backend(int socket, bool gro) {
    struct udp *udp = calloc(1, sizeof *udp);
    if (!udp) {
        return NULL;
    }
    const size_t pads = PADS * (gro ? GRO_SEGMENTS : 1);
    udp->backend = (struct shunter_backend){
        .caps = SHUNTER_CAP_PLACED | (gro ? SHUNTER_CAP_GRO : 0),
        .most = PADS * MOST_MERGED,
        .bytes = (size_t)PADS * LARGEST,
        .worthwhile = PADS,
        .post_rx = post_rx,
        .poll = poll,
        .tx = tx,
        .flush = flush,
        .mtu = mtu,
        .stats = stats,
        .close = close_udp};
    udp->socket = socket;
    udp->gro = gro;
    udp->headers = calloc(PADS, sizeof *udp->headers);
    udp->pieces = calloc(3 * pads + PADS, sizeof *udp->pieces);
    udp->pads = calloc(pads, sizeof *udp->pads);
    udp->peers = calloc(PADS, sizeof *udp->peers);
    udp->controls = calloc(PADS, sizeof *udp->controls);
    udp->spill = malloc((size_t)PADS * LARGEST);
    udp->flat = malloc((size_t)PADS * LARGEST);
    if (!udp->headers || !udp->pieces || !udp->pads || !udp->peers || !udp->controls ||
        !udp->spill || !udp->flat || shunter_datagrams_init(&udp->out, socket)) {
        close_udp(&udp->backend);
        return NULL;
    }
    return &udp->backend;
}
