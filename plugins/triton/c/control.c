/* What the host says: the function that a worker serves, the worker itself, numbers to decide by. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "backend.h"

#define MOST_FDS (SHUNTER_FUNCTION_FDS + SHUNTER_MAX_TENSORS)

union message {
    uint64_t kind;
    struct control_hello hello;
    struct control_function function;
    struct control_worker worker;
    struct control_drain drain;
    struct control_expect expect;
    struct control_policy policy;
    struct control_list list;
};

/* What came; descriptors that nobody has taken are closed. */
struct heard {
    union message *message;
    size_t length;
    int descriptors[MOST_FDS];
    uint32_t count;
};

int shunter_listen(struct shunter_backend *backend) {
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    snprintf(at.sun_path, sizeof at.sun_path, "%s", backend->path);
    for (uint32_t i = 0; i < SHUNTER_SOURCES; i++) {
        backend->hosts[i].connection = -1;
        backend->hosts[i].source = (struct shunter_source){.kind = SHUNTER_HOST, .index = i};
    }
    backend->listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    backend->listener_source.kind = SHUNTER_LISTENER;
    struct stat found;
    const int probe = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    const bool is_taken = !connect(probe, (struct sockaddr *)&at, sizeof at);
    close(probe);
    if (is_taken) {
        return -EADDRINUSE;
    }
    if (!stat(backend->path, &found) && S_ISSOCK(found.st_mode)) {
        unlink(backend->path); // of a server that was killed
    }
    if (bind(backend->listener, (struct sockaddr *)&at, sizeof at) ||
        chmod(backend->path, 0600) || listen(backend->listener, SHUNTER_SOURCES)) {
        return -errno;
    }
    return shunter_watch(backend, backend->listener, &backend->listener_source);
}

static void take_host(struct shunter_backend *backend, int connection) {
    struct ucred who = {.uid = (uid_t)-1};
    socklen_t size = sizeof who;
    for (uint32_t i = 0; !getsockopt(connection, SOL_SOCKET, SO_PEERCRED, &who, &size) &&
                         who.uid == getuid() && i < SHUNTER_SOURCES;
         i++) {
        if (backend->hosts[i].connection < 0 &&
            !shunter_watch(backend, connection, &backend->hosts[i].source)) {
            backend->hosts[i].connection = connection;
            backend->hosts[i].greeted = false;
            return;
        }
    }
    close(connection); // of another user, or one too many
}

void shunter_accept_host(struct shunter_backend *backend) {
    int connection;
    while ((connection = accept4(
                backend->listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC)) >= 0) {
        take_host(backend, connection);
    }
}

/* ---- what is said */

static struct control_reply on_function(struct shunter_function *function, struct heard *heard) {
    const struct control_function *told = &heard->message->function;
    int said = SHUNTER_SAID_DONE;
    pthread_mutex_lock(&function->lock);
    if (!function->served || function->told.tensors_digest != told->tensors_digest) {
        said = shunter_function_gets_queue(function, told, heard->descriptors, heard->count);
        heard->count = said == SHUNTER_SAID_DONE ? 0 : heard->count;
    }
    pthread_mutex_unlock(&function->lock);
    return (struct control_reply){.said = (uint64_t)said};
}

static struct control_reply on_worker(struct shunter_function *function, struct heard *heard) {
    const struct control_worker *told = &heard->message->worker;
    int index = -SHUNTER_SAID_WRONG;
    pthread_mutex_lock(&function->lock);
    if (!function->served) {
        index = -SHUNTER_SAID_NO_FUNCTION;
    } else if (function->told.tensors_digest != told->tensors_digest) {
        const bool is_unused = !function->worker_count && !function->calls;
        index = is_unused ? -SHUNTER_SAID_NO_FUNCTION : -SHUNTER_SAID_OTHER_TENSORS;
    } else if (heard->count == 1) {
        index = shunter_attach(function, told, heard->descriptors[0]);
        // One that came and went at once is closed already.
        heard->count = index >= 0 || index == -SHUNTER_SAID_NO_WORKER ? 0 : 1;
    }
    pthread_mutex_unlock(&function->lock);
    shunter_go_on(function);
    return index < 0 ? (struct control_reply){.said = (uint64_t)-index}
                     : (struct control_reply){.number = (uint64_t)index};
}

static struct control_reply on_drain(
    struct shunter_function *function, const struct control_drain *told) {
    pthread_mutex_lock(&function->lock);
    const bool is_there = function->served && shunter_drain(function, (int32_t)told->pid);
    pthread_mutex_unlock(&function->lock);
    return (struct control_reply){.said = is_there ? SHUNTER_SAID_DONE : SHUNTER_SAID_NO_WORKER};
}

/* A worker is being started: those that wait without one have not waited in vain yet. */
static struct control_reply on_expect(struct shunter_function *function) {
    pthread_mutex_lock(&function->lock);
    function->alone_ns = 0;
    pthread_mutex_unlock(&function->lock);
    return (struct control_reply){.said = SHUNTER_SAID_DONE};
}

static struct control_reply on_policy(
    struct shunter_function *function, const struct control_policy *told) {
    pthread_mutex_lock(&function->lock);
    function->policy = (struct shunter_policy){
        .threshold = told->threshold,
        .alpha = told->alpha,
        .threshold_cap = told->cap,
        .max_wait_ns = told->max_wait_ns,
        .margin_ns = told->margin_ns,
        .ageing_ns = told->ageing_ns,
        .fixed_ns = told->fixed_ns,
        .per_request_ns = told->per_request_ns,
        .slo_ns = told->slo_ns,
        .ahead = (uint32_t)told->ahead,
        .mixes = (uint32_t)told->mixes,
        .admission = (uint32_t)told->admission};
    function->capacity = told->capacity;
    function->claims = told->claims;
    memcpy(function->strict_key, told->strict_key, sizeof function->strict_key);
    if (function->served) {
        function->served->policy = function->policy;
        if (function->generation != told->generation) {
            shunter_forget_latency(function->served); // other workers, with other threads
        }
    }
    function->generation = told->generation;
    pthread_mutex_unlock(&function->lock);
    shunter_go_on(function);
    return (struct control_reply){.said = SHUNTER_SAID_DONE};
}

