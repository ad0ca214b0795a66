/*
 * Datagrams that the kernel splits: headers into a BPF ring buffer, payloads into the landing pool.
 *
 * An XDP program (program.h) does what a NIC would do that splits. It takes datagrams for the UDP
 * socket's port that come in at one interface; with a driver that can, payloads are written once, by
 * the NIC. What the program does not take comes by the UDP socket, and answers go by it, along the
 * kernel's routes. The program is the process's: it is gone as soon as that has ended.
 *
 * Nobody checks the UDP checksum of what is split, and no firewall of the host sees it.
 */
#ifndef SHUNTER_XDP_H
#define SHUNTER_XDP_H

#include "backend.h"

struct shunter_xdp_settings {
    const char *interface;
    int socket;                  /* bound; the backend's and the caller's */
    struct shunter_backend *udp; /* its backend */
    struct shunter_landing *landing;
    uint32_t blocks;       /* of the pool, all free, one behind the other: payloads land there */
    uint32_t header_bytes; /* of the ring buffer of each queue: a power of two; 0: as usual */
};

struct shunter_xdp_counts {
    uint64_t split;         /* datagrams that came in two parts */
    uint64_t lost_payloads; /* headers without */
    uint64_t lost_headers;  /* payloads without */
    uint64_t no_room;       /* for the header: the UDP socket got them */
    uint64_t dropped;       /* by the kernel, for want of a chunk or of room for it */
};

/*
 * NULL where it cannot be: ``why`` says it, and ``udp`` stays the caller's. Otherwise ``udp`` is
 * closed with it, and ``why`` says how it works here.
 */
struct shunter_backend *shunter_xdp_backend(
    const struct shunter_xdp_settings *settings, char *why, size_t size);

void shunter_xdp_counts(const struct shunter_backend *backend, struct shunter_xdp_counts *counts);

#endif
