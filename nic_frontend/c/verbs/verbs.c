#define _GNU_SOURCE
#include "verbs.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "verbs_parts.h"

#ifndef SHUNTER_HAS_VERBS

struct shunter_backend *shunter_verbs_backend(
    const struct shunter_verbs_settings *settings, char *why, size_t size) {
    snprintf(
        why, size, "no verbs on %s: the library was built without rdma-core's header",
        settings->device);
    return NULL;
}

#else

int shunter_verbs_recover(struct shunter_verbs *verbs) {
    verbs->broken = false;
    verbs->counts.recoveries++;
    const int error = shunter_verbs_start_queue_pair(verbs);
    verbs->request_count = 0;
    shunter_verbs_drop_sends(verbs);
    shunter_verbs_drop_receives(verbs);
    verbs->epoch++;
    verbs->broken = error != 0;
    return error;
}

/* The channel has told; it does so once, then it has to be asked again. */
static void take_events(struct shunter_verbs *verbs) {
    struct ibv_cq *queue;
    void *context;
    uint64_t value;
    if (verbs->is_more) {
        verbs->is_more = read(verbs->more, &value, sizeof value) < 0;
    }
    while (verbs->armed &&
           verbs->library->get_cq_event(verbs->channel, &queue, &context) == 0) {
        verbs->library->ack_cq_events(queue, 1);
        verbs->armed = false;
    }
}

static int poll(
    struct shunter_backend *backend, struct shunter_landed *landed, uint32_t *messages) {
    struct shunter_verbs *verbs = (struct shunter_verbs *)backend;
    shunter_chunks_let_go(&verbs->chunks);
    for (; verbs->told_count; verbs->told_count--) {
        verbs->idle[verbs->idle_count++] = verbs->told[verbs->told_count - 1];
    }
    take_events(verbs);
    shunter_verbs_post_receives(verbs);
    shunter_verbs_reap(verbs);
    int count = shunter_verbs_receive(verbs, landed);
    if (count >= 0 && !verbs->armed && ibv_req_notify_cq(verbs->received, 0) == 0) {
        verbs->armed = true; // of what came before, it tells nothing
        const int more = shunter_verbs_receive(verbs, landed + count);
        count = more < 0 ? more : count + more;
    }
    if (verbs->told_count == SHUNTER_VERBS_AT_ONCE) {
        const uint64_t one = 1;
        verbs->is_more = write(verbs->more, &one, sizeof one) > 0;
    }
    if (verbs->broken && shunter_verbs_recover(verbs)) {
        return -EIO;
    }
    *messages = count > 0 ? (uint32_t)count : 0;
    return count;
}

static uint32_t mtu(const struct shunter_backend *backend) {
    return ((const struct shunter_verbs *)backend)->mtu;
}

static void stats(const struct shunter_backend *backend, struct shunter_backend_stats *found) {
    const struct shunter_verbs *verbs = (const struct shunter_verbs *)backend;
    *found = verbs->stats;
    found->sent = verbs->counts.sent;
    found->split = verbs->counts.received;
    found->copied_bytes += verbs->chunks.copied_bytes;
}

/* The queue pair goes first: nothing is written to chunks any more. */
static void free_verbs(struct shunter_verbs *verbs) {
    if (verbs->library) {
        shunter_verbs_take_down(verbs);
    }
    for (int i = 0; i < 2; i++) {
        const int each = i ? verbs->more : verbs->backend.ready;
        if (each >= 0) {
            close(each);
        }
    }
    shunter_chunks_free(&verbs->chunks);
    free(verbs);
}

static void close_verbs(struct shunter_backend *backend) {
    free_verbs((struct shunter_verbs *)backend);
}

