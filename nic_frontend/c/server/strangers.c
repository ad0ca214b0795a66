/*
 * The socket of strangers: of the same port, but only hellos come by it, so that who says any number
 * of them, under any address, fills no queue but this one. It is read so often and so much; the
 * kernel drops what does not fit, which costs least, and who meant it says it again.
 */
#include <errno.h>
#include <stdlib.h>
#include <sys/epoll.h>

#include "server_parts.h"

#define EVERY_NS 500000ULL /* it is read once in such a time, */
#define TOGETHER 16         /* or so often at once after a while; */
#define LOOK_NS 10000000ULL /* who never sleeps looks whether something is there */

/* Wake the loop once when something comes: not for each that comes until it is read. */
static int watch(struct shunter_server *server, int operation) {
    struct epoll_event event = {
        .events = EPOLLIN | EPOLLONESHOT, .data.ptr = &server->settings.strangers};
    return epoll_ctl(server->epoll, operation, server->settings.strangers, &event) ? -errno : 0;
}

int shunter_strangers_open(struct shunter_server *server) {
    struct shunter_strangers *strangers = &server->strangers;
    if (server->settings.strangers < 0) {
        return 0;
    }
    // Nothing of theirs is kept, so they need no blocks.
    strangers->backend = shunter_udp_backend(server->settings.strangers, &strangers->nowhere);
    if (!strangers->backend) {
        return -ENOMEM;
    }
    strangers->landed = calloc(strangers->backend->most, sizeof *strangers->landed);
    return strangers->landed ? watch(server, EPOLL_CTL_ADD) : -ENOMEM;
}

void shunter_strangers_close(struct shunter_server *server) {
    if (server->strangers.backend) {
        server->strangers.backend->close(server->strangers.backend);
    }
    free(server->strangers.landed);
}

int shunter_receive_strangers(struct shunter_server *server, uint64_t *next_ns) {
    struct shunter_strangers *strangers = &server->strangers;
    const uint64_t now_ns = server->now_ns;
    *next_ns = UINT64_MAX;
    if (!strangers->backend || (!strangers->wait && now_ns - strangers->looked_ns < LOOK_NS)) {
        return 0;
    }
    if (strangers->due_ns + TOGETHER * EVERY_NS < now_ns) {
        strangers->due_ns = now_ns - TOGETHER * EVERY_NS;
    }
    *next_ns = strangers->due_ns;
    if (strangers->due_ns > now_ns) {
        return 0;
    }
    uint32_t messages = 0;
    strangers->looked_ns = now_ns;
    const int came =
        shunter_receive_by(server, strangers->backend, strangers->landed, &messages);
    strangers->due_ns += EVERY_NS;
    *next_ns = strangers->due_ns;
    if (came >= 0 && messages < strangers->backend->worthwhile) {
        const bool was_told = strangers->wait;
        strangers->wait = false;
        *next_ns = UINT64_MAX;
        return was_told ? watch(server, EPOLL_CTL_MOD) : 0;
    }
    strangers->wait = true;
    return came < 0 ? came : 0;
}
