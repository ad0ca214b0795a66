/* What there is: the server itself, functions, streams, numbers. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "server_parts.h"
#include "verbs.h"

static int open_backend(struct shunter_server *server) {
    if (server->settings.udp < 0) {
        return 0;
    }
    server->backend = shunter_udp_backend(server->settings.udp, &server->landing);
    if (!server->backend) {
        return -ENOMEM;
    }
    server->landed = calloc(server->backend->most, sizeof *server->landed);
    return server->landed ? 0 : -ENOMEM;
}

static int watch(struct shunter_server *server, int descriptor, void *which) {
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = which};
    if (descriptor < 0) {
        return 0;
    }
    return epoll_ctl(server->epoll, EPOLL_CTL_ADD, descriptor, &event) ? -errno : 0;
}

int shunter_server_new(
    const struct shunter_settings *settings, struct shunter_server **result) {
    struct shunter_server *server = calloc(1, sizeof *server);
    if (!server) {
        return -ENOMEM;
    }
    server->settings = *settings;
    server->epoll = epoll_create1(EPOLL_CLOEXEC);
    server->core = shunter_core_new(shunter_act, server);
    server->func_ids = calloc(SHUNTER_FUNCTIONS, sizeof *server->func_ids);
    int error = server->epoll < 0 ? -errno : 0;
    if (!server->core || !server->func_ids) {
        error = -ENOMEM;
    }
    shunter_crc32c("", 1); // its table is made before there are other threads
    server->packed.block = server->streams_slot.block = SHUNTER_NO_BLOCK;
    error = error ? error
                  : shunter_landing_init(
                        &server->landing, settings->landing, settings->landing_blocks);
    error = error ? error : open_backend(server);
    error = error ? error : shunter_strangers_open(server);
    error = error ? error : watch(server, settings->udp, &server->settings.udp);
    error = error ? error : watch(server, settings->doorbell, &server->settings.doorbell);
    error = error ? error : watch(server, settings->wake, &server->settings.wake);
    if (error) {
        shunter_server_free(server);
        return error;
    }
    *result = server;
    return 0;
}

static void free_stream(struct shunter_server *server, int place) {
    struct shunter_stream *stream = server->streams[place];
    if (stream) {
        close(stream->socket);
        free(stream->out);
        free(stream);
        server->streams[place] = NULL;
        server->stream_count--;
    }
}

static void free_serving(struct shunter_serving *serving) {
    if (serving) {
        shunter_served_free(serving->served);
        free(serving->pieces);
        shunter_parts_free(serving->parts);
        free(serving);
    }
}

void shunter_server_free(struct shunter_server *server) {
    if (!server) {
        return;
    }
    for (int i = 0; i < SHUNTER_STREAMS; i++) {
        free_stream(server, i);
    }
    for (uint32_t i = 0; i < server->func_count; i++) {
        free_serving(server->serving[server->func_ids[i]]);
    }
    shunter_core_free(server->core);
    if (server->backend) {
        server->backend->close(server->backend);
    }
    free(server->landed);
    shunter_strangers_close(server);
    shunter_landing_free(&server->landing);
    shunter_aead_free(server->aead);
    free(server->sealed);
    free(server->func_ids);
    if (server->epoll >= 0) {
        close(server->epoll);
    }
    free(server);
}

struct shunter_core *shunter_server_core(struct shunter_server *server) { return server->core; }

void shunter_server_grow_landing(struct shunter_server *server, uint32_t blocks) {
    shunter_landing_grow(&server->landing, blocks);
}

uint32_t shunter_server_mtu(const struct shunter_server *server) {
    return server->backend ? server->backend->mtu(server->backend) : UINT32_MAX;
}

bool shunter_server_payloads_are_far(const struct shunter_server *server) {
    return server->backend && server->backend->payloads_are_far;
}

/* ---- functions */

static struct shunter_serving *new_serving(
    struct shunter_server *server, const struct shunter_queue *queue,
    const struct shunter_policy *policy) {
    struct shunter_serving *serving = calloc(1, sizeof *serving);
    if (!serving) {
        return NULL;
    }
    struct shunter_owner owner = shunter_owner_is_core;
    owner.context = serving;
    serving->server = server;
    serving->func_id = (uint16_t)queue->func_id;
    serving->pieces = calloc(queue->entries, sizeof *serving->pieces);
    serving->served = shunter_served_new(queue, policy, &owner, &server->stats.counts);
    if (!serving->pieces || !serving->served) {
        free_serving(serving);
        return NULL;
    }
    return serving;
}

int shunter_server_add_function(
    struct shunter_server *server, const struct shunter_queue *queue,
    const struct shunter_policy *policy, uint32_t burst) {
    const uint16_t func_id = (uint16_t)queue->func_id;
    const int error = shunter_core_add_function(
        server->core, func_id, queue->input_bytes, queue->input_count, queue->output_bytes,
        queue->output_count, queue->entries, burst);
    if (error) {
        return error;
    }
    server->serving[func_id] = new_serving(server, queue, policy);
    if (!server->serving[func_id]) {
        shunter_core_remove_function(server->core, func_id);
        return -ENOMEM;
    }
    server->func_ids[server->func_count++] = func_id;
    return 0;
}

