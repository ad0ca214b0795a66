/* Requests on their way: to the dispatcher, from batches to answers. */
#include <stdlib.h>
#include <string.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

#include "backend.h"

uint64_t shunter_now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000ULL + (uint64_t)now.tv_nsec;
}

/* ---- what the dispatcher says; under the lock */

static struct shunter_function *of(void *context) { return context; }

/* A row has ended. With the last one the request has. */
static void end_row(
    struct shunter_function *function, uint32_t entry, enum shunter_end end, uint64_t now_ns) {
    struct shunter_call *call = function->rows[entry].call;
    if (end != SHUNTER_END_OK && call->end == SHUNTER_END_OK) {
        call->end = end;
        call->withdraws = true;
        function->withdraws = true;
    }
    if (--call->left == 0) {
        call->done_ns = now_ns;
        shunter_append(&function->done, call);
    }
}

static bool running(void *context, uint32_t entry, uint64_t now_ns) {
    struct shunter_function *function = of(context);
    struct shunter_row *row = &function->rows[entry];
    row->batch = function->counts.batches;
    row->call->began_ns = row->call->began_ns ? row->call->began_ns : now_ns;
    const struct shunter_queue *queue = &function->queue;
    shunter_set(shunter_entry_word(queue, entry, SHUNTER_E_ENTRY_DIRECT), 0);
    shunter_set(
        shunter_entry_word(queue, entry, SHUNTER_E_ENTRY_FLAGS),
        row->call->idempotent ? SHUNTER_ENTRY_IDEMPOTENT : 0);
    return false;
}

static void finished(
    void *context, uint32_t entry, uint16_t status, bool sent, uint64_t now_ns) {
    (void)sent;
    const enum shunter_end end = status == SHUNTER_ENTRY_OK        ? SHUNTER_END_OK
                                 : status == SHUNTER_WOULD_BE_LATE ? SHUNTER_END_REFUSED
                                 : status == SHUNTER_NOBODY        ? SHUNTER_END_NO_WORKER
                                                                   : SHUNTER_END_FAILED;
    end_row(of(context), entry, end, now_ns);
}

static void wait_again(
    struct shunter_function *function, uint32_t entry, bool again, uint64_t now_ns) {
    const struct shunter_call *call = function->rows[entry].call;
    const struct shunter_arrival arrival = {
        .entry = entry,
        .class = call->class,
        .again = again,
        .returned = !again,
        .deadline_ns = call->deadline_ns};
    shunter_enqueue(function->served, &arrival, now_ns);
}

static void died(void *context, uint32_t entry, uint64_t now_ns) {
    struct shunter_function *function = of(context);
    struct shunter_row *row = &function->rows[entry];
    if (row->tried || row->call->end != SHUNTER_END_OK) {
        end_row(function, entry, SHUNTER_END_DIED, now_ns);
    } else {
        row->tried = true;
        wait_again(function, entry, true, now_ns);
    }
}

static void returned(void *context, uint32_t entry, uint64_t now_ns) {
    struct shunter_function *function = of(context);
    if (function->rows[entry].call->end != SHUNTER_END_OK) {
        end_row(function, entry, SHUNTER_END_FAILED, now_ns);
    } else {
        wait_again(function, entry, false, now_ns);
    }
}

static void expired(void *context, uint32_t entry, uint64_t now_ns) {
    end_row(of(context), entry, SHUNTER_END_LATE, now_ns);
}

const struct shunter_owner shunter_owner_is_function = {
    .running = running,
    .finished = finished,
    .died = died,
    .returned = returned,
    .expired = expired,
};

/* ---- decisions; under the lock */

static void arm(struct shunter_function *function, uint64_t next_ns) {
    if (next_ns >= function->armed_ns) {
        return; // it rings earlier
    }
    const struct itimerspec at = {
        .it_value = {
            (time_t)(next_ns / 1000000000), (long)(next_ns % 1000000000) + !next_ns}};
    function->armed_ns = next_ns;
    timerfd_settime(function->timer, TFD_TIMER_ABSTIME, &at, NULL);
}

/* The rows of failed requests do not wait any more; nobody wants their results. */
static void withdraw(struct shunter_function *function, uint64_t now_ns) {
    function->withdraws = false;
    for (uint32_t entry = 0; entry < function->queue.entries; entry++) {
        const struct shunter_row *row = &function->rows[entry];
        const struct shunter_waiting *waiting = &function->served->waiting[entry];
        if (row->call && row->call->withdraws && row->call->left &&
            waiting->class >= 0 && waiting->class < SHUNTER_CLASSES) {
            shunter_withdraw(function->served, entry);
            end_row(function, entry, row->call->end, now_ns);
        }
    }
}

