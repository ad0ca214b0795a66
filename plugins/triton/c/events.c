/* The thread of the backend: it waits for workers, for the host and for time. */
#define _GNU_SOURCE
#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "backend.h"

#define EVENTS 64
#define LOOK_NS 50000000ULL /* how often requests are asked whether they are cancelled */

uint64_t shunter_now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000ULL + (uint64_t)now.tv_nsec;
}

int shunter_watch(
    struct shunter_backend *backend, int descriptor, struct shunter_source *source) {
    // Whom nobody can accept, as no descriptor is free, must not keep the thread awake.
    const uint32_t how = source->kind == SHUNTER_LISTENER ? (uint32_t)EPOLLET : 0;
    struct epoll_event wanted = {.events = EPOLLIN | EPOLLRDHUP | how, .data.ptr = source};
    return epoll_ctl(backend->epoll, EPOLL_CTL_ADD, descriptor, &wanted) ? -errno : 0;
}

/* Of an eventfd or a timer: it is asked for only so that it does not ring again. */
static void silence(int descriptor) {
    uint64_t rings;
    while (read(descriptor, &rings, sizeof rings) < 0 && errno == EINTR) {
    }
}

static bool handle(struct shunter_backend *backend, const struct shunter_source *source) {
    struct shunter_function *function = source->function;
    switch (source->kind) {
    case SHUNTER_STOP:
        return false;
    case SHUNTER_BELL:
        silence(function->bell);
        break;
    case SHUNTER_TIMER:
        silence(function->timer);
        pthread_mutex_lock(&function->lock);
        function->armed_ns = SHUNTER_NEVER;
        pthread_mutex_unlock(&function->lock);
        break;
    case SHUNTER_WORKER:
        pthread_mutex_lock(&function->lock);
        shunter_hear_worker(function, source->index);
        pthread_mutex_unlock(&function->lock);
        break;
    case SHUNTER_HOST:
        shunter_hear_host(backend, source->index);
        return true;
    case SHUNTER_LISTENER:
        shunter_accept_host(backend);
        return true;
    }
    shunter_go_on(function);
    return true;
}

static void look_after_all(struct shunter_backend *backend, uint64_t now_ns) {
    shunter_hold_lives(backend, now_ns);
    shunter_see_turns(backend);
    shunter_accept_host(backend); // whom there was no descriptor for
    pthread_mutex_lock(&backend->lock);
    struct shunter_function *function = backend->functions;
    pthread_mutex_unlock(&backend->lock);
    for (; function; function = function->next) { // new ones come before it
        shunter_look_after(function, now_ns);
    }
}

static void *run(void *context) {
    struct shunter_backend *backend = context;
    struct epoll_event found[EVENTS];
    uint64_t next_ns = 0;
    for (;;) {
        const uint64_t now_ns = shunter_now_ns();
        if (now_ns >= next_ns) {
            look_after_all(backend, now_ns);
            next_ns = now_ns + LOOK_NS;
        }
        const int count =
            epoll_wait(backend->epoll, found, EVENTS, (int)(LOOK_NS / 1000000));
        for (int i = 0; i < count; i++) {
            if (!handle(backend, found[i].data.ptr)) {
                return NULL;
            }
        }
    }
}

int shunter_start(struct shunter_backend *backend) {
    backend->stop = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    backend->nowhere = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0); // workers want one
    backend->stop_source.kind = SHUNTER_STOP;
    int error = shunter_watch(backend, backend->stop, &backend->stop_source);
    error = error ? error : shunter_listen(backend);
    return error ? error : -pthread_create(&backend->thread, NULL, run, backend);
}

void shunter_stop(struct shunter_backend *backend) {
    const uint64_t ring = 1;
    if (write(backend->stop, &ring, sizeof ring) == sizeof ring) {
        pthread_join(backend->thread, NULL);
    }
}
