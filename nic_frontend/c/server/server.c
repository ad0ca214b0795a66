/* The loop. */
#define _GNU_SOURCE
#include "server.h"

#include <errno.h>
#include <sched.h>
#include <stdatomic.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "server_parts.h"

#define EVENTS 64
#define TICK_NS 1000000ULL
/* The segments of a request follow one another; to sleep between two costs more than to wait. */
#define BETWEEN_SEGMENTS_NS 50000ULL
#define QUIET_TICK_NS 100000000ULL

static uint64_t dispatch(struct shunter_server *server) {
    uint64_t next = UINT64_MAX;
    for (uint32_t i = 0; i < server->func_count; i++) {
        struct shunter_served *served = server->serving[server->func_ids[i]]->served;
        if (served->streamed) { // parts of answers may have taken the entries that others wait for
            const bool waits = shunter_core_has_row(server->core, server->func_ids[i]);
            served->outside_ns =
                !waits ? 0 : served->outside_ns ? served->outside_ns : server->now_ns;
        }
        const uint64_t at = shunter_dispatch(served, server->now_ns);
        next = at < next ? at : next;
    }
    return next;
}

static void set_asleep(struct shunter_server *server, uint64_t value) {
    for (uint32_t i = 0; i < server->func_count; i++) {
        atomic_store(
            shunter_front_end_word(
                &server->serving[server->func_ids[i]]->served->queue, SHUNTER_Q_FRONT_END_ASLEEP),
            value);
    }
}

/* A batch is held back for parts of a millisecond; only newer kernels wait so short. */
static int wait_ns(int epoll, struct epoll_event *found, uint64_t timeout_ns) {
    static atomic_bool is_old; // of all servers
    const struct timespec time = {
        (time_t)(timeout_ns / 1000000000), (long)(timeout_ns % 1000000000)};
    if (timeout_ns && !is_old) {
        const int count = (int)syscall(SYS_epoll_pwait2, epoll, found, EVENTS, &time, NULL, 0);
        is_old = count < 0 && errno == ENOSYS;
        if (!is_old) {
            return count;
        }
    }
    return epoll_wait(epoll, found, EVENTS, (int)((timeout_ns + 999999) / 1000000));
}

/* One that is not read cannot be told otherwise that it has ended. */
static void hang_up(
    struct shunter_server *server, struct shunter_stream *stream, uint32_t events) {
    if (events & (EPOLLHUP | EPOLLERR)) {
        shunter_stream_close(server, stream);
    }
}

/* Readable descriptors: streams are served, the rest is looked at anyway. True: the caller's. */
static int events(struct shunter_server *server, uint64_t timeout_ns, bool *woken) {
    struct epoll_event found[EVENTS];
    const int count = wait_ns(server->epoll, found, timeout_ns);
    if (count < 0) {
        *woken = errno == EINTR; // the caller has a signal to handle
        return *woken ? 0 : -errno;
    }
    server->now_ns = shunter_now_ns();
    int busy = 0;
    for (int i = 0; i < count; i++) {
        struct shunter_stream *stream = found[i].data.ptr;
        if (found[i].data.ptr == &server->settings.wake) {
            *woken = true;
        } else if (found[i].data.ptr == &server->settings.doorbell) {
            uint64_t rings;
            if (read(server->settings.doorbell, &rings, sizeof rings) > 0) {
                busy++;
            }
        } else if (found[i].data.ptr == &server->settings.udp) {
            busy++;
        } else if (found[i].data.ptr == &server->settings.strangers) {
            server->strangers.wait = true; // that is no reason to spin
        } else {
            if (found[i].events & EPOLLOUT) {
                shunter_stream_writable(server, stream);
            }
            if (stream->waits) {
                hang_up(server, stream, found[i].events);
            } else if (found[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR) && !stream->closed) {
                shunter_stream_readable(server, stream);
            }
            busy++;
        }
    }
    return busy;
}

static uint64_t timeout_ns(
    const struct shunter_server *server, uint64_t until_ns, uint64_t next_ns) {
    uint64_t at = until_ns < next_ns ? until_ns : next_ns;
    at = at < server->next_tick_ns ? at : server->next_tick_ns;
    const uint64_t most = 1000000000;
    return at <= server->now_ns ? 0 : at - server->now_ns < most ? at - server->now_ns : most;
}

