/* Maps, sockets and the program: what the backend stands on. */
#define _GNU_SOURCE
#include "kernel.h"

#ifdef SHUNTER_HAS_XDP

#include <errno.h>
#include <linux/bpf.h>
#include <linux/if_link.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "bpf.h"
#include "xdp_parts.h"

#define ADDRESSES 1024
#define HEADER_BYTES (1u << 20) /* some 6,800 headers */
#define LEAST_ENTRIES 64u
#define MOST_ENTRIES 2048u
#define SMALL_CHUNK 2048u
#define LARGE_CHUNK 4096u
#define HEADROOM 256u       /* XDP's, in front of each frame */
#define FRAME_OVERHEAD 22u  /* Ethernet, and a VLAN or two */

/* Chunks take whole frames where they can; no more than a quarter of the blocks is the kernel's. */
static void choose_sizes(struct shunter_xdp *xdp, const struct shunter_xdp_interface *interface) {
    const bool small = interface->mtu + FRAME_OVERHEAD + HEADROOM <= SMALL_CHUNK;
    xdp->chunks.bytes = small ? SMALL_CHUNK : LARGE_CHUNK;
    xdp->most = xdp->chunks.bytes - HEADROOM - SHUNTER_XDP_FRONT;
    xdp->queue_count =
        interface->queues < SHUNTER_XDP_QUEUES ? interface->queues : SHUNTER_XDP_QUEUES;
    const uint32_t chunks = xdp->chunks.blocks / 4 * (SHUNTER_BLOCK / xdp->chunks.bytes) / xdp->queue_count;
    xdp->entries = LEAST_ENTRIES;
    while (xdp->entries * 2 <= chunks && xdp->entries < MOST_ENTRIES) {
        xdp->entries *= 2;
    }
}

static int make(int *map, enum bpf_map_type type, uint32_t key, uint32_t value, uint32_t entries) {
    *map = shunter_bpf_map(type, key, value, entries, 0);
    return *map < 0 ? *map : 0;
}

/* The ring buffer of a queue, which ``xdp->headers`` keeps; the first is what all are like. */
static int make_headers(struct shunter_xdp *xdp, uint32_t queue, uint32_t bytes) {
    int map;
    int error = make(&map, BPF_MAP_TYPE_RINGBUF, 0, 0, bytes);
    if (error) {
        return error;
    }
    if (queue == 0) {
        xdp->headers = shunter_bpf_map(
            BPF_MAP_TYPE_ARRAY_OF_MAPS, sizeof queue, sizeof map, xdp->queue_count, map);
        error = xdp->headers < 0 ? xdp->headers : 0;
    }
    error = error ? error : shunter_xdp_headers_open(&xdp->queues[queue].headers, map, bytes);
    error = error ? error : shunter_bpf_put(xdp->headers, &queue, &map);
    close(map);
    return error;
}

static int make_maps(struct shunter_xdp *xdp, uint32_t header_bytes) {
    int error = make(&xdp->addresses, BPF_MAP_TYPE_HASH, 16, sizeof(uint32_t), ADDRESSES);
    error = error ? error
                  : make(
                        &xdp->counters, BPF_MAP_TYPE_ARRAY, sizeof(uint32_t),
                        sizeof(struct shunter_xdp_counters), xdp->queue_count);
    error = error ? error
                  : make(
                        &xdp->sockets, BPF_MAP_TYPE_XSKMAP, sizeof(uint32_t), sizeof(uint32_t),
                        xdp->queue_count);
    for (uint32_t queue = 0; queue < xdp->queue_count && !error; queue++) {
        error = make_headers(xdp, queue, header_bytes);
    }
    return error;
}

static int watch(int epoll, int descriptor) {
    struct epoll_event event = {.events = EPOLLIN};
    return epoll_ctl(epoll, EPOLL_CTL_ADD, descriptor, &event) ? -errno : 0;
}

static int open_sockets(struct shunter_xdp *xdp, uint32_t interface, const char **step) {
    const struct shunter_xsk_memory memory = {
        shunter_chunks_base(&xdp->chunks), (uint64_t)xdp->chunks.blocks * SHUNTER_BLOCK,
        xdp->chunks.bytes};
    int error = 0;
    for (uint32_t queue = 0; queue < xdp->queue_count && !error; queue++) {
        struct shunter_xsk *xsk = &xdp->queues[queue].xsk;
        error = shunter_xsk_open(
            xsk, queue ? &xdp->queues[0].xsk : NULL, &memory, interface, queue, xdp->entries, step);
        error = error ? error : shunter_bpf_put(xdp->sockets, &queue, &xsk->socket);
        error = error ? error : watch(xdp->backend.ready, xsk->socket);
    }
    return error;
}

/* In the driver, or where it cannot, in front of the rest of the kernel's network. */
static int attach(struct shunter_xdp *xdp, int program, uint32_t interface, bool *native) {
    xdp->link = shunter_bpf_attach(program, interface, XDP_FLAGS_DRV_MODE);
    *native = xdp->link >= 0;
    if (xdp->link < 0 && xdp->link != -EPERM && xdp->link != -EBUSY) {
        xdp->link = shunter_bpf_attach(program, interface, XDP_FLAGS_SKB_MODE);
    }
    return xdp->link < 0 ? xdp->link : 0;
}

static int load_program(
    struct shunter_xdp *xdp, int socket, uint32_t interface, const char **step, bool *native) {
    struct shunter_xdp_parameters parameters = {
        .interface = interface,
        .most = xdp->most,
        .addresses = xdp->addresses,
        .counters = xdp->counters,
        .headers = xdp->headers,
        .sockets = xdp->sockets};
    *step = "addresses of the UDP socket";
    int error = shunter_xdp_put_addresses(socket, interface, xdp->addresses, &parameters);
    if (error) {
        return error;
    }
    *step = "loading the XDP program";
    const int program = shunter_xdp_load(&parameters, NULL, 0);
    if (program < 0) {
        return program;
    }
    *step = "attaching the XDP program";
    error = attach(xdp, program, interface, native);
    close(program);
    return error;
}

int shunter_xdp_set_up(
    struct shunter_xdp *xdp, const struct shunter_xdp_settings *settings, const char **step,
    bool *native) {
    struct shunter_xdp_interface interface = {0};
    *step = "looking at it";
    int error = shunter_xdp_look_at(settings->interface, &interface);
    if (error) {
        return error;
    }
    choose_sizes(xdp, &interface);
    *step = "an epoll descriptor";
    xdp->backend.ready = epoll_create1(EPOLL_CLOEXEC);
    error = xdp->backend.ready < 0 ? -errno : watch(xdp->backend.ready, settings->socket);
    if (error) {
        return error;
    }
    *step = "BPF maps";
    error = make_maps(xdp, settings->header_bytes ? settings->header_bytes : HEADER_BYTES);
    error = error ? error : open_sockets(xdp, interface.index, step);
    return error ? error : load_program(xdp, settings->socket, interface.index, step, native);
}

static void close_one(int *descriptor) {
    if (*descriptor >= 0) {
        close(*descriptor);
    }
    *descriptor = -1;
}

void shunter_xdp_take_down(struct shunter_xdp *xdp) {
    close_one(&xdp->link);
    for (uint32_t queue = 0; queue < xdp->queue_count; queue++) {
        shunter_xsk_close(&xdp->queues[queue].xsk);
        shunter_xdp_headers_close(&xdp->queues[queue].headers);
    }
    close_one(&xdp->backend.ready);
    close_one(&xdp->sockets);
    close_one(&xdp->headers);
    close_one(&xdp->counters);
    close_one(&xdp->addresses);
}

#endif
