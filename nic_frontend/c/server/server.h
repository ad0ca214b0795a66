/*
 * The front end's data path: datagrams and streams in, batches to workers, answers out.
 *
 * One thread calls shunter_server_run in a loop; everything else is called between two calls, by
 * the same thread or by one that sees to it. What is rare (hello, functions, sessions, workers,
 * streams) is the caller's. Several servers share nothing, and may run at the same time.
 */
#ifndef SHUNTER_SERVER_H
#define SHUNTER_SERVER_H

#include <stdbool.h>
#include <stdint.h>

#include "core.h"
#include "policy.h"
#include "queue.h"
#include "sets.h"
#include "telemetry.h"

#define SHUNTER_HELLO_BYTES (SHUNTER_HEADER_BYTES + sizeof(struct shunter_wire_hello))

struct shunter_server;

struct shunter_settings {
    int udp;      /* bound datagram socket, non-blocking, or -1 */
    int strangers; /* another one of the same port, to which the kernel steers hellos, or -1 */
    int doorbell; /* eventfd that workers ring */
    int wake;     /* descriptor that the caller wants to be woken by, or -1; an eventfd of its own
                   * where it is interrupted */
    uint64_t spin_ns; /* where waits are shorter than this, wait without sleeping */
    uint8_t *landing; /* where payloads land: memory for so many blocks */
    uint32_t landing_blocks;
    uint8_t cookie_secret[16]; /* random */
    struct shunter_sets *sets; /* of workers, shared by servers; NULL: there are none */
};

struct shunter_stats {
    struct shunter_counts counts;
    uint64_t datagrams_in, datagrams_out, bytes_in, bytes_out, send_failures;
    uint64_t streams_in;      /* messages by stream */
    uint64_t placed_segments; /* that came, were right and new */
    uint64_t copied_bytes;    /* of payloads, by this process */
    uint64_t gathered_bytes;  /* the same, by workers: once for each byte of a batch */
    uint64_t overflows;       /* the kernel dropped, SO_RXQ_OVFL */
    uint64_t sleeps;
    uint64_t split_datagrams; /* that came in two parts */
    uint64_t split_no_room;   /* for their headers: the socket got them */
    uint64_t hellos;          /* that were read */
    uint64_t hello_overflows; /* the kernel dropped */
    uint64_t hellos_unanswered; /* there were too many */
    uint64_t drops[SHUNTER_DROPS];
    uint64_t landing_blocks, landing_free; /* of the landing pool, now */
};

/* A hello of somebody who gets what is sent to this address. */
struct shunter_hello {
    uint64_t origin;  /* whose hellos and sessions are counted together */
    uint64_t trip_ns; /* from its cookie to here */
    uint8_t peer[SHUNTER_PEER_BYTES];
    uint8_t message[SHUNTER_HELLO_BYTES];
};

int shunter_server_new(const struct shunter_settings *settings, struct shunter_server **server);
void shunter_server_free(struct shunter_server *server);
struct shunter_core *shunter_server_core(struct shunter_server *server);

/* So many blocks of the landing pool can be used. */
void shunter_server_grow_landing(struct shunter_server *server, uint32_t blocks);
/* No more than so many, from now on, if those behind them are free; how many it uses. */
uint32_t shunter_server_shrink_landing(struct shunter_server *server, uint32_t blocks);
/*
 * Let the kernel split what comes in at this interface, into so many blocks of the pool that have just
 * been added to it. 0, -ENOTSUP: not here, or -ENOMEM, after which it cannot serve. ``said``: how, or
 * why not.
 */
int shunter_server_split(
    struct shunter_server *server, const char *interface, uint32_t blocks, char *said,
    size_t size);
/* The same by RDMA hardware, beside the UDP socket: not run on any so far. */
int shunter_server_verbs(
    struct shunter_server *server, const char *device, uint32_t blocks, char *said, size_t size);
/* Largest datagram that can come in; UINT32_MAX: there are only streams. */
uint32_t shunter_server_mtu(const struct shunter_server *server);
/* They land on a device, where they can be neither checked nor decrypted. */
bool shunter_server_payloads_are_far(const struct shunter_server *server);

int shunter_server_add_function(
    struct shunter_server *server, const struct shunter_queue *queue,
    const struct shunter_policy *policy, uint32_t burst);
/* It is packed; ``rows`` may become others as workers come and go. */
int shunter_server_set_runs(
    struct shunter_server *server, uint16_t func_id, const struct shunter_runs *runs);
int shunter_server_set_policy(
    struct shunter_server *server, uint16_t func_id, const struct shunter_policy *policy);
int shunter_server_remove_function(struct shunter_server *server, uint16_t func_id);

/* ``set``: of which it is, 0: of none; ``yields``: its batches stand still for strict ones there. */
int shunter_server_add_worker(
    struct shunter_server *server, uint16_t func_id, uint32_t worker, uint32_t cap, int doorbell,
    uint32_t set, bool yields);
/* Give it nothing more; shunter_server_idle says when it has finished. */
int shunter_server_drain_worker(struct shunter_server *server, uint16_t func_id, uint32_t worker);
bool shunter_server_idle(struct shunter_server *server, uint16_t func_id, uint32_t worker);
/* For how long the oldest batch that it holds has run, 0: it holds none. */
uint64_t shunter_server_busy_ns(
    struct shunter_server *server, uint16_t func_id, uint32_t worker, uint64_t now_ns);
/* It is gone, finished or not. */
int shunter_server_remove_worker(
    struct shunter_server *server, uint16_t func_id, uint32_t worker);

/*
 * Answer what waits for a worker of a function with ``status``: it has not run. Returns the number
 * of requests.
 */
uint32_t shunter_server_give_up(
    struct shunter_server *server, uint16_t func_id, uint16_t status);

/* A stream whose session has been added with ``peer`` of shunter_stream_peer. */
int shunter_server_add_stream(struct shunter_server *server, int socket, uint32_t session);
void shunter_stream_peer(int socket, uint8_t peer[SHUNTER_PEER_BYTES]);

/*
 * What stands for the address of a socket: an IPv4 address, or the first 56 bits of one of IPv6, as
 * sites are given them.
 */
uint64_t shunter_origin_of(const uint8_t *peer);

/* A datagram of the caller's: the answer to a hello. 0 or a negative errno. */
int shunter_server_reply(
    struct shunter_server *server, const uint8_t *peer, const void *datagram, uint32_t length);

/*
 * Serve until the time is over, the wake descriptor is ready, or ``most`` hellos are there. Returns
 * the number of hellos, or a negative errno. ``closed`` gets the sessions of streams that ended.
 */
int shunter_server_run(
    struct shunter_server *server, uint64_t until_ns, struct shunter_hello *hellos, uint32_t most);
/*
 * Let shunter_server_run return, now and whenever it is called, until it is not ``wanted`` any more.
 * Any thread may ask for it, and only one at a time.
 */
void shunter_server_interrupt(struct shunter_server *server, bool wanted);
uint32_t shunter_server_closed_streams(
    struct shunter_server *server, uint32_t *sessions, uint32_t most);
void shunter_server_stats(const struct shunter_server *server, struct shunter_stats *stats);
/* What became of the requests of a function. */
int shunter_server_telemetry(
    const struct shunter_server *server, uint16_t func_id, struct shunter_telemetry *telemetry);
uint32_t shunter_server_waiting(const struct shunter_server *server, uint16_t func_id);

#endif
