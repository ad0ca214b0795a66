/* Emitted by python -m shunter.plugins.triton.emit. Do not edit. */
#ifndef SHUNTER_CONTROL_LAYOUT_H
#define SHUNTER_CONTROL_LAYOUT_H

#include <stdint.h>

#define SHUNTER_CONTROL_MAGIC 0x545245544e554853ULL /* 'SHUNTERT', little-endian */
#define SHUNTER_CONTROL_DIGEST 0x878be4488742dbeULL /* of all messages */
#define SHUNTER_STREAM_PLACES 3 /* for parts of an answer, of each request */
#define SHUNTER_CLAIMS_UNREAD 4 /* beside those of the page */
#define SHUNTER_CONTROL_DIMS 8 /* most of a tensor */
#define SHUNTER_KIND_HELLO 1 /* of a message */
#define SHUNTER_KIND_FUNCTION 2 /* of a message */
#define SHUNTER_KIND_WORKER 3 /* of a message */
#define SHUNTER_KIND_DRAIN 4 /* of a message */
#define SHUNTER_KIND_POLICY 5 /* of a message */
#define SHUNTER_KIND_LIST 6 /* of a message */
#define SHUNTER_KIND_PAGE 7 /* of a message */
#define SHUNTER_KIND_EXPECT 8 /* of a message */
#define SHUNTER_SAID_DONE 0 /* of a reply */
#define SHUNTER_SAID_NO_FUNCTION 1 /* of a reply */
#define SHUNTER_SAID_OTHER_TENSORS 2 /* of a reply */
#define SHUNTER_SAID_NO_ROOM 3 /* of a reply */
#define SHUNTER_SAID_WRONG 4 /* of a reply */
#define SHUNTER_SAID_NO_WORKER 5 /* of a reply */
#define SHUNTER_PAGE_PARAMETER "SHUNTER_PAGE" /* of a model */

struct control_hello {
    uint64_t kind; /* KIND_HELLO */
    uint64_t magic; /* CONTROL_MAGIC */
    uint64_t digest; /* CONTROL_DIGEST of who says it */
    uint64_t queue_digest; /* LAYOUT_DIGEST of who says it */
};
_Static_assert(sizeof(struct control_hello) == 32, "hello");

struct control_reply {
    uint64_t said; /* SAID_... */
    uint64_t number; /* index of the worker; functions that follow a list */
    uint64_t pid; /* of the server */
};
_Static_assert(sizeof(struct control_reply) == 24, "reply");

struct control_function {
    uint64_t kind; /* KIND_... */
    char model[256]; /* its name */
    uint64_t version; /* of the model */
    uint64_t tensors_digest; /* the same for all workers of a function */
    uint64_t inputs; /* tensors of a request */
    uint64_t outputs; /* tensors of an answer */
    uint64_t entries; /* of its queue */
    uint64_t pieces; /* most of an entry */
    uint64_t landing_bytes; /* that the pool can ever have */
    uint64_t landing_blocks; /* that it has */
    uint64_t dtype[128]; /* of each tensor, as the server counts types */
    uint64_t dims[128]; /* of each tensor, without the batch */
    int64_t shape[1024]; /* of each tensor */
    uint64_t bytes[128]; /* of each tensor; packed: of an element, 0: a text */
    char names[8192]; /* of each tensor, 64 bytes */
    char library[512]; /* for its workers */
    uint64_t packed; /* 1: requests and answers are runs of bytes */
    uint64_t batched; /* packed; 1: a request is a batch for its worker, too */
    uint64_t request_bytes; /* packed: most */
    uint64_t answer_bytes; /* packed: most */
    uint64_t streamed; /* packed; 1: an answer comes in parts, each such a run */
    uint64_t optional; /* packed: so many of the last inputs may be missing */
};
_Static_assert(sizeof(struct control_function) == 20344, "function");

struct control_worker {
    uint64_t kind; /* KIND_... */
    char model[256]; /* its name */
    uint64_t version; /* of the model */
    uint64_t tensors_digest; /* see function */
    uint64_t cap; /* largest batch */
    uint64_t timeout_ns; /* a batch may run so long; 0: as long as it wants */
    uint64_t class; /* of requests that name none */
    uint64_t slo_ns; /* deadline of strict requests that have none; 0: none */
    uint64_t client_timeout_ns; /* latest deadline of all; 0: none */
    int64_t slot; /* of the model on the control page, -1: none */
    int64_t slices[9]; /* where its strict requests run */
    uint64_t once; /* 1: a request whose worker died does not run again, unless it may */
    uint64_t pool; /* the process that it shares with other models, 0: it has its own */
    int64_t place[9]; /* where it runs, 0: that is not known */
};
_Static_assert(sizeof(struct control_worker) == 488, "worker");

