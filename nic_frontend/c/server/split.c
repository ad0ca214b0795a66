/* Datagrams that come in at one interface in two parts, where the host allows it. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>

#include "server_parts.h"
#include "xdp.h"

int shunter_server_split(
    struct shunter_server *server, const char *interface, uint32_t blocks, char *said,
    size_t size) {
    const struct shunter_xdp_settings settings = {
        .interface = interface,
        .socket = server->settings.udp,
        .udp = server->backend,
        .landing = &server->landing,
        .blocks = blocks};
    struct shunter_backend *found = shunter_xdp_backend(&settings, said, size);
    if (!found) {
        return -ENOTSUP;
    }
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = &server->settings.udp};
    struct shunter_landed *landed = realloc(server->landed, found->most * sizeof *landed);
    server->backend = found;
    server->landed = landed ? landed : server->landed;
    return !landed || epoll_ctl(server->epoll, EPOLL_CTL_ADD, found->ready, &event) ? -ENOMEM : 0;
}
