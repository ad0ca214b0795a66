/*
 * A backend of Triton that keeps its requests: it forms batches of them for workers in processes of
 * their own and answers when these have run.
 *
 * What it serves is keyed by model and version, and is the backend's: it outlives a reload of the
 * model. The requests of a function are under its lock; Triton's threads bring them, one thread of
 * the backend (events.c) takes in what workers and the host say, and sends the answers.
 */
#ifndef SHUNTER_BACKEND_H
#define SHUNTER_BACKEND_H

#include <pthread.h>

#include "control_layout.h"
#include "dispatch.h"
#include "landing.h"
#include "packed_run.h"
#include "page.h"
#include "triton.h"
#include "workers.h"

#define SHUNTER_SOURCES 16      /* hosts that are connected at once */
#define SHUNTER_FUNCTION_FDS 5  /* descriptors of a function, beside the rings of its results */
#define SHUNTER_ENTRY_IDEMPOTENT 128 /* batching/queue/layout.py, IDEMPOTENT */

/* How a request ends; answers.c has codes and texts. */
enum shunter_end {
    SHUNTER_END_OK,
    SHUNTER_END_WRONG,       /* with a text of its own */
    SHUNTER_END_UNSUPPORTED, /* the same */
    SHUNTER_END_UNREAD,      /* the same: its class cannot be judged yet */
    SHUNTER_END_BAD,         /* says the worker */
    SHUNTER_END_LATE,
    SHUNTER_END_REFUSED,
    SHUNTER_END_FULL,        /* so many wait already, says its text */
    SHUNTER_END_NO_WORKER,
    SHUNTER_END_FAILED,
    SHUNTER_END_DIED,
    SHUNTER_END_DIED_ONCE,   /* it must not run twice */
    SHUNTER_END_SLOW,        /* its parts were not taken as fast as others of its batch */
    SHUNTER_END_DIED_STREAM, /* of its answer, parts may have gone */
    SHUNTER_END_CANCELLED,
    SHUNTER_ENDS,
};

/* Inputs by such names are the server's word on a sequence, where a request does not have them. */
enum shunter_sequence_input {
    SHUNTER_NO_SEQUENCE, SHUNTER_SEQUENCE_ID, SHUNTER_SEQUENCE_START, SHUNTER_SEQUENCE_END
};
#define SHUNTER_SEQUENCE_INPUTS 3

struct shunter_model;
struct shunter_function;
struct shunter_streams; /* streams.h */

/* A request of Triton's: one or more rows, each of which is an entry of the queue; where requests are
 * batches for workers, too, all rows are one. */
struct shunter_call {
    TRITONBACKEND_Request *request;
    struct shunter_model *model;
    struct shunter_call *next; /* of one list */
    int32_t first;             /* its entries, by ``next_row``; -1: it has none yet */
    uint32_t rows;             /* as the client counts */
    uint32_t entries, left;    /* left: that have not ended */
    uint64_t *runs;            /* packed: a row of packed_run.h for each entry */
    uint8_t class;
    bool has_batch; /* its tensors begin with the number of rows */
    bool idempotent;
    bool once;      /* it runs at most once, whatever happens to its worker */
    bool is_over, is_broken; /* streamed, the thread's: its end was sent; a part could not be */
    bool withdraws; /* it has failed: its rows that wait wait no more */
    enum shunter_end end;
    uint64_t sequence[SHUNTER_SEQUENCE_INPUTS]; /* its id, whether it begins, whether it ends */
    uint64_t came_ns, began_ns, done_ns, deadline_ns;
    char said[200];
};

struct shunter_calls {
    struct shunter_call *first, *last;
};

struct shunter_row {
    struct shunter_call *call;
    int32_t next;
    bool tried; /* its worker died once */
    uint16_t pieces; /* of its input */
    uint64_t batch;
};

/* The tensors of a packed function's requests, or of its answers. */
struct shunter_form {
    struct shunter_packed packed;
    uint32_t item[SHUNTER_MAX_TENSORS], ndim[SHUNTER_MAX_TENSORS];
    int64_t shape[SHUNTER_MAX_TENSORS * SHUNTER_CONTROL_DIMS];
};

