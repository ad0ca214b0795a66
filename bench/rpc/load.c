/*
 * Load on open sessions from one thread: closed loop for ceilings, open loop for latencies; and an
 * echo, which is what the kernel alone takes. Python opens the sessions, see load.py.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <poll.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "client.h"

#define TICK_NS 1000000ULL
#define PATIENCE_NS 30000000000ULL /* for what is on its way when the time is over */

struct load_session {
    struct shunter_client *client;
    int socket;
    uint8_t *input; /* SHUNTER_WINDOW of them when they are stamped */
    uint64_t input_bytes;
    uint64_t stamp; /* not 0: the first 8 bytes of each are this and the request's number */
    uint8_t *outputs; /* SHUNTER_WINDOW answers one behind the other */
    uint64_t output_bytes;
    uint64_t idempotent;
};

struct load_result {
    uint64_t answered, failed, latencies, wall_ns;
    uint64_t begun;
    uint64_t on_way_ns; /* times of all requests on their way, added up until the end of the time */
};

static uint64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000ULL + (uint64_t)now.tv_nsec;
}

struct running {
    struct load_session *session;
    uint64_t begun_ns[SHUNTER_WINDOW];
    uint64_t at[SHUNTER_WINDOW]; /* which request of the schedule */
    uint32_t wanted;             /* requests that could begin but for credit */
    uint64_t due_ns;             /* when it is to be looked at, though nothing comes */
    bool writes;                 /* its stream did not take all: told when it does */
};

/* Time since ``last``, which becomes now; what is later than ``until_ns`` does not count. */
static uint64_t passed(uint64_t *last, uint64_t until_ns) {
    const uint64_t from = *last, now = now_ns();
    *last = now;
    const uint64_t to = now < until_ns ? now : until_ns;
    return to > from ? to - from : 0;
}

static int64_t begin(struct running *running, uint64_t next_id) {
    struct load_session *session = running->session;
    void *output = session->outputs + next_id % SHUNTER_WINDOW * session->output_bytes;
    const void *input = session->input;
    if (session->stamp) {
        uint8_t *own = session->input + next_id % SHUNTER_WINDOW * session->input_bytes;
        const uint64_t stamp = session->stamp + next_id;
        memcpy(own, &stamp, sizeof stamp);
        input = own;
    }
    return shunter_client_begin(
        session->client, &input, &output, 0, 0, (uint32_t)session->idempotent);
}

static uint64_t next_id(const struct running *running) {
    return shunter_client_numbers(running->session->client)->next_id;
}

/* Begin what is wanted as far as there is credit; how many, or a negative errno. */
static int fill(struct running *running) {
    struct shunter_client *client = running->session->client;
    int begun = 0;
    uint64_t next = next_id(running);
    (void)shunter_client_cork(client, running->wanted > 1);
    for (; running->wanted; running->wanted--, begun++) {
        const int64_t id = begin(running, next);
        if (id < 0 && id != -EAGAIN) {
            return (int)id;
        }
        if (id < 0) {
            break;
        }
        running->begun_ns[(uint64_t)id % SHUNTER_WINDOW] = now_ns();
        next = (uint64_t)id + 1;
    }
    const int error = shunter_client_cork(client, 0);
    return error ? error : begun;
}

/* Nothing of this session is on its way that would bring credit. */
static bool must_ask(const struct running *running) {
    return running->wanted && shunter_client_numbers(running->session->client)->pending == 0;
}

/* What has ended in a session; a late answer to its hello is of no use. */
static int look(struct shunter_client *client, struct shunter_ended *ended) {
    const uint8_t *unused;
    const int found = shunter_client_poll(client, ended, SHUNTER_WINDOW, 0, 0);
    (void)shunter_client_hello(client, &unused);
    return found;
}

static int watch(int epoll, struct running *running, uint32_t count) {
    for (uint32_t i = 0; i < count; i++) {
        struct epoll_event event = {.events = EPOLLIN, .data.u32 = i};
        if (epoll_ctl(epoll, EPOLL_CTL_ADD, running[i].session->socket, &event)) {
            return -errno;
        }
    }
    return 0;
}

/* Be told when a stream takes more, as long as something is kept for it. */
static int watch_room(int epoll, struct running *running, uint32_t at) {
    const bool writes = shunter_client_numbers(running->session->client)->kept > 0;
    struct epoll_event event = {.events = EPOLLIN | (writes ? EPOLLOUT : 0), .data.u32 = at};
    if (writes == running->writes) {
        return 0;
    }
    running->writes = writes;
    return epoll_ctl(epoll, EPOLL_CTL_MOD, running->session->socket, &event) ? -errno : 0;
}

/* Wait until something comes, or a session has something to do, at most a tick. */
static int wait_for(
    int epoll, const struct running *running, uint32_t count, struct epoll_event *events, int most) {
    const uint64_t now = now_ns();
    uint64_t until = now + TICK_NS;
    for (uint32_t i = 0; i < count; i++) {
        until = running[i].due_ns < until ? running[i].due_ns : until;
    }
    const struct timespec time = {.tv_nsec = until > now ? (long)(until - now) : 0};
    return epoll_pwait2(epoll, events, most, &time, NULL);
}