/* Take in what workers have answered and give away what can be given. That a batch was done before its
 * worker saw that this is to be told is found by looking once more. */
static void decide(struct shunter_function *function) {
    do {
        const uint64_t now_ns = shunter_now_ns();
        shunter_collect(function->served, now_ns);
        const uint64_t next_ns = shunter_dispatch(function->served, now_ns);
        if (function->withdraws) {
            withdraw(function, now_ns);
        }
        if (next_ns != SHUNTER_NEVER) {
            arm(function, next_ns);
        }
    } while (function->served->in_flight &&
             shunter_collect(function->served, shunter_now_ns()));
}

static void enqueue(struct shunter_function *function, struct shunter_call *call) {
    const uint64_t now_ns = shunter_now_ns();
    for (int32_t at = call->first; at >= 0; at = function->rows[at].next) {
        const struct shunter_arrival arrival = {
            .entry = (uint32_t)at, .class = call->class, .deadline_ns = call->deadline_ns};
        shunter_enqueue(function->served, &arrival, now_ns);
    }
}

/* Requests that have got room are filled without the lock, and wait then. */
static void fill_all(struct shunter_function *function, struct shunter_calls calls) {
    struct shunter_calls filled = {0};
    pthread_mutex_unlock(&function->lock);
    for (struct shunter_call *call = calls.first, *next; call; call = next) {
        next = call->next;
        if (!shunter_fill(function, call)) {
            strcpy(call->said, "an input could not be read");
            call->end = SHUNTER_END_WRONG;
        }
        shunter_append(&filled, call);
    }
    pthread_mutex_lock(&function->lock);
    for (struct shunter_call *call = filled.first, *next; call; call = next) {
        next = call->next;
        if (call->end == SHUNTER_END_OK) {
            enqueue(function, call);
        } else {
            shunter_append(&function->done, call);
        }
    }
}

/* Those that come next get room, strict ones first; whether any did. */
static bool make_room(struct shunter_function *function) {
    struct shunter_calls ready = {0};
    for (int class = 0; class < SHUNTER_CLASSES; class ++) {
        struct shunter_calls *backlog = &function->backlog[class];
        while (backlog->first && shunter_reserve(function, backlog->first)) {
            struct shunter_call *call = backlog->first;
            backlog->first = call->next;
            backlog->last = backlog->first ? backlog->last : NULL;
            shunter_append(&ready, call);
        }
    }
    if (ready.first) {
        fill_all(function, ready);
    }
    return ready.first != NULL;
}

/* ---- requests come */

/* True: it may wait. Else it says why not. */
static bool begin(
    struct shunter_function *function, struct shunter_call *call, bool is_served) {
    bool is_cancelled = false;
    TRITONSERVER_Error *error = TRITONBACKEND_RequestIsCancelled(call->request, &is_cancelled);
    if (error) {
        TRITONSERVER_ErrorDelete(error);
    }
    if (is_cancelled || !is_served) {
        call->end = is_cancelled ? SHUNTER_END_CANCELLED : SHUNTER_END_NO_WORKER;
        return false;
    }
    return shunter_read_request(function, call);
}

void shunter_submit(
    struct shunter_model *model, TRITONBACKEND_Request **requests, uint32_t count) {
    struct shunter_function *function = model->function;
    struct shunter_calls good = {0}, bad = {0};
    pthread_mutex_lock(&function->lock);
    const bool is_served = function->served != NULL;
    function->calls += count;
    pthread_mutex_unlock(&function->lock);
    for (uint32_t i = 0; i < count; i++) {
        struct shunter_call *call = calloc(1, sizeof *call);
        if (!call) {
            abort(); // as the server itself does without memory
        }
        call->request = requests[i];
        call->model = model;
        call->first = -1;
        call->came_ns = shunter_now_ns();
        shunter_append(begin(function, call, is_served) ? &good : &bad, call);
    }
    pthread_mutex_lock(&function->lock);
    for (struct shunter_call *call = bad.first, *next; call; call = next) {
        next = call->next;
        shunter_append(&function->done, call);
    }
    for (struct shunter_call *call = good.first, *next; call; call = next) {
        next = call->next;
        shunter_append(&function->backlog[call->class], call);
    }
    if (is_served) {
        make_room(function);
        decide(function);
    }
    const uint64_t ring = 1;
    if (function->done.first && write(function->bell, &ring, sizeof ring) < 0) {
        abort(); // an eventfd takes 2^64 of them
    }
    pthread_mutex_unlock(&function->lock);
}

