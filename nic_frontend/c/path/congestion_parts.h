/* What the two halves of congestion control share. */
#ifndef SHUNTER_CONGESTION_PARTS_H
#define SHUNTER_CONGESTION_PARTS_H

#include "congestion.h"

#define LEAST_DATAGRAMS 2
#define GRANULARITY_NS 1000000ULL
#define MOST_DOUBLED 6

static inline uint64_t least(uint64_t a, uint64_t b) { return a < b ? a : b; }
static inline uint64_t most(uint64_t a, uint64_t b) { return a > b ? a : b; }

static inline struct shunter_flight *flight_at(
    const struct shunter_congestion *path, uint64_t number) {
    return &path->flights[number & (path->room - 1)];
}

/* RFC 9002, 6.2.1 */
static inline uint64_t patience(const struct shunter_congestion *path) {
    return path->rtt_ns + most(4 * path->var_ns, GRANULARITY_NS);
}

#endif
