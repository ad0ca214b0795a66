#define _GNU_SOURCE
#include "server.h"

#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <time.h>
#include <unistd.h>

#include "server_parts.h"
#include "siphash.h"

#define SEALED 64 /* encrypted payloads; a backend holds back fewer datagrams */

#define EVENTS 64
#define TICK_NS 1000000ULL
/* The segments of a request follow one another; to sleep between two costs more than to wait. */
#define BETWEEN_SEGMENTS_NS 50000ULL
#define QUIET_TICK_NS 100000000ULL

uint64_t shunter_now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000ULL + (uint64_t)now.tv_nsec;
}

/* ---- what the core says */

static struct shunter_stream *stream_of(struct shunter_server *server, const uint8_t *peer) {
    int socket;
    memcpy(&socket, peer + 2, sizeof socket);
    return socket >= 0 && socket < SHUNTER_STREAMS ? server->streams[socket] : NULL;
}

static bool can_encrypt(struct shunter_server *server) {
    server->aead = server->aead ? server->aead : shunter_aead_new();
    server->sealed = server->sealed ? server->sealed
                                    : malloc((size_t)SEALED * SHUNTER_LARGEST);
    return server->aead && server->sealed;
}

/* Protect a payload that is about to be sent; its length, or -1 when it cannot be. */
static ssize_t protect(
    struct shunter_server *server, const struct shunter_guard *guard, struct shunter_x64 *header,
    const uint8_t **payload) {
    if (guard->protect == SHUNTER_FLAG_PAYLOAD_CRC) {
        header->crc = shunter_crc32c(*payload, header->length);
        if (header->flags & SHUNTER_FLAG_HDR_TAG) {
            header->tag = shunter_siphash24(guard->key, header, SHUNTER_TAG_OFFSET);
        }
    } else if (guard->protect) {
        if (!can_encrypt(server)) {
            return -1;
        }
        // A place for each datagram until they are flushed, which is done before SEALED wait.
        uint8_t *into = server->sealed + (size_t)server->sealed_at * SHUNTER_LARGEST;
        server->sealed_at = (server->sealed_at + 1) % SEALED;
        if (!shunter_aead_seal(server->aead, guard, header, *payload, header->length, into)) {
            return -1;
        }
        server->stats.copied_bytes += header->length;
        *payload = into;
    }
    return (ssize_t)(header->length + shunter_behind(guard->protect));
}

static void send_action(struct shunter_server *server, const struct shunter_action *action) {
    struct shunter_x64 header;
    memcpy(&header, action->header, sizeof header);
    const uint8_t *payload = action->payload;
    if (action->entry >= 0) {
        const struct shunter_queue *queue = &server->served[header.func_id]->queue;
        const uint8_t *ring = queue->outputs[action->tensor];
        payload = ring ? ring + (size_t)action->entry * queue->output_bytes[action->tensor] +
                             action->offset
                       : NULL;
    }
    const ssize_t length = protect(server, &action->guard, &header, &payload);
    if (length < 0) {
        server->stats.send_failures++;
        return;
    }
    if (shunter_peer_length(action->peer)) {
        server->stats.bytes_out += sizeof header + (size_t)length;
        server->backend->tx(
            server->backend, &header, payload, (size_t)length, action->peer, action->entry < 0);
        return;
    }
    struct shunter_stream *stream = stream_of(server, action->peer);
    if (stream && stream->session == action->session) {
        shunter_stream_send(server, stream, &header, payload, (size_t)length);
    }
}

static void act(void *context, const struct shunter_action *action) {
    struct shunter_server *server = context;
    struct shunter_served *served = server->served[action->func_id];
    switch (action->kind) {
    case SHUNTER_PLACE: {
        uint8_t *ring = served->queue.inputs[action->tensor];
        shunter_expect(served, action->left, action->length);
        server->has_place = true;
        server->guard = action->guard;
        server->place_length = action->length;
        server->place = ring
            ? ring + (size_t)action->entry * served->queue.input_bytes[action->tensor] +
                  action->offset
            : NULL;
        break;
    }
    case SHUNTER_READY:
        shunter_enqueue(served, action, server->now_ns);
        break;
    case SHUNTER_WITHDRAW:
        shunter_dequeue(served, (uint32_t)action->entry);
        break;
    case SHUNTER_SEND:
        send_action(server, action);
        break;
    case SHUNTER_HELLO:
        server->is_hello = true;
        break;
    default:
        server->stats.drops[action->drop]++;
    }
}

