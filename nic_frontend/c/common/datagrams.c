#define _GNU_SOURCE
#include "datagrams.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>

#include "queue.h"

#define ROOM_MS 100

int shunter_datagrams_init(struct shunter_datagrams *datagrams, int socket) {
    memset(datagrams, 0, sizeof *datagrams);
    datagrams->socket = socket;
    datagrams->messages = calloc(SHUNTER_DATAGRAMS, sizeof *datagrams->messages);
    datagrams->pieces = calloc(SHUNTER_DATAGRAMS, sizeof *datagrams->pieces);
    datagrams->headers = calloc(SHUNTER_DATAGRAMS, sizeof *datagrams->headers);
    datagrams->payloads = calloc(SHUNTER_DATAGRAMS, sizeof *datagrams->payloads);
    datagrams->peers = calloc(SHUNTER_DATAGRAMS, sizeof *datagrams->peers);
    if (!datagrams->messages || !datagrams->pieces || !datagrams->headers ||
        !datagrams->payloads || !datagrams->peers) {
        shunter_datagrams_free(datagrams);
        return -ENOMEM;
    }
    return 0;
}

void shunter_datagrams_free(struct shunter_datagrams *datagrams) {
    free(datagrams->messages);
    free(datagrams->pieces);
    free(datagrams->headers);
    free(datagrams->payloads);
    free(datagrams->peers);
    memset(datagrams, 0, sizeof *datagrams);
}

struct shunter_datagrams *shunter_datagrams_new(int socket) {
    struct shunter_datagrams *datagrams = malloc(sizeof *datagrams);
    if (datagrams && shunter_datagrams_init(datagrams, socket)) {
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
            if (poll(&room, 1, ROOM_MS) <= 0) {
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