/* ``depth`` requests on their way in every session until the time is over; latencies in ns. */
int load_closed(
    struct load_session *sessions, uint32_t count, uint32_t depth, uint64_t until_ns,
    uint64_t *latencies, uint64_t room, struct load_result *result);
int load_closed(
    struct load_session *sessions, uint32_t count, uint32_t depth, uint64_t until_ns,
    uint64_t *latencies, uint64_t room, struct load_result *result) {
    struct running *running = calloc(count, sizeof *running);
    const int epoll = epoll_create1(EPOLL_CLOEXEC);
    int error = running && epoll >= 0 ? 0 : -ENOMEM;
    const uint64_t start = now_ns();
    uint64_t ticked = start;
    memset(result, 0, sizeof *result);
    for (uint32_t i = 0; !error && i < count; i++) {
        running[i].session = &sessions[i];
        running[i].wanted = depth;
    }
    error = error ? error : watch(epoll, running, count);
    uint64_t pending = 0, now = start;
    for (uint32_t i = 0; !error && i < count; i++) {
        const int begun = fill(&running[i]);
        error = begun < 0 ? begun : watch_room(epoll, &running[i], i);
        pending += begun > 0 ? (uint64_t)begun : 0;
    }
    result->begun = pending;
    while (!error && (pending || now < until_ns) && now < until_ns + PATIENCE_NS) {
        struct epoll_event events[64];
        int ready = wait_for(epoll, running, count, events, 64);
        result->on_way_ns += pending * passed(&now, until_ns);
        const bool all = ready <= 0 || now - ticked >= TICK_NS;
        if (all) {
            ticked = now;
        }
        const uint32_t looks = all ? count : (uint32_t)ready;
        for (uint32_t r = 0; r < looks && !error; r++) {
            const uint32_t i = all ? r : events[r].data.u32;
            struct shunter_ended ended[SHUNTER_WINDOW];
            const int found = look(sessions[i].client, ended);
            if (found < 0) {
                error = found;
                break;
            }
            result->on_way_ns += pending * passed(&now, until_ns);
            for (int e = 0; e < found; e++) {
                pending--;
                running[i].wanted++;
                const uint64_t begun = running[i].begun_ns[ended[e].req_id % SHUNTER_WINDOW];
                if (ended[e].status != SHUNTER_STATUS_OK) {
                    result->failed++;
                } else if (now <= until_ns) {
                    result->answered++;
                    if (result->latencies < room) {
                        latencies[result->latencies++] = now - begun;
                    }
                }
            }
            if (now < until_ns) {
                const int begun = fill(&running[i]);
                error = begun < 0 ? begun : 0;
                pending += begun > 0 ? (uint64_t)begun : 0;
                result->begun += begun > 0 ? (uint64_t)begun : 0;
                if ((all || found) && !error && must_ask(&running[i])) {
                    error = shunter_client_ask(sessions[i].client);
                }
            }
            error = error ? error : watch_room(epoll, &running[i], i);
            running[i].due_ns = shunter_client_due_ns(sessions[i].client);
        }
    }
    result->wall_ns = until_ns - start;
    result->failed += pending;
    if (epoll >= 0) {
        close(epoll);
    }
    free(running);
    return error;
}

/*
 * Requests at the given times after the start, over the sessions in turn. A latency counts from
 * the time at which the request should have been sent; UINT64_MAX: never answered, or an error.
 */
int load_open(
    struct load_session *sessions, uint32_t count, const uint64_t *at_ns, uint64_t requests,
    uint64_t patience_ns, uint64_t *latencies, struct load_result *result);