void shunter_hand_over(
    struct shunter_server *server, const uint8_t *peer, const uint8_t *datagram, size_t length) {
    server->is_hello = server->has_place = false;
    shunter_core_receive(server->core, peer, datagram, length, server->now_ns);
}

static bool is_right(
    struct shunter_server *server, const struct shunter_guard *guard, const uint8_t *header,
    uint8_t *place, uint32_t length, const uint8_t *tag) {
    if (guard->protect == SHUNTER_FLAG_PAYLOAD_CRC) {
        struct shunter_x64 said;
        memcpy(&said, header, sizeof said);
        return shunter_crc32c(place, length) == said.crc;
    }
    return !guard->protect ||
           (can_encrypt(server) &&
            shunter_aead_open(server->aead, guard, header, place, length, tag));
}

void shunter_payload_is_there(
    struct shunter_server *server, const struct shunter_guard *guard, const uint8_t *header,
    uint8_t *place, uint32_t length, const uint8_t *tag) {
    if (is_right(server, guard, header, place, length, tag)) {
        shunter_core_accept(server->core, header, server->now_ns);
    } else {
        server->stats.drops[guard->protect == SHUNTER_FLAG_PAYLOAD_CRC
                                ? SHUNTER_DROP_CRC
                                : SHUNTER_DROP_AEAD]++;
    }
}

/* ---- the loop */

void shunter_flush(struct shunter_server *server) {
    if (server->backend) {
        server->backend->flush(server->backend);
    }
}

uint32_t shunter_collect_all(struct shunter_server *server) {
    uint32_t batches = 0;
    for (uint32_t i = 0; i < server->func_count; i++) {
        batches += shunter_collect(server->served[server->func_ids[i]], server->now_ns);
    }
    return batches;
}

static uint64_t dispatch(struct shunter_server *server) {
    uint64_t next = UINT64_MAX;
    for (uint32_t i = 0; i < server->func_count; i++) {
        const uint64_t at =
            shunter_dispatch(server->served[server->func_ids[i]], server->now_ns);
        next = at < next ? at : next;
    }
    return next;
}

static void set_asleep(struct shunter_server *server, uint64_t value) {
    for (uint32_t i = 0; i < server->func_count; i++) {
        atomic_store(
            shunter_front_end_word(
                &server->served[server->func_ids[i]]->queue, SHUNTER_Q_FRONT_END_ASLEEP),
            value);
    }
}

/* Readable descriptors: streams are served, the rest is looked at anyway. True: the caller's. */
static int events(struct shunter_server *server, int timeout_ms, bool *woken) {
    struct epoll_event found[EVENTS];
    const int count = epoll_wait(server->epoll, found, EVENTS, timeout_ms);
    if (count < 0) {
        return errno == EINTR ? 0 : -errno;
    }
    server->now_ns = shunter_now_ns();
    int busy = 0;
    for (int i = 0; i < count; i++) {
        struct shunter_stream *stream = found[i].data.ptr;
        if (found[i].data.ptr == &server->settings.wake) {
            *woken = true;
        } else if (found[i].data.ptr == &server->settings.doorbell) {
            uint64_t rings;
            if (read(server->settings.doorbell, &rings, sizeof rings) > 0) {
                busy++;
            }
        } else if (found[i].data.ptr == &server->settings.udp) {
            busy++;
        } else {
            if (found[i].events & EPOLLOUT) {
                shunter_stream_writable(server, stream);
            }
            if (found[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR) && !stream->closed) {
                shunter_stream_readable(server, stream);
            }
            busy++;
        }
    }
    return busy;
}

static int timeout(const struct shunter_server *server, uint64_t until_ns, uint64_t next_ns) {
    uint64_t at = until_ns < next_ns ? until_ns : next_ns;
    at = at < server->next_tick_ns ? at : server->next_tick_ns;
    if (at <= server->now_ns) {
        return 0;
    }
    const uint64_t ms = (at - server->now_ns + 999999) / 1000000;
    return ms > 1000 ? 1000 : (int)ms;
}

static void tick(struct shunter_server *server) {
    if (server->now_ns >= server->next_tick_ns) {
        shunter_streams_close_late(server);
        shunter_core_tick(server->core, server->now_ns);
        server->next_tick_ns =
            server->now_ns +
            (shunter_core_is_pressed(server->core) ? TICK_NS : QUIET_TICK_NS);
    }
}

