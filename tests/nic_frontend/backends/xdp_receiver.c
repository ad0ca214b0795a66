/*
 * What comes through the AF_XDP backend, each datagram looked at:
 *
 *     xdp_receiver INTERFACE ADDRESS PORT BLOCKS HEADER_BYTES KEEP
 *
 * The first KEEP payloads that can be kept are, until "release", and looked at again then. Lines on
 * the standard input: "pause" and "go" (poll no more, and again), "counts", "release", "echo" (answer
 * each from now on), "lose" (the oldest header), "close". Each is answered by a line, "counts" and
 * "close" by JSON.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "backend.h"
#include "xdp_parts.h"

#define MOST 1000000

struct kept {
    uint32_t number, length;
    const uint8_t *payload;
    int32_t block;
};

static struct {
    uint64_t came, split, bad, twice, wrong_peer, kept_bad, short_ones;
} seen;
static uint8_t there[MOST];
static struct shunter_landing landing;
static struct shunter_backend *backend;
static struct shunter_landed *landed;
static struct kept *kept;
static uint32_t kept_count, keep, blocks;
static bool echo;

static uint8_t pattern(uint32_t number, uint32_t at) {
    return (uint8_t)(number * 31 + at * 7 + (at >> 8));
}

static bool is_right(uint32_t number, const uint8_t *payload, uint32_t length) {
    for (uint32_t i = 0; i < length; i++) {
        if (payload[i] != pattern(number, i)) {
            return false;
        }
    }
    return true;
}

/* The sender says in the header who it is and to whom it sends: 2 x (family, port, 16 bytes). */
static bool says_peer(const struct shunter_landed *one) {
    return memcmp(one->peer, one->header + 16, 8) == 0 && // IPv4: all of it
           (one->header[16] == AF_INET || memcmp(one->peer + 8, one->header + 24, 16) == 0) &&
           memcmp(one->peer + SHUNTER_PEER_LOCAL, one->header + 40, 18) == 0;
}

static void look_at(const struct shunter_landed *one) {
    uint32_t number, length;
    if (one->length < SHUNTER_HEADER_BYTES) {
        seen.short_ones++;
        return;
    }
    memcpy(&number, one->header, 4);
    memcpy(&length, one->header + 4, 4);
    const bool ours = one->block >= 0 && one->block < (int32_t)blocks;
    seen.came++;
    seen.split += ours;
    seen.twice += number >= MOST || there[number]++;
    seen.bad += one->length != SHUNTER_HEADER_BYTES + length ||
                !is_right(number, one->payload, length);
    seen.wrong_peer += !says_peer(one);
    if (kept_count < keep && one->block != SHUNTER_NO_BLOCK) {
        shunter_block_ref(&landing, one->block);
        kept[kept_count++] = (struct kept){number, length, one->payload, one->block};
    }
    if (echo) {
        struct shunter_x64 header;
        memcpy(&header, one->header, sizeof header);
        backend->tx(backend, &header, NULL, 0, one->peer, false);
    }
}

static void release(void) {
    for (uint32_t i = 0; i < kept_count; i++) {
        seen.kept_bad += !is_right(kept[i].number, kept[i].payload, kept[i].length);
        shunter_block_unref(&landing, kept[i].block);
    }
    kept_count = 0;
    keep = 0;
}

static void tell(void) {
    struct shunter_xdp_counts counts = {0};
    struct shunter_backend_stats stats = {0};
    if (backend) {
        shunter_xdp_counts(backend, &counts);
        backend->stats(backend, &stats);
    }
    printf(
        "{\"came\": %lu, \"split\": %lu, \"bad\": %lu, \"twice\": %lu, \"wrong_peer\": %lu, "
        "\"kept_bad\": %lu, \"short\": %lu, \"paired\": %lu, \"lost_payloads\": %lu, "
        "\"lost_headers\": %lu, \"no_room\": %lu, \"dropped\": %lu, \"overflows\": %lu, "
        "\"copied_bytes\": %lu, \"kept\": %u, \"free\": %u}\n",
        seen.came, seen.split, seen.bad, seen.twice, seen.wrong_peer, seen.kept_bad,
        seen.short_ones, counts.split, counts.lost_payloads, counts.lost_headers, counts.no_room,
        counts.dropped, stats.overflows, stats.copied_bytes, kept_count, landing.free_count);
    fflush(stdout);
}

