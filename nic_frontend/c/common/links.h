/* Rings: a head and what is in it, each in one ring at most. */
#ifndef SHUNTER_LINKS_H
#define SHUNTER_LINKS_H

#include <stdbool.h>
#include <stddef.h>

struct link {
    struct link *next, *prev;
};

#define OWNER_OF(pointer, type, member) \
    ((struct type *)(void *)((char *)(pointer) - offsetof(struct type, member)))

static inline void link_alone(struct link *link) { link->next = link->prev = link; }

static inline bool is_alone(const struct link *link) { return link->next == link; }

static inline void link_out(struct link *link) {
    link->next->prev = link->prev;
    link->prev->next = link->next;
    link_alone(link);
}

/* It becomes the last; it may be in a ring, also in this one. */
static inline void link_last(struct link *ring, struct link *link) {
    link_out(link);
    link->next = ring;
    link->prev = ring->prev;
    ring->prev->next = link;
    ring->prev = link;
}

#endif
