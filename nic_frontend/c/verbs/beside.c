/* RDMA hardware beside the UDP socket: what is sent goes the way that its peer came. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "verbs.h"

struct beside {
    struct shunter_backend backend;
    struct shunter_backend *verbs, *udp;
};

static int poll(
    struct shunter_backend *backend, struct shunter_landed *landed, uint32_t *messages) {
    struct beside *both = (struct beside *)backend;
    uint32_t more = 0;
    const int first = both->verbs->poll(both->verbs, landed, messages);
    if (first < 0) {
        return first;
    }
    const int second = both->udp->poll(both->udp, landed + first, &more);
    *messages = *messages > more ? *messages : more;
    return second < 0 ? (first ? first : second) : first + second;
}

static void tx(
    struct shunter_backend *backend, const struct shunter_x64 *header, const void *payload,
    size_t length, const uint8_t *peer, bool copied) {
    const struct beside *both = (const struct beside *)backend;
    struct shunter_backend *way = shunter_is_verbs_peer(peer) ? both->verbs : both->udp;
    way->tx(way, header, payload, length, peer, copied);
}

static void flush(struct shunter_backend *backend) {
    const struct beside *both = (const struct beside *)backend;
    both->verbs->flush(both->verbs);
    both->udp->flush(both->udp);
}

/* Nobody knows yet which way the next one comes. */
static uint32_t mtu(const struct shunter_backend *backend) {
    const struct beside *both = (const struct beside *)backend;
    const uint32_t first = both->verbs->mtu(both->verbs), second = both->udp->mtu(both->udp);
    return first < second ? first : second;
}

static void stats(const struct shunter_backend *backend, struct shunter_backend_stats *found) {
    const struct beside *both = (const struct beside *)backend;
    struct shunter_backend_stats more;
    both->udp->stats(both->udp, found);
    both->verbs->stats(both->verbs, &more);
    found->sent += more.sent;
    found->failed += more.failed;
    found->overflows += more.overflows;
    found->too_long += more.too_long;
    found->empty += more.empty;
    found->copied_bytes += more.copied_bytes;
    found->split += more.split;
    found->no_room += more.no_room;
}

static void close_both(struct shunter_backend *backend) {
    struct beside *both = (struct beside *)backend;
    both->verbs->close(both->verbs);
    both->udp->close(both->udp);
    close(both->backend.ready);
    free(both);
}

struct shunter_backend *shunter_verbs_beside(
    struct shunter_backend *verbs, struct shunter_backend *udp) {
    struct beside *both = calloc(1, sizeof *both);
    struct epoll_event event = {.events = EPOLLIN};
    const int ready = epoll_create1(EPOLL_CLOEXEC);
    if (!both || ready < 0 || epoll_ctl(ready, EPOLL_CTL_ADD, verbs->ready, &event) ||
        epoll_ctl(ready, EPOLL_CTL_ADD, udp->ready, &event)) {
        if (ready >= 0) {
            close(ready);
        }
        free(both);
        return NULL;
    }
    both->verbs = verbs;
    both->udp = udp;
    both->backend = (struct shunter_backend){
        .ready = ready,
        .payloads_are_far = verbs->payloads_are_far || udp->payloads_are_far,
        .most = verbs->most + udp->most,
        .worthwhile =
            verbs->worthwhile < udp->worthwhile ? verbs->worthwhile : udp->worthwhile,
        .poll = poll,
        .tx = tx,
        .flush = flush,
        .mtu = mtu,
        .stats = stats,
        .close = close_both};
    return &both->backend;
}
