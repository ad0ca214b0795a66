/* Datagrams that come in two parts: by the kernel's hand, or by hardware's. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdlib.h>
#include <sys/epoll.h>

#include "server_parts.h"
#include "verbs.h"
#include "xdp.h"

uint32_t shunter_server_shrink_landing(struct shunter_server *server, uint32_t blocks) {
    return shunter_landing_shrink(&server->landing, blocks);
}

/* From now on by this backend, of which the one before is a part. */
static int serve_by(struct shunter_server *server, struct shunter_backend *found) {
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = &server->settings.udp};
    struct shunter_landed *landed = realloc(server->landed, found->most * sizeof *landed);
    server->backend = found;
    server->landed = landed ? landed : server->landed;
    return !landed || epoll_ctl(server->epoll, EPOLL_CTL_ADD, found->ready, &event) ? -ENOMEM : 0;
}

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
    return found ? serve_by(server, found) : -ENOTSUP;
}

int shunter_server_verbs(
    struct shunter_server *server, const char *device, uint32_t blocks, char *said, size_t size) {
    const struct shunter_verbs_settings settings = {
        .device = device, .landing = &server->landing, .blocks = blocks};
    struct shunter_backend *verbs = shunter_verbs_backend(&settings, said, size);
    struct shunter_backend *found = verbs ? shunter_verbs_beside(verbs, server->backend) : NULL;
    if (verbs && !found) {
        verbs->close(verbs);
        return -ENOMEM;
    }
    return found ? serve_by(server, found) : -ENOTSUP;
}
