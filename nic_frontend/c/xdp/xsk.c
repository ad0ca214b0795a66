#define _GNU_SOURCE
#include "kernel.h"

#ifdef SHUNTER_HAS_XDP

#include "xsk.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "bpf.h"

#ifndef AF_XDP
#define AF_XDP 44
#endif
#ifndef SOL_XDP
#define SOL_XDP 283
#endif

static int set_option(int socket, int name, const void *value, socklen_t size) {
    return setsockopt(socket, SOL_XDP, name, value, size) ? -errno : 0;
}

static int map_ring(
    struct shunter_xsk_ring *ring, int socket, const struct xdp_ring_offset *offsets,
    uint32_t entries, size_t size, uint64_t place) {
    const size_t bytes = offsets->desc + entries * size;
    uint8_t *found = mmap(
        NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, socket, (off_t)place);
    if (found == MAP_FAILED) {
        return -errno;
    }
    *ring = (struct shunter_xsk_ring){
        .producer = (void *)(found + offsets->producer),
        .consumer = (void *)(found + offsets->consumer),
        .flags = (void *)(found + offsets->flags),
        .entries = found + offsets->desc,
        .mask = entries - 1,
        .mapped = found,
        .bytes = bytes};
    return 0;
}

static int map_rings(struct shunter_xsk *xsk, uint32_t entries) {
    struct xdp_mmap_offsets offsets;
    socklen_t size = sizeof offsets;
    if (getsockopt(xsk->socket, SOL_XDP, XDP_MMAP_OFFSETS, &offsets, &size)) {
        return -errno;
    }
    if (size != sizeof offsets) {
        return -EPROTO; // of a kernel before 5.4
    }
    int error = map_ring(
        &xsk->fill, xsk->socket, &offsets.fr, entries, sizeof(uint64_t),
        XDP_UMEM_PGOFF_FILL_RING);
    error = error ? error
                  : map_ring(
                        &xsk->completion, xsk->socket, &offsets.cr, entries, sizeof(uint64_t),
                        XDP_UMEM_PGOFF_COMPLETION_RING);
    return error ? error
                 : map_ring(
                       &xsk->rx, xsk->socket, &offsets.rx, entries, sizeof(struct xdp_desc),
                       XDP_PGOFF_RX_RING);
}

/* A completion ring has to be there although nothing is sent. */
static int set_rings(struct shunter_xsk *xsk, uint32_t entries) {
    static const int rings[] = {XDP_UMEM_FILL_RING, XDP_UMEM_COMPLETION_RING, XDP_RX_RING};
    for (unsigned i = 0; i < sizeof rings / sizeof *rings; i++) {
        const int error = set_option(xsk->socket, rings[i], &entries, sizeof entries);
        if (error) {
            return error;
        }
    }
    return map_rings(xsk, entries);
}

int shunter_xsk_open(
    struct shunter_xsk *xsk, const struct shunter_xsk *first,
    const struct shunter_xsk_memory *memory, uint32_t interface, uint32_t queue, uint32_t entries,
    const char **step) {
    *xsk = (struct shunter_xsk){.socket = socket(AF_XDP, SOCK_RAW | SOCK_CLOEXEC, 0)};
    *step = "AF_XDP socket";
    if (xsk->socket < 0) {
        return -errno;
    }
    if (!first) {
        const struct xdp_umem_reg region = {
            .addr = (uint64_t)(uintptr_t)memory->base,
            .len = memory->bytes,
            .chunk_size = memory->chunk};
        *step = "landing pool as AF_XDP memory";
        const int error = set_option(xsk->socket, XDP_UMEM_REG, &region, sizeof region);
        if (error) {
            return error;
        }
    }
    *step = "AF_XDP rings";
    const int error = set_rings(xsk, entries);
    if (error) {
        return error;
    }
    // Asked for neither, the kernel takes zero-copy where the driver can, and a copy elsewhere.
    const struct sockaddr_xdp address = {
        .sxdp_family = AF_XDP,
        .sxdp_flags = first ? XDP_SHARED_UMEM : XDP_USE_NEED_WAKEUP,
        .sxdp_ifindex = interface,
        .sxdp_queue_id = queue,
        .sxdp_shared_umem_fd = first ? (uint32_t)first->socket : 0};
    *step = "binding AF_XDP to a queue";
    uint32_t tries = 0;
    int result;
    do {
        result = bind(xsk->socket, (const void *)&address, sizeof address) ? -errno : 0;
    } while (shunter_bpf_again(result, &tries));
    return result;
}

static void unmap(struct shunter_xsk_ring *ring) {
    if (ring->mapped) {
        munmap(ring->mapped, ring->bytes);
    }
}

void shunter_xsk_close(struct shunter_xsk *xsk) {
    unmap(&xsk->fill);
    unmap(&xsk->rx);
    unmap(&xsk->completion);
    if (xsk->socket >= 0) {
        close(xsk->socket);
    }
    *xsk = (struct shunter_xsk){.socket = -1};
}

bool shunter_xsk_zero_copy(const struct shunter_xsk *xsk) {
    struct xdp_options options = {0};
    socklen_t size = sizeof options;
    return getsockopt(xsk->socket, SOL_XDP, XDP_OPTIONS, &options, &size) == 0 &&
           (options.flags & XDP_OPTIONS_ZEROCOPY);
}

uint64_t shunter_xsk_dropped(const struct shunter_xsk *xsk) {
    struct xdp_statistics found = {0};
    socklen_t size = sizeof found;
    getsockopt(xsk->socket, SOL_XDP, XDP_STATISTICS, &found, &size);
    return found.rx_dropped + found.rx_ring_full;
}

void shunter_xsk_filled(struct shunter_xsk *xsk) {
    struct shunter_xsk_ring *ring = &xsk->fill;
    atomic_store_explicit(ring->producer, ring->at, memory_order_release);
    if (atomic_load_explicit(ring->flags, memory_order_relaxed) & XDP_RING_NEED_WAKEUP) {
        recvfrom(xsk->socket, NULL, 0, MSG_DONTWAIT, NULL, NULL); // the driver waits for chunks
    }
}

#endif
