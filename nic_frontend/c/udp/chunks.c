#include "chunks.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static int take_blocks(struct shunter_chunks *chunks, uint32_t wanted) {
    while (chunks->blocks < wanted) {
        const int32_t block = shunter_block_take(chunks->landing);
        if (block < 0) {
            return -ENOBUFS;
        }
        if (chunks->blocks == 0) {
            chunks->first = block;
        } else if (block != chunks->first + (int32_t)chunks->blocks) {
            shunter_block_unref(chunks->landing, block);
            return -EINVAL;
        }
        chunks->blocks++;
    }
    chunks->block = wanted;
    return 0;
}

int shunter_chunks_init(
    struct shunter_chunks *chunks, struct shunter_landing *landing, uint32_t blocks,
    uint32_t most) {
    *chunks = (struct shunter_chunks){.landing = landing, .aside.block = SHUNTER_NO_BLOCK};
    chunks->given = calloc(blocks ? blocks : 1, sizeof *chunks->given);
    chunks->handed = calloc(2 * (size_t)most, sizeof *chunks->handed); // with what is set aside
    if (!chunks->given || !chunks->handed) {
        return -ENOMEM;
    }
    return blocks ? take_blocks(chunks, blocks) : -EINVAL;
}

void shunter_chunks_free(struct shunter_chunks *chunks) {
    if (chunks->handed) {
        shunter_chunks_let_go(chunks);
    }
    for (uint32_t i = 0; i < chunks->blocks; i++) {
        for (uint32_t ours = 1u + chunks->given[i]; ours; ours--) {
            shunter_block_unref(chunks->landing, chunks->first + (int32_t)i);
        }
    }
    if (chunks->landing) {
        shunter_slot_let_go(chunks->landing, &chunks->aside);
    }
    free(chunks->given);
    free(chunks->handed);
    *chunks = (struct shunter_chunks){0};
}

/* The first block of ours to which nobody else refers: it is still in the processor's cache. */
static bool find_block(struct shunter_chunks *chunks) {
    const uint32_t *references = chunks->landing->references + chunks->first;
    uint32_t free = 0;
    for (uint32_t i = chunks->blocks; i-- > 0;) {
        if (references[i] == 1) {
            chunks->block = i;
            free++;
        }
    }
    chunks->next = 0;
    chunks->scarce = free < chunks->blocks / 4;
    return free;
}

int64_t shunter_chunk_give(struct shunter_chunks *chunks) {
    if (chunks->block == chunks->blocks && !find_block(chunks)) {
        return -1;
    }
    const uint32_t block = chunks->block;
    const int64_t at = (int64_t)block * SHUNTER_BLOCK + (int64_t)chunks->next * chunks->bytes;
    shunter_block_ref(chunks->landing, chunks->first + (int32_t)block);
    chunks->given[block]++;
    if (++chunks->next == SHUNTER_BLOCK / chunks->bytes) {
        chunks->block = chunks->blocks;
    }
    return at;
}

/* The block of a chunk that is back; the reference is the caller's. */
static int32_t take_back(struct shunter_chunks *chunks, uint64_t at) {
    const uint32_t block = (uint32_t)(at / SHUNTER_BLOCK);
    chunks->given[block]--;
    return chunks->first + (int32_t)block;
}

void shunter_chunk_drop(struct shunter_chunks *chunks, uint64_t at) {
    shunter_block_unref(chunks->landing, take_back(chunks, at));
}

/* What may stay long does not keep one of ours with all of its chunks. */
static void set_aside(struct shunter_chunks *chunks, struct shunter_landed *landed) {
    const uint32_t length =
        landed->length > SHUNTER_HEADER_BYTES ? landed->length - SHUNTER_HEADER_BYTES : 0;
    uint8_t *into = length ? shunter_slot_room(chunks->landing, &chunks->aside, length) : NULL;
    if (into) {
        shunter_slot_use(&chunks->aside, length);
        memcpy(into, landed->payload, length);
        chunks->copied_bytes += length;
        landed->payload = into;
        landed->block = chunks->aside.block;
        shunter_block_ref(chunks->landing, landed->block); // it is told, as all
        chunks->handed[chunks->handed_count++] = landed->block;
    }
}

void shunter_chunk_tell(
    struct shunter_chunks *chunks, uint64_t at, struct shunter_landed *landed) {
    landed->payload = shunter_chunks_base(chunks) + at;
    landed->far = chunks->far;
    landed->block = take_back(chunks, at);
    chunks->handed[chunks->handed_count++] = landed->block;
    if (chunks->scarce && !chunks->far) {
        set_aside(chunks, landed);
    }
}

void shunter_chunks_let_go(struct shunter_chunks *chunks) {
    for (uint32_t i = 0; i < chunks->handed_count; i++) {
        shunter_block_unref(chunks->landing, chunks->handed[i]);
    }
    chunks->handed_count = 0;
}
