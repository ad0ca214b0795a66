/*
 * A client's end of the verbs backend, for clients that know UDP only: what comes to its socket goes on
 * to a queue pair of the process, and what comes from there goes back to who spoke last.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "backend.h"
#include "verbs.h"

#define BLOCKS 64

static struct shunter_landing pool;
static struct shunter_backend *backend;
static int udp = -1;
static pthread_t thread;
static atomic_bool over;
static atomic_uint carried;

static void *carry(void *to) {
    struct shunter_landed *landed = calloc(backend->most, sizeof *landed);
    struct sockaddr_in client = {.sin_family = AF_INET};
    static uint8_t bytes[65536];
    while (!over) {
        struct pollfd on[2] = {{udp, POLLIN, 0}, {backend->ready, POLLIN, 0}};
        poll(on, 2, 10);
        for (;;) {
            socklen_t size = sizeof client;
            const ssize_t length =
                recvfrom(udp, bytes, sizeof bytes, MSG_DONTWAIT, (void *)&client, &size);
            if (length < SHUNTER_HEADER_BYTES) {
                break;
            }
            struct shunter_x64 header;
            memcpy(&header, bytes, sizeof header);
            backend->tx(
                backend, &header, bytes + sizeof header, (size_t)length - sizeof header, to, false);
            backend->flush(backend);
        }
        uint32_t messages;
        const int count = backend->poll(backend, landed, &messages);
        for (int i = 0; i < count; i++) {
            memcpy(bytes, landed[i].header, SHUNTER_HEADER_BYTES);
            memcpy(
                bytes + SHUNTER_HEADER_BYTES, landed[i].payload,
                landed[i].length - SHUNTER_HEADER_BYTES);
            sendto(udp, bytes, landed[i].length, 0, (void *)&client, sizeof client);
            carried++;
        }
    }
    free(landed);
    return NULL;
}

/* Its port; ``peer``: of whom it speaks to. 0: it cannot. */
int relay_start(const uint8_t *peer) {
    static uint8_t to[SHUNTER_PEER_BYTES];
    memcpy(to, peer, sizeof to);
    uint8_t *base = mmap(
        NULL, (size_t)(BLOCKS + 8) * SHUNTER_BLOCK, PROT_READ | PROT_WRITE,
        MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    shunter_landing_init(&pool, base, BLOCKS + 8);
    shunter_landing_grow(&pool, BLOCKS + 8);
    const struct shunter_verbs_settings settings = {
        .device = "fake0", .landing = &pool, .blocks = BLOCKS};
    char why[256];
    backend = shunter_verbs_backend(&settings, why, sizeof why);
    struct sockaddr_in own = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t size = sizeof own;
    udp = socket(AF_INET, SOCK_DGRAM, 0);
    if (!backend || bind(udp, (void *)&own, size) || getsockname(udp, (void *)&own, &size) ||
        pthread_create(&thread, NULL, carry, to)) {
        return 0;
    }
    return ntohs(own.sin_port);
}

/* How many datagrams came back. */
unsigned relay_stop(void) {
    over = true;
    pthread_join(thread, NULL);
    backend->close(backend);
    shunter_landing_free(&pool);
    close(udp);
    return carried;
}
