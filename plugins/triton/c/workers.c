/* Workers: the same processes that serve any front end of tensor queues. */
#define _GNU_SOURCE
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "backend.h"

#define MOST_FDS (4 + 2 + SHUNTER_MAX_TENSORS)
#define AWAY_NS 500000000ULL /* between two looks: nobody is heard meanwhile */

static int32_t pid_of(int connection) {
    struct ucred who = {0};
    socklen_t size = sizeof who;
    return getsockopt(connection, SOL_SOCKET, SO_PEERCRED, &who, &size) ? 0 : who.pid;
}

/* What a worker's first message is answered: batching/queue/attach.py says what stands in it. */
static bool welcome(const struct shunter_function *function, uint32_t index) {
    const struct shunter_attached *worker = &function->workers[index];
    const uint32_t rings = function->queue.output_count;
    char text[700];
    const int length = snprintf(
        text, sizeof text,
        "{\"func_id\": 1, \"worker\": %u, \"library\": \"%s\", \"landing\": %llu}", index,
        function->told.library, (unsigned long long)function->mapped[3]);
    int descriptors[MOST_FDS] = {
        function->backend->nowhere, worker->doorbell,          function->bell,
        function->descriptors[4],   function->descriptors[0], function->descriptors[2]};
    memcpy(descriptors + 6, function->descriptors + SHUNTER_FUNCTION_FDS, rings * sizeof(int));
    const size_t bytes = (6 + rings) * sizeof(int);
    union {
        char room[CMSG_SPACE(sizeof descriptors)];
        struct cmsghdr align;
    } control = {0};
    struct iovec part = {text, (size_t)length};
    struct msghdr message = {
        .msg_iov = &part, .msg_iovlen = 1, .msg_control = control.room,
        .msg_controllen = CMSG_SPACE(bytes)};
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(bytes);
    memcpy(CMSG_DATA(header), descriptors, bytes);
    return length < (int)sizeof text &&
           sendmsg(worker->connection, &message, MSG_NOSIGNAL | MSG_DONTWAIT) == length;
}

/* A request that is a batch has no more rows than a worker takes that does not leave. */
static void set_rows(struct shunter_function *function) {
    const struct shunter_served *served = function->served;
    uint32_t most = 0;
    for (uint32_t i = 0; i < SHUNTER_WORKER_COUNT; i++) {
        const struct shunter_worker_state *worker = &served->workers[i];
        if (function->workers[i].connection >= 0 && shunter_is_ready(worker) &&
            worker->cap > most) {
            most = worker->cap;
        }
    }
    if (function->told.batched && most) {
        function->most_rows = most;
        function->served->most_rows = most;
    }
}

/* Others may have its connection, too, so that it would be watched as long as they have it. */
static void detach(struct shunter_function *function, uint32_t index) {
    struct shunter_attached *worker = &function->workers[index];
    const int descriptors[] = {worker->connection, worker->doorbell, worker->process};
    for (size_t i = 0; i < sizeof descriptors / sizeof *descriptors; i++) {
        if (descriptors[i] >= 0) {
            epoll_ctl(function->backend->epoll, EPOLL_CTL_DEL, descriptors[i], NULL);
            close(descriptors[i]);
        }
    }
    worker->connection = -1;
    function->worker_count--;
    set_rows(function);
    shunter_hold_where(function, function->hold.slot);
}

static uint64_t inode_of(int descriptor) {
    struct stat found;
    return fstat(descriptor, &found) ? 0 : found.st_ino;
}

/* The index of the worker that has this connection, or of a free place; SHUNTER_WORKER_COUNT: none. */
static uint32_t place_of(const struct shunter_function *function, uint64_t inode) {
    uint32_t found = SHUNTER_WORKER_COUNT;
    for (uint32_t i = SHUNTER_WORKER_COUNT; i-- > 0;) {
        const struct shunter_attached *worker = &function->workers[i];
        if (worker->connection >= 0 && worker->inode == inode) {
            return i;
        }
        found = worker->connection < 0 ? i : found;
    }
    return found;
}

