/* What comes: each datagram into a header buffer and a chunk of the landing pool. */
#define _GNU_SOURCE
#include <errno.h>

#include "verbs_parts.h"

#ifdef SHUNTER_HAS_VERBS

static uint8_t *header_of(const struct shunter_verbs *verbs, uint32_t place) {
    return verbs->header_bytes + (size_t)place * SHUNTER_VERBS_HEADER_STEP;
}

static void to_idle(struct shunter_verbs *verbs, uint32_t place) {
    verbs->receives[place].posted = false;
    verbs->idle[verbs->idle_count++] = place;
}

/* What was posted from ``from`` on was not: its chunks are back. */
static void take_back(struct shunter_verbs *verbs, const struct ibv_recv_wr *from) {
    for (; from; from = from->next) {
        const uint32_t place = (uint32_t)from->wr_id;
        shunter_chunk_drop(&verbs->chunks, verbs->receives[place].chunk);
        to_idle(verbs, place);
    }
}

void shunter_verbs_post_receives(struct shunter_verbs *verbs) {
    while (verbs->idle_count) {
        struct ibv_recv_wr requests[SHUNTER_VERBS_AT_ONCE], *bad = NULL;
        struct ibv_sge pieces[SHUNTER_VERBS_AT_ONCE][2];
        const uint64_t base = (uint64_t)(uintptr_t)shunter_chunks_base(&verbs->chunks);
        uint32_t count = 0;
        for (; count < SHUNTER_VERBS_AT_ONCE && verbs->idle_count; count++) {
            const int64_t chunk = shunter_chunk_give(&verbs->chunks);
            if (chunk < 0) {
                break;
            }
            const uint32_t place = verbs->idle[--verbs->idle_count];
            verbs->receives[place].chunk = (uint64_t)chunk;
            verbs->receives[place].posted = true;
            pieces[count][0] = (struct ibv_sge){
                (uint64_t)(uintptr_t)header_of(verbs, place),
                SHUNTER_VERBS_GRH + SHUNTER_HEADER_BYTES, verbs->headers->lkey};
            pieces[count][1] = (struct ibv_sge){
                base + (uint64_t)chunk, SHUNTER_VERBS_CHUNK, verbs->landing->lkey};
            requests[count] = (struct ibv_recv_wr){
                .wr_id = shunter_verbs_id(verbs, place), .sg_list = pieces[count], .num_sge = 2};
            if (count) {
                requests[count - 1].next = &requests[count];
            }
        }
        if (!count) {
            return; // later, when a reader has let go of some
        }
        if (ibv_post_recv(verbs->queue_pair, requests, &bad)) {
            take_back(verbs, bad);
            return;
        }
    }
}

/* False: nothing of it can be looked at. */
static bool look_at(
    struct shunter_verbs *verbs, const struct ibv_wc *completion, struct shunter_landed *landed) {
    const uint32_t place = (uint32_t)completion->wr_id;
    if (completion->wr_id >> 32 != verbs->epoch || place >= SHUNTER_VERBS_RECEIVES) {
        return false; // of before a recovery
    }
    struct shunter_verbs_receive *receive = &verbs->receives[place];
    const bool right = completion->status == IBV_WC_SUCCESS;
    if (!right || completion->byte_len <= SHUNTER_VERBS_GRH) {
        verbs->counts.receive_errors += !right;
        verbs->broken = verbs->broken || !right;
        verbs->stats.empty += right;
        shunter_chunk_drop(&verbs->chunks, receive->chunk);
        to_idle(verbs, place);
        return false;
    }
    receive->posted = false;
    verbs->told[verbs->told_count++] = place;
    shunter_verbs_sender(completion, header_of(verbs, place), receive->peer);
    *landed = (struct shunter_landed){
        .peer = receive->peer,
        .header = header_of(verbs, place) + SHUNTER_VERBS_GRH,
        .length = completion->byte_len - SHUNTER_VERBS_GRH};
    shunter_chunk_tell(&verbs->chunks, receive->chunk, landed);
    return true;
}

int shunter_verbs_receive(struct shunter_verbs *verbs, struct shunter_landed *landed) {
    struct ibv_wc completions[SHUNTER_VERBS_AT_ONCE];
    int most, found, count = 0;
    do { // those of before a recovery may be many
        most = (int)(SHUNTER_VERBS_AT_ONCE - verbs->told_count);
        found = most ? ibv_poll_cq(verbs->received, most, completions) : 0;
        for (int i = 0; i < found; i++) {
            count += look_at(verbs, &completions[i], &landed[count]);
        }
    } while (most && found == most);
    verbs->counts.received += (uint64_t)count;
    return found < 0 ? -EIO : count;
}

void shunter_verbs_drop_receives(struct shunter_verbs *verbs) {
    for (uint32_t place = 0; place < SHUNTER_VERBS_RECEIVES; place++) {
        if (verbs->receives[place].posted) {
            shunter_chunk_drop(&verbs->chunks, verbs->receives[place].chunk);
            to_idle(verbs, place);
        }
    }
}

#endif
