/* What the parts of the server share. */
#ifndef SHUNTER_SERVER_PARTS_H
#define SHUNTER_SERVER_PARTS_H

#include <stdatomic.h>
#include <sys/types.h>

#include "aead.h"
#include "backend.h"
#include "datagrams.h"
#include "dispatch.h"
#include "server.h"

#define SHUNTER_LARGEST 65536
#define SHUNTER_STREAMS 4096
#define SHUNTER_HELLO_ROWS 1024

/* Where a payload belongs that comes. */
struct shunter_place {
    uint16_t func_id;
    uint16_t seq, count; /* of the segments of its request */
    uint32_t entry;
    uint32_t length;
    uint32_t region; /* not 0: the whole request is there already, in this one at the offset */
    uint32_t offset;
    uint32_t total;
    struct shunter_guard guard;
};

/* Of a request whose answer comes in parts: entries that are places for them. */
struct shunter_part_places {
    uint32_t given, seen; /* so far; parts that were found in them */
    uint32_t places[SHUNTER_PARTS_AHEAD];
    bool running;
    bool over; /* its worker has said that none follows */
};

struct shunter_parts {
    uint32_t *live; /* entries that run */
    uint32_t count;
    uint64_t *sent; /* by entry: at which flush what was in it last goes, or has gone */
    struct shunter_part_places of[]; /* by entry */
};

/* A function: its dispatcher, and how many pieces its entries have. */
struct shunter_serving {
    struct shunter_server *server;
    struct shunter_served *served;
    uint16_t func_id;
    bool packed; /* its requests are runs of bytes, of any length up to a most */
    struct shunter_parts *parts; /* NULL: its answers are whole */
    uint16_t *pieces;
};

struct shunter_stream {
    int socket;
    uint32_t session;
    uint8_t peer[SHUNTER_PEER_BYTES];
    uint8_t header[SHUNTER_HEADER_BYTES];
    uint32_t have;     /* bytes of the header */
    uint32_t left;     /* bytes of the payload, and of the tag behind it, that are missing */
    uint8_t *into;     /* where they go; NULL: they are thrown away */
    uint8_t *payload;  /* where they began */
    int32_t block;     /* to which it refers meanwhile */
    uint64_t begun_ns; /* when a message that is not complete began, 0: there is none */
    bool waits;        /* for a block of the landing pool, and is not read meanwhile */
    bool has_place;
    struct shunter_place place;
    uint8_t *out;      /* what the socket did not take */
    size_t out_length, out_at, out_room;
    uint64_t behind_ns; /* since when something is kept, and it was looked at */
    size_t taken;       /* bytes of it that the socket has taken since */
    bool closed;
};

/* The socket by which only hellos come, if there is one: see strangers.c. */
struct shunter_strangers {
    struct shunter_backend *backend;
    struct shunter_landed *landed;
    struct shunter_landing nowhere; /* a pool without blocks */
    uint64_t due_ns;                /* when it may be read again */
    uint64_t looked_ns;             /* when it was read */
    bool wait;                      /* something has come */
};

struct shunter_server {
    struct shunter_settings settings;
    struct shunter_core *core;
    struct shunter_serving *serving[SHUNTER_FUNCTIONS];
    uint16_t *func_ids;
    uint32_t func_count;
    struct shunter_backend *backend; /* of datagrams; NULL: there are only streams */
    struct shunter_landed *landed;
    struct shunter_strangers strangers;
    struct shunter_landing landing;
    struct shunter_slot packed;  /* little payloads that were in the way */
    struct shunter_slot streams_slot; /* payloads of streams */
    int epoll;
    struct shunter_stream *streams[SHUNTER_STREAMS];
    uint32_t stream_count;
    uint32_t closed_count;
    uint32_t waiting_streams; /* for a block */
    int next_waiting;         /* where the next block is given first */
    uint64_t ended_streams; /* sessions, when all were looked at */
    uint64_t next_look_ns;
    size_t kept_bytes; /* that streams did not take yet */
    struct shunter_stats stats;
    uint64_t flushes;
    uint64_t now_ns;
    uint64_t next_tick_ns;
    bool spins; /* waits are short at present */
    atomic_bool interrupted; /* by another thread */
    /* of the datagram that the core looks at */
    bool is_hello;
    bool has_place;
    struct shunter_place place;
    struct shunter_aead *aead; /* NULL until a payload is encrypted */
    uint8_t *sealed;           /* encrypted payloads that are about to be sent */
    uint32_t sealed_at;
    struct shunter_hello *hellos;
    uint32_t hello_count, hello_most;
    uint64_t hello_due_ns[SHUNTER_HELLO_ROWS]; /* addresses: when all they have said is due */
    uint64_t cookies_due_ns; /* when all that were given are due */
};

