#define _GNU_SOURCE
#include "xdp.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernel.h"

#ifndef SHUNTER_HAS_XDP

struct shunter_backend *shunter_xdp_backend(
    const struct shunter_xdp_settings *settings, char *why, size_t size) {
    snprintf(
        why, size, "no AF_XDP on %s: the library was built with headers of a Linux before 5.12",
        settings->interface);
    return NULL;
}

#else

#include "bpf.h"
#include "xdp_parts.h"

#define FILL_AT_ONCE 32 /* chunks; fewer are not worth it */
#define UDP_EVERY 16    /* polls look at the UDP socket although there is enough else */

/* Chunks to the kernel, as many as there is room for. */
static void fill(struct shunter_xdp *xdp, struct shunter_xsk *xsk) {
    uint32_t room = shunter_xsk_room(xsk);
    if (room < FILL_AT_ONCE) {
        return;
    }
    for (; room; room--) {
        const int64_t chunk = shunter_chunk_give(&xdp->chunks);
        if (chunk < 0) {
            break;
        }
        shunter_xsk_fill(xsk, (uint64_t)chunk);
    }
    shunter_xsk_filled(xsk);
}

/* What the last poll told is read. */
static void let_go(struct shunter_xdp *xdp) {
    shunter_chunks_let_go(&xdp->chunks);
    for (uint32_t queue = 0; queue < xdp->queue_count; queue++) {
        shunter_xdp_headers_taken(&xdp->queues[queue].headers);
    }
}

/* ---- headers and payloads */

static uint64_t number_of(const struct shunter_xdp *xdp, const struct xdp_desc *frame) {
    uint64_t number;
    memcpy(&number, shunter_chunks_base(&xdp->chunks) + frame->addr, sizeof number);
    return number;
}

/* The payload with this number, if it is the next; those before it have lost their headers. */
static const struct xdp_desc *payload_of(
    struct shunter_xdp *xdp, struct shunter_xsk *xsk, uint64_t number) {
    const struct xdp_desc *frame = shunter_xsk_peek(xsk);
    while (frame && number_of(xdp, frame) < number) {
        shunter_chunk_drop(&xdp->chunks, frame->addr);
        xdp->counts.lost_headers++;
        shunter_xsk_take(xsk);
        frame = shunter_xsk_peek(xsk);
    }
    return frame;
}

/*
 * Both rings have the order of the numbers. A header is written before its payload is sent on, so
 * one without may still get it: it waits until a later payload shows that it was lost.
 */
static uint32_t pair(
    struct shunter_xdp *xdp, struct shunter_xdp_queue *queue, struct shunter_landed *landed) {
    const struct shunter_xdp_record *record;
    uint32_t count = 0;
    while (count < SHUNTER_XDP_AT_ONCE && (record = shunter_xdp_headers_peek(&queue->headers))) {
        const struct xdp_desc *frame = payload_of(xdp, &queue->xsk, record->number);
        if (!frame) {
            break;
        }
        shunter_xdp_headers_take(&queue->headers);
        if (number_of(xdp, frame) != record->number) {
            xdp->counts.lost_payloads++;
            continue;
        }
        if (frame->len >= SHUNTER_XDP_FRONT + record->length) {
            landed[count] = (struct shunter_landed){
                .peer = record->peer,
                .header = record->header,
                .length = SHUNTER_HEADER_BYTES + (uint32_t)record->length};
            shunter_chunk_tell(&xdp->chunks, frame->addr + SHUNTER_XDP_FRONT, &landed[count++]);
        } else { // the frame is shorter than its datagram says
            xdp->counts.lost_payloads++;
            shunter_chunk_drop(&xdp->chunks, frame->addr);
        }
        shunter_xsk_take(&queue->xsk);
    }
    shunter_xsk_taken(&queue->xsk);
    return count;
}

static int poll(
    struct shunter_backend *backend, struct shunter_landed *landed, uint32_t *messages) {
    struct shunter_xdp *xdp = (struct shunter_xdp *)backend;
    uint32_t count = 0;
    let_go(xdp);
    for (uint32_t i = 0; i < xdp->queue_count; i++) {
        fill(xdp, &xdp->queues[i].xsk);
        count += pair(xdp, &xdp->queues[i], landed + count);
    }
    xdp->counts.split += count;
    *messages = count;
    if (count && ++xdp->polls % UDP_EVERY) {
        return (int)count;
    }
    uint32_t passed = 0;
    const int more = xdp->udp->poll(xdp->udp, landed + count, &passed);
    *messages += passed;
    return more < 0 ? (count ? (int)count : more) : (int)count + more;
}

/* ---- the rest is the UDP socket's */

