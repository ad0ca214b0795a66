/* What the backend is made of. */
#ifndef SHUNTER_XDP_PARTS_H
#define SHUNTER_XDP_PARTS_H

#include "backend.h"
#include "chunks.h"
#include "headers.h"
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
    uint32_t most;                             /* bytes of the largest payload */
    uint32_t queue_count, entries;
    struct shunter_xdp_queue queues[SHUNTER_XDP_QUEUES];
    struct shunter_chunks chunks;
    uint32_t polls;
    struct shunter_xdp_counts counts;
};

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
