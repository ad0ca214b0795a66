/* Emitted by python -m shunter.handlers.pool.emit. Do not edit. */
#ifndef SHUNTER_HANDOVER_H
#define SHUNTER_HANDOVER_H

#include <stdint.h>

#define SHUNTER_SEAT_MAGIC 0x414553544e554853ULL /* 'SHUNTSEA', little-endian */
#define SHUNTER_SEAT_DIGEST 0xd8ee22a52c96d1ULL /* of all that is said */
#define SHUNTER_SEAT_MOST_BYTES 1048576 /* of a seat's texts */
#define SHUNTER_SEAT_MOST_TEXT 65536 /* bytes behind a word */
#define SHUNTER_SEAT_AT_WORK 2 /* words of the page: for whom the process works */
#define SHUNTER_SEAT_UNBEGUN_STATUS 75 /* nothing of its model had begun */
#define SHUNTER_SEAT_PATIENCE_S 30 /* usually */
#define SHUNTER_SEAT_TAKEN 1 /* kind of a word */
#define SHUNTER_SEAT_END 2 /* kind of a word */
#define SHUNTER_SEAT_ALONE 3 /* kind of a word */
#define SHUNTER_SEAT_CONNECT 4 /* kind of a word */
#define SHUNTER_SEAT_CONNECTED 5 /* kind of a word */
#define SHUNTER_SEAT_SOCKET_VARIABLE "SHUNTER_POOL_SOCKET"
#define SHUNTER_SEAT_LOCK_VARIABLE "SHUNTER_POOL_LOCK"
#define SHUNTER_SEAT_CONTINUES_VARIABLE "SHUNTER_CONTINUES"
#define SHUNTER_SEAT_PATIENCE_VARIABLE "SHUNTER_POOL_PATIENCE_S"
#define SHUNTER_SEAT_TUNABLES_VARIABLE "GLIBC_TUNABLES"
#define SHUNTER_SEAT_TUNABLES "glibc.cpu.x86_non_temporal_threshold=1000000"

struct shunter_handover {
    uint64_t magic;
    uint64_t digest;
    uint64_t arguments;
    uint64_t variables;
    uint64_t bytes;
};
_Static_assert(sizeof(struct shunter_handover) == 40, "handover");

struct shunter_seat_word {
    int64_t kind;
    int64_t value;
    int64_t bytes;
};
_Static_assert(sizeof(struct shunter_seat_word) == 24, "seat_word");

#endif
