/* What is sent: header and payload as two pieces, small ones inside the request itself. */
#define _GNU_SOURCE
#include <errno.h>
#include <string.h>
#include <time.h>

#include "verbs_parts.h"

#ifdef SHUNTER_HAS_VERBS

#define PATIENCE_NS 100000000LL /* the device has got stuck */

static int64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000LL + now.tv_nsec;
}

static void is_over(struct shunter_verbs *verbs, uint32_t place) {
    struct shunter_verbs_send *send = &verbs->sends[place];
    send->address->in_flight--;
    verbs->direct -= send->direct;
    *send = (struct shunter_verbs_send){0};
    verbs->free[verbs->free_count++] = place;
}

void shunter_verbs_reap(struct shunter_verbs *verbs) {
    struct ibv_wc completions[SHUNTER_VERBS_AT_ONCE];
    int found;
    do {
        found = ibv_poll_cq(verbs->sent, (int)SHUNTER_VERBS_AT_ONCE, completions);
        for (int i = 0; i < found; i++) {
            const uint32_t place = (uint32_t)completions[i].wr_id;
            if (completions[i].wr_id >> 32 != verbs->epoch || place >= SHUNTER_VERBS_SENDS) {
                continue; // of before a recovery
            }
            const bool right = completions[i].status == IBV_WC_SUCCESS;
            verbs->counts.sent += right;
            verbs->counts.send_errors += !right;
            verbs->stats.failed += !right;
            verbs->broken = verbs->broken || !right;
            is_over(verbs, place);
        }
    } while (found == (int)SHUNTER_VERBS_AT_ONCE);
    verbs->broken = verbs->broken || found < 0;
}

void shunter_verbs_drop_sends(struct shunter_verbs *verbs) {
    for (uint32_t place = 0; place < SHUNTER_VERBS_SENDS; place++) {
        if (verbs->sends[place].posted) {
            verbs->stats.failed++;
            is_over(verbs, place);
        }
    }
}

/* ---- one datagram */

/* The region in which all of a payload lies. */
static const struct ibv_mr *region_of(
    const struct shunter_verbs *verbs, const uint8_t *payload, size_t length) {
    for (uint32_t i = 0; i < verbs->region_count; i++) {
        const struct ibv_mr *region = verbs->regions[i];
        const uint8_t *base = region->addr;
        if (payload >= base && payload + length <= base + region->length) {
            return region;
        }
    }
    return NULL;
}

/* A free place, for which it may have to wait; SHUNTER_VERBS_SENDS: there is none. */
static uint32_t place_for(struct shunter_verbs *verbs) {
    if (!verbs->free_count) {
        shunter_verbs_flush(&verbs->backend);
        const int64_t end = now_ns() + PATIENCE_NS / 100;
        do {
            shunter_verbs_reap(verbs);
        } while (!verbs->free_count && now_ns() < end);
    }
    return verbs->free_count ? verbs->free[--verbs->free_count] : SHUNTER_VERBS_SENDS;
}

/* The pieces of a datagram; its request's flags. */
static unsigned lay_out(
    struct shunter_verbs *verbs, uint32_t place, struct ibv_sge pieces[2],
    const struct shunter_x64 *header, const uint8_t *payload, size_t length, bool copied) {
    uint8_t *bytes = verbs->copy_bytes + (size_t)place * SHUNTER_VERBS_CHUNK;
    const bool inlined = sizeof *header + length <= verbs->inline_bytes;
    const struct ibv_mr *region =
        inlined || copied || !length ? NULL : region_of(verbs, payload, length);
    memcpy(bytes, header, sizeof *header);
    if (length && !region && (copied || !inlined)) {
        memcpy(bytes + sizeof *header, payload, length);
        verbs->stats.copied_bytes += copied ? 0 : length;
        payload = bytes + sizeof *header;
    }
    verbs->sends[place].direct = region != NULL;
    verbs->direct += region != NULL;
    verbs->counts.direct += region != NULL;
    pieces[0] = (struct ibv_sge){
        (uint64_t)(uintptr_t)bytes, (uint32_t)sizeof *header, verbs->copies->lkey};
    pieces[1] = (struct ibv_sge){
        (uint64_t)(uintptr_t)payload, (uint32_t)length,
        region ? region->lkey : verbs->copies->lkey};
    return inlined ? IBV_SEND_SIGNALED | IBV_SEND_INLINE : IBV_SEND_SIGNALED;
}

void shunter_verbs_tx(
    struct shunter_backend *backend, const struct shunter_x64 *header, const void *payload,
    size_t length, const uint8_t *peer, bool copied) {
    struct shunter_verbs *verbs = (struct shunter_verbs *)backend;
    struct shunter_verbs_peer to;
    memcpy(&to, peer, sizeof to);
    const bool fits = sizeof *header + length <= verbs->mtu;
    struct shunter_verbs_address *address = fits ? shunter_verbs_find(verbs, &to) : NULL;
    const uint32_t place = address ? place_for(verbs) : SHUNTER_VERBS_SENDS;
    if (place == SHUNTER_VERBS_SENDS) {
        verbs->counts.no_address += fits && !address;
        verbs->stats.failed++;
        return;
    }
    const uint32_t at = verbs->request_count++;
    struct ibv_sge *pieces = verbs->pieces[at];
    verbs->sends[place] = (struct shunter_verbs_send){.address = address, .posted = true};
    address->in_flight++;
    verbs->requests[at] = (struct ibv_send_wr){
        .wr_id = shunter_verbs_id(verbs, place),
        .sg_list = pieces,
        .num_sge = length ? 2 : 1,
        .opcode = IBV_WR_SEND,
        .send_flags = lay_out(verbs, place, pieces, header, payload, length, copied),
        .wr.ud = {address->handle, to.queue_pair, SHUNTER_VERBS_Q_KEY}};
    if (at) {
        verbs->requests[at - 1].next = &verbs->requests[at];
    }
    if (verbs->request_count == SHUNTER_VERBS_AT_ONCE) {
        shunter_verbs_flush(backend);
    }
}

void shunter_verbs_flush(struct shunter_backend *backend) {
    struct shunter_verbs *verbs = (struct shunter_verbs *)backend;
    struct ibv_send_wr *bad = NULL;
    if (verbs->request_count && ibv_post_send(verbs->queue_pair, verbs->requests, &bad)) {
        for (; bad; bad = bad->next) {
            verbs->stats.failed++;
            is_over(verbs, (uint32_t)bad->wr_id);
        }
    }
    verbs->request_count = 0;
    if (!verbs->direct) {
        return;
    }
    // Whoever owns the memory may change it as soon as this returns.
    const int64_t end = now_ns() + PATIENCE_NS;
    while (verbs->direct && now_ns() < end) {
        shunter_verbs_reap(verbs);
    }
    if (verbs->direct) {
        shunter_verbs_recover(verbs);
    }
}

#endif
