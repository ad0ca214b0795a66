/* What is told of functions, to hosts that ask. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "backend.h"

_Static_assert(
    sizeof(((struct control_state *)0)->telemetry) == sizeof(struct shunter_telemetry), "as counted");

static void fill_counts(const struct shunter_function *function, struct control_state *state) {
    const struct shunter_counts *counts = &function->counts;
    state->batches = counts->batches;
    state->requests = counts->requests;
    state->answered = counts->answered;
    state->failed = counts->failed;
    state->expired = counts->expired;
    state->rejected = counts->rejected;
}

static void fill_workers(
    const struct shunter_function *function, struct control_state *state, uint64_t now_ns) {
    const struct shunter_served *served = function->served;
    for (uint32_t i = 0; i < SHUNTER_WORKER_COUNT; i++) {
        const bool is_there = function->workers[i].connection >= 0;
        const struct shunter_worker_state *worker = &served->workers[i];
        state->pids[i] = is_there ? (uint64_t)function->workers[i].pid : 0;
        state->busy_ns[i] = shunter_worker_busy_ns(served, i, now_ns);
        for (uint64_t number = worker->done + 1; is_there && number <= worker->given; number++) {
            state->running += worker->held[number % SHUNTER_AHEAD].rows;
        }
    }
    state->running_batches = served->in_flight;
}

static void fill_queue(const struct shunter_served *served, struct control_state *state) {
    for (uint32_t class = 0; class < SHUNTER_CLASSES; class ++) {
        const struct shunter_class_list *list = &served->lists[class];
        state->waiting[class] = list->rows;
        state->queued += list->count;
        state->oldest_ns[class] = list->count ? served->waiting[list->first].came_ns : 0;
    }
    const struct shunter_latency_line line = shunter_line(served);
    state->threshold = shunter_threshold(served);
    state->fixed_ns = (uint64_t)line.fixed_ns;
    state->per_request_ns = (uint64_t)line.per_request_ns;
    state->error_ns = (uint64_t)served->seen.fit.error_ns;
    const bool is_known = shunter_latency_fit_known(&served->seen.fit);
    state->fitted = is_known ? (uint64_t)served->seen.fit.batches : 0;
}

static void fill_telemetry(const struct shunter_served *served, struct control_state *state) {
    const uint64_t *abandoned = served->telemetry.abandoned;
    state->abandoned = abandoned[0] + abandoned[1];
    memcpy(state->telemetry, &served->telemetry, sizeof state->telemetry);
    memcpy(state->service_ns, served->service.ns, sizeof state->service_ns);
    memcpy(state->strict_batches, served->service.strict_batches, sizeof state->strict_batches);
    memcpy(state->strict_batch_ns, served->service.strict_ns, sizeof state->strict_batch_ns);
}

static void fill_state(const struct shunter_function *function, struct control_state *state) {
    memcpy(state->model, function->model, sizeof state->model);
    state->version = function->version;
    state->loaded = function->loaded;
    state->workers = function->worker_count;
    state->entries = function->queue.entries;
    state->free = function->free_count;
    fill_counts(function, state);
    if (function->served) {
        fill_workers(function, state, shunter_now_ns());
        fill_queue(function->served, state);
        fill_telemetry(function->served, state);
    }
}

bool shunter_say(int connection, const void *message, size_t length) {
    return send(connection, message, length, MSG_NOSIGNAL | MSG_DONTWAIT) == (ssize_t)length;
}

/* Whether somebody would miss it: versions that were loaded once are never removed. */
static bool is_told(const struct shunter_function *function) {
    return function->loaded || function->worker_count || function->calls;
}

/* NULL: no memory. */
static struct shunter_states *states_now(struct shunter_backend *backend) {
    pthread_mutex_lock(&backend->lock);
    struct shunter_function *at = backend->functions;
    const uint32_t most = backend->function_count;
    pthread_mutex_unlock(&backend->lock);
    struct shunter_states *states = calloc(1, sizeof *states + most * sizeof *states->each);
    if (!states) {
        return NULL;
    }
    for (; at; at = at->next) { // new ones come before it
        pthread_mutex_lock(&at->lock);
        if (is_told(at)) {
            fill_state(at, &states->each[states->reply.number++]);
        }
        pthread_mutex_unlock(&at->lock);
    }
    states->reply.pid = (uint64_t)getpid();
    return states;
}

static bool hear_about(struct shunter_backend *backend, uint32_t host, uint32_t events) {
    struct epoll_event wanted = {.events = events, .data.ptr = &backend->hosts[host].source};
    return !epoll_ctl(
        backend->epoll, EPOLL_CTL_MOD, backend->hosts[host].connection, &wanted);
}

bool shunter_say_more_states(struct shunter_backend *backend, uint32_t host) {
    struct shunter_states *states = backend->hosts[host].states;
    const int connection = backend->hosts[host].connection;
    while (states->said <= states->reply.number) {
        const bool is_heard =
            states->said ? shunter_say(
                               connection, &states->each[states->said - 1], sizeof *states->each)
                         : shunter_say(connection, &states->reply, sizeof states->reply);
        if (!is_heard) {
            return errno == EAGAIN && hear_about(backend, host, EPOLLOUT);
        }
        states->said++;
    }
    free(states);
    backend->hosts[host].states = NULL;
    return hear_about(backend, host, EPOLLIN | EPOLLRDHUP);
}

bool shunter_say_states(struct shunter_backend *backend, uint32_t host) {
    backend->hosts[host].states = states_now(backend);
    return backend->hosts[host].states && shunter_say_more_states(backend, host);
}