static bool watch(struct shunter_function *function, uint32_t index) {
    struct shunter_attached *worker = &function->workers[index];
    return !shunter_watch(function->backend, worker->connection, &worker->source) &&
           (worker->process < 0 || worker->shares ||
            !shunter_watch(function->backend, worker->process, &worker->source));
}

bool shunter_gives_way(const struct control_worker *told) {
    uint64_t any = 0;
    for (uint32_t i = 0; i < SHUNTER_SLICE_WORDS; i++) {
        any |= (uint64_t)told->slices[i];
    }
    return told->slot >= 0 && !any;
}

int shunter_attach(
    struct shunter_function *function, const struct control_worker *told, int connection) {
    const uint64_t inode = inode_of(connection);
    const uint32_t index = place_of(function, inode);
    if (index == SHUNTER_WORKER_COUNT) {
        return -SHUNTER_SAID_NO_ROOM;
    }
    struct shunter_attached *worker = &function->workers[index];
    if (worker->connection >= 0) { // the host has not heard that it is here
        close(connection);
        return (int)index;
    }
    const int32_t pid = pid_of(connection);
    *worker = (struct shunter_attached){
        .source = worker->source,
        .connection = connection,
        .doorbell = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC),
        .process = (int)syscall(SYS_pidfd_open, pid, 0),
        .pid = pid,
        .inode = inode,
        .timeout_ns = told->timeout_ns,
        .shares = told->pool != 0};
    function->worker_count++;
    const uint64_t now_ns = shunter_now_ns();
    if (shunter_worker_comes(function->served, index, (uint32_t)told->cap, worker->doorbell, now_ns)) {
        worker->connection = -1; // stays the caller's
        close(worker->doorbell);
        close(worker->process);
        function->worker_count--;
        return -SHUNTER_SAID_WRONG;
    }
    if (!shunter_join_set(function, index, told) || !welcome(function, index) || !watch(function, index)) {
        shunter_worker_goes(function->served, index, now_ns);
        detach(function, index);
        return -SHUNTER_SAID_NO_WORKER;
    }
    set_rows(function);
    memcpy(&worker->slices, told->slices, sizeof worker->slices);
    memcpy(&worker->place, told->place, sizeof worker->place);
    shunter_join_turns(function);
    shunter_hold_where(function, (int32_t)told->slot);
    function->yields = shunter_gives_way(told);
    function->class = told->class != 0;
    function->once = told->once != 0;
    function->slo_ns = told->slo_ns;
    function->client_timeout_ns = told->client_timeout_ns;
    shunter_log(
        TRITON_INFO, "worker %u (pid %d) serves %s/%llu", index, (int)pid, function->model,
        (unsigned long long)function->version);
    pthread_cond_broadcast(&function->came);
    return (int)index;
}

static void drain(struct shunter_function *function, uint32_t index) {
    function->workers[index].leaving = true;
    shunter_worker_drains(function->served, index);
    set_rows(function);
}

bool shunter_drain(struct shunter_function *function, int32_t pid) {
    for (uint32_t i = 0; i < SHUNTER_WORKER_COUNT; i++) {
        const struct shunter_attached *worker = &function->workers[i];
        if (worker->connection >= 0 && worker->pid == pid) {
            drain(function, i);
            return true;
        }
    }
    return false;
}

static void gone(struct shunter_function *function, uint32_t index) {
    const struct shunter_attached *worker = &function->workers[index];
    shunter_log(
        worker->left ? TRITON_INFO : TRITON_WARN, "worker %u (pid %d) of %s/%llu is gone%s", index,
        (int)worker->pid, function->model, (unsigned long long)function->version,
        worker->left ? "" : ": what it held runs again");
    shunter_worker_goes(function->served, index, shunter_now_ns());
    detach(function, index);
}