static size_t length_of(uint64_t kind) {
    switch (kind) {
    case SHUNTER_KIND_FUNCTION:
        return sizeof(struct control_function);
    case SHUNTER_KIND_WORKER:
        return sizeof(struct control_worker);
    case SHUNTER_KIND_DRAIN:
        return sizeof(struct control_drain);
    case SHUNTER_KIND_EXPECT:
        return sizeof(struct control_expect);
    case SHUNTER_KIND_POLICY:
        return sizeof(struct control_policy);
    default:
        return 0;
    }
}

/* All messages of a function begin alike. */
static struct control_reply on_message(struct shunter_backend *backend, struct heard *heard) {
    union message *message = heard->message;
    char *model = message->drain.model;
    if (heard->length != length_of(message->kind) || !memchr(model, 0, 256) || !*model) {
        return (struct control_reply){.said = SHUNTER_SAID_WRONG};
    }
    struct shunter_function *function =
        shunter_function_of(backend, model, message->drain.version);
    if (!function) {
        return (struct control_reply){.said = SHUNTER_SAID_NO_ROOM};
    }
    switch (message->kind) {
    case SHUNTER_KIND_FUNCTION:
        return on_function(function, heard);
    case SHUNTER_KIND_WORKER:
        return on_worker(function, heard);
    case SHUNTER_KIND_DRAIN:
        return on_drain(function, &message->drain);
    case SHUNTER_KIND_EXPECT:
        return on_expect(function);
    default:
        return on_policy(function, &message->policy);
    }
}

/* Whether the connection stays. */
static bool answer(struct shunter_backend *backend, uint32_t index, struct heard *heard) {
    const int connection = backend->hosts[index].connection;
    const union message *message = heard->message;
    struct control_reply reply = {.said = SHUNTER_SAID_WRONG, .pid = (uint64_t)getpid()};
    if (heard->length == sizeof message->hello && message->kind == SHUNTER_KIND_HELLO) {
        const struct control_hello ours = {
            SHUNTER_KIND_HELLO, SHUNTER_CONTROL_MAGIC, SHUNTER_CONTROL_DIGEST,
            SHUNTER_LAYOUT_DIGEST};
        backend->hosts[index].greeted = !memcmp(&ours, &message->hello, sizeof ours);
        return shunter_say(connection, &ours, sizeof ours);
    }
    if (!backend->hosts[index].greeted) {
        return false;
    }
    if (message->kind == SHUNTER_KIND_LIST && heard->length == sizeof message->list) {
        return shunter_say_states(backend, index);
    }
    if (message->kind == SHUNTER_KIND_PAGE && heard->length == sizeof message->list) {
        const bool is_mapped = heard->count == 1 && shunter_hold_on(backend, heard->descriptors[0]);
        reply.said = is_mapped ? SHUNTER_SAID_DONE : SHUNTER_SAID_WRONG;
        return shunter_say(connection, &reply, sizeof reply);
    }
    reply = on_message(backend, heard);
    reply.pid = (uint64_t)getpid();
    return shunter_say(connection, &reply, sizeof reply);
}

/* Length of a message, 0: the other end is gone, or says more than there can be; -1: there is none. */
static ssize_t hear(int connection, struct heard *heard) {
    union {
        char room[CMSG_SPACE(MOST_FDS * sizeof(int))];
        struct cmsghdr align;
    } control;
    struct iovec part = {heard->message, sizeof *heard->message};
    struct msghdr message = {
        .msg_iov = &part, .msg_iovlen = 1, .msg_control = control.room,
        .msg_controllen = CMSG_LEN(MOST_FDS * sizeof(int))}; // the room itself is rounded up
    memset(heard->message, 0, sizeof *heard->message);
    heard->count = 0;
    const ssize_t length = recvmsg(connection, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (length < 0) {
        return errno == EAGAIN || errno == EINTR ? -1 : 0;
    }
    for (struct cmsghdr *each = CMSG_FIRSTHDR(&message); each; each = CMSG_NXTHDR(&message, each)) {
        if (each->cmsg_level == SOL_SOCKET && each->cmsg_type == SCM_RIGHTS) {
            heard->count = (uint32_t)((each->cmsg_len - CMSG_LEN(0)) / sizeof(int));
            memcpy(heard->descriptors, CMSG_DATA(each), heard->count * sizeof(int));
        }
    }
    if (message.msg_flags & (MSG_CTRUNC | MSG_TRUNC)) {
        return 0; // nobody who speaks as we do says so much
    }
    heard->length = (size_t)length;
    return length;
}

void shunter_hear_host(struct shunter_backend *backend, uint32_t index) {
    static union message message; // of the thread
    struct heard heard = {.message = &message};
    const int connection = backend->hosts[index].connection;
    ssize_t length;
    bool stays = !backend->hosts[index].states || shunter_say_more_states(backend, index);
    while (stays && connection >= 0 && !backend->hosts[index].states &&
           (length = hear(connection, &heard)) >= 0) {
        stays = length > 0 && answer(backend, index, &heard);
        for (uint32_t i = 0; i < heard.count; i++) {
            close(heard.descriptors[i]);
        }
    }
    if (!stays) {
        free(backend->hosts[index].states);
        backend->hosts[index].states = NULL;
        backend->hosts[index].connection = -1;
        close(connection);
    }
}
