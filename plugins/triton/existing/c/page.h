/* The page that the controller of an existing model writes. */
#ifndef SHUNTER_STRATEGY_PAGE_H
#define SHUNTER_STRATEGY_PAGE_H

#include <stdbool.h>
#include <stdint.h>

#include "rule.h"

struct strategy_file {
    char path[512];    /* empty: there is none */
    int descriptor;    /* -1: not open */
    uint64_t again_ns; /* not looked for before */
    struct strategy_numbers numbers; /* the last ones that were whole */
    uint64_t until_ns;               /* they hold */
};

/* The numbers of now. All zero, so that the server forms batches as it does, where there is no page
 * of this version or nobody has renewed it. The file is read and never mapped: whatever becomes of
 * it, the server lives. */
struct strategy_numbers strategy_read(struct strategy_file *file, uint64_t now_ns);

void strategy_close(struct strategy_file *file);

#endif
