/*
 * Datagrams of RDMA hardware that splits them: unreliable datagrams (UD) of a queue pair, each received
 * into two places, the header into host memory and the payload into the landing pool, which may be a
 * GPU's memory. What a peer is here, is its GID (or LID) and queue pair.
 *
 * NOT RUN ON HARDWARE so far: its logic is tested with a libibverbs of our own. libibverbs is looked
 * for when it is first needed; where its header was missing at build time, there is no such backend.
 */
#ifndef SHUNTER_VERBS_H
#define SHUNTER_VERBS_H

#include <string.h>

#include "backend.h"

#define SHUNTER_VERBS_FAMILY 27 /* AF_IB */
#define SHUNTER_VERBS_Q_KEY 0x53485552u /* of all ends; not of those that need a privilege */

enum shunter_verbs_memory {
    SHUNTER_VERBS_HOST,  /* the landing pool is the host's */
    SHUNTER_VERBS_PEER,  /* it begins at a device pointer that the driver knows (peer memory) */
    SHUNTER_VERBS_DMABUF /* it is a device's, and given as a dma-buf */
};

struct shunter_verbs_settings {
    const char *device; /* "mlx5_0", or with a port "mlx5_0:2" */
    uint8_t gid_index;
    struct shunter_landing *landing;
    uint32_t blocks; /* of the pool, all free, one behind the other: payloads land there */
    enum shunter_verbs_memory memory;
    int dmabuf;              /* SHUNTER_VERBS_DMABUF: of the pool, */
    uint64_t dmabuf_offset;  /* which begins so far in it */
};

struct shunter_verbs_counts {
    uint64_t received, sent;
    uint64_t receive_errors, send_errors; /* completions */
    uint64_t recoveries;                  /* of the queue pair */
    uint64_t no_address;                  /* a peer to whom nothing can be sent */
    uint64_t direct;                      /* payloads that were sent from where they lie */
};

/* NULL where it cannot be: ``why`` says it. Otherwise ``why`` says how it works here. */
struct shunter_backend *shunter_verbs_backend(
    const struct shunter_verbs_settings *settings, char *why, size_t size);

/* Both; peers of either are answered the way that they came. NULL: no memory. */
struct shunter_backend *shunter_verbs_beside(
    struct shunter_backend *verbs, struct shunter_backend *udp);

/* Whether it is the peer of a queue pair. */
static inline bool shunter_is_verbs_peer(const uint8_t *peer) {
    uint16_t family;
    memcpy(&family, peer, sizeof family);
    return family == SHUNTER_VERBS_FAMILY;
}

/* Payloads there are sent without a copy. 0 or a negative errno. */
int shunter_verbs_register(struct shunter_backend *backend, void *base, size_t bytes);

/* Under which others reach it. */
void shunter_verbs_address(const struct shunter_backend *backend, uint8_t peer[SHUNTER_PEER_BYTES]);

void shunter_verbs_counts(
    const struct shunter_backend *backend, struct shunter_verbs_counts *counts);

#endif
