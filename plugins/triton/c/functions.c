/* Functions: found by model and version, and their shared memory, which the host has made. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "packed_calls.h"
#include "streams.h"

/* Descriptors of a function, in this order, and the rings of its results behind them. */
enum { PAGE, PIECES, PIECES_READER, LANDING, LANDING_READER, RINGS };

static struct shunter_function *new_function(
    struct shunter_backend *backend, const char *model, uint64_t version) {
    struct shunter_function *function = calloc(1, sizeof *function);
    if (!function) {
        return NULL;
    }
    snprintf(function->model, sizeof function->model, "%s", model);
    function->version = version;
    function->backend = backend;
    function->armed_ns = SHUNTER_NEVER;
    function->slot.block = SHUNTER_NO_BLOCK;
    function->hold.slot = -1;
    pthread_mutex_init(&function->lock, NULL);
    pthread_condattr_t clock;
    pthread_condattr_init(&clock);
    pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    pthread_cond_init(&function->came, &clock);
    pthread_condattr_destroy(&clock);
    for (uint32_t i = 0; i < SHUNTER_WORKER_COUNT; i++) {
        function->workers[i].connection = -1;
        function->workers[i].source =
            (struct shunter_source){.kind = SHUNTER_WORKER, .function = function, .index = i};
    }
    function->policy = (struct shunter_policy){
        .alpha = 0.5, .threshold_cap = 1e9, .margin_ns = 2000000, .ageing_ns = 1000000000,
        .ahead = 1}; // until the host says another: the numbers of every path
    function->bell_source = (struct shunter_source){.kind = SHUNTER_BELL, .function = function};
    function->timer_source = (struct shunter_source){.kind = SHUNTER_TIMER, .function = function};
    function->bell = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    function->timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
    if (shunter_watch(backend, function->bell, &function->bell_source) ||
        shunter_watch(backend, function->timer, &function->timer_source)) {
        shunter_function_free(function);
        return NULL;
    }
    return function;
}

struct shunter_function *shunter_function_of(
    struct shunter_backend *backend, const char *model, uint64_t version) {
    pthread_mutex_lock(&backend->lock);
    struct shunter_function *found = backend->functions;
    while (found && (found->version != version || strcmp(found->model, model))) {
        found = found->next;
    }
    if (!found && (found = new_function(backend, model, version))) {
        found->next = backend->functions;
        backend->functions = found;
        backend->function_count++;
    }
    pthread_mutex_unlock(&backend->lock);
    return found;
}

/* ---- shared memory */

static uint8_t **mapping_of(struct shunter_function *function, uint32_t number) {
    struct shunter_queue *queue = &function->queue;
    return number == PAGE      ? &queue->page
           : number == PIECES  ? (uint8_t **)&queue->pieces
           : number == LANDING ? &function->landing.base
           : number >= RINGS   ? &queue->outputs[number - RINGS]
                               : NULL;
}

/* Of one without workers and calls: the next worker brings a new one. */
void shunter_function_drops_queue(struct shunter_function *function) {
    shunter_served_free(function->served);
    function->served = NULL;
    uint8_t *base = function->landing.base;
    shunter_landing_free(&function->landing);
    function->landing.base = base;
    for (uint32_t i = 0; i < RINGS + SHUNTER_MAX_TENSORS; i++) {
        if (function->mapped[i]) {
            munmap(*mapping_of(function, i), function->mapped[i]);
            function->mapped[i] = 0;
        }
        if (function->descriptors[i] > 0) {
            close(function->descriptors[i]);
            function->descriptors[i] = 0;
        }
    }
    shunter_streams_free(function->streams);
    function->streams = NULL;
    free(function->rows);
    free(function->free);
    function->rows = NULL;
    function->free = NULL;
    function->free_count = 0;
    function->queue = (struct shunter_queue){0};
    function->slot = (struct shunter_slot){.block = SHUNTER_NO_BLOCK};
}

void shunter_function_free(struct shunter_function *function) {
    for (uint32_t i = 0; i < SHUNTER_WORKER_COUNT; i++) {
        struct shunter_attached *worker = &function->workers[i];
        if (worker->connection >= 0) {
            close(worker->connection);
            close(worker->doorbell);
            close(worker->process);
        }
    }
    shunter_function_drops_queue(function);
    close(function->bell);
    close(function->timer);
    pthread_cond_destroy(&function->came);
    pthread_mutex_destroy(&function->lock);
    free(function);
}

/* The host is of this library's version, and so is what it made; that it is whole is looked at, since
 * what is missing would end the server. */
static bool is_right(const struct control_function *told, uint32_t count) {
    bool is = told->inputs >= 1 && told->inputs <= SHUNTER_MAX_TENSORS && told->outputs >= 1 &&
              told->outputs <= SHUNTER_MAX_TENSORS && told->entries >= 1 &&
              told->entries <= SHUNTER_MAX_ENTRIES && told->pieces >= 1 &&
              told->pieces < UINT16_MAX &&
              count == RINGS + (told->packed ? 1 : told->outputs) &&
              (!told->batched || told->packed) &&
              (!told->streamed ||
               (told->packed && told->entries > SHUNTER_STREAM_PLACES)) &&
              told->request_bytes <= SHUNTER_PACKED_MOST &&
              told->answer_bytes <= SHUNTER_PACKED_MOST &&
              told->landing_blocks * SHUNTER_BLOCK <= told->landing_bytes &&
              told->landing_bytes / SHUNTER_BLOCK <= INT32_MAX;
    for (uint32_t i = 0; is && i < 2 * SHUNTER_MAX_TENSORS; i++) {
        is = told->dims[i] <= SHUNTER_CONTROL_DIMS && told->bytes[i] <= UINT32_MAX / 2 &&
             memchr(told->names + 64 * i, 0, 64);
    }
    uint64_t pieces = (told->request_bytes + SHUNTER_BLOCK - 1) / SHUNTER_BLOCK;
    for (uint32_t i = 0; is && !told->packed && i < told->inputs; i++) {
        pieces += (told->bytes[i] + SHUNTER_BLOCK - 1) / SHUNTER_BLOCK;
    }
    return is && pieces <= told->pieces && memchr(told->library, 0, sizeof told->library);
}

