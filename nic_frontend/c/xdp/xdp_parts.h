/* What the backend is made of. */
#ifndef SHUNTER_XDP_PARTS_H
#define SHUNTER_XDP_PARTS_H

#include "headers.h"
#include "backend.h"
#include "xdp.h"
#include "xsk.h"

#define SHUNTER_XDP_QUEUES 64
#define SHUNTER_XDP_AT_ONCE 128 /* datagrams of one queue and poll */

struct shunter_xdp_queue {
    struct shunter_xsk xsk;
    struct shunter_xdp_headers headers;
};

struct shunter_xdp {
    struct shunter_backend backend;
    struct shunter_backend *udp;
    int addresses, counters, headers, sockets; /* maps */
    int link;                                  /* while it is open, the program runs */
    uint32_t chunk, most;                      /* bytes of a chunk, and of the largest payload */
    uint32_t queue_count, entries;
    struct shunter_xdp_queue queues[SHUNTER_XDP_QUEUES];
    struct shunter_landing *landing;
    int32_t first;        /* of our blocks, each with a reference of ours */
    uint32_t blocks;
    uint8_t *with_kernel; /* chunks of each */
    uint32_t block, next_chunk; /* which goes to the kernel next, if ``block`` is one of ours */
    bool scarce;                /* less than a quarter is free */
    struct shunter_slot aside;  /* what may stay long while they are, lies elsewhere */
    uint32_t handed_count, polls;
    int32_t handed[2 * SHUNTER_XDP_QUEUES * SHUNTER_XDP_AT_ONCE]; /* blocks that the last poll told */
    uint64_t copied_bytes;
    struct shunter_xdp_counts counts;
};

/* Blocks of the pool that nobody else takes any more. 0 or a negative errno. */
int shunter_xdp_take_blocks(struct shunter_xdp *xdp, uint32_t wanted);
/* Its inverse, once no chunk is the kernel's any more. */
void shunter_xdp_leave_blocks(struct shunter_xdp *xdp);
/* Chunks to the kernel, as many as there is room for. */
void shunter_xdp_fill(struct shunter_xdp *xdp, struct shunter_xsk *xsk);
/* The block of a frame that the kernel gave back; the reference is the caller's. */
int32_t shunter_xdp_take_back(struct shunter_xdp *xdp, uint64_t address);
/* While blocks are scarce, what may stay long does not keep one of ours with all of its chunks. */
void shunter_xdp_set_aside(struct shunter_xdp *xdp, struct shunter_landed *landed);

/* What is known of an interface. */
struct shunter_xdp_interface {
    uint32_t index, mtu, queues;
};

/* 0 or a negative errno; -ENODEV, -EMEDIUMTYPE: there is none, it has no Ethernet frames. */
int shunter_xdp_look_at(const char *name, struct shunter_xdp_interface *found);

/*
 * Those by which a socket is reached into a map; port, and whether it tells addresses of IPv4 as IPv6
 * has them. 0 or a negative errno.
 */
int shunter_xdp_put_addresses(
    int socket, uint32_t interface, int map, struct shunter_xdp_parameters *parameters);

/* Maps, sockets and the program, which runs afterwards. ``step``: what failed. */
int shunter_xdp_set_up(
    struct shunter_xdp *xdp, const struct shunter_xdp_settings *settings, const char **step,
    bool *native);

/* Its inverse; nothing comes in any more. */
void shunter_xdp_take_down(struct shunter_xdp *xdp);

#endif