int load_open(
    struct load_session *sessions, uint32_t count, const uint64_t *at_ns, uint64_t requests,
    uint64_t patience_ns, uint64_t *latencies, struct load_result *result) {
    struct running *running = calloc(count, sizeof *running);
    uint64_t *ids = calloc(count, sizeof *ids);
    const int epoll = epoll_create1(EPOLL_CLOEXEC);
    int error = running && ids && epoll >= 0 ? 0 : -ENOMEM;
    memset(result, 0, sizeof *result);
    for (uint32_t i = 0; !error && i < count; i++) {
        running[i].session = &sessions[i];
        ids[i] = next_id(&running[i]);
    }
    error = error ? error : watch(epoll, running, count);
    for (uint64_t r = 0; r < requests; r++) {
        latencies[r] = UINT64_MAX;
    }
    const uint64_t start = now_ns();
    uint64_t next = 0, open = 0, now = start, ticked = start;
    uint32_t turn = 0;
    bool starved = false;
    while (!error && (next < requests || open) &&
           now < start + (requests ? at_ns[requests - 1] : 0) + patience_ns) {
        while (next < requests && start + at_ns[next] <= now) {
            uint32_t tries = 0;
            int64_t id = -EAGAIN;
            for (; tries < count && id == -EAGAIN; tries++) {
                turn = (turn + 1) % count;
                id = begin(&running[turn], ids[turn]);
            }
            if (id == -EAGAIN) {
                starved = true; // no credit anywhere: it waits, and its latency grows
                break;
            }
            starved = false;
            if (id < 0) {
                error = (int)id;
                break;
            }
            running[turn].at[(uint64_t)id % SHUNTER_WINDOW] = next++;
            ids[turn] = (uint64_t)id + 1;
            open++;
            result->begun++;
        }
        result->on_way_ns += open * passed(&now, UINT64_MAX);
        uint64_t wait_ns = 5 * TICK_NS;
        if (next < requests) {
            const uint64_t due = start + at_ns[next];
            wait_ns = due > now ? due - now : 0;
            wait_ns = wait_ns < TICK_NS ? wait_ns : TICK_NS;
        }
        struct epoll_event events[64];
        const struct timespec time = {0, (long)wait_ns};
        const int ready = epoll_pwait2(epoll, events, 64, &time, NULL);
        result->on_way_ns += open * passed(&now, UINT64_MAX);
        const bool all = now - ticked >= 5 * TICK_NS;
        if (all) {
            ticked = now;
        }
        const uint32_t looks = all ? count : (uint32_t)(ready > 0 ? ready : 0);
        for (uint32_t r = 0; r < looks && !error; r++) {
            const uint32_t i = all ? r : events[r].data.u32;
            struct shunter_ended ended[SHUNTER_WINDOW];
            const int found = look(sessions[i].client, ended);
            result->on_way_ns += open * passed(&now, UINT64_MAX);
            error = found < 0 ? found : 0;
            for (int e = 0; e < found; e++) {
                const uint64_t at = running[i].at[ended[e].req_id % SHUNTER_WINDOW];
                open--;
                if (ended[e].status == SHUNTER_STATUS_OK) {
                    result->answered++;
                    latencies[at] = now - (start + at_ns[at]);
                } else {
                    result->failed++;
                }
            }
            running[i].wanted = starved;
            if ((all || found > 0) && !error && must_ask(&running[i])) {
                error = shunter_client_ask(sessions[i].client);
            }
        }
    }
    result->wall_ns = now_ns() - start;
    result->latencies = requests;
    if (epoll >= 0) {
        close(epoll);
    }
    free(running);
    free(ids);
    return error;
}

/* Wait for what is to be received: asleep, or with ``spin`` awake. False: it took too long. */
static bool wait_for_data(int socket, bool spin) {
    struct pollfd data = {.fd = socket, .events = POLLIN};
    const uint64_t until_ns = now_ns() + 1000 * TICK_NS;
    int ready = 0;
    do {
        ready = poll(&data, 1, spin ? 0 : 1000);
    } while (spin && ready == 0 && now_ns() < until_ns);
    return ready > 0;
}

/* Answer what comes on a datagram socket with ``reply`` bytes until a datagram of 1 byte comes;
   a request is complete with ``count`` datagrams. */
int echo_serve(int socket, uint32_t count, uint32_t reply, uint32_t spin);
int echo_serve(int socket, uint32_t count, uint32_t reply, uint32_t spin) {
    static uint8_t buffer[1 << 16];
    uint32_t have = 0;
    for (;;) {
        struct sockaddr_storage peer;
        socklen_t length = sizeof peer;
        (void)wait_for_data(socket, spin);
        const ssize_t got = recvfrom(
            socket, buffer, sizeof buffer, MSG_DONTWAIT, (struct sockaddr *)&peer, &length);
        if (got < 0 && (errno == EINTR || errno == EAGAIN)) {
            continue;
        }
        if (got <= 1) {
            return 0;
        }
        if (++have == count) {
            have = 0;
            if (sendto(socket, buffer, reply, 0, (struct sockaddr *)&peer, length) < 0) {
                return -errno;
            }
        }
    }
}

/* ``rounds`` times: ``count`` datagrams of ``size`` bytes out, one back. Latencies in ns. */
int echo_ask(
    int socket, uint32_t count, uint32_t size, uint32_t rounds, uint64_t *latencies, uint32_t spin);
int echo_ask(
    int socket, uint32_t count, uint32_t size, uint32_t rounds, uint64_t *latencies, uint32_t spin) {
    static uint8_t buffer[1 << 16];
    for (uint32_t r = 0; r < rounds; r++) {
        const uint64_t begun = now_ns();
        for (uint32_t i = 0; i < count; i++) {
            if (send(socket, buffer, size, 0) < 0) {
                return -errno;
            }
        }
        if (!wait_for_data(socket, spin) || recv(socket, buffer, sizeof buffer, 0) < 0) {
            return -ETIMEDOUT;
        }
        latencies[r] = now_ns() - begun;
    }
    return 0;
}
