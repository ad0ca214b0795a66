/*
 * Blocks of the landing pool that a backend has for good, cut into chunks of one size that it gives to
 * a device or to the kernel before anything comes. Each chunk that these or a reader have is a
 * reference to its block, and a block whose chunks are all back is given again.
 */
#ifndef SHUNTER_CHUNKS_H
#define SHUNTER_CHUNKS_H

#include <stdbool.h>
#include <stdint.h>

#include "backend.h"
#include "landing.h"

struct shunter_chunks {
    struct shunter_landing *landing;
    int32_t first; /* of our blocks, each with a reference of ours */
    uint32_t blocks;
    uint32_t bytes;              /* of a chunk */
    uint8_t *given;              /* chunks of each block */
    uint32_t block, next;        /* which chunk goes next, if ``block`` is one of ours */
    bool far;                    /* the processor cannot copy what is in them */
    bool scarce;                 /* less than a quarter of the blocks is free */
    struct shunter_slot aside;   /* what is kept while they are scarce lies elsewhere */
    int32_t *handed;             /* blocks of what was told last, with a reference each */
    uint32_t handed_count;
    uint64_t copied_bytes;
};

/*
 * Take so many blocks, which must be free and one behind the other; at most ``most`` datagrams are told
 * at once. 0 or a negative errno; free it in either case.
 */
int shunter_chunks_init(
    struct shunter_chunks *chunks, struct shunter_landing *landing, uint32_t blocks,
    uint32_t most);
/* Nobody but readers has a chunk any more. */
void shunter_chunks_free(struct shunter_chunks *chunks);

/* A chunk to give away: how far behind the first block it begins; -1: there is none. */
int64_t shunter_chunk_give(struct shunter_chunks *chunks);
/* It was not given, or nothing is in it. ``at``: anywhere in it. */
void shunter_chunk_drop(struct shunter_chunks *chunks, uint64_t at);
/* It is told, at ``landed``, what is in it; block and payload are set here. ``at``: where. */
void shunter_chunk_tell(
    struct shunter_chunks *chunks, uint64_t at, struct shunter_landed *landed);
/* What was told is read; whoever keeps a payload has a reference of his own. */
void shunter_chunks_let_go(struct shunter_chunks *chunks);

static inline uint8_t *shunter_chunks_base(const struct shunter_chunks *chunks) {
    return shunter_block_at(chunks->landing, chunks->first);
}

#endif