/* Children that it has forked may keep its connection open. Of one that shares its process only the
 * seat is known, and what runs its batches may write for a while after that: its connection tells. */
static bool has_ended(const struct shunter_attached *worker) {
    struct pollfd process = {.fd = worker->process, .events = POLLIN};
    return !worker->shares && poll(&process, 1, 0) > 0; // never, if it has none
}

void shunter_hear_worker(struct shunter_function *function, uint32_t index) {
    struct shunter_attached *worker = &function->workers[index];
    char text[256];
    while (worker->connection >= 0) {
        const ssize_t length = recv(worker->connection, text, sizeof text - 1, MSG_DONTWAIT);
        const bool is_silent = length < 0 && (errno == EAGAIN || errno == EINTR);
        if (is_silent && !has_ended(worker)) {
            return;
        }
        if (length <= 0) {
            gone(function, index);
            return;
        }
        text[length] = 0;
        if (strstr(text, "\"leave\"")) {
            drain(function, index);
        }
    }
}

/* It must not work on what others work on again: it is gone when it has ended. One of which only the
 * connection is known loses this, and ends when it sees that. */
static void end_stuck(struct shunter_function *function, uint32_t index, uint64_t now_ns) {
    struct shunter_attached *worker = &function->workers[index];
    if (worker->timeout_ns && !worker->killed &&
        shunter_worker_busy_ns(function->served, index, now_ns) > worker->timeout_ns) {
        worker->killed = true;
        shunter_worker_drains(function->served, index);
        shunter_log(
            TRITON_WARN, "worker %u (pid %d) of %s is killed: no answer within %g s", index,
            (int)worker->pid, function->model, (double)worker->timeout_ns / 1e9);
        const bool is_known = worker->process >= 0;
        if ((!is_known || syscall(SYS_pidfd_send_signal, worker->process, SIGKILL, NULL, 0)) &&
            !(is_known && worker->shares)) { // whose seat is gone already
            shutdown(worker->connection, SHUT_RDWR);
            gone(function, index);
        }
    }
}

/* Who stands still for strict work is not late because of that, nor whom this process did not hear as it
 * was stopped itself; who hangs is found all the same. */
static void excuse(struct shunter_function *function, uint64_t now_ns) {
    const uint64_t passed_ns = now_ns > function->looked_ns ? now_ns - function->looked_ns : 0;
    const bool works = function->yields && function->served->in_flight;
    const bool was_away = passed_ns > AWAY_NS;
    function->looked_ns = now_ns;
    const struct shunter_holds holds =
        works ? shunter_holds_now(function->backend, now_ns) : (struct shunter_holds){0};
    for (uint32_t i = 0; (holds.any || was_away) && i < SHUNTER_WORKER_COUNT; i++) {
        if (function->workers[i].connection >= 0) {
            const uint64_t most_ns = holds.longest_park_ns + function->workers[i].timeout_ns;
            shunter_excuse(function->served, i, passed_ns, was_away ? UINT64_MAX : most_ns);
        }
    }
}

void shunter_look_after_workers(struct shunter_function *function, uint64_t now_ns) {
    static const char left[] = "{\"left\": true}";
    // Who has answered is not stuck, however late this thread hears of it.
    shunter_collect(function->served, shunter_now_ns()); // batches have begun after ``now_ns``
    excuse(function, now_ns);
    shunter_join_turns(function);
    for (uint32_t i = 0; i < SHUNTER_WORKER_COUNT; i++) {
        struct shunter_attached *worker = &function->workers[i];
        if (worker->connection >= 0) {
            end_stuck(function, i, now_ns);
        }
        if (worker->connection >= 0 && worker->leaving && !worker->left &&
            shunter_worker_is_idle(function->served, i)) {
            worker->left = true;
            send(worker->connection, left, sizeof left - 1, MSG_NOSIGNAL | MSG_DONTWAIT);
        }
    }
}
