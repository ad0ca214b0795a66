/* The chunks of our blocks: each that the kernel or a reader has is a reference to its block. */
#include <errno.h>
#include <string.h>

#include "xdp_parts.h"

#define FILL_AT_ONCE 32 /* chunks; fewer are not worth it */

int shunter_xdp_take_blocks(struct shunter_xdp *xdp, uint32_t wanted) {
    while (xdp->blocks < wanted) {
        const int32_t block = shunter_block_take(xdp->landing);
        if (block < 0) {
            return -ENOBUFS;
        }
        if (xdp->blocks == 0) {
            xdp->first = block;
        } else if (block != xdp->first + (int32_t)xdp->blocks) {
            shunter_block_unref(xdp->landing, block);
            return -EINVAL;
        }
        xdp->blocks++;
    }
    xdp->block = wanted;
    return 0;
}

void shunter_xdp_leave_blocks(struct shunter_xdp *xdp) {
    for (uint32_t i = 0; i < xdp->blocks; i++) {
        for (uint32_t ours = 1u + xdp->with_kernel[i]; ours; ours--) {
            shunter_block_unref(xdp->landing, xdp->first + (int32_t)i);
        }
    }
    shunter_slot_let_go(xdp->landing, &xdp->aside);
}

/* The first block of ours to which nobody else refers: it is still in the processor's cache. */
static bool find_block(struct shunter_xdp *xdp) {
    const uint32_t *references = xdp->landing->references + xdp->first;
    uint32_t free = 0;
    for (uint32_t i = xdp->blocks; i-- > 0;) {
        if (references[i] == 1) {
            xdp->block = i;
            free++;
        }
    }
    xdp->next_chunk = 0;
    xdp->scarce = free < xdp->blocks / 4;
    return free;
}

/* Where the next chunk for the kernel begins, or -1: there is none. */
static int64_t give_chunk(struct shunter_xdp *xdp) {
    if (xdp->block == xdp->blocks && !find_block(xdp)) {
        return -1;
    }
    const uint32_t block = xdp->block;
    const int64_t chunk = (int64_t)block * SHUNTER_BLOCK + xdp->next_chunk * xdp->chunk;
    shunter_block_ref(xdp->landing, xdp->first + (int32_t)block);
    xdp->with_kernel[block]++;
    if (++xdp->next_chunk == SHUNTER_BLOCK / xdp->chunk) {
        xdp->block = xdp->blocks;
    }
    return chunk;
}

int32_t shunter_xdp_take_back(struct shunter_xdp *xdp, uint64_t address) {
    const uint32_t block = (uint32_t)(address / SHUNTER_BLOCK);
    xdp->with_kernel[block]--;
    return xdp->first + (int32_t)block;
}

void shunter_xdp_fill(struct shunter_xdp *xdp, struct shunter_xsk *xsk) {
    uint32_t room = shunter_xsk_room(xsk);
    if (room < FILL_AT_ONCE) {
        return;
    }
    for (; room; room--) {
        const int64_t chunk = give_chunk(xdp);
        if (chunk < 0) {
            break;
        }
        shunter_xsk_fill(xsk, (uint64_t)chunk);
    }
    shunter_xsk_filled(xsk);
}

void shunter_xdp_set_aside(struct shunter_xdp *xdp, struct shunter_landed *landed) {
    const uint32_t length = landed->length - SHUNTER_HEADER_BYTES;
    if (!xdp->scarce || !length) {
        return;
    }
    uint8_t *into = shunter_slot_room(xdp->landing, &xdp->aside, length);
    if (into) {
        shunter_slot_use(&xdp->aside, length);
        memcpy(into, landed->payload, length);
        xdp->copied_bytes += length;
        landed->payload = into;
        landed->block = xdp->aside.block;
        shunter_block_ref(xdp->landing, landed->block); // until the next poll, as all
        xdp->handed[xdp->handed_count++] = landed->block;
    }
}
