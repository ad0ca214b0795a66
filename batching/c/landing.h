/*
 * The pool in which payloads land, wherever they come from: blocks of shared memory, each used as
 * long as somebody refers to it. Readers in other processes map it read-only.
 *
 * No lock: one thread owns it. The block that was free last is used first, while it is still in the
 * processor's cache.
 */
#ifndef SHUNTER_LANDING_H
#define SHUNTER_LANDING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shunter_layout.h"

#define SHUNTER_NO_BLOCK (-1)

struct shunter_landing {
    uint8_t *base;
    uint32_t blocks, most; /* of these so many may be used now */
    uint32_t free_count;
    uint32_t *references;
    int32_t *free;
};

/* For ``most`` blocks at ``base``, none of which is used yet. 0, or -ENOMEM. */
int shunter_landing_init(struct shunter_landing *landing, uint8_t *base, uint32_t most);
void shunter_landing_free(struct shunter_landing *landing);
/* So many blocks are there now, if it is more than before. */
void shunter_landing_grow(struct shunter_landing *landing, uint32_t blocks);

/* No more than so many, if the last ones are free; how many there are now. */
uint32_t shunter_landing_shrink(struct shunter_landing *landing, uint32_t blocks);

/* A block with one reference; SHUNTER_NO_BLOCK when none is free. */
int32_t shunter_block_take(struct shunter_landing *landing);
void shunter_block_ref(struct shunter_landing *landing, int32_t block);
void shunter_block_unref(struct shunter_landing *landing, int32_t block);

/* Little is left: who keeps small things in large blocks should put them together. */
static inline bool shunter_landing_is_scarce(const struct shunter_landing *landing) {
    return landing->free_count <= landing->blocks / 4;
}

static inline uint8_t *shunter_block_at(const struct shunter_landing *landing, int32_t block) {
    return landing->base + (size_t)block * SHUNTER_BLOCK;
}

static inline int32_t shunter_block_of(const struct shunter_landing *landing, uint64_t offset) {
    return offset / SHUNTER_BLOCK < landing->blocks ? (int32_t)(offset / SHUNTER_BLOCK)
                                                    : SHUNTER_NO_BLOCK;
}

/* What is filled from its beginning to its end, with one reference of its own to its block. */
struct shunter_slot {
    int32_t block; /* SHUNTER_NO_BLOCK: none */
    uint32_t at;
};

/*
 * Room for ``size`` bytes, at most SHUNTER_BLOCK, that end in the same block. NULL when there is no
 * block. It is used only when shunter_slot_use says so.
 */
uint8_t *shunter_slot_room(
    struct shunter_landing *landing, struct shunter_slot *slot, uint32_t size);
void shunter_slot_let_go(struct shunter_landing *landing, struct shunter_slot *slot);

#define SHUNTER_SLOT_ALIGN 64u /* a cache line */

/* The next ``size`` bytes are used. */
static inline void shunter_slot_use(struct shunter_slot *slot, uint32_t size) {
    slot->at += (size + SHUNTER_SLOT_ALIGN - 1) & ~(SHUNTER_SLOT_ALIGN - 1);
}

/* Bytes up to the end of its block. */
static inline uint32_t shunter_slot_left(const struct shunter_slot *slot) {
    return slot->block < 0 || slot->at >= SHUNTER_BLOCK ? 0 : SHUNTER_BLOCK - slot->at;
}

#endif
