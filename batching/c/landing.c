#include "landing.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

int shunter_landing_init(struct shunter_landing *landing, uint8_t *base, uint32_t most) {
    *landing = (struct shunter_landing){.base = base, .most = most};
    landing->references = calloc(most, sizeof *landing->references);
    landing->free = calloc(most, sizeof *landing->free);
    if (!landing->references || !landing->free) {
        shunter_landing_free(landing);
        return -ENOMEM;
    }
    return 0;
}

void shunter_landing_free(struct shunter_landing *landing) {
    free(landing->references);
    free(landing->free);
    memset(landing, 0, sizeof *landing);
}

void shunter_landing_grow(struct shunter_landing *landing, uint32_t blocks) {
    blocks = blocks < landing->most ? blocks : landing->most;
    for (uint32_t block = blocks; block > landing->blocks; block--) {
        landing->free[landing->free_count++] = (int32_t)(block - 1); // the first is used first
    }
    landing->blocks = blocks > landing->blocks ? blocks : landing->blocks;
}

uint32_t shunter_landing_shrink(struct shunter_landing *landing, uint32_t blocks) {
    uint32_t left = 0;
    while (landing->blocks > blocks && !landing->references[landing->blocks - 1]) {
        landing->blocks--;
    }
    for (uint32_t i = 0; i < landing->free_count; i++) {
        if (landing->free[i] < (int32_t)landing->blocks) {
            landing->free[left++] = landing->free[i];
        }
    }
    landing->free_count = left;
    return landing->blocks;
}

int32_t shunter_block_take(struct shunter_landing *landing) {
    if (!landing->free_count) {
        return SHUNTER_NO_BLOCK;
    }
    const int32_t block = landing->free[--landing->free_count];
    landing->references[block] = 1;
    return block;
}

void shunter_block_ref(struct shunter_landing *landing, int32_t block) {
    landing->references[block]++;
}

void shunter_block_unref(struct shunter_landing *landing, int32_t block) {
    if (--landing->references[block] == 0) {
        landing->free[landing->free_count++] = block;
    }
}

void shunter_slot_let_go(struct shunter_landing *landing, struct shunter_slot *slot) {
    if (slot->block >= 0) {
        shunter_block_unref(landing, slot->block);
    }
    slot->block = SHUNTER_NO_BLOCK;
}

uint8_t *shunter_slot_room(
    struct shunter_landing *landing, struct shunter_slot *slot, uint32_t size) {
    if (slot->block >= 0 && landing->references[slot->block] == 1) {
        slot->at = 0; // nobody else refers to it: it is empty
    }
    if (shunter_slot_left(slot) < size) {
        shunter_slot_let_go(landing, slot);
        slot->block = shunter_block_take(landing);
        slot->at = 0;
    }
    return slot->block < 0 ? NULL : shunter_block_at(landing, slot->block) + slot->at;
}
