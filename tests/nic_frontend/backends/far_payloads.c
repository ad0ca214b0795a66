/* What lands where the processor cannot read is not read: it would end this process. */
#define _GNU_SOURCE
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>

#include "server_parts.h"

static struct shunter_landed comes;

static int poll_one(
    struct shunter_backend *backend, struct shunter_landed *landed, uint32_t *messages) {
    (void)backend;
    *landed = comes;
    *messages = 1;
    return 1;
}

int main(void) {
    static uint8_t header[SHUNTER_HEADER_BYTES], peer[SHUNTER_PEER_BYTES];
    const size_t size = 16 * SHUNTER_BLOCK;
    uint8_t *pool = mmap(NULL, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    const struct shunter_settings settings = {
        .udp = -1, .strangers = -1, .doorbell = eventfd(0, EFD_NONBLOCK), .wake = -1,
        .landing = pool, .landing_blocks = 16};
    struct shunter_backend backend = {.poll = poll_one, .most = 1, .payloads_are_far = true};
    struct shunter_server *server;
    if (pool == MAP_FAILED || shunter_server_new(&settings, &server)) {
        return 1;
    }
    shunter_server_grow_landing(server, 16);
    for (int type = 0; type < 16; type++) {
        const struct shunter_x64 said = {
            .magic = SHUNTER_WIRE_MAGIC, .version = SHUNTER_WIRE_VERSION, .type = (uint8_t)type,
            .flags = SHUNTER_FLAG_LAST, .words = SHUNTER_HEADER_BYTES / 8, .req_id = 1, .count = 1,
            .length = sizeof(struct shunter_wire_hello), .session = type != SHUNTER_TYPE_HELLO};
        memcpy(header, &said, sizeof said);
        comes = (struct shunter_landed){
            .peer = peer, .header = header, .payload = pool, .block = 0, .far = true,
            .length = SHUNTER_HEADER_BYTES + sizeof(struct shunter_wire_hello)};
        uint32_t messages;
        shunter_receive_by(server, &backend, &comes, &messages);
    }
    printf("%lu hellos\n", (unsigned long)server->stats.hellos);
    shunter_server_free(server);
    return 0;
}
