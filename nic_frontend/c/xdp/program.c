#include "kernel.h"

#ifdef SHUNTER_HAS_XDP

#include "program.h"

#include <arpa/inet.h>
#include <errno.h>
#include <linux/bpf.h>
#include <stddef.h>
#include <sys/socket.h>

#include "assembly.h"

/* Offsets in frames; those of UDP and behind it are from the end of the IP header. */
enum {
    ETHERTYPE = 12,
    IP = 14,
    IP4_BYTES = 20,
    IP6_BYTES = 40,
    UDP_BYTES = 8,
    PORT_FROM = 0,
    PORT_TO = 2,
    UDP_LENGTH = 4
};

/* Where the program keeps what it needs over calls, from the frame pointer. */
enum { QUEUE = -8, ADDRESS = -24, COUNTERS = -32, NUMBER = -40, LENGTH = -48 };

enum { CTX = BPF_REG_6, DATA = BPF_REG_7, END = BPF_REG_8, RECORD = BPF_REG_9 };

/* A 16-bit value as it is read from the wire. */
static int wire(uint16_t value) { return htons(value); }

static void load_frame(struct assembly *a) {
    load(a, BPF_W, DATA, CTX, offsetof(struct xdp_md, data));
    load(a, BPF_W, END, CTX, offsetof(struct xdp_md, data_end));
}

/* PASS unless the frame has so many bytes. */
static void need(struct assembly *a, int bytes, enum label otherwise) {
    copy(a, R2, DATA);
    plus(a, R2, bytes);
    if_register(a, BPF_JGT, R2, END, otherwise);
}

/* PASS unless the datagram is for our port and fills its IP packet, which has R2 bytes behind its
 * header, and the payload fits; its length is on the stack afterwards. Whether the frame has so many
 * is seen by who reads it: BPF would need more rights to compare. */
static void match_udp(struct assembly *a, const struct shunter_xdp_parameters *p, int udp) {
    load(a, BPF_H, R3, DATA, udp + PORT_TO);
    if_value(a, BPF_JNE, R3, wire(p->port), PASS);
    load_16_bits(a, R3, DATA, udp + UDP_LENGTH);
    if_register(a, BPF_JNE, R3, R2, PASS);
    if_value(a, BPF_JLT, R2, UDP_BYTES + SHUNTER_HEADER_BYTES, PASS);
    if_value(a, BPF_JGT, R2, UDP_BYTES + SHUNTER_HEADER_BYTES + (int)p->most, PASS);
    plus(a, R2, -(UDP_BYTES + SHUNTER_HEADER_BYTES));
    store(a, BPF_DW, FRAME, LENGTH, R2);
    // Anybody may send any number of hellos: the kernel has a socket for them that may overflow.
    load(a, BPF_B, R3, DATA, udp + UDP_BYTES + (int)offsetof(struct shunter_x64, type));
    if_value(a, BPF_JEQ, R3, SHUNTER_TYPE_HELLO, PASS);
}

/* 16 bytes of an address of IPv4 as IPv6 has it. */
static void store_mapped(struct assembly *a, int to, int offset, int from) {
    store_value(a, BPF_DW, to, offset, 0);
    store_value(a, BPF_H, to, offset + 8, 0);
    store_value(a, BPF_H, to, offset + 10, -1);
    load(a, BPF_W, R2, DATA, from);
    store(a, BPF_W, to, offset + 12, R2);
}

static void copy_bytes(struct assembly *a, int to, int offset, int from, int bytes) {
    for (int i = 0; i < bytes; i += 8) {
        load(a, BPF_DW, R2, DATA, from + i);
        store(a, BPF_DW, to, offset + i, R2);
    }
}

static void match_4(struct assembly *a, const struct shunter_xdp_parameters *p) {
    load(a, BPF_B, R2, DATA, IP);
    if_value(a, BPF_JNE, R2, 0x45, PASS); // no options
    load(a, BPF_B, R2, DATA, IP + 9);
    if_value(a, BPF_JNE, R2, IPPROTO_UDP, PASS);
    load(a, BPF_H, R2, DATA, IP + 6);
    if_value(a, BPF_JSET, R2, wire(0x3fff), PASS); // a fragment
    load_16_bits(a, R2, DATA, IP + 2);
    plus(a, R2, -IP4_BYTES);
    match_udp(a, p, IP + IP4_BYTES);
    store_mapped(a, FRAME, ADDRESS, IP + 16);
}

