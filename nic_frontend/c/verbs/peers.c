/* Whom datagrams come from and go to. */
#define _GNU_SOURCE
#include <string.h>

#include "verbs_parts.h"

#ifdef SHUNTER_HAS_VERBS

#define HOPS 64

/* Whether 20 bytes are the header of a packet of IPv4 without options: its checksum says so. */
static bool is_4(const uint8_t *header) {
    uint32_t sum = 0;
    for (int i = 0; i < 20; i += 2) {
        sum += (uint32_t)header[i] << 8 | header[i + 1];
    }
    return header[0] == 0x45 && (sum & 0xffff) + (sum >> 16) == 0xffff;
}

/* RoCE over IPv4 has 20 bytes of anything and the IP header where all else has a GRH. */
void shunter_verbs_sender(
    const struct ibv_wc *completion, const uint8_t grh[SHUNTER_VERBS_GRH],
    uint8_t peer[SHUNTER_PEER_BYTES]) {
    struct shunter_verbs_peer found = {
        .family = SHUNTER_VERBS_FAMILY,
        .lid = completion->slid,
        .queue_pair = completion->src_qp,
        .service_level = completion->sl,
        .path_bits = completion->dlid_path_bits,
        .is_global = (completion->wc_flags & IBV_WC_GRH) != 0};
    if (found.is_global && is_4(grh + 20)) {
        memset(found.gid + 10, 0xff, 2);
        memcpy(found.gid + 12, grh + 32, 4);
    } else if (found.is_global) {
        memcpy(found.gid, grh + 8, sizeof found.gid);
    }
    memset(peer, 0, SHUNTER_PEER_BYTES);
    memcpy(peer, &found, sizeof found);
}

static struct ibv_ah *make(struct shunter_verbs *verbs, const struct shunter_verbs_peer *peer) {
    struct ibv_ah_attr attributes = {
        .dlid = peer->lid,
        .sl = peer->service_level,
        .src_path_bits = peer->path_bits,
        .is_global = peer->is_global,
        .port_num = verbs->port};
    if (peer->is_global) {
        memcpy(attributes.grh.dgid.raw, peer->gid, sizeof peer->gid);
        attributes.grh.sgid_index = verbs->gid_index;
        attributes.grh.hop_limit = HOPS;
    }
    return verbs->library->create_ah(verbs->domain, &attributes);
}

static uint32_t set_of(const struct shunter_verbs_peer *peer) {
    uint32_t hash = 2166136261u;
    const uint8_t *bytes = (const uint8_t *)peer;
    for (size_t i = 0; i < sizeof *peer; i++) {
        hash = (hash ^ bytes[i]) * 16777619u;
    }
    return hash % SHUNTER_VERBS_SETS;
}

struct shunter_verbs_address *shunter_verbs_find(
    struct shunter_verbs *verbs, const struct shunter_verbs_peer *peer) {
    struct shunter_verbs_peer of = *peer;
    of.queue_pair = 0; // one for all of an end's
    struct shunter_verbs_address *set = verbs->addresses[set_of(&of)], *oldest = NULL;
    for (uint32_t i = 0; i < SHUNTER_VERBS_WAYS; i++) {
        if (set[i].handle && memcmp(&set[i].of, &of, sizeof of) == 0) {
            set[i].used = ++verbs->uses;
            return &set[i];
        }
        if (!set[i].in_flight && (!oldest || set[i].used < oldest->used)) {
            oldest = &set[i];
        }
    }
    struct ibv_ah *handle = oldest ? make(verbs, &of) : NULL;
    if (!handle) {
        return NULL;
    }
    if (oldest->handle) {
        verbs->library->destroy_ah(oldest->handle);
    }
    *oldest = (struct shunter_verbs_address){.of = of, .handle = handle, .used = ++verbs->uses};
    return oldest;
}

void shunter_verbs_forget_all(struct shunter_verbs *verbs) {
    struct shunter_verbs_address *all = verbs->addresses[0];
    for (uint32_t i = 0; i < SHUNTER_VERBS_SETS * SHUNTER_VERBS_WAYS; i++) {
        if (all[i].handle) {
            verbs->library->destroy_ah(all[i].handle);
        }
        all[i] = (struct shunter_verbs_address){0};
    }
}

#endif