static int open_verbs(
    struct shunter_verbs *verbs, const struct shunter_verbs_settings *settings,
    const char **step) {
    verbs->more = verbs->backend.ready = -1;
    *step = "libibverbs.so.1";
    verbs->library = shunter_verbs_library();
    if (!verbs->library) {
        return -ELIBACC;
    }
    *step = "blocks of the landing pool";
    const int error = shunter_chunks_init(
        &verbs->chunks, settings->landing, settings->blocks, SHUNTER_VERBS_AT_ONCE);
    verbs->chunks.bytes = SHUNTER_VERBS_CHUNK;
    verbs->chunks.far = settings->memory != SHUNTER_VERBS_HOST;
    for (uint32_t i = 0; i < SHUNTER_VERBS_RECEIVES; i++) {
        verbs->idle[verbs->idle_count++] = i;
    }
    for (uint32_t i = 0; i < SHUNTER_VERBS_SENDS; i++) {
        verbs->free[verbs->free_count++] = i;
    }
    return error ? error : shunter_verbs_set_up(verbs, settings, step);
}

/* What a client has to know of it. */
static void tell_where(
    const struct shunter_verbs *verbs, const char *device, char *why, size_t size) {
    char gid[INET6_ADDRSTRLEN] = "";
    inet_ntop(AF_INET6, verbs->gid.raw, gid, sizeof gid);
    snprintf(
        why, size,
        "verbs on %s: GID %s, LID %u, queue pair %u, datagrams of %u bytes; not run on hardware "
        "so far",
        device, gid, verbs->lid, verbs->queue_pair->qp_num, verbs->mtu);
}

struct shunter_backend *shunter_verbs_backend(
    const struct shunter_verbs_settings *settings, char *why, size_t size) {
    struct shunter_verbs *verbs = calloc(1, sizeof *verbs);
    const char *step = "memory";
    const int error = verbs ? open_verbs(verbs, settings, &step) : -ENOMEM;
    if (error) {
        snprintf(why, size, "no verbs on %s: %s: %s", settings->device, step, strerror(-error));
        if (verbs) {
            free_verbs(verbs);
        }
        return NULL;
    }
    verbs->backend = (struct shunter_backend){
        .ready = verbs->backend.ready,
        .payloads_are_far = verbs->chunks.far,
        .most = SHUNTER_VERBS_AT_ONCE,
        .worthwhile = SHUNTER_VERBS_AT_ONCE,
        .poll = poll,
        .tx = shunter_verbs_tx,
        .flush = shunter_verbs_flush,
        .mtu = mtu,
        .stats = stats,
        .close = close_verbs};
    tell_where(verbs, settings->device, why, size);
    shunter_verbs_post_receives(verbs);
    return &verbs->backend;
}

int shunter_verbs_register(struct shunter_backend *backend, void *base, size_t bytes) {
    struct shunter_verbs *verbs = (struct shunter_verbs *)backend;
    if (verbs->region_count == SHUNTER_VERBS_REGIONS) {
        return -ENOSPC;
    }
    struct ibv_mr *region = verbs->library->reg_mr(verbs->domain, base, bytes, 0);
    if (!region) {
        return errno ? -errno : -EIO;
    }
    verbs->regions[verbs->region_count++] = region;
    return 0;
}

void shunter_verbs_address(
    const struct shunter_backend *backend, uint8_t peer[SHUNTER_PEER_BYTES]) {
    const struct shunter_verbs *verbs = (const struct shunter_verbs *)backend;
    struct shunter_verbs_peer found = {
        .family = SHUNTER_VERBS_FAMILY,
        .lid = verbs->lid,
        .queue_pair = verbs->queue_pair->qp_num,
        .is_global = 1};
    memcpy(found.gid, verbs->gid.raw, sizeof found.gid);
    memset(peer, 0, SHUNTER_PEER_BYTES);
    memcpy(peer, &found, sizeof found);
}

void shunter_verbs_counts(
    const struct shunter_backend *backend, struct shunter_verbs_counts *counts) {
    *counts = ((const struct shunter_verbs *)backend)->counts;
}

#endif
