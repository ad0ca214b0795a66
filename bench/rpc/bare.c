/*
 * What the kernel alone takes: the same bytes as a load sends, between sockets with nothing behind
 * them. Both ends in the way that was found to be fastest: segments of datagrams go and come
 * merged, many with one system call; streams by large pieces.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <netinet/in.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define UDP_SEGMENT 103
#define MESSAGES 32
#define ROOM (1 << 16)
#define LARGEST 65507
#define MOST_MERGED 64
#define SOCKETS 4096
#define LOST_NS 500000000ULL /* nothing came for so long: the request is sent once more */

static uint8_t buffer[MESSAGES][ROOM];

static uint64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000ULL + (uint64_t)now.tv_nsec;
}

static int watch(int epoll, int socket, uint32_t events, uint32_t at) {
    struct epoll_event event = {.events = events, .data.u32 = at};
    return epoll_ctl(epoll, EPOLL_CTL_ADD, socket, &event);
}

/* ---- the server: an answer for so many bytes of one peer */

static void answer_datagrams(int udp, uint64_t request, uint64_t reply) {
    static uint64_t have[1 << 16]; // by the peer's port
    struct mmsghdr messages[MESSAGES];
    struct iovec pieces[MESSAGES];
    struct sockaddr_in peers[MESSAGES];
    int came;
    do {
        for (int m = 0; m < MESSAGES; m++) {
            pieces[m] = (struct iovec){buffer[m], ROOM};
            messages[m].msg_hdr = (struct msghdr){
                .msg_name = &peers[m],
                .msg_namelen = sizeof peers[m],
                .msg_iov = &pieces[m],
                .msg_iovlen = 1};
        }
        came = recvmmsg(udp, messages, MESSAGES, MSG_DONTWAIT, NULL);
        for (int m = 0; m < came; m++) {
            uint64_t *bytes = &have[peers[m].sin_port];
            for (*bytes += messages[m].msg_len; *bytes >= request; *bytes -= request) {
                (void)!sendto(
                    udp, buffer[0], reply, MSG_DONTWAIT, (struct sockaddr *)&peers[m],
                    sizeof peers[m]);
            }
        }
    } while (came == MESSAGES);
}

/* False: the peer has gone. */
static bool answer_stream(int socket, uint64_t *have, uint64_t request, uint64_t reply) {
    const ssize_t got = recv(socket, buffer[0], ROOM, MSG_DONTWAIT);
    if (got <= 0) {
        return got < 0 && errno == EAGAIN;
    }
    for (*have += (uint64_t)got; *have >= request; *have -= request) {
        if (send(socket, buffer, reply, MSG_NOSIGNAL) < 0) {
            return false;
        }
    }
    return true;
}

/* Until ``stop`` can be read. ``datagrams``, ``stream``: bytes of a request on each. */
int bare_serve(
    int udp, int listener, int stop, uint64_t datagrams, uint64_t stream, uint64_t reply);
int bare_serve(
    int udp, int listener, int stop, uint64_t datagrams, uint64_t stream, uint64_t reply) {
    static uint64_t have[SOCKETS];
    const int epoll = epoll_create1(EPOLL_CLOEXEC);
    watch(epoll, udp, EPOLLIN, (uint32_t)udp);
    watch(epoll, listener, EPOLLIN, (uint32_t)listener);
    watch(epoll, stop, EPOLLIN, (uint32_t)stop);
    for (;;) {
        struct epoll_event events[64];
        const int ready = epoll_wait(epoll, events, 64, -1);
        for (int r = 0; r < ready; r++) {
            const int at = (int)events[r].data.u32;
            if (at == stop) {
                return 0;
            } else if (at == udp) {
                answer_datagrams(udp, datagrams, reply);
            } else if (at == listener) {
                const int socket = accept(listener, NULL, NULL);
                if (socket >= 0 && socket < SOCKETS) {
                    have[socket] = 0;
                    watch(epoll, socket, EPOLLIN, (uint32_t)socket);
                }
            } else if (!answer_stream(at, &have[at], stream, reply)) {
                close(at);
            }
        }
    }
}

/* ---- the clients */

struct bare_client {
    uint64_t socket, sent, answers; /* bytes of the last request that are sent; bytes that came */
    uint64_t begun_ns, wanted;      /* requests that have not begun */
    const uint8_t *source;          /* the bytes of a request */
};

struct bare_load {
    uint64_t stream, request, reply, segment, depth, until_ns;
    uint64_t answered, latencies, again;
};