int shunter_server_run(
    struct shunter_server *server, uint64_t until_ns, struct shunter_hello *hellos,
    uint32_t most) {
    uint64_t quiet_ns = 0; /* since when nothing has come */
    bool woken = false;
    server->hellos = hellos;
    server->hello_most = most;
    server->hello_count = 0;
    server->now_ns = shunter_now_ns();
    for (;;) {
        int busy = (int)shunter_collect_all(server);
        uint32_t messages = 0;
        if (server->backend) {
            const int came = shunter_receive(server, &messages);
            if (came < 0) {
                return came;
            }
            busy += came;
        }
        tick(server);
        // Before a worker may write into an entry whose answer is on its way here.
        shunter_flush(server);
        uint64_t next_ns = dispatch(server);
        shunter_flush(server);
        if (server->hello_count || server->closed_count || woken ||
            server->now_ns >= until_ns) {
            break;
        }
        uint64_t spin_ns = server->spins ? server->settings.spin_ns : 0;
        if (shunter_core_is_pressed(server->core) &&
            server->next_tick_ns > server->now_ns + TICK_NS) {
            server->next_tick_ns = server->now_ns + TICK_NS;
        }
        if (shunter_core_is_receiving(server->core)) {
            spin_ns = spin_ns > BETWEEN_SEGMENTS_NS ? spin_ns : BETWEEN_SEGMENTS_NS;
        }
        if (busy) {
            quiet_ns = server->now_ns;
        }
        if (server->backend && messages >= server->backend->worthwhile && !server->stream_count) {
            continue; // there may be more
        }
        if (server->now_ns - quiet_ns < spin_ns) {
            const int found = events(server, 0, &woken);
            if (found < 0) {
                return found;
            }
            if (!busy && !found) {
                sched_yield(); // a worker may be waiting for this very core
            }
            server->now_ns = shunter_now_ns();
            continue;
        }
        set_asleep(server, 1); // before the last look, so that one of the two sees the other
        if (shunter_collect_all(server) == 0) {
            const uint64_t slept_ns = shunter_now_ns();
            server->stats.sleeps++;
            const int found = events(server, timeout(server, until_ns, next_ns), &woken);
            if (found < 0) {
                set_asleep(server, 0);
                return found;
            }
            // After a sleep so short the next wait is worth spinning for; after a spin in vain not.
            server->spins = found && shunter_now_ns() - slept_ns < server->settings.spin_ns;
        }
        set_asleep(server, 0);
        server->now_ns = shunter_now_ns();
    }
    return (int)server->hello_count;
}

/* ---- what there is */

static int open_backend(struct shunter_server *server) {
    if (server->settings.udp < 0) {
        return 0;
    }
    server->backend = shunter_udp_backend(server->settings.udp, server->settings.gro);
    if (!server->backend) {
        return -ENOMEM;
    }
    server->landed = calloc(server->backend->most, sizeof *server->landed);
    server->aside = malloc(server->backend->bytes);
    return server->landed && server->aside ? 0 : -ENOMEM;
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
    server->core = shunter_core_new(act, server);
    server->func_ids = calloc(SHUNTER_FUNCTIONS, sizeof *server->func_ids);
    int error = server->epoll < 0 ? -errno : 0;
    if (!server->core || !server->func_ids) {
        error = -ENOMEM;
    }
    error = error ? error : open_backend(server);
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

void shunter_server_free(struct shunter_server *server) {
    if (!server) {
        return;
    }
    for (int i = 0; i < SHUNTER_STREAMS; i++) {
        free_stream(server, i);
    }
    for (uint32_t i = 0; i < server->func_count; i++) {
        shunter_served_free(server->served[server->func_ids[i]]);
    }
    shunter_core_free(server->core);
    if (server->backend) {
        server->backend->close(server->backend);
    }
    free(server->landed);
    free(server->aside);
    shunter_aead_free(server->aead);
    free(server->sealed);
    free(server->func_ids);
    if (server->epoll >= 0) {
        close(server->epoll);
    }
    free(server);
}

struct shunter_core *shunter_server_core(struct shunter_server *server) { return server->core; }

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
    server->served[func_id] =
        shunter_served_new(queue, policy, server->core, &server->stats);
    if (!server->served[func_id]) {
        shunter_core_remove_function(server->core, func_id);
        return -ENOMEM;
    }
    server->func_ids[server->func_count++] = func_id;
    return 0;
}