struct shunter_function {
    struct shunter_backend *backend;
    struct shunter_function *next;
    char model[256];
    uint64_t version;
    pthread_mutex_t lock;
    pthread_cond_t came; /* a worker */
    uint32_t loaded;     /* by the server: more than once while it reloads */
    int bell, timer;
    struct shunter_source bell_source, timer_source;
    uint64_t armed_ns; /* when the timer rings */
    /* its queue; ``served`` is NULL until the host has brought it */
    struct shunter_served *served;
    struct control_function told;
    struct shunter_form requests, answers;
    uint8_t sequence[SHUNTER_MAX_TENSORS]; /* enum shunter_sequence_input, of its inputs */
    bool asks_for_sequence;
    _Atomic uint32_t most_rows; /* of a request that is a batch: one worker takes them at least */
    struct shunter_queue queue;
    struct shunter_policy policy;
    struct shunter_counts counts;
    struct shunter_landing landing;
    struct shunter_slot slot;
    size_t mapped[SHUNTER_FUNCTION_FDS + SHUNTER_MAX_TENSORS];
    int descriptors[SHUNTER_FUNCTION_FDS + SHUNTER_MAX_TENSORS];
    struct shunter_row *rows; /* by entry */
    struct shunter_streams *streams; /* NULL: answers are whole */
    int32_t *free;            /* entries */
    uint32_t free_count;
    struct shunter_calls backlog[SHUNTER_CLASSES]; /* that have no entries yet */
    uint64_t capacity;         /* entries that may wait; 0: any number */
    uint32_t coming;           /* entries of calls that do not wait in the dispatcher yet */
    uint32_t calls;            /* that have come and are not answered */
    struct shunter_calls done; /* that are to be answered */
    bool withdraws;            /* a call does */
    struct shunter_attached workers[SHUNTER_WORKER_COUNT];
    uint32_t worker_count;
    uint64_t alone_ns; /* since when requests wait without a worker that is there or coming; 0: none does */
    struct shunter_function_hold hold;
    /* of its newest worker; who reads a request has no lock */
    _Atomic uint8_t class;
    _Atomic bool once; /* what requests do that do not say whether they may run twice */
    _Atomic uint64_t slo_ns, client_timeout_ns;
    _Atomic uint64_t claims;  /* SHUNTER_CLAIMS_...: who may say that he is strict; 0: nobody judges */
    uint64_t strict_key[4];   /* under the lock */
    uint64_t generation;      /* of whose batches it knows the latency */
    bool yields;              /* its workers stand still for strict work of others */
    uint64_t hold_changes;    /* as they were seen last */
    uint64_t looked_ns, unused_ns; /* after its workers; since when nobody uses its queue, 0: one does */
};

/* A model that Triton has loaded. */
struct shunter_model {
    struct shunter_function *function;
    pthread_mutex_t lock;
    TRITONBACKEND_ModelInstance *instance; /* whose statistics are told; NULL: none */
};

struct shunter_backend {
    struct shunter_sets *sets; /* of workers */
    pthread_mutex_t lock; /* of the list, and of what is held */
    struct shunter_hold_line line;
    void *page; /* of it; NULL: none */
    struct shunter_function *functions;
    uint32_t function_count;
    pthread_t thread;
    int epoll, stop, listener, nowhere;
    struct shunter_source stop_source, listener_source;
    struct {
        struct shunter_source source;
        int connection; /* -1: none */
        bool greeted;
        struct shunter_states *states; /* that it is told; NULL: none */
    } hosts[SHUNTER_SOURCES];
    char path[100];
    uint64_t wait_ns; /* a model that is loaded waits so long for its first worker */
};