int shunter_server_set_policy(
    struct shunter_server *server, uint16_t func_id, const struct shunter_policy *policy) {
    if (!server->serving[func_id]) {
        return -ENOENT;
    }
    server->serving[func_id]->served->policy = *policy;
    return 0;
}

int shunter_server_remove_function(struct shunter_server *server, uint16_t func_id) {
    struct shunter_serving *serving = server->serving[func_id];
    if (!serving) {
        return -ENOENT;
    }
    if (serving->served->in_flight) {
        return -EBUSY;
    }
    const int error = shunter_core_remove_function(server->core, func_id);
    if (error) {
        return error;
    }
    server->stats.gathered_bytes += shunter_gathered_bytes(serving->served);
    free_serving(serving);
    server->serving[func_id] = NULL;
    for (uint32_t i = 0; i < server->func_count; i++) {
        if (server->func_ids[i] == func_id) {
            server->func_ids[i] = server->func_ids[--server->func_count];
        }
    }
    return 0;
}

/* ---- streams, hellos, numbers */

int shunter_server_add_stream(struct shunter_server *server, int socket, uint32_t session) {
    if (socket < 0 || socket >= SHUNTER_STREAMS) {
        return -EMFILE;
    }
    if (server->streams[socket]) {
        return -EEXIST;
    }
    struct shunter_stream *stream = calloc(1, sizeof *stream);
    if (!stream) {
        return -ENOMEM;
    }
    stream->socket = socket;
    stream->session = session;
    stream->block = SHUNTER_NO_BLOCK;
    shunter_stream_peer(socket, stream->peer);
    const int error = watch(server, socket, stream);
    if (error) {
        free(stream);
        return error;
    }
    server->streams[socket] = stream;
    server->stream_count++;
    return 0;
}

int shunter_server_reply(
    struct shunter_server *server, const uint8_t *peer, const void *datagram, uint32_t length) {
    if (shunter_is_verbs_peer(peer) && length >= SHUNTER_HEADER_BYTES) {
        struct shunter_x64 header;
        memcpy(&header, datagram, sizeof header);
        server->backend->tx(
            server->backend, &header, (const uint8_t *)datagram + sizeof header,
            length - sizeof header, peer, false);
        server->backend->flush(server->backend);
        return 0;
    }
    struct iovec piece = {(void *)(uintptr_t)datagram, length};
    struct msghdr message = {
        .msg_name = (void *)(uintptr_t)peer,
        .msg_namelen = shunter_peer_length(peer),
        .msg_iov = &piece,
        .msg_iovlen = 1};
    struct shunter_control control;
    shunter_send_from(&message, peer, &control);
    server->stats.bytes_out += length;
    return sendmsg(server->settings.udp, &message, MSG_DONTWAIT) < 0 ? -errno : 0;
}

uint32_t shunter_server_closed_streams(
    struct shunter_server *server, uint32_t *sessions, uint32_t most) {
    uint32_t count = 0;
    for (int i = 0; i < SHUNTER_STREAMS && count < most && server->closed_count; i++) {
        if (server->streams[i] && server->streams[i]->closed) {
            sessions[count++] = server->streams[i]->session;
            server->closed_count--;
            free_stream(server, i);
        }
    }
    return count;
}

void shunter_server_stats(const struct shunter_server *server, struct shunter_stats *stats) {
    struct shunter_backend_stats of_datagrams = {0}, of_strangers = {0};
    *stats = server->stats;
    if (server->backend) {
        server->backend->stats(server->backend, &of_datagrams);
    }
    stats->datagrams_out = of_datagrams.sent;
    stats->send_failures += of_datagrams.failed;
    stats->overflows = of_datagrams.overflows;
    stats->copied_bytes += of_datagrams.copied_bytes;
    stats->split_datagrams = of_datagrams.split;
    stats->split_no_room = of_datagrams.no_room;
    if (server->strangers.backend) {
        server->strangers.backend->stats(server->strangers.backend, &of_strangers);
    }
    stats->hello_overflows = of_strangers.overflows;
    stats->landing_blocks = server->landing.blocks;
    stats->landing_free = server->landing.free_count;
    for (uint32_t i = 0; i < server->func_count; i++) {
        stats->gathered_bytes +=
            shunter_gathered_bytes(server->serving[server->func_ids[i]]->served);
    }
    stats->drops[SHUNTER_DROP_LENGTH] += of_datagrams.too_long + of_strangers.too_long;
    stats->drops[SHUNTER_DROP_SHORT] += of_datagrams.empty + of_strangers.empty;
}

int shunter_server_telemetry(
    const struct shunter_server *server, uint16_t func_id, struct shunter_telemetry *telemetry) {
    if (!server->serving[func_id]) {
        return -ENOENT;
    }
    *telemetry = server->serving[func_id]->served->telemetry;
    return 0;
}

uint32_t shunter_server_waiting(const struct shunter_server *server, uint16_t func_id) {
    const struct shunter_serving *serving = server->serving[func_id];
    return serving ? serving->served->lists[0].count + serving->served->lists[1].count : 0;
}