int shunter_server_set_policy(
    struct shunter_server *server, uint16_t func_id, const struct shunter_policy *policy) {
    if (!server->served[func_id]) {
        return -ENOENT;
    }
    server->served[func_id]->policy = *policy;
    return 0;
}

int shunter_server_remove_function(struct shunter_server *server, uint16_t func_id) {
    struct shunter_served *served = server->served[func_id];
    if (!served) {
        return -ENOENT;
    }
    if (served->in_flight) {
        return -EBUSY;
    }
    const int error = shunter_core_remove_function(server->core, func_id);
    if (error) {
        return error;
    }
    shunter_served_free(served);
    server->served[func_id] = NULL;
    for (uint32_t i = 0; i < server->func_count; i++) {
        if (server->func_ids[i] == func_id) {
            server->func_ids[i] = server->func_ids[--server->func_count];
        }
    }
    return 0;
}

static struct shunter_hand *hand_of(
    struct shunter_server *server, uint16_t func_id, uint32_t worker) {
    struct shunter_served *served = server->served[func_id];
    return served && worker < SHUNTER_WORKER_COUNT ? &served->hands[worker] : NULL;
}

int shunter_server_add_worker(
    struct shunter_server *server, uint16_t func_id, uint32_t worker, uint32_t cap,
    int doorbell) {
    struct shunter_hand *hand = hand_of(server, func_id, worker);
    if (!hand || cap < 1) {
        return -EINVAL;
    }
    if (hand->present) {
        return -EEXIST;
    }
    struct shunter_served *served = server->served[func_id];
    *hand = (struct shunter_hand){
        .present = true,
        .cap = cap < served->queue.entries ? cap : served->queue.entries,
        .doorbell = doorbell};
    const uint32_t words[] = {
        SHUNTER_W_BATCH_NUMBER, SHUNTER_W_DONE_NUMBER, SHUNTER_W_WORKER_ASLEEP};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        shunter_set(shunter_worker_word(&served->queue, worker, words[i]), 0);
    }
    served->hand_count = worker >= served->hand_count ? worker + 1 : served->hand_count;
    return 0;
}

int shunter_server_drain_worker(
    struct shunter_server *server, uint16_t func_id, uint32_t worker) {
    struct shunter_hand *hand = hand_of(server, func_id, worker);
    if (!hand || !hand->present) {
        return -ENOENT;
    }
    hand->draining = true;
    return 0;
}

bool shunter_server_idle(struct shunter_server *server, uint16_t func_id, uint32_t worker) {
    const struct shunter_hand *hand = hand_of(server, func_id, worker);
    return !hand || !hand->present || hand->given == hand->done;
}

uint64_t shunter_server_busy_ns(
    struct shunter_server *server, uint16_t func_id, uint32_t worker, uint64_t now_ns) {
    const struct shunter_hand *hand = hand_of(server, func_id, worker);
    if (!hand || !hand->present || hand->given == hand->done || now_ns < hand->began_ns) {
        return 0;
    }
    return now_ns - hand->began_ns;
}

int shunter_server_remove_worker(
    struct shunter_server *server, uint16_t func_id, uint32_t worker) {
    const struct shunter_hand *hand = hand_of(server, func_id, worker);
    if (!hand || !hand->present) {
        return -ENOENT;
    }
    server->now_ns = shunter_now_ns();
    shunter_hand_gone(server->served[func_id], worker, server->now_ns);
    shunter_flush(server);
    return 0;
}

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
    const struct sockaddr *to = (const struct sockaddr *)(const void *)peer;
    server->stats.bytes_out += length;
    return sendto(
               server->settings.udp, datagram, length, MSG_DONTWAIT, to,
               shunter_peer_length(peer)) < 0
        ? -errno
        : 0;
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
    struct shunter_backend_stats of_datagrams = {0};
    *stats = server->stats;
    if (server->backend) {
        server->backend->stats(server->backend, &of_datagrams);
    }
    stats->datagrams_out = of_datagrams.sent;
    stats->send_failures += of_datagrams.failed;
    stats->overflows = of_datagrams.overflows;
    stats->copied_bytes += of_datagrams.copied_bytes;
    stats->drops[SHUNTER_DROP_LENGTH] += of_datagrams.too_long;
    stats->drops[SHUNTER_DROP_SHORT] += of_datagrams.empty;
}

uint32_t shunter_server_waiting(const struct shunter_server *server, uint16_t func_id) {
    const struct shunter_served *served = server->served[func_id];
    return served ? served->lines[0].count + served->lines[1].count : 0;
}
