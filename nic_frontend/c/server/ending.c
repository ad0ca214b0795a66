/* What waits for a worker that will not come. */
#include "server_parts.h"

uint32_t shunter_server_give_up(
    struct shunter_server *server, uint16_t func_id, uint16_t status) {
    struct shunter_served *served = server->served[func_id];
    uint32_t count = 0;
    server->now_ns = shunter_now_ns();
    for (int class = 0; served && class < SHUNTER_CLASSES; class ++) {
        const struct shunter_line *line = &served->lines[class];
        for (; line->count; count++) {
            const uint32_t entry = (uint32_t)line->first;
            shunter_dequeue(served, entry);
            served->stats->failed++;
            shunter_core_finished(
                server->core, func_id, entry, status, false, server->now_ns);
        }
    }
    shunter_flush(server);
    return count;
}
