/* What the parts of the server share. */
#ifndef SHUNTER_SERVER_PARTS_H
#define SHUNTER_SERVER_PARTS_H

#include <sys/types.h>

#include "aead.h"
#include "backend.h"
#include "dispatch.h"
#include "server.h"

#define SHUNTER_LARGEST 65536
#define SHUNTER_STREAMS 4096
#define SHUNTER_HELLO_ROWS 1024

struct shunter_stream {
    int socket;
    uint32_t session;
    uint8_t peer[SHUNTER_PEER_BYTES];
    uint8_t header[SHUNTER_HEADER_BYTES];
    uint32_t have;     /* bytes of the header */
    uint32_t left;     /* bytes of the payload that are missing */
    uint8_t *into;     /* where they go; NULL: they are thrown away */
    uint32_t behind;   /* bytes of the tag behind it that are missing */
    uint8_t tag[SHUNTER_AEAD_TAG];
    uint64_t begun_ns; /* when a message that is not complete began, 0: there is none */
    bool has_place;
    uint8_t *place;
    uint32_t place_length;
    struct shunter_guard guard;
    uint8_t *out;      /* what the socket did not take */
    size_t out_length, out_at, out_room;
    bool closed;
};

struct shunter_server {
    struct shunter_settings settings;
    struct shunter_core *core;
    struct shunter_served *served[SHUNTER_FUNCTIONS];
    uint16_t *func_ids;
    uint32_t func_count;
    struct shunter_backend *backend; /* of datagrams; NULL: there are only streams */
    struct shunter_landed *landed;
    uint8_t *aside; /* payloads that are in the way of others */
    /* the datagram that is expected next */
    uint16_t next_func_id;
    uint32_t next_session;
    uint64_t next_req_id;
    int epoll;
    struct shunter_stream *streams[SHUNTER_STREAMS];
    uint32_t stream_count;
    uint32_t closed_count;
    uint64_t ended_streams; /* sessions, when all were looked at */
    uint64_t next_look_ns;
    size_t kept_bytes; /* that streams did not take yet */
    struct shunter_stats stats;
    uint64_t now_ns;
    uint64_t next_tick_ns;
    bool spins; /* waits are short at present */
    /* of the datagram that the core looks at */
    bool is_hello;
    bool has_place;
    uint8_t *place;
    uint32_t place_length;
    struct shunter_guard guard;
    struct shunter_aead *aead; /* NULL until a payload is encrypted */
    uint8_t *sealed;           /* encrypted payloads that are about to be sent */
    uint32_t sealed_at;
    struct shunter_hello *hellos;
    uint32_t hello_count, hello_most;
    uint64_t hello_due_ns[SHUNTER_HELLO_ROWS]; /* addresses: when all they have said is due */
};

uint64_t shunter_now_ns(void);

/* Take in what workers have answered; the number of batches. */
uint32_t shunter_collect_all(struct shunter_server *server);
/* Send what the backend was given. */
void shunter_flush(struct shunter_server *server);
/* Datagrams taken in, or a negative errno. ``messages``: how the backend got them. */
int shunter_receive(struct shunter_server *server, uint32_t *messages);

/* Hand a header to the core; ``place`` and what belongs to it are set by what it says. */
void shunter_hand_over(
    struct shunter_server *server, const uint8_t *peer, const uint8_t *datagram, size_t length);
/* The payload of a segment is in its place: if it is right, it counts. */
void shunter_payload_is_there(
    struct shunter_server *server, const struct shunter_guard *guard, const uint8_t *header,
    uint8_t *place, uint32_t length, const uint8_t *tag);

/* Protect a payload that is about to be sent; its length, or -1 when it cannot be. */
ssize_t shunter_protect(
    struct shunter_server *server, const struct shunter_guard *guard, struct shunter_x64 *header,
    const uint8_t **payload);
/* Of the core: do what it says. */
void shunter_act(void *context, const struct shunter_action *action);

/* A hello came by a datagram; ``length``: of its payload. */
void shunter_greet(
    struct shunter_server *server, const uint8_t *peer, const uint8_t *header,
    const uint8_t *payload, uint32_t length);

void shunter_stream_readable(struct shunter_server *server, struct shunter_stream *stream);
void shunter_stream_writable(struct shunter_server *server, struct shunter_stream *stream);
void shunter_stream_send(
    struct shunter_server *server, struct shunter_stream *stream,
    const struct shunter_x64 *header, const uint8_t *payload, size_t length);
/* End those that are in the midst of a message for too long: they hold an entry; and those whose
 * session has ended. */
void shunter_streams_close_late(struct shunter_server *server);
void shunter_stream_close(struct shunter_server *server, struct shunter_stream *stream);

#endif
