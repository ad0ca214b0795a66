/* Requests on their way: to the dispatcher, from batches to answers. */
#include <stdlib.h>
#include <string.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "streams.h"

#define MOST_ROUNDS 4 /* then others have their turn */

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
    if (!function->withdraws) {
        return;
    }
    function->withdraws = false;
    for (uint32_t entry = 0; entry < function->queue.entries; entry++) {
        const struct shunter_row *row = &function->rows[entry];
        const struct shunter_waiting *waiting = &function->served->waiting[entry];
        if (row->call && row->call->withdraws && row->call->left &&
            waiting->class >= 0 && waiting->class < SHUNTER_CLASSES) {
            shunter_withdraw(function->served, entry);
            shunter_end_row(function, entry, row->call->end, now_ns);
        }
    }
}

/* Since when a request has no entries yet; 0: all that wait have. */
static uint64_t outside_ns(const struct shunter_function *function) {
    uint64_t since_ns = 0;
    for (int class = 0; class < SHUNTER_CLASSES; class ++) {
        const struct shunter_call *first = function->backlog[class].first;
        since_ns = first && (!since_ns || first->came_ns < since_ns) ? first->came_ns : since_ns;
    }
    return since_ns;
}

/* What its workers run may stand still for strict work. */
static void see_holds(struct shunter_function *function, uint64_t now_ns) {
    if (function->yields) {
        const struct shunter_holds holds = shunter_holds_now(function->backend, now_ns);
        if (holds.any || holds.changes != function->hold_changes) {
            shunter_disturb(function->served);
        }
        function->hold_changes = holds.changes;
    }
}

/* Take in what workers have answered and give away what can be given. That a batch was done before its
 * worker saw that this is to be told is found by looking once more. */
static void decide(struct shunter_function *function) {
    do {
        const uint64_t now_ns = shunter_now_ns();
        see_holds(function, now_ns);
        shunter_collect(function->served, now_ns);
        withdraw(function, now_ns); // or a worker that is free now would run what is cancelled
        function->served->outside_ns = outside_ns(function);
        const uint64_t next_ns = shunter_dispatch(function->served, now_ns);
        see_holds(function, now_ns);
        withdraw(function, now_ns); // of what has just expired
        if (next_ns != SHUNTER_NEVER) {
            arm(function, next_ns);
        }
    } while (function->served->in_flight &&
             shunter_collect(function->served, shunter_now_ns()));
    shunter_show_hold(function, shunter_now_ns());
}

static void enqueue(struct shunter_function *function, struct shunter_call *call) {
    const uint64_t now_ns = shunter_now_ns();
    for (int32_t at = call->first; at >= 0; at = function->rows[at].next) {
        const struct shunter_arrival arrival = {
            .entry = (uint32_t)at,
            .class = call->class,
            .deadline_ns = call->deadline_ns,
            .rows = shunter_rows_each(function, call)};
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
        function->coming -= call->entries;
        if (call->end == SHUNTER_END_OK) {
            enqueue(function, call);
        } else {
            shunter_append(&function->done, call);
        }
    }
}

/* Those that come next get room, strict ones first; whether any did. What is missing for the next strict
 * one is not given to others: it would never have room for many rows while these keep coming. */
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
        if (backlog->first) {
            break;
        }
    }
    if (ready.first) {
        fill_all(function, ready);
    }
    return ready.first != NULL;
}

/* The thread shall go on. */
static void ring_if(const struct shunter_function *function, bool there_is_more) {
    const uint64_t ring = 1;
    if (there_is_more && write(function->bell, &ring, sizeof ring) < 0) {
        abort(); // an eventfd takes 2^64 of them
    }
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
        if (!shunter_may_wait(function, call)) {
            continue;
        }
        function->coming += call->entries;
        shunter_append(&function->backlog[call->class], call);
        if (function->capacity && next) { // who goes to a worker now is not in the way of the next
            make_room(function);
            decide(function);
        }
    }
    if (is_served) {
        make_room(function);
        decide(function);
    }
    ring_if(function, function->done.first);
    pthread_mutex_unlock(&function->lock);
}

/* ---- answers leave */

void shunter_go_on(struct shunter_function *function) {
    bool there_is_more = true;
    pthread_mutex_lock(&function->lock);
    for (int rounds = 0; there_is_more && rounds < MOST_ROUNDS; rounds++) {
        if (function->served) {
            decide(function);
        }
        const struct shunter_calls done = function->done;
        function->done = (struct shunter_calls){0};
        const bool has_parts = shunter_find_parts(function, shunter_now_ns());
        there_is_more = done.first || has_parts;
        if (!there_is_more) {
            break;
        }
        pthread_mutex_unlock(&function->lock);
        shunter_send_parts(function);
        shunter_tell_batches(function, done);
        for (struct shunter_call *call = done.first; call; call = call->next) {
            shunter_answer(function, call);
        }
        pthread_mutex_lock(&function->lock);
        shunter_parts_have_gone(function);
        for (struct shunter_call *call = done.first, *next; call; call = next) {
            next = call->next;
            shunter_give_back(function, call);
            free(call->runs);
            free(call);
            function->calls--;
        }
        if (function->served) {
            make_room(function);
        }
    }
    ring_if(function, there_is_more);
    pthread_mutex_unlock(&function->lock);
}
