/* Workers of a function, and what the thread waits for. */
#ifndef SHUNTER_TRITON_WORKERS_H
#define SHUNTER_TRITON_WORKERS_H

#include <stdbool.h>

#include "control_layout.h"
#include "hold_line.h"

struct shunter_function;

/* What the thread waits for. */
struct shunter_source {
    enum { SHUNTER_BELL, SHUNTER_TIMER, SHUNTER_WORKER, SHUNTER_HOST, SHUNTER_LISTENER, SHUNTER_STOP } kind;
    struct shunter_function *function;
    uint32_t index;
};

struct shunter_attached {
    struct shunter_source source;
    int connection; /* -1: there is none */
    int doorbell, process; /* process: -1: it cannot be watched, as its pid is another's */
    int32_t pid;
    uint64_t inode; /* of the connection */
    uint64_t timeout_ns;
    struct shunter_slice_set slices; /* where its strict requests run */
    struct shunter_slice_set place;  /* where all of them do */
    bool shares; /* its process with other models: ``process`` is its seat's */
    bool leaving, left, killed;
};

/* ---- under the function's lock */

/* One that is on the page, and whose strict requests want no place for themselves. */
bool shunter_gives_way(const struct control_worker *told);
/* Index, or minus SHUNTER_SAID_... It takes the connection unless it fails. One that is
 * here already has its index again. */
int shunter_attach(
    struct shunter_function *function, const struct control_worker *told, int connection);
bool shunter_drain(struct shunter_function *function, int32_t pid);
/* It has said something, or is gone. */
void shunter_hear_worker(struct shunter_function *function, uint32_t index);
void shunter_look_after_workers(struct shunter_function *function, uint64_t now_ns);

/* ---- page/turns.c */

/* One that is there is in the set that it says. False: no memory. */
bool shunter_join_set(
    struct shunter_function *function, uint32_t index, const struct control_worker *told);
/* Where the control page asks for it, workers that are in no set take turns from now on. */
void shunter_join_turns(struct shunter_function *function);

#endif