static void tx(
    struct shunter_backend *backend, const struct shunter_x64 *header, const void *payload,
    size_t length, const uint8_t *peer, bool copied) {
    struct shunter_backend *udp = ((struct shunter_xdp *)backend)->udp;
    udp->tx(udp, header, payload, length, peer, copied);
}

static void flush(struct shunter_backend *backend) {
    struct shunter_backend *udp = ((struct shunter_xdp *)backend)->udp;
    udp->flush(udp);
}

static uint32_t mtu(const struct shunter_backend *backend) {
    const struct shunter_backend *udp = ((const struct shunter_xdp *)backend)->udp;
    return udp->mtu(udp);
}

void shunter_xdp_counts(const struct shunter_backend *backend, struct shunter_xdp_counts *counts) {
    const struct shunter_xdp *xdp = (const struct shunter_xdp *)backend;
    *counts = xdp->counts;
    for (uint32_t queue = 0; queue < xdp->queue_count; queue++) {
        struct shunter_xdp_counters counters = {0};
        shunter_bpf_get(xdp->counters, &queue, &counters);
        counts->no_room += counters.no_room;
        counts->dropped += shunter_xsk_dropped(&xdp->queues[queue].xsk);
    }
}

static void stats(const struct shunter_backend *backend, struct shunter_backend_stats *found) {
    const struct shunter_xdp *xdp = (const struct shunter_xdp *)backend;
    struct shunter_xdp_counts counts;
    xdp->udp->stats(xdp->udp, found);
    shunter_xdp_counts(backend, &counts);
    found->overflows += counts.dropped;
    found->copied_bytes += xdp->chunks.copied_bytes;
    found->split = counts.split;
    found->no_room = counts.no_room;
}

static void free_xdp(struct shunter_xdp *xdp) {
    shunter_xdp_take_down(xdp); // no chunk is the kernel's any more
    shunter_chunks_free(&xdp->chunks);
    free(xdp);
}

static void close_xdp(struct shunter_backend *backend) {
    struct shunter_xdp *xdp = (struct shunter_xdp *)backend;
    struct shunter_backend *udp = xdp->udp;
    free_xdp(xdp);
    udp->close(udp);
}

static struct shunter_xdp *new_xdp(const struct shunter_xdp_settings *settings) {
    struct shunter_xdp *xdp = calloc(1, sizeof *xdp);
    if (!xdp) {
        return NULL;
    }
    xdp->udp = settings->udp;
    xdp->addresses = xdp->counters = xdp->headers = xdp->sockets = xdp->link = -1;
    xdp->backend.ready = -1;
    for (uint32_t i = 0; i < SHUNTER_XDP_QUEUES; i++) {
        xdp->queues[i].xsk.socket = -1;
    }
    return xdp;
}

static const char *advice(int error) {
    switch (error) {
    case -EPERM:
        return "; it needs CAP_NET_ADMIN, CAP_NET_RAW and CAP_BPF";
    case -EBUSY:
        return "; another XDP program or AF_XDP socket has it";
    case -ENOBUFS:
        return "; it needs CAP_IPC_LOCK or a higher limit of locked memory";
    default:
        return "";
    }
}

struct shunter_backend *shunter_xdp_backend(
    const struct shunter_xdp_settings *settings, char *why, size_t size) {
    struct shunter_xdp *xdp = new_xdp(settings);
    const char *step = "blocks of the landing pool";
    bool native = false;
    int error = xdp ? shunter_chunks_init(
                          &xdp->chunks, settings->landing, settings->blocks,
                          SHUNTER_XDP_QUEUES * SHUNTER_XDP_AT_ONCE)
                    : -ENOMEM;
    error = error ? error : shunter_xdp_set_up(xdp, settings, &step, &native);
    if (error) {
        snprintf(
            why, size, "no AF_XDP on %s: %s: %s%s", settings->interface, step, strerror(-error),
            advice(error));
        if (xdp) {
            free_xdp(xdp);
        }
        return NULL;
    }
    snprintf(
        why, size, "AF_XDP on %s: %s, %s, %u queue%s", settings->interface,
        native ? "in the driver" : "generic",
        shunter_xsk_zero_copy(&xdp->queues[0].xsk) ? "zero-copy" : "copy", xdp->queue_count,
        xdp->queue_count == 1 ? "" : "s");
    xdp->backend = (struct shunter_backend){
        .ready = xdp->backend.ready,
        .most = xdp->queue_count * SHUNTER_XDP_AT_ONCE + xdp->udp->most,
        .worthwhile = SHUNTER_XDP_AT_ONCE,
        .poll = poll,
        .tx = tx,
        .flush = flush,
        .mtu = mtu,
        .stats = stats,
        .close = close_xdp};
    for (uint32_t i = 0; i < xdp->queue_count; i++) {
        fill(xdp, &xdp->queues[i].xsk);
    }
    return &xdp->backend;
}

#endif