static uint64_t size_of(const struct control_function *told, uint32_t number) {
    return number == PAGE
               ? SHUNTER_QUEUE_ENTRIES_OFFSET + told->entries * SHUNTER_ENTRY_SIZE
           : number == PIECES  ? told->entries * told->pieces * sizeof(struct shunter_piece)
           : number == LANDING ? told->landing_blocks * SHUNTER_BLOCK
                           : told->packed      ? told->entries * told->answer_bytes
                               : told->entries * told->bytes[SHUNTER_MAX_TENSORS + number - RINGS];
}

static bool map_one(
    struct shunter_function *function, const struct control_function *told, int descriptor,
    uint32_t number) {
    uint8_t **at = mapping_of(function, number);
    const uint64_t size = at ? size_of(told, number) : 0;
    struct stat found;
    if (size) {
        if (fstat(descriptor, &found) || (uint64_t)found.st_size < size) {
            return false;
        }
        void *mapped = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
        if (mapped == MAP_FAILED) {
            return false;
        }
        *at = mapped;
        function->mapped[number] = size;
    }
    return true;
}

/* As its workers see it: of a packed one requests have one tensor, and answers. */
static void set_sizes(struct shunter_queue *queue, const struct control_function *told) {
    queue->entries = (uint32_t)told->entries;
    queue->most_pieces = (uint32_t)told->pieces;
    queue->input_count = told->packed ? 1 : (uint32_t)told->inputs;
    queue->output_count = told->packed ? 1 : (uint32_t)told->outputs;
    for (uint32_t i = 0; i < SHUNTER_MAX_TENSORS; i++) {
        queue->input_bytes[i] = (uint32_t)told->bytes[i];
        queue->output_bytes[i] = (uint32_t)told->bytes[SHUNTER_MAX_TENSORS + i];
    }
    if (told->packed) {
        queue->input_bytes[0] = (uint32_t)told->request_bytes;
        queue->output_bytes[0] = (uint32_t)told->answer_bytes;
    }
}

static bool make_tables(struct shunter_function *function, const struct control_function *told) {
    struct shunter_queue *queue = &function->queue;
    uint8_t *base = function->landing.base;
    set_sizes(queue, told);
    shunter_make_forms(function, told);
    shunter_find_sequence_inputs(function, told);
    function->rows = calloc(queue->entries, sizeof *function->rows);
    function->free = calloc(queue->entries, sizeof *function->free);
    const struct shunter_owner owner = shunter_owner_is_function;
    struct shunter_owner of_this = owner;
    of_this.context = function;
    function->served = shunter_served_new(queue, &function->policy, &of_this, &function->counts);
    const int error =
        shunter_landing_init(&function->landing, base, (uint32_t)told->landing_blocks);
    function->landing.base = base;
    function->streams = told->streamed ? shunter_streams_new(queue->entries) : NULL;
    if (!function->rows || !function->free || !function->served || error ||
        (told->streamed && !function->streams)) {
        return false;
    }
    function->served->streamed = told->streamed;
    shunter_landing_grow(&function->landing, (uint32_t)told->landing_blocks);
    for (uint32_t i = queue->entries; i > 0; i--) {
        function->free[function->free_count++] = (int32_t)(i - 1);
    }
    return true;
}

int shunter_function_gets_queue(
    struct shunter_function *function, const struct control_function *told, const int *descriptors,
    uint32_t count) {
    if (!is_right(told, count)) {
        return SHUNTER_SAID_WRONG;
    }
    if (function->served && (function->worker_count || function->calls)) {
        return SHUNTER_SAID_OTHER_TENSORS;
    }
    shunter_function_drops_queue(function);
    bool is_mapped = true;
    for (uint32_t i = 0; i < count && is_mapped; i++) {
        is_mapped = map_one(function, told, descriptors[i], i);
    }
    if (!is_mapped ||
        shunter_get(shunter_word(function->queue.page, SHUNTER_Q_QUEUE_MAGIC)) !=
            SHUNTER_QUEUE_MAGIC ||
        !make_tables(function, told)) {
        shunter_function_drops_queue(function);
        return SHUNTER_SAID_WRONG;
    }
    memcpy(function->descriptors, descriptors, count * sizeof *descriptors);
    function->told = *told;
    function->looked_ns = shunter_now_ns(); // this process may be stopped before it looks at all
    // The thread may sleep at any time: workers always ring, and it has to look only once.
    shunter_set(shunter_front_end_word(&function->queue, SHUNTER_Q_FRONT_END_ASLEEP), 1);
    shunter_set(
        shunter_front_end_word(&function->queue, SHUNTER_Q_FRONT_END_PID), (uint64_t)getpid());
    return SHUNTER_SAID_DONE;
}
