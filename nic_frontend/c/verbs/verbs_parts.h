/* What the backend is made of; empty where rdma-core's header is missing. */
#ifndef SHUNTER_VERBS_PARTS_H
#define SHUNTER_VERBS_PARTS_H

#include "chunks.h"
#include "verbs.h"

#ifdef __has_include
#if __has_include(<infiniband/verbs.h>)
#define SHUNTER_HAS_VERBS 1
#endif
#endif

#ifdef SHUNTER_HAS_VERBS
#include <infiniband/verbs.h>

#define SHUNTER_VERBS_GRH 40    /* bytes in front of each datagram */
#define SHUNTER_VERBS_HEADER_STEP 128u /* from one header, and what is in front of it, to the next */
#define SHUNTER_VERBS_CHUNK 4096 /* the largest datagram of UD */
#define SHUNTER_VERBS_RECEIVES 512u
#define SHUNTER_VERBS_SENDS 256u
#define SHUNTER_VERBS_AT_ONCE 64u
#define SHUNTER_VERBS_REGIONS 16
#define SHUNTER_VERBS_SETS 256u /* of addresses, each of so many: */
#define SHUNTER_VERBS_WAYS 4u

/* Of libibverbs, what is no inline function. */
#define SHUNTER_VERBS_FUNCTIONS(FUNCTION) \
    FUNCTION(get_device_list) FUNCTION(free_device_list) FUNCTION(get_device_name) \
    FUNCTION(open_device) FUNCTION(close_device) FUNCTION(query_port) FUNCTION(query_gid) \
    FUNCTION(alloc_pd) FUNCTION(dealloc_pd) FUNCTION(reg_mr) FUNCTION(reg_dmabuf_mr) \
    FUNCTION(dereg_mr) FUNCTION(create_comp_channel) FUNCTION(destroy_comp_channel) \
    FUNCTION(create_cq) FUNCTION(destroy_cq) FUNCTION(get_cq_event) FUNCTION(ack_cq_events) \
    FUNCTION(create_qp) FUNCTION(modify_qp) FUNCTION(destroy_qp) FUNCTION(create_ah) \
    FUNCTION(destroy_ah)

struct shunter_verbs_library {
#define SHUNTER_VERBS_MEMBER(name) __typeof__(&ibv_##name) name;
    SHUNTER_VERBS_FUNCTIONS(SHUNTER_VERBS_MEMBER)
#undef SHUNTER_VERBS_MEMBER
};

/* NULL: there is none here, or it lacks what is needed. */
const struct shunter_verbs_library *shunter_verbs_library(void);

/* The first half of a peer. */
struct shunter_verbs_peer {
    uint16_t family; /* SHUNTER_VERBS_FAMILY */
    uint16_t lid;
    uint32_t queue_pair;
    uint8_t gid[16];
    uint8_t is_global, service_level, path_bits;
    uint8_t zero[5];
};

/* Where a datagram is to go, as the hardware keeps it. */
struct shunter_verbs_address {
    struct shunter_verbs_peer of; /* of any of its queue pairs */
    struct ibv_ah *handle;        /* NULL: nobody's */
    uint32_t in_flight;
    uint64_t used;
};

struct shunter_verbs_receive {
    uint64_t chunk;
    bool posted;
    uint8_t peer[SHUNTER_PEER_BYTES];
};

struct shunter_verbs_send {
    struct shunter_verbs_address *address;
    bool posted, direct;
};

struct shunter_verbs {
    struct shunter_backend backend;
    const struct shunter_verbs_library *library;
    struct shunter_chunks chunks;
    struct ibv_context *context;
    struct ibv_pd *domain;
    struct ibv_comp_channel *channel;
    struct ibv_cq *received, *sent;
    struct ibv_qp *queue_pair;
    struct ibv_mr *landing, *headers, *copies, *regions[SHUNTER_VERBS_REGIONS];
    uint32_t region_count;
    uint8_t port, gid_index;
    union ibv_gid gid;
    uint16_t lid;
    uint32_t mtu, inline_bytes;
    uint32_t epoch; /* one more with each recovery: what completes late is of an earlier one */
    bool armed;     /* the channel tells of the next that comes */
    int more;       /* eventfd: what came before that may not all have been told */
    bool is_more;   /* it can be read */
    bool broken;    /* the queue pair has to be recovered */
    uint8_t *header_bytes, *copy_bytes;
    struct shunter_verbs_receive receives[SHUNTER_VERBS_RECEIVES];
    uint32_t idle[SHUNTER_VERBS_RECEIVES], idle_count; /* that are not posted */
    uint32_t told[SHUNTER_VERBS_AT_ONCE], told_count;  /* whose headers are being read */
    struct shunter_verbs_send sends[SHUNTER_VERBS_SENDS];
    uint32_t free[SHUNTER_VERBS_SENDS], free_count;
    struct ibv_send_wr requests[SHUNTER_VERBS_AT_ONCE];
    struct ibv_sge pieces[SHUNTER_VERBS_AT_ONCE][2];
    uint32_t request_count;
    uint32_t direct; /* in flight from memory of others */
    uint64_t uses;
    struct shunter_verbs_address addresses[SHUNTER_VERBS_SETS][SHUNTER_VERBS_WAYS];
    struct shunter_verbs_counts counts;
    struct shunter_backend_stats stats;
};

/* What a completion is of: the epoch and a place in ``receives`` or ``sends``. */
static inline uint64_t shunter_verbs_id(const struct shunter_verbs *verbs, uint32_t place) {
    return (uint64_t)verbs->epoch << 32 | place;
}

/* Everything but what is posted. 0 or a negative errno; ``step``: what failed. */
int shunter_verbs_set_up(
    struct shunter_verbs *verbs, const struct shunter_verbs_settings *settings, const char **step);
void shunter_verbs_take_down(struct shunter_verbs *verbs);
/* From whatever state to that in which it receives and sends. 0 or a negative errno. */
int shunter_verbs_start_queue_pair(struct shunter_verbs *verbs);

void shunter_verbs_post_receives(struct shunter_verbs *verbs);
/* What has come, with what is told already at most SHUNTER_VERBS_AT_ONCE; -EIO when the device does not say. */
int shunter_verbs_receive(struct shunter_verbs *verbs, struct shunter_landed *landed);
/* Nothing is posted any more. */
void shunter_verbs_drop_receives(struct shunter_verbs *verbs);

void shunter_verbs_tx(
    struct shunter_backend *backend, const struct shunter_x64 *header, const void *payload,
    size_t length, const uint8_t *peer, bool copied);
void shunter_verbs_flush(struct shunter_backend *backend);
void shunter_verbs_reap(struct shunter_verbs *verbs);
void shunter_verbs_drop_sends(struct shunter_verbs *verbs);

/* NULL: there is none, and no room for it. */
struct shunter_verbs_address *shunter_verbs_find(
    struct shunter_verbs *verbs, const struct shunter_verbs_peer *peer);
void shunter_verbs_forget_all(struct shunter_verbs *verbs);
/* Who sent a datagram, by its completion and what is in front of it. */
void shunter_verbs_sender(
    const struct ibv_wc *completion, const uint8_t grh[SHUNTER_VERBS_GRH],
    uint8_t peer[SHUNTER_PEER_BYTES]);

/* After an error all that was posted is given up, and sent again by who misses it. */
int shunter_verbs_recover(struct shunter_verbs *verbs);

#endif
#endif