static void send_datagrams(const struct bare_client *client, const struct bare_load *load) {
    struct mmsghdr messages[MESSAGES];
    struct iovec piece[MESSAGES];
    _Alignas(struct cmsghdr) uint8_t control[CMSG_SPACE(sizeof(uint16_t))] = {0};
    struct cmsghdr *about = (struct cmsghdr *)(void *)control;
    *about = (struct cmsghdr){CMSG_LEN(sizeof(uint16_t)), IPPROTO_UDP, UDP_SEGMENT};
    const uint16_t segment = (uint16_t)load->segment;
    memcpy(CMSG_DATA(about), &segment, sizeof segment);
    const uint64_t fit = LARGEST / load->segment;
    const uint64_t most = load->segment * (fit < MOST_MERGED ? fit : MOST_MERGED);
    for (uint64_t at = 0; at < load->request;) {
        unsigned count = 0;
        for (; count < MESSAGES && at < load->request; count++) {
            const uint64_t left = load->request - at, length = left < most ? left : most;
            piece[count] = (struct iovec){(void *)(uintptr_t)(client->source + at), length};
            messages[count].msg_hdr = (struct msghdr){
                .msg_iov = &piece[count],
                .msg_iovlen = 1,
                .msg_control = length > load->segment ? control : NULL,
                .msg_controllen = length > load->segment ? sizeof control : 0};
            at += length;
        }
        for (unsigned done = 0; done < count;) {
            const int sent =
                sendmmsg((int)client->socket, messages + done, count - done, MSG_NOSIGNAL);
            done += sent > 0 ? (unsigned)sent : 1; // what is not taken is lost
        }
    }
}

/* As much as goes now. */
static void go_on(struct bare_client *client, const struct bare_load *load) {
    while (client->wanted) {
        if (client->sent == 0) {
            client->begun_ns = now_ns();
        }
        if (!load->stream) {
            send_datagrams(client, load);
        } else {
            const uint64_t left = load->request - client->sent;
            const ssize_t sent = send(
                (int)client->socket, client->source + client->sent, left,
                MSG_DONTWAIT | MSG_NOSIGNAL);
            if (sent < 0) {
                return;
            }
            client->sent += (uint64_t)sent;
            if (client->sent < load->request) {
                continue;
            }
            client->sent = 0;
        }
        client->wanted--;
    }
}

static void take_answers(
    struct bare_client *client, struct bare_load *load, uint64_t *latencies, uint64_t room) {
    static uint8_t answer[ROOM];
    ssize_t got;
    while ((got = recv((int)client->socket, answer, sizeof answer, MSG_DONTWAIT)) > 0) {
        client->answers += (uint64_t)got;
    }
    const uint64_t now = now_ns();
    for (; client->answers >= load->reply; client->answers -= load->reply) {
        if (now <= load->until_ns) {
            load->answered++;
            if (load->latencies < room) {
                latencies[load->latencies++] = now - client->begun_ns;
            }
            client->wanted++;
        }
    }
}

/* ``depth`` requests of every client on their way until the time is over; latencies in ns. */
int bare_ask(
    struct bare_client *clients, uint32_t count, struct bare_load *load, uint64_t *latencies,
    uint64_t room);
int bare_ask(
    struct bare_client *clients, uint32_t count, struct bare_load *load, uint64_t *latencies,
    uint64_t room) {
    const int epoll = epoll_create1(EPOLL_CLOEXEC);
    for (uint32_t i = 0; i < count; i++) {
        const uint32_t wanted = EPOLLIN | EPOLLET | (load->stream ? EPOLLOUT : 0);
        if (watch(epoll, (int)clients[i].socket, wanted, i)) {
            return -errno;
        }
        clients[i].wanted = load->depth;
        go_on(&clients[i], load);
    }
    while (now_ns() < load->until_ns) {
        struct epoll_event events[64];
        const int ready = epoll_wait(epoll, events, 64, 10);
        for (int r = 0; r < ready; r++) {
            struct bare_client *client = &clients[events[r].data.u32];
            take_answers(client, load, latencies, room);
            go_on(client, load);
        }
        for (uint32_t i = 0; !load->stream && i < count; i++) {
            if (clients[i].begun_ns + LOST_NS < now_ns()) {
                clients[i].wanted += clients[i].wanted == 0;
                load->again++;
                go_on(&clients[i], load);
            }
        }
    }
    close(epoll);
    return 0;
}