uint64_t shunter_now_ns(void);

/* Take in what workers have answered; the number of batches, and of parts of answers. */
uint32_t shunter_collect_all(struct shunter_server *server);
/* Send what the backend was given. */
void shunter_flush(struct shunter_server *server);
/* Datagrams taken in, or a negative errno. ``messages``: how the backend got them. */
int shunter_receive_by(
    struct shunter_server *server, struct shunter_backend *backend,
    struct shunter_landed *landed, uint32_t *messages);

int shunter_strangers_open(struct shunter_server *server);
void shunter_strangers_close(struct shunter_server *server);
/* Take in what strangers have said, if it is time: 0 or a negative errno. ``next_ns``: when there is
 * more to take. */
int shunter_receive_strangers(struct shunter_server *server, uint64_t *next_ns);

/* Hand a header to the core; ``place`` is set by what it says. */
void shunter_hand_over(
    struct shunter_server *server, const uint8_t *peer, const uint8_t *datagram, size_t length);
/* The payload of a segment has landed, and behind it what protects it: if it is right, it stays there
 * and counts. ``together``: bytes that came with it into its block. */
void shunter_payload_is_there(
    struct shunter_server *server, const struct shunter_place *place, const uint8_t *header,
    uint8_t *payload, int32_t block, uint32_t together);
/* The input of an entry is not needed any more. */
void shunter_let_go(struct shunter_server *server, uint16_t func_id, uint32_t entry);

/* Protect a payload that is about to be sent; its length, or -1 when it cannot be. ``is_kept``: it is
 * a datagram's, of which the backend keeps the place until it flushes. */
ssize_t shunter_protect(
    struct shunter_server *server, const struct shunter_guard *guard, struct shunter_x64 *header,
    const uint8_t **payload, bool is_kept);
/* ---- parts.c: nothing where answers are whole */

struct shunter_parts *shunter_parts_new(uint32_t entries);
void shunter_parts_free(struct shunter_parts *parts);
/* A request is going to wait for a worker. */
void shunter_parts_ready(const struct shunter_serving *serving, uint32_t entry);
/* It is about to be given to one. */
void shunter_parts_run(const struct shunter_serving *serving, uint32_t entry);
/* It does not run any more: what its worker has written is taken in. */
void shunter_parts_end(const struct shunter_serving *serving, uint32_t entry, uint64_t now_ns);
/* What an entry holds is sent from there, at the next flush. */
void shunter_parts_sent(const struct shunter_serving *serving, uint32_t entry);
/* Of the core: a place for its next part; nobody waits for it. */
void shunter_parts_place(const struct shunter_serving *serving, uint32_t entry, uint32_t place);
void shunter_parts_unwanted(const struct shunter_serving *serving, uint32_t entry);
/* Take in what workers have written; how many parts. */
uint32_t shunter_parts_collect(const struct shunter_serving *serving, uint64_t now_ns);

/* What the dispatcher asks of a function's core. */
extern const struct shunter_owner shunter_owner_is_core;
/* Of the core: do what it says. */
void shunter_act(void *context, const struct shunter_action *action);

/* A hello came by a datagram; ``length``: of its payload, NULL: which cannot be read. */
void shunter_greet(
    struct shunter_server *server, const uint8_t *peer, const uint8_t *header,
    const uint8_t *payload, uint32_t length);

void shunter_stream_readable(struct shunter_server *server, struct shunter_stream *stream);
/* Those that wait for a block, if there is one now; how many have got on. */
uint32_t shunter_streams_go_on(struct shunter_server *server);
/* Hear of what it can do from now on: bytes for it, room for what is kept. */
void shunter_stream_watch(struct shunter_server *server, struct shunter_stream *stream);
void shunter_stream_writable(struct shunter_server *server, struct shunter_stream *stream);
void shunter_stream_send(
    struct shunter_server *server, struct shunter_stream *stream,
    const struct shunter_x64 *header, const uint8_t *payload, size_t length);
/* Whether it does not read what is kept for it. */
bool shunter_stream_reads_too_slowly(
    const struct shunter_server *server, struct shunter_stream *stream);
/* End those that are in the midst of a message for too long: they hold an entry; and those whose
 * session has ended. */
void shunter_streams_close_late(struct shunter_server *server);
void shunter_stream_close(struct shunter_server *server, struct shunter_stream *stream);

#endif
