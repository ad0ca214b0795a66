/*
 * The landing pool, driven by events on its input; what it gives is its output.
 *
 *   G n            it has so many blocks        T               take a block
 *   H n            no more than so many
 *   R block        one reference more           U block         one less
 *   S slot size    room for so many bytes       V slot size     the same, and they are used
 *   L slot         the slot lets go
 *
 * After each: what was given, how many blocks are free, and whether they are scarce.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "landing.h"

#define SLOTS 3

int main(int argc, char **argv) {
    const uint32_t most = argc > 1 ? (uint32_t)atoi(argv[1]) : 4;
    uint8_t *base = malloc((size_t)most * SHUNTER_BLOCK);
    struct shunter_landing landing;
    struct shunter_slot slots[SLOTS];
    char line[64], kind;
    uint32_t one, size;
    if (!base || shunter_landing_init(&landing, base, most) != 0) {
        return 1;
    }
    for (int i = 0; i < SLOTS; i++) {
        slots[i] = (struct shunter_slot){SHUNTER_NO_BLOCK, 0};
    }
    while (fgets(line, sizeof line, stdin)) {
        int64_t given = 0;
        one = size = 0;
        sscanf(line, "%c %" SCNu32 " %" SCNu32, &kind, &one, &size);
        if (kind == 'G') {
            shunter_landing_grow(&landing, one);
        } else if (kind == 'H') {
            given = shunter_landing_shrink(&landing, one);
        } else if (kind == 'T') {
            given = shunter_block_take(&landing);
        } else if (kind == 'R') {
            shunter_block_ref(&landing, (int32_t)one);
        } else if (kind == 'U') {
            shunter_block_unref(&landing, (int32_t)one);
        } else if (kind == 'L') {
            shunter_slot_let_go(&landing, &slots[one]);
        } else {
            uint8_t *room = shunter_slot_room(&landing, &slots[one], size);
            given = room ? room - base : -1;
            if (room && kind == 'V') {
                memset(room, 0xee, size); // no byte of it is somebody else's memory
                shunter_slot_use(&slots[one], size);
            }
            if (room && size && shunter_block_of(&landing, (uint64_t)given) != slots[one].block) {
                return 2;
            }
        }
        printf(
            "%" PRId64 " %u %d\n", given, landing.free_count, shunter_landing_is_scarce(&landing));
    }
    for (int i = 0; i < SLOTS; i++) {
        shunter_slot_let_go(&landing, &slots[i]);
    }
    shunter_landing_free(&landing);
    free(base);
    return 0;
}
