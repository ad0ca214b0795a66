/* The control page: what strict requests hold there, and what is told of functions. */
#ifndef SHUNTER_TRITON_PAGE_H
#define SHUNTER_TRITON_PAGE_H

#include <stddef.h>

#include "control_layout.h"
#include "hold_line.h"

struct shunter_backend;
struct shunter_function;

/* What the strict requests of a function hold; under the lock of the backend. */
struct shunter_function_hold {
    struct shunter_slice_set slices; /* of all its workers */
    int32_t slot;
    bool is_up;     /* it has strict requests, */
    uint64_t steps; /* and so many of their batches were seen to begin or end */
    uint64_t moved_ns; /* when the last of them did: one that gets nowhere holds no longer */
};

/* What anybody holds on the page. */
struct shunter_holds {
    bool any;
    uint64_t changes; /* another number after every change of it */
    uint64_t longest_park_ns;
};

/* Hold on the page that this descriptor is, and no other. */
bool shunter_hold_on(struct shunter_backend *backend, int descriptor);
/* Under the function's lock: what it holds may have changed. */
void shunter_show_hold(struct shunter_function *function, uint64_t now_ns);
struct shunter_holds shunter_holds_now(struct shunter_backend *backend, uint64_t now_ns);
/* The same: its workers have. */
void shunter_hold_where(struct shunter_function *function, int32_t slot);
/* Say that the holder lives. */
void shunter_hold_lives(struct shunter_backend *backend, uint64_t now_ns);

/* Take turns as the page asks for (turns.c). */
void shunter_see_turns(struct shunter_backend *backend);

bool shunter_say(int connection, const void *message, size_t length);

/* What is being told to a host; it may read more slowly than this is said. */
struct shunter_states {
    uint64_t said; /* so many messages of it */
    struct control_reply reply;
    struct control_state each[];
};

/* It hears them all before anything that it says is heard. False: it does not hear. */
bool shunter_say_states(struct shunter_backend *backend, uint32_t host);
/* It takes more of them. */
bool shunter_say_more_states(struct shunter_backend *backend, uint32_t host);

#endif