static void match_6(struct assembly *a, const struct shunter_xdp_parameters *p) {
    need(a, IP + IP6_BYTES + UDP_BYTES + SHUNTER_HEADER_BYTES, PASS);
    load(a, BPF_B, R2, DATA, IP);
    mask(a, R2, 0xf0);
    if_value(a, BPF_JNE, R2, 0x60, PASS);
    load(a, BPF_B, R2, DATA, IP + 6);
    if_value(a, BPF_JNE, R2, IPPROTO_UDP, PASS);
    load_16_bits(a, R2, DATA, IP + 4);
    match_udp(a, p, IP + IP6_BYTES);
    copy_bytes(a, FRAME, ADDRESS, IP + 24, 16);
}

/* R0: a record of the ring buffer of this queue; the queue and its counters are on the stack. */
static void reserve(struct assembly *a, const struct shunter_xdp_parameters *p) {
    look_up(a, p->addresses, ADDRESS);
    load(a, BPF_W, R2, CTX, offsetof(struct xdp_md, rx_queue_index));
    store(a, BPF_W, FRAME, QUEUE, R2);
    look_up(a, p->counters, QUEUE);
    store(a, BPF_DW, FRAME, COUNTERS, R0);
    look_up(a, p->headers, QUEUE);
    copy(a, R1, R0);
    set(a, R2, sizeof(struct shunter_xdp_record));
    set(a, R3, 0);
    call(a, BPF_FUNC_ringbuf_reserve);
    if_value(a, BPF_JEQ, R0, 0, FULL);
    copy(a, RECORD, R0);
}

/* Who sent it: as recvmsg() tells it. */
static void write_peer(struct assembly *a, const struct shunter_xdp_parameters *p, bool six) {
    const int at = offsetof(struct shunter_xdp_record, peer);
    const int udp = IP + (six ? IP6_BYTES : IP4_BYTES);
    store_value(a, BPF_H, RECORD, at, six || p->mapped ? AF_INET6 : AF_INET);
    load(a, BPF_H, R2, DATA, udp + PORT_FROM);
    store(a, BPF_H, RECORD, at + 2, R2);
    store_value(a, BPF_W, RECORD, at + 24, 0);
    store_value(a, BPF_W, RECORD, at + 28, 0);
    if (!six && !p->mapped) {
        load(a, BPF_W, R2, DATA, IP + 12);
        store(a, BPF_W, RECORD, at + 4, R2);
        store_value(a, BPF_DW, RECORD, at + 8, 0);
        store_value(a, BPF_DW, RECORD, at + 16, 0);
        return;
    }
    store_value(a, BPF_W, RECORD, at + 4, 0);
    if (!six) {
        store_mapped(a, RECORD, at + 8, IP + 12);
        return;
    }
    copy_bytes(a, RECORD, at + 8, IP + 8, 16);
    load(a, BPF_H, R2, DATA, IP + 8); // of the link: only with the interface it is an address
    mask(a, R2, wire(0xffc0));
    add(a, BPF_JMP | BPF_JNE | BPF_K, R2, 0, 1, wire(0xfe80));
    store_value(a, BPF_W, RECORD, at + 24, (int)p->interface);
}

/* Which address of ours it was sent to: the second half of a peer. */
static void write_local(struct assembly *a, const struct shunter_xdp_parameters *p, bool six) {
    const int at = offsetof(struct shunter_xdp_record, peer) + SHUNTER_PEER_LOCAL;
    const int address = at + (int)sizeof(sa_family_t);
    for (int i = 0; i < SHUNTER_PEER_BYTES - SHUNTER_PEER_LOCAL; i += 8) {
        store_value(a, BPF_DW, RECORD, at + i, 0);
    }
    if (!p->local) {
        return;
    }
    store_value(a, BPF_H, RECORD, at, six || p->mapped ? AF_INET6 : AF_INET);
    if (six) {
        copy_bytes(a, RECORD, address, IP + 24, 16);
    } else if (p->mapped) {
        store_mapped(a, RECORD, address, IP + 16);
    } else {
        load(a, BPF_W, R2, DATA, IP + 16);
        store(a, BPF_W, RECORD, address, R2);
    }
}

