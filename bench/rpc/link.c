/*
 * A lossy link: datagrams between clients and one server, of which some are lost, doubled or
 * overtaken, in both directions. Random by a seed.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <poll.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define PEERS 64
#define LARGEST 65536
#define HOLD_NS 2000000ULL /* what is to be overtaken goes after this time at the latest */
#define BUFFER (8 << 20)

struct link_faults {
    uint32_t lost_ppm, doubled_ppm, overtaken_ppm;
    uint64_t seed;
};

struct link_counts {
    uint64_t passed, lost, doubled, overtaken;
};

struct held {
    bool full;
    uint32_t length;
    uint64_t since_ns;
    uint8_t bytes[LARGEST];
};

struct peer {
    struct sockaddr_storage address;
    socklen_t length;
    int up; /* connected to the server */
    struct held held[2];
};

struct link {
    int down, stop;
    const struct link_faults *faults;
    struct link_counts *counts;
    uint64_t random;
    struct peer *peers;
    int count;
};

static uint64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000ULL + (uint64_t)now.tv_nsec;
}

/* xorshift64* */
static bool happens(struct link *link, uint32_t ppm) {
    link->random ^= link->random >> 12;
    link->random ^= link->random << 25;
    link->random ^= link->random >> 27;
    return (link->random * 2685821657736338717ULL >> 32) % 1000000 < ppm;
}

static void pass(struct link *link, struct peer *peer, bool up, const void *bytes, size_t length) {
    const ssize_t sent = up
        ? send(peer->up, bytes, length, 0)
        : sendto(link->down, bytes, length, 0, (struct sockaddr *)&peer->address, peer->length);
    if (sent < 0 && errno == ECONNREFUSED && up) {
        (void)!send(peer->up, bytes, length, 0);
    }
    link->counts->passed++;
}

static void release(struct link *link, struct peer *peer, bool up) {
    struct held *held = &peer->held[up];
    if (held->full) {
        held->full = false;
        pass(link, peer, up, held->bytes, held->length);
    }
}

static void carry(
    struct link *link, struct peer *peer, bool up, const uint8_t *bytes, size_t length) {
    struct held *held = &peer->held[up];
    if (happens(link, link->faults->lost_ppm)) {
        link->counts->lost++;
        return;
    }
    if (!held->full && happens(link, link->faults->overtaken_ppm)) {
        link->counts->overtaken++;
        held->full = true;
        held->length = (uint32_t)length;
        held->since_ns = now_ns();
        memcpy(held->bytes, bytes, length);
        return;
    }
    pass(link, peer, up, bytes, length);
    if (happens(link, link->faults->doubled_ppm)) {
        link->counts->doubled++;
        pass(link, peer, up, bytes, length);
    }
    release(link, peer, up);
}

static struct peer *peer_of(
    struct link *link, const struct sockaddr_storage *address, socklen_t length,
    const struct sockaddr *server, socklen_t server_length) {
    for (int i = 0; i < link->count; i++) {
        if (link->peers[i].length == length &&
            !memcmp(&link->peers[i].address, address, length)) {
            return &link->peers[i];
        }
    }
    if (link->count == PEERS) {
        return NULL;
    }
    struct peer *peer = &link->peers[link->count];
    const int buffer = BUFFER;
    memcpy(&peer->address, address, length);
    peer->length = length;
    peer->up = socket(server->sa_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (peer->up < 0 || connect(peer->up, server, server_length)) {
        return NULL;
    }
    setsockopt(peer->up, SOL_SOCKET, SO_RCVBUF, &buffer, sizeof buffer);
    link->count++;
    return peer;
}

/* Until ``stop`` is readable. ``down`` is bound; clients send there. */
int link_run(
    int down, int stop, const struct sockaddr *server, uint32_t server_length,
    const struct link_faults *faults, struct link_counts *counts);
int link_run(
    int down, int stop, const struct sockaddr *server, uint32_t server_length,
    const struct link_faults *faults, struct link_counts *counts) {
    static uint8_t bytes[LARGEST];
    struct link link = {
        .down = down, .stop = stop, .faults = faults, .counts = counts, .random = faults->seed | 1};
    link.peers = calloc(PEERS, sizeof *link.peers);
    if (!link.peers) {
        return -ENOMEM;
    }
    struct pollfd fds[PEERS + 2];
    for (;;) {
        fds[0] = (struct pollfd){.fd = down, .events = POLLIN};
        fds[1] = (struct pollfd){.fd = stop, .events = POLLIN};
        bool holds = false;
        for (int i = 0; i < link.count; i++) {
            fds[i + 2] = (struct pollfd){.fd = link.peers[i].up, .events = POLLIN};
            holds |= link.peers[i].held[0].full || link.peers[i].held[1].full;
        }
        const int known = link.count;
        poll(fds, (nfds_t)known + 2, holds ? 1 : 1000);
        if (fds[1].revents) {
            break;
        }
        for (int n = 0; fds[0].revents & POLLIN && n < 64; n++) {
            struct sockaddr_storage from;
            socklen_t length = sizeof from;
            memset(&from, 0, sizeof from);
            const ssize_t got = recvfrom(
                down, bytes, sizeof bytes, MSG_DONTWAIT, (struct sockaddr *)&from, &length);
            if (got < 0) {
                break;
            }
            struct peer *peer = peer_of(&link, &from, length, server, server_length);
            if (peer) {
                carry(&link, peer, true, bytes, (size_t)got);
            }
        }
        for (int i = 0; i < known; i++) {
            for (int n = 0; fds[i + 2].revents & (POLLIN | POLLERR) && n < 64; n++) {
                const ssize_t got = recv(link.peers[i].up, bytes, sizeof bytes, MSG_DONTWAIT);
                if (got < 0) {
                    break;
                }
                carry(&link, &link.peers[i], false, bytes, (size_t)got);
            }
        }
        const uint64_t now = now_ns();
        for (int i = 0; holds && i < link.count; i++) {
            for (int up = 0; up < 2; up++) {
                if (link.peers[i].held[up].full &&
                    now - link.peers[i].held[up].since_ns > HOLD_NS) {
                    release(&link, &link.peers[i], up);
                }
            }
        }
    }
    for (int i = 0; i < link.count; i++) {
        close(link.peers[i].up);
    }
    free(link.peers);
    return 0;
}
