/*
 * The XDP program that splits datagrams, and what it shares with who reads them.
 *
 * It takes whole UDP datagrams (IPv4 without options, IPv6 without extension headers, no fragments)
 * for one port of addresses of this host. Header and addresses go into a BPF ring buffer; what is
 * left of the frame, the payload behind the number of its record, is redirected to the AF_XDP socket
 * of its queue. All else, and what finds no room in the ring buffer, goes its usual way.
 */
#ifndef SHUNTER_XDP_PROGRAM_H
#define SHUNTER_XDP_PROGRAM_H

#include <stdbool.h>
#include <stdint.h>

#include "message.h"

/* Bytes in front of each payload: the number of its record, and as many that an empty payload makes a
 * frame of the least length that XDP allows. */
#define SHUNTER_XDP_FRONT 16

/* What the program writes for each datagram. */
struct shunter_xdp_record {
    uint64_t number;
    uint64_t length; /* of the payload; frames may have more behind it */
    uint8_t peer[SHUNTER_PEER_BYTES];
    uint8_t header[SHUNTER_HEADER_BYTES];
};

/* What the program keeps for each queue. */
struct shunter_xdp_counters {
    uint64_t number;  /* of the next datagram */
    uint64_t no_room; /* datagrams for which the ring buffer had none: the UDP socket got them */
};

struct shunter_xdp_parameters {
    uint16_t port;
    bool mapped;        /* the UDP socket is of IPv6: it tells addresses of IPv4 as ::ffff:a.b.c.d */
    bool local;         /* it tells to which address of ours a datagram was sent */
    uint32_t interface; /* its index */
    uint32_t most;      /* bytes of the largest payload */
    int addresses;      /* maps: of the host by address, 16 bytes, */
    int counters;       /* and by queue: counters, */
    int headers;        /* ring buffers, */
    int sockets;        /* AF_XDP sockets */
};

/* The program's descriptor, or a negative errno. ``log``: what the kernel says of it. */
int shunter_xdp_load(const struct shunter_xdp_parameters *parameters, char *log, uint32_t size);

#endif
