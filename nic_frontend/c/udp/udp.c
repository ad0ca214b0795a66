/*
 * The kernel's UDP. Messages land one behind the other in blocks of the landing pool, as they come:
 * header, payload, tag; where the kernel merges datagrams (GRO), a message is many of them.
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

#ifndef UDP_GRO
#define UDP_GRO 104
#endif
#ifndef SO_RXQ_OVFL
#define SO_RXQ_OVFL 40
#endif

#define PADS 32
#define LARGEST 65536
#define LARGEST_DATAGRAM 65507
#define MOST_MERGED 128 /* datagrams in one message; the kernel merges fewer */
#define LEAST_ROOM 2048 /* for a message, whatever came lately */
#define PATIENCE_MS 1   /* the whole front end waits */

/* Where one message lands: in its slot, and what is too long for it behind that. */
struct pad {
    struct shunter_slot slot;
    struct iovec pieces[2];
    uint8_t peer[SHUNTER_PEER_BYTES];
    _Alignas(struct cmsghdr) uint8_t control[192];
};

struct udp {
    struct shunter_backend backend;
    struct shunter_landing *landing;
    int socket;
    uint32_t expected; /* bytes of a message, as the last ones were */
    uint32_t used;     /* pads that are to be laid out anew */
    uint32_t overflows;
    uint8_t *spill; /* LARGEST for each message */
    struct shunter_backend_stats stats;
    struct shunter_datagrams out;
    struct mmsghdr headers[PADS];
    struct pad pads[PADS];
};

/* ---- where it lands */

static uint8_t *spill_of(const struct udp *udp, uint32_t m) {
    return udp->spill + (size_t)m * LARGEST;
}

/*
 * Little is left for whoever else lands payloads: what comes is copied to where there is room. What
 * fills most of a block needs one anyway, as long as there are some.
 */
static bool must_spare(const struct udp *udp, const struct pad *pad) {
    const bool is_large = udp->expected >= SHUNTER_BLOCK / 2;
    return shunter_slot_left(&pad->slot) < udp->expected &&
           shunter_landing_is_scarce(udp->landing) &&
           (!is_large || udp->landing->free_count <= 2 * PADS);
}

static void lay_out(struct udp *udp, uint32_t m) {
    struct pad *pad = &udp->pads[m];
    uint8_t *room = NULL;
    if (must_spare(udp, pad)) {
        shunter_slot_let_go(udp->landing, &pad->slot);
    } else {
        room = shunter_slot_room(udp->landing, &pad->slot, udp->expected);
    }
    pad->pieces[0] = (struct iovec){room, room ? shunter_slot_left(&pad->slot) : 0};
    pad->pieces[1] = (struct iovec){spill_of(udp, m), LARGEST};
    udp->headers[m].msg_hdr = (struct msghdr){
        .msg_name = pad->peer,
        .msg_namelen = SHUNTER_PEER_LOCAL,
        .msg_iov = pad->pieces,
        .msg_iovlen = 2,
        .msg_control = pad->control,
        .msg_controllen = sizeof pad->control};
}