struct control_drain {
    uint64_t kind; /* KIND_... */
    char model[256]; /* its name */
    uint64_t version; /* of the model */
    uint64_t pid; /* of the worker */
};
_Static_assert(sizeof(struct control_drain) == 280, "drain");

struct control_expect {
    uint64_t kind; /* KIND_... */
    char model[256]; /* its name */
    uint64_t version; /* of the model */
};
_Static_assert(sizeof(struct control_expect) == 272, "expect");

struct control_policy {
    uint64_t kind; /* KIND_... */
    char model[256]; /* its name */
    uint64_t version; /* of the model */
    double threshold; /* batching/c/policy.h */
    double alpha; /* batching/c/policy.h */
    double cap; /* batching/c/policy.h */
    uint64_t max_wait_ns; /* batching/c/policy.h */
    uint64_t margin_ns; /* batching/c/policy.h */
    uint64_t ageing_ns; /* batching/c/policy.h */
    uint64_t fixed_ns; /* batching/c/policy.h */
    uint64_t per_request_ns; /* batching/c/policy.h */
    uint64_t slo_ns; /* batching/c/policy.h */
    uint64_t ahead; /* batching/c/policy.h */
    uint64_t mixes; /* batching/c/policy.h */
    uint64_t admission; /* batching/c/policy.h */
    uint64_t capacity; /* requests that may wait; 0: any number */
    uint64_t generation; /* of its workers: of others, nothing is known of latency */
    uint64_t claims; /* which requests may say that they are strict, CLAIMS_... */
    int64_t strict_key[4]; /* SHA-256 of the secret that such claims need */
};
_Static_assert(sizeof(struct control_policy) == 424, "policy");

struct control_list {
    uint64_t kind; /* KIND_LIST */
};
_Static_assert(sizeof(struct control_list) == 8, "list");

struct control_state {
    char model[256]; /* its name */
    uint64_t version; /* of the model */
    uint64_t loaded; /* by the server now: so many times */
    uint64_t entries; /* of its queue, 0: it has none yet */
    uint64_t free; /* of these */
    uint64_t queued; /* requests that wait */
    uint64_t workers; /* that are attached */
    uint64_t pids[64]; /* of these */
    uint64_t busy_ns[64]; /* how long each has run its oldest batch */
    uint64_t batches; /* given to workers */
    uint64_t requests; /* rows that came */
    uint64_t answered; /* of these */
    uint64_t failed; /* of these */
    uint64_t expired; /* of these */
    uint64_t rejected; /* of these */
    uint64_t abandoned; /* of these */
    uint64_t waiting[2]; /* requests that wait, by class */
    uint64_t oldest_ns[2]; /* when the oldest of these came, 0: none waits */
    uint64_t running; /* requests that workers have */
    uint64_t running_batches; /* of these */
    double threshold; /* requests that are worth a batch, now */
    uint64_t fixed_ns; /* a batch of n takes fixed + n * per_request */
    uint64_t per_request_ns; /* see fixed_ns */
    uint64_t error_ns; /* mean of the errors of that */
    uint64_t fitted; /* batches that it was learnt from; 0: it is not known */
    uint64_t telemetry[73]; /* as on the control page */
    uint64_t service_ns[16]; /* of batches, by size */
    uint64_t strict_batches[16]; /* of strict requests, by size */
    uint64_t strict_batch_ns[16]; /* of these */
};
_Static_assert(sizeof(struct control_state) == 2440, "state");

struct control_page {
    uint64_t kind; /* KIND_PAGE */
};
_Static_assert(sizeof(struct control_page) == 8, "page");

struct control_strategy {
    uint64_t magic; /* CONTROL_MAGIC */
    uint64_t digest; /* CONTROL_DIGEST of who writes it */
    uint64_t sequence; /* odd while it is written */
    uint64_t until_ns; /* of CLOCK_MONOTONIC: the numbers hold so long */
    uint64_t cap; /* most rows of a batch, 0: as many as the server takes */
    uint64_t apart; /* 1: strict and best-effort requests in different batches */
    uint64_t class; /* of requests that name none */
    uint64_t slo_ns; /* deadline of strict requests that have none, 0: none */
    uint64_t fixed_ns; /* a batch of n rows takes fixed + n * per_row; both 0: unknown */
    uint64_t per_row_ns; /* see fixed_ns */
    uint64_t waited_ns; /* how long a request has usually waited when it is asked about */
};
_Static_assert(sizeof(struct control_strategy) == 88, "strategy");

#endif