uint64_t shunter_now_ns(void);
void shunter_log(int level, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* ---- functions (functions.c): by name; never removed while the backend is there */

struct shunter_function *shunter_function_of(
    struct shunter_backend *backend, const char *model, uint64_t version);
void shunter_function_free(struct shunter_function *function);
/* Both under its lock. It takes the descriptors if it takes the queue. Returns SHUNTER_SAID_... */
int shunter_function_gets_queue(
    struct shunter_function *function, const struct control_function *told, const int *descriptors,
    uint32_t count);
void shunter_function_drops_queue(struct shunter_function *function);

/* ---- requests (requests.c, terms.c): what stands in one. False: ``call`` says what is wrong */

/* Of a packed function, its runs are laid out, too. */
bool shunter_read_request(struct shunter_function *function, struct shunter_call *call);
/* Its class, its deadline, whether it may run twice. */
bool shunter_read_terms(struct shunter_function *function, struct shunter_call *call);
/* claims.c: whether a request that brings this secret, or NULL, may say by ``key`` that it is strict. */
bool shunter_may_claim(
    struct shunter_function *function, struct shunter_call *call, const char *key,
    const char *secret);
/* What its inputs are called is looked at once. */
void shunter_find_sequence_inputs(
    struct shunter_function *function, const struct control_function *told);
/* For who has such inputs. */
bool shunter_read_sequence(struct shunter_call *call);
/* Say so; false. */
bool shunter_wrong(struct shunter_call *call, enum shunter_end end, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* ---- inputs (inputs.c) */

/* Under the lock: room for all rows of a call; false when there is none now. */
bool shunter_reserve(struct shunter_function *function, struct shunter_call *call);
/* Without it: fill that room; false when the server does not give the bytes. */
bool shunter_fill(const struct shunter_function *function, struct shunter_call *call);
/* Under the lock: the rows are free again. */
void shunter_give_back(struct shunter_function *function, struct shunter_call *call);

/* An input that need not be there. */
static inline bool shunter_is_optional(const struct shunter_function *function, uint32_t tensor) {
    return tensor + function->told.optional >= function->told.inputs;
}

/* The buffers of an input, one behind the other. */
struct shunter_reader {
    TRITONBACKEND_Input *input;
    uint32_t next, count; /* behind the last one the server says that there is an empty one */
    const uint8_t *at;
    uint64_t left;
    const uint8_t *repeats; /* there is none, but these bytes in each row */
    uint32_t repeats_bytes;
    bool missing; /* a text that need not be there: it is empty, and so are its lengths */
};

/* False when there is no such input. */
bool shunter_open_input(
    const struct shunter_function *function, const struct shunter_call *call, uint32_t tensor,
    struct shunter_reader *reader);
/* The next bytes; ``into`` NULL: pass over them. False when there are not so many. */
bool shunter_read_bytes(struct shunter_reader *reader, uint8_t *into, uint64_t size);

/* Rows of an entry. */
static inline uint32_t shunter_rows_each(
    const struct shunter_function *function, const struct shunter_call *call) {
    return function->told.batched ? call->rows : 1;
}

/* ---- limits (limits.c) */

/* Under the lock: this one may wait; a strict one in place of the youngest best-effort one, where as
 * many wait as may. False: it is answered so. */
bool shunter_may_wait(struct shunter_function *function, struct shunter_call *call);

/* ---- serving (serving.c) */

/* New requests, which are taken. */
void shunter_submit(struct shunter_model *of, TRITONBACKEND_Request **requests, uint32_t count);
/* Something has happened: take it in, send what can be sent. */
void shunter_go_on(struct shunter_function *function);
/* From time to time: cancelled requests, and those whose workers are gone (lookout.c). */
void shunter_look_after(struct shunter_function *function, uint64_t now_ns);

/* ---- rows (rows.c), under the lock */

extern const struct shunter_owner shunter_owner_is_function;
/* A row has ended. With the last one the request has. */
void shunter_end_row(
    struct shunter_function *function, uint32_t entry, enum shunter_end end, uint64_t now_ns);

static inline void shunter_append(struct shunter_calls *calls, struct shunter_call *call) {
    call->next = NULL;
    *(calls->last ? &calls->last->next : &calls->first) = call;
    calls->last = call;
}

/* ---- answers (answers.c), without any lock */

/* Where the server wants so many bytes of an output. ``shape``: with the rows, if the call has them. */
TRITONSERVER_Error *shunter_output_room(
    const struct shunter_function *function, const struct shunter_call *call,
    TRITONBACKEND_Response *response, uint32_t number, const int64_t *shape, uint64_t bytes,
    uint8_t **room);

/* A response: the rows of the call, or how it has ended. False: an error was sent. */
bool shunter_respond(
    const struct shunter_function *function, const struct shunter_call *call, uint32_t flags);
/* Answer a request and let go of it. The call stays. */
void shunter_answer(const struct shunter_function *function, struct shunter_call *call);
/* Tell the server of the batches whose last request is among these. */
void shunter_tell_batches(const struct shunter_function *function, struct shunter_calls calls);

/* ---- the host (control.c), and the thread (events.c) */

/* 0, or a negative errno. */
int shunter_listen(struct shunter_backend *backend);
void shunter_accept_host(struct shunter_backend *backend);
void shunter_hear_host(struct shunter_backend *backend, uint32_t index);
int shunter_watch(struct shunter_backend *backend, int descriptor, struct shunter_source *source);
int shunter_start(struct shunter_backend *backend);
void shunter_stop(struct shunter_backend *backend);

#endif