/* The same number into the record and in front of the payload, and each goes its way. */
static void split(struct assembly *a, const struct shunter_xdp_parameters *p, bool six) {
    const int header = IP + (six ? IP6_BYTES : IP4_BYTES) + UDP_BYTES;
    reserve(a, p);
    write_peer(a, p, six);
    write_local(a, p, six);
    copy_bytes(
        a, RECORD, offsetof(struct shunter_xdp_record, header), header, SHUNTER_HEADER_BYTES);
    load(a, BPF_DW, R2, FRAME, LENGTH);
    store(a, BPF_DW, RECORD, offsetof(struct shunter_xdp_record, length), R2);
    load(a, BPF_DW, R1, FRAME, COUNTERS);
    count_up(a, R1, offsetof(struct shunter_xdp_counters, number), R2);
    store(a, BPF_DW, RECORD, offsetof(struct shunter_xdp_record, number), R2);
    store(a, BPF_DW, FRAME, NUMBER, R2);
    copy(a, R1, CTX);
    set(a, R2, header + SHUNTER_HEADER_BYTES - SHUNTER_XDP_FRONT);
    call(a, BPF_FUNC_xdp_adjust_head);
    if_value(a, BPF_JNE, R0, 0, DISCARD);
    load_frame(a);
    need(a, SHUNTER_XDP_FRONT, DISCARD);
    load(a, BPF_DW, R2, FRAME, NUMBER);
    store(a, BPF_DW, DATA, 0, R2);
    copy(a, R1, RECORD);
    set(a, R2, BPF_RB_NO_WAKEUP); // who waits is woken by the payload
    call(a, BPF_FUNC_ringbuf_submit);
    load_map(a, R1, p->sockets);
    load(a, BPF_W, R2, FRAME, QUEUE);
    set(a, R3, XDP_DROP); // where there is no socket; the header is gone
    call(a, BPF_FUNC_redirect_map);
    leave(a);
}

static void assemble(struct assembly *a, const struct shunter_xdp_parameters *p) {
    copy(a, CTX, R1);
    load_frame(a);
    need(a, IP + IP4_BYTES + UDP_BYTES + SHUNTER_HEADER_BYTES, PASS);
    load(a, BPF_H, R2, DATA, ETHERTYPE);
    if_value(a, BPF_JEQ, R2, wire(0x86dd), VERSION_6);
    if_value(a, BPF_JNE, R2, wire(0x0800), PASS);
    match_4(a, p);
    split(a, p, false);
    place(a, VERSION_6);
    match_6(a, p);
    split(a, p, true);
    place(a, FULL);
    load(a, BPF_DW, R1, FRAME, COUNTERS);
    count_up(a, R1, offsetof(struct shunter_xdp_counters, no_room), R2);
    place(a, PASS);
    set(a, R0, XDP_PASS);
    leave(a);
    place(a, DISCARD); // the driver could not: the frame is as it was
    copy(a, R1, RECORD);
    set(a, R2, BPF_RB_NO_WAKEUP);
    call(a, BPF_FUNC_ringbuf_discard);
    set(a, R0, XDP_PASS);
    leave(a);
}

int shunter_xdp_load(const struct shunter_xdp_parameters *parameters, char *log, uint32_t size) {
    struct assembly a = {.count = 0};
    assemble(&a, parameters);
    if (a.count > SHUNTER_BPF_MOST) {
        return -E2BIG;
    }
    for (uint32_t i = 0; i < a.count; i++) {
        if (a.target[i] != NOWHERE) {
            a.code[i].off = (int16_t)(a.at[a.target[i]] - i - 1);
        }
    }
    return shunter_bpf_program(a.code, a.count, log, size);
}

#endif