/* ---- answers leave */

/* Batches whose last request is among these are told of. */
static void tell_batches(const struct shunter_function *function, struct shunter_calls calls) {
    const struct shunter_call *of_batch = NULL;
    uint64_t batch = 0;
    uint32_t size = 0;
    for (const struct shunter_call *call = calls.first; call; call = call->next) {
        for (int32_t at = call->end == SHUNTER_END_OK ? call->first : -1; at >= 0;
             at = function->rows[at].next) {
            if (of_batch && function->rows[at].batch != batch) {
                shunter_tell_batch(of_batch, size);
                size = 0;
            }
            batch = function->rows[at].batch;
            of_batch = call;
            size++;
        }
    }
    if (of_batch) {
        shunter_tell_batch(of_batch, size);
    }
}

void shunter_go_on(struct shunter_function *function) {
    pthread_mutex_lock(&function->lock);
    for (;;) {
        if (function->served) {
            decide(function);
        }
        const struct shunter_calls done = function->done;
        function->done = (struct shunter_calls){0};
        if (!done.first) {
            break;
        }
        pthread_mutex_unlock(&function->lock);
        tell_batches(function, done);
        for (struct shunter_call *call = done.first; call; call = call->next) {
            shunter_answer(function, call);
        }
        pthread_mutex_lock(&function->lock);
        for (struct shunter_call *call = done.first, *next; call; call = next) {
            next = call->next;
            shunter_give_back(function, call);
            free(call);
            function->calls--;
        }
        if (function->served) {
            make_room(function);
        }
    }
    pthread_mutex_unlock(&function->lock);
}

/* ---- from time to time; under the lock */

static bool is_cancelled(const struct shunter_call *call) {
    bool is = false;
    TRITONSERVER_Error *error = TRITONBACKEND_RequestIsCancelled(call->request, &is);
    if (error) {
        TRITONSERVER_ErrorDelete(error);
    }
    return is;
}

/* Those that have no room yet may be too late, cancelled, or waiting for nobody. */
static void look_through_backlog(
    struct shunter_function *function, bool is_unserved, uint64_t now_ns) {
    for (int class = 0; class < SHUNTER_CLASSES; class ++) {
        const struct shunter_calls before = function->backlog[class];
        function->backlog[class] = (struct shunter_calls){0};
        for (struct shunter_call *call = before.first, *next; call; call = next) {
            next = call->next;
            call->end = is_cancelled(call) ? SHUNTER_END_CANCELLED
                        : call->deadline_ns && now_ns >= call->deadline_ns ? SHUNTER_END_LATE
                        : is_unserved                                      ? SHUNTER_END_NO_WORKER
                                                                           : SHUNTER_END_OK;
            const bool stays = call->end == SHUNTER_END_OK;
            shunter_append(stays ? &function->backlog[class] : &function->done, call);
        }
    }
}

static void look_for_cancelled(struct shunter_function *function) {
    const struct shunter_served *served = function->served;
    for (uint32_t entry = 0; served->lists[0].count + served->lists[1].count &&
                             entry < function->queue.entries; entry++) {
        struct shunter_call *call = function->rows[entry].call;
        const bool waits = served->waiting[entry].class >= 0;
        if (call && waits && call->end == SHUNTER_END_OK && is_cancelled(call)) {
            call->end = SHUNTER_END_CANCELLED;
            call->withdraws = function->withdraws = true;
        }
    }
}

void shunter_look_after(struct shunter_function *function, uint64_t now_ns) {
    pthread_mutex_lock(&function->lock);
    if (function->served) {
        const bool waits = function->served->lists[0].count || function->served->lists[1].count ||
                           function->backlog[0].first || function->backlog[1].first;
        if (!waits || function->worker_count) {
            function->alone_ns = 0;
        } else if (!function->alone_ns) {
            function->alone_ns = now_ns;
        }
        const bool is_unserved =
            function->alone_ns && now_ns - function->alone_ns >= SHUNTER_UNSERVED_NS;
        if (waits) {
            look_for_cancelled(function);
            look_through_backlog(function, is_unserved, now_ns);
        }
        if (is_unserved) {
            shunter_fail_waiting(function->served, SHUNTER_NOBODY, now_ns);
        }
        shunter_look_after_workers(function, now_ns);
    }
    pthread_mutex_unlock(&function->lock);
    shunter_go_on(function);
}