static void tick(struct shunter_server *server) {
    if (server->now_ns >= server->next_tick_ns) {
        shunter_streams_close_late(server);
        shunter_core_tick(server->core, server->now_ns);
        server->next_tick_ns =
            server->now_ns +
            (shunter_core_is_pressed(server->core) ? TICK_NS : QUIET_TICK_NS);
    }
}

/* Sleep until something comes; a negative errno when it cannot. */
static int sleep_until(
    struct shunter_server *server, uint64_t until_ns, uint64_t next_ns, bool *woken) {
    int found = 0;
    set_asleep(server, 1); // before the last look, so that one of the two sees the other
    if (shunter_collect_all(server) + shunter_streams_go_on(server) == 0) {
        const uint64_t slept_ns = shunter_now_ns();
        server->stats.sleeps++;
        found = events(server, timeout_ns(server, until_ns, next_ns), woken);
        if (found >= 0) {
            // After a sleep so short the next wait is worth spinning for; after a spin in vain not.
            server->spins = found && shunter_now_ns() - slept_ns < server->settings.spin_ns;
        }
    }
    set_asleep(server, 0);
    server->now_ns = shunter_now_ns();
    return found;
}

/* Datagrams taken in, of which those count that may be of sessions; ``next_ns``: when there are
 * others to take in. */
static int receive(struct shunter_server *server, uint32_t *messages, uint64_t *next_ns) {
    const int came = shunter_receive_by(server, server->backend, server->landed, messages);
    const int error = came < 0 ? came : shunter_receive_strangers(server, next_ns);
    return error < 0 ? error : came;
}

static bool is_over(struct shunter_server *server, uint64_t until_ns) {
    return server->hello_count || server->closed_count || server->now_ns >= until_ns ||
           atomic_load_explicit(&server->interrupted, memory_order_relaxed);
}

int shunter_server_run(
    struct shunter_server *server, uint64_t until_ns, struct shunter_hello *hellos,
    uint32_t most) {
    uint64_t quiet_ns = 0; /* since when nothing has come */
    bool woken = false;
    server->hellos = hellos;
    server->hello_most = most;
    server->hello_count = 0;
    server->now_ns = shunter_now_ns();
    for (;;) {
        int busy = (int)(shunter_collect_all(server) + shunter_streams_go_on(server));
        uint32_t messages = 0;
        uint64_t next_ns = UINT64_MAX;
        const int came = server->backend ? receive(server, &messages, &next_ns) : 0;
        if (came < 0) {
            return came;
        }
        busy += came;
        tick(server);
        // Before a worker may write into an entry whose answer is on its way here.
        shunter_flush(server);
        const uint64_t next_batch_ns = dispatch(server);
        next_ns = next_batch_ns < next_ns ? next_batch_ns : next_ns;
        shunter_flush(server);
        if (woken || is_over(server, until_ns)) {
            break;
        }
        uint64_t spin_ns = server->spins ? server->settings.spin_ns : 0;
        if (shunter_core_is_pressed(server->core) &&
            server->next_tick_ns > server->now_ns + TICK_NS) {
            server->next_tick_ns = server->now_ns + TICK_NS;
        }
        if (shunter_core_is_receiving(server->core)) {
            spin_ns = spin_ns > BETWEEN_SEGMENTS_NS ? spin_ns : BETWEEN_SEGMENTS_NS;
        }
        if (busy) {
            quiet_ns = server->now_ns;
        }
        if (server->backend && messages >= server->backend->worthwhile && !server->stream_count) {
            continue; // there may be more
        }
        if (server->now_ns - quiet_ns < spin_ns) {
            const int found = events(server, 0, &woken);
            if (found < 0) {
                return found;
            }
            if (!busy && !found) {
                sched_yield(); // a worker may be waiting for this very core
            }
            server->now_ns = shunter_now_ns();
            continue;
        }
        const int slept = sleep_until(server, until_ns, next_ns, &woken);
        if (slept < 0) {
            return slept;
        }
    }
    return (int)server->hello_count;
}

/* Both: one that never sleeps looks at no descriptor. */
void shunter_server_interrupt(struct shunter_server *server, bool wanted) {
    atomic_store(&server->interrupted, wanted);
    eventfd_t count = 1;
    if (wanted) {
        eventfd_write(server->settings.wake, count);
    } else {
        eventfd_read(server->settings.wake, &count);
    }
}