static int bound(const char *address, uint16_t port) {
    const bool six = strchr(address, ':');
    const int found = socket(six ? AF_INET6 : AF_INET, SOCK_DGRAM | SOCK_NONBLOCK, 0);
    struct sockaddr_in6 to6 = {.sin6_family = AF_INET6, .sin6_port = htons(port)};
    struct sockaddr_in to4 = {.sin_family = AF_INET, .sin_port = htons(port)};
    const int on = 1, room = 64 << 20;
    setsockopt(found, SOL_SOCKET, SO_RCVBUFFORCE, &room, sizeof room);
    inet_pton(six ? AF_INET6 : AF_INET, address, six ? (void *)&to6.sin6_addr : &to4.sin_addr);
    setsockopt(
        found, six ? IPPROTO_IPV6 : IPPROTO_IP, six ? IPV6_RECVPKTINFO : IP_PKTINFO, &on,
        sizeof on);
    if (bind(found, six ? (void *)&to6 : (void *)&to4, six ? sizeof to6 : sizeof to4)) {
        perror("bind");
        exit(3);
    }
    return found;
}

static bool command(const char *line, bool *paused) {
    if (strncmp(line, "pause", 5) == 0 || strncmp(line, "go", 2) == 0) {
        *paused = line[0] == 'p';
    } else if (strncmp(line, "counts", 6) == 0) {
        tell();
        return true;
    } else if (strncmp(line, "release", 7) == 0) {
        release();
    } else if (strncmp(line, "lose", 4) == 0) {
        struct shunter_xdp_headers *headers = &((struct shunter_xdp *)backend)->queues[0].headers;
        if (!shunter_xdp_headers_peek(headers)) {
            exit(5);
        }
        shunter_xdp_headers_take(headers);
    } else if (strncmp(line, "echo", 4) == 0) {
        echo = true;
    } else {
        release();
        backend->close(backend);
        backend = NULL;
        tell();
        return false;
    }
    puts("ok");
    fflush(stdout);
    return true;
}

static void serve(void) {
    bool paused = false;
    for (;;) {
        struct pollfd on[2] = {{0, POLLIN, 0}, {paused ? -1 : backend->ready, POLLIN, 0}};
        poll(on, 2, -1);
        if (on[0].revents) {
            char line[64];
            if (!fgets(line, sizeof line, stdin) || !command(line, &paused)) {
                return;
            }
        }
        if (on[1].revents) {
            uint32_t messages;
            const int count = backend->poll(backend, landed, &messages);
            for (int i = 0; i < count; i++) {
                look_at(&landed[i]);
            }
            backend->flush(backend);
        }
    }
}

int main(int count, char **arguments) {
    if (count != 7) {
        return 2;
    }
    setvbuf(stdin, NULL, _IONBF, 0);
    blocks = (uint32_t)atoi(arguments[4]);
    keep = (uint32_t)atoi(arguments[6]);
    const uint32_t all = blocks + 512;
    const int memory = memfd_create("landing", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (ftruncate(memory, (off_t)all * SHUNTER_BLOCK) ||
        fcntl(memory, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)) {
        return 3;
    }
    uint8_t *base = mmap(
        NULL, (size_t)all * SHUNTER_BLOCK, PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0);
    shunter_landing_init(&landing, base, all);
    shunter_landing_grow(&landing, all);
    kept = calloc(keep + 1, sizeof *kept);
    const int socket = bound(arguments[2], (uint16_t)atoi(arguments[3]));
    struct shunter_xdp_settings settings = {
        .interface = arguments[1],
        .socket = socket,
        .udp = shunter_udp_backend(socket, &landing),
        .landing = &landing,
        .blocks = blocks,
        .header_bytes = (uint32_t)atoi(arguments[5])};
    char why[256];
    backend = shunter_xdp_backend(&settings, why, sizeof why);
    printf("%s\n", why);
    fflush(stdout);
    if (!backend) {
        settings.udp->close(settings.udp);
        return 4;
    }
    landed = calloc(backend->most, sizeof *landed);
    serve();
    free(landed);
    free(kept);
    shunter_landing_free(&landing);
    return 0;
}