/* Messages as long as the longest of late get room in one piece. */
static void expect(struct udp *udp, uint32_t longest) {
    const uint32_t less = udp->expected - udp->expected / 64;
    if (longest > udp->expected) {
        udp->used = PADS; // also those that did not get one
    }
    udp->expected = longest > less ? longest : less;
    udp->expected = udp->expected > LEAST_ROOM ? udp->expected : LEAST_ROOM;
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

/* A message in one piece, and its block. One that is longer than was expected is copied. */
static uint8_t *whole(struct udp *udp, uint32_t m, uint32_t length, int32_t *block) {
    struct pad *pad = &udp->pads[m];
    const size_t first = pad->pieces[0].iov_len;
    uint8_t *at = pad->pieces[0].iov_base;
    *block = pad->slot.block;
    if (length <= first) {
        shunter_slot_use(&pad->slot, length);
        return at;
    }
    uint8_t *spill = spill_of(udp, m);
    struct shunter_slot fresh = {SHUNTER_NO_BLOCK, 0};
    uint8_t *into = shunter_slot_room(udp->landing, &fresh, length);
    if (!into) { // it is looked at, and cannot be kept
        *block = SHUNTER_NO_BLOCK;
        if (first) {
            memmove(spill + first, spill, length - first);
            memcpy(spill, at, first);
            udp->stats.copied_bytes += length;
        }
        return spill;
    }
    if (first) {
        memcpy(into, at, first);
    }
    memcpy(into + first, spill, length - first);
    udp->stats.copied_bytes += length;
    shunter_slot_let_go(udp->landing, &pad->slot);
    pad->slot = fresh;
    *block = fresh.block;
    shunter_slot_use(&pad->slot, length);
    return into;
}

static uint32_t look_at(struct udp *udp, uint32_t m, struct shunter_landed *landed) {
    struct msghdr *message = &udp->headers[m].msg_hdr;
    struct pad *pad = &udp->pads[m];
    const uint32_t all = udp->headers[m].msg_len;
    const uint32_t size = segment_size(udp, message, all);
    uint32_t count = 0;
    if (message->msg_flags & MSG_TRUNC || all == 0 || all / size >= MOST_MERGED ||
        all > LARGEST) {
        udp->stats.too_long += all != 0;
        udp->stats.empty += all == 0;
        return 0;
    }
    shunter_sent_to(message, pad->peer);
    memset(
        pad->peer + message->msg_namelen, 0, SHUNTER_PEER_LOCAL - message->msg_namelen);
    int32_t block;
    uint8_t *bytes = whole(udp, m, all, &block);
    for (uint32_t at = 0; at < all; at += size) {
        const uint32_t length = all - at < size ? all - at : size;
        landed[count++] = (struct shunter_landed){
            pad->peer, bytes + at, bytes + at + SHUNTER_HEADER_BYTES, block, length, all,
            false};
    }
    return count;
}

static int poll(
    struct shunter_backend *backend, struct shunter_landed *landed, uint32_t *messages) {
    struct udp *udp = (struct udp *)backend;
    for (uint32_t m = 0; m < udp->used; m++) { // what came last time has been looked at
        lay_out(udp, m);
    }
    udp->used = 0;
    const int came = recvmmsg(udp->socket, udp->headers, PADS, MSG_DONTWAIT, NULL);
    *messages = came > 0 ? (uint32_t)came : 0;
    if (came < 0) {
        const bool passes = errno == EAGAIN || errno == EINTR || errno == ECONNREFUSED ||
                            errno == ENOMEM || errno == ENOBUFS;
        return passes ? 0 : -errno;
    }
    uint32_t count = 0, longest = 0;
    udp->used = *messages;
    for (uint32_t m = 0; m < *messages; m++) {
        longest = udp->headers[m].msg_len > longest ? udp->headers[m].msg_len : longest;
        count += look_at(udp, m, landed + count);
    }
    expect(udp, longest < LARGEST ? longest : LARGEST);
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
    for (uint32_t m = 0; m < PADS; m++) {
        shunter_slot_let_go(udp->landing, &udp->pads[m].slot);
    }
    shunter_datagrams_free(&udp->out);
    free(udp->spill);
    free(udp);
}

struct shunter_backend *shunter_udp_backend(int socket, struct shunter_landing *landing) {
    struct udp *udp = calloc(1, sizeof *udp);
    if (!udp) {
        return NULL;
    }
    udp->backend = (struct shunter_backend){
        .ready = socket,
        .most = PADS * MOST_MERGED,
        .worthwhile = PADS,
        .poll = poll,
        .tx = tx,
        .flush = flush,
        .mtu = mtu,
        .stats = stats,
        .close = close_udp};
    udp->socket = socket;
    udp->landing = landing;
    udp->expected = LEAST_ROOM;
    udp->used = PADS;
    for (uint32_t m = 0; m < PADS; m++) {
        udp->pads[m].slot.block = SHUNTER_NO_BLOCK;
    }
    udp->spill = malloc((size_t)PADS * LARGEST);
    if (!udp->spill || shunter_datagrams_init(&udp->out, socket, PATIENCE_MS)) {
        close_udp(&udp->backend);
        return NULL;
    }
    return &udp->backend;
}
