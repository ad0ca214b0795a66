/* See page.h. */
#define _GNU_SOURCE
#include "page.h"

#include <fcntl.h>
#include <stddef.h>
#include <string.h>
#include <unistd.h>

#include "control_layout.h"

#define AGAIN_NS 100000000ULL
#define TRIES 3
#define LONGEST_NS (1ULL << 53) /* what is longer than a hundred days is no time of a batch */

void strategy_close(struct strategy_file *file) {
    if (file->descriptor >= 0) {
        close(file->descriptor);
    }
    file->descriptor = -1;
}

enum found { IS_WRONG, IS_BEING_WRITTEN, IS_WHOLE };

static enum found read_page(int descriptor, struct control_strategy *page) {
    for (int i = 0; i < TRIES; i++) {
        uint64_t after[3];
        if (pread(descriptor, page, sizeof *page, 0) != (ssize_t)sizeof *page ||
            pread(descriptor, after, sizeof after, 0) != (ssize_t)sizeof after ||
            page->magic != SHUNTER_CONTROL_MAGIC || page->digest != SHUNTER_CONTROL_DIGEST) {
            return IS_WRONG;
        }
        if (!(page->sequence & 1) && page->sequence == after[2]) {
            return IS_WHOLE;
        }
    }
    return IS_BEING_WRITTEN;
}
_Static_assert(offsetof(struct control_strategy, sequence) == 16, "the third word");

static bool is_sane(const struct control_strategy *page) {
    return page->apart <= 1 && page->class <= 1 && page->slo_ns < LONGEST_NS &&
           page->fixed_ns < LONGEST_NS && page->per_row_ns < LONGEST_NS &&
           page->waited_ns < LONGEST_NS;
}

struct strategy_numbers strategy_read(struct strategy_file *file, uint64_t now_ns) {
    struct control_strategy page;
    struct strategy_numbers none = {0};
    if (!file->path[0] || (file->descriptor < 0 && now_ns < file->again_ns)) {
        return none;
    }
    if (file->descriptor < 0) {
        file->again_ns = now_ns + AGAIN_NS;
        /* A fifo at this path must not hold up the server. */
        file->descriptor = open(file->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    }
    if (file->descriptor < 0) {
        return none;
    }
    const enum found found = read_page(file->descriptor, &page);
    if (found == IS_BEING_WRITTEN) {
        /* Its writer may be held up: what it said before holds on. */
        return file->until_ns > now_ns ? file->numbers : none;
    }
    if (found == IS_WRONG || page.until_ns <= now_ns || !is_sane(&page)) {
        strategy_close(file); /* there may be another file of that name now */
        return none;
    }
    file->until_ns = page.until_ns;
    file->numbers = (struct strategy_numbers){
        .cap = page.cap,
        .apart = page.apart,
        .class = page.class,
        .slo_ns = page.slo_ns,
        .fixed_ns = page.fixed_ns,
        .per_row_ns = page.per_row_ns,
        .waited_ns = page.waited_ns,
    };
    return file->numbers;
}
