#define _GNU_SOURCE
#include "datagrams.h"

#include <errno.h>
#include <poll.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>

#define WORKER_PATIENCE_MS 100

int shunter_datagrams_init(struct shunter_datagrams *datagrams, int socket, int patience_ms) {
    memset(datagrams, 0, sizeof *datagrams);
    datagrams->socket = socket;
    datagrams->patience_ms = patience_ms;
    datagrams->controls = calloc(SHUNTER_DATAGRAMS, sizeof *datagrams->controls);
    datagrams->messages = calloc(SHUNTER_DATAGRAMS, sizeof *datagrams->messages);
    datagrams->pieces = calloc(SHUNTER_DATAGRAMS, sizeof *datagrams->pieces);
    datagrams->headers = calloc(SHUNTER_DATAGRAMS, sizeof *datagrams->headers);
    datagrams->payloads = calloc(SHUNTER_DATAGRAMS, sizeof *datagrams->payloads);
    datagrams->peers = calloc(SHUNTER_DATAGRAMS, sizeof *datagrams->peers);
    if (!datagrams->controls || !datagrams->messages || !datagrams->pieces || !datagrams->headers ||
        !datagrams->payloads || !datagrams->peers) {
        shunter_datagrams_free(datagrams);
        return -ENOMEM;
    }
    return 0;
}

void shunter_datagrams_free(struct shunter_datagrams *datagrams) {
    free(datagrams->controls);
    free(datagrams->messages);
    free(datagrams->pieces);
    free(datagrams->headers);
    free(datagrams->payloads);
    free(datagrams->peers);
    memset(datagrams, 0, sizeof *datagrams);
}

struct shunter_datagrams *shunter_datagrams_new(int socket) {
    struct shunter_datagrams *datagrams = malloc(sizeof *datagrams);
    if (datagrams && shunter_datagrams_init(datagrams, socket, WORKER_PATIENCE_MS)) {
        free(datagrams);
        return NULL;
    }
    return datagrams;
}

void shunter_datagrams_delete(struct shunter_datagrams *datagrams) {
    if (datagrams) {
        shunter_datagrams_free(datagrams);
        free(datagrams);
    }
}

/* ---- the local address, on hosts that have several */

void shunter_send_from(
    struct msghdr *message, const uint8_t *peer, struct shunter_control *control) {
    const uint8_t *local = peer + SHUNTER_PEER_LOCAL;
    sa_family_t family;
    memcpy(&family, local, sizeof family);
    if (family == AF_UNSPEC) {
        return;
    }
    struct cmsghdr *head = (struct cmsghdr *)(void *)control->bytes;
    memset(control->bytes, 0, sizeof control->bytes);
    message->msg_control = control->bytes;
    if (family == AF_INET) {
        struct in_pktinfo info = {0};
        memcpy(&info.ipi_spec_dst, local + sizeof family, sizeof info.ipi_spec_dst);
        *head = (struct cmsghdr){CMSG_LEN(sizeof info), IPPROTO_IP, IP_PKTINFO};
        memcpy(CMSG_DATA(head), &info, sizeof info);
        message->msg_controllen = CMSG_SPACE(sizeof info);
    } else {
        struct in6_pktinfo info = {0};
        memcpy(&info.ipi6_addr, local + sizeof family, sizeof info.ipi6_addr);
        *head = (struct cmsghdr){CMSG_LEN(sizeof info), IPPROTO_IPV6, IPV6_PKTINFO};
        memcpy(CMSG_DATA(head), &info, sizeof info);
        message->msg_controllen = CMSG_SPACE(sizeof info);
    }
}

void shunter_sent_to(struct msghdr *message, uint8_t *peer) {
    uint8_t *local = peer + SHUNTER_PEER_LOCAL;
    memset(local, 0, SHUNTER_PEER_BYTES - SHUNTER_PEER_LOCAL);
    for (struct cmsghdr *c = CMSG_FIRSTHDR(message); c; c = CMSG_NXTHDR(message, c)) {
        sa_family_t family = AF_UNSPEC;
        if (c->cmsg_level == IPPROTO_IP && c->cmsg_type == IP_PKTINFO) {
            struct in_pktinfo info;
            memcpy(&info, CMSG_DATA(c), sizeof info);
            memcpy(local + sizeof family, &info.ipi_addr, sizeof info.ipi_addr);
            family = AF_INET;
        } else if (c->cmsg_level == IPPROTO_IPV6 && c->cmsg_type == IPV6_PKTINFO) {
            struct in6_pktinfo info;
            memcpy(&info, CMSG_DATA(c), sizeof info);
            memcpy(local + sizeof family, &info.ipi6_addr, sizeof info.ipi6_addr);
            family = AF_INET6;
        }
        if (family != AF_UNSPEC) {
            memcpy(local, &family, sizeof family);
        }
    }
}

void shunter_datagrams_add(
    struct shunter_datagrams *datagrams, const struct shunter_x64 *header, const void *payload,
    size_t length, const uint8_t *peer, int copied) {
    const unsigned at = datagrams->count++;
    datagrams->headers[at] = *header;
    memcpy(datagrams->peers[at], peer, SHUNTER_PEER_BYTES);
    if (copied && length) {
        memcpy(datagrams->payloads[at], payload, length);
        payload = datagrams->payloads[at];
    }
    datagrams->pieces[at][0] = (struct iovec){&datagrams->headers[at], sizeof *header};
    datagrams->pieces[at][1] = (struct iovec){(void *)(uintptr_t)payload, length};
    datagrams->messages[at].msg_hdr = (struct msghdr){
        .msg_name = datagrams->peers[at],
        .msg_namelen = shunter_peer_length(peer),
        .msg_iov = datagrams->pieces[at],
        .msg_iovlen = 2};
    shunter_send_from(&datagrams->messages[at].msg_hdr, peer, &datagrams->controls[at]);
    if (datagrams->count == SHUNTER_DATAGRAMS) {
        shunter_datagrams_flush(datagrams);
    }
}

void shunter_datagrams_flush(struct shunter_datagrams *datagrams) {
    unsigned at = 0;
    while (at < datagrams->count) {
        const int sent = sendmmsg(
            datagrams->socket, datagrams->messages + at, datagrams->count - at, MSG_DONTWAIT);
        if (sent > 0) {
            at += (unsigned)sent;
            datagrams->sent += (uint64_t)sent;
        } else if (errno == EAGAIN) {
            struct pollfd room = {.fd = datagrams->socket, .events = POLLOUT};
            if (poll(&room, 1, datagrams->patience_ms) <= 0) {
                datagrams->error = -EAGAIN;
                datagrams->failed += datagrams->count - at;
                break;
            }
        } else if (errno != ECONNREFUSED && errno != EINTR) {
            // ECONNREFUSED is of an earlier datagram, whose client is gone. What is not sent
            // counts as lost: the client asks for it again.
            datagrams->error = -errno;
            datagrams->failed++;
            at++;
        }
    }
    datagrams->count = 0;
}
