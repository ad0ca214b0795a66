/* How a session is opened over a connection; docs/wire.md says the same in words. */
#ifndef SHUNTER_HELLO_H
#define SHUNTER_HELLO_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>
#include <unistd.h>

#include "client.h"
#include "keys.h"
#include "tensors.h"

/* One try, with one key pair and nonce. */
struct shunter_hello {
    struct shunter_secret secret; /* length 0: none */
    bool encrypts;
    int memory; /* descriptor that came with an answer, -1: none */
    uint8_t private_key[32];
    uint8_t message[SHUNTER_SAID_BYTES + SHUNTER_MAC_BYTES];
};

/* What is said: names that are too long are -ENAMETOOLONG, without libcrypto it is -ENOTSUP. */
int shunter_hello_make(
    struct shunter_hello *hello, const char *model, const struct shunter_open_options *options);

/*
 * Of the path that it is said on: the largest payload of a datagram, and whether it is a Unix socket,
 * by which memory for inputs can come, if payloads need no protection. Must be called.
 */
void shunter_hello_set_path(struct shunter_hello *hello, uint32_t segment, bool unix_socket);

/*
 * What a message says: 0 it opens a session, -EAGAIN nothing, or it is another's; 1 the hello has a
 * cookie now and is to be said again, or the negative of a status. Settings of the session, but
 * for socket, stream, gso and time.
 */
int shunter_hello_take(
    struct shunter_hello *hello, const uint8_t *message, size_t length,
    struct shunter_client_settings *settings, struct shunter_tensors *tensors);

/* Say it until there is an answer: 0, a negative errno or the negative of a status. */
int shunter_hello_talk(
    struct shunter_hello *hello, struct shunter_client_settings *settings,
    struct shunter_tensors *tensors, uint64_t until_ns);

/* ---- shared.c */

/* Receive as recv does, and a descriptor into ``memory`` if one comes, instead of what it was. */
ssize_t shunter_receive_memory(int socket, uint8_t *into, size_t room, int *memory);
/*
 * Map what came with the session for the inputs of ``settings->shared_requests`` requests. 0, or
 * -EPROTO when it is not memory for so much, or could become less.
 */
int shunter_share(
    int memory, const struct shunter_tensors *tensors, struct shunter_client_settings *settings);
void shunter_unshare(
    const struct shunter_tensors *tensors, const struct shunter_client_settings *settings);

/* ---- an open one */

struct shunter_session {
    struct shunter_client *client;
    struct shunter_tensors tensors;
    struct shunter_side requests, answers; /* where it is packed */
    struct shunter_client_settings settings; /* without its keys */
    uint64_t asked_ns, ask_wait_ns; /* for credit */
    struct shunter_stream *streams;
    struct shunter_result kept[SHUNTER_WINDOW]; /* that nobody was told of yet */
    unsigned kept_count;
    pid_t process; /* whose it is: a child that it forks has the same numbers, keys and socket */
};

#define SHUNTER_FIRST_ASK_NS 5000000ULL
#define SHUNTER_NS_PER_MS 1000000ULL
#define SHUNTER_LOOK_NS 10000000ULL /* so often: has the server forgotten the session? */

/* Else nothing may be sent or received: the parent has no other numbers for what it sends. */
static inline bool shunter_session_is_ours(const struct shunter_session *session) {
    return session->process == getpid();
}

/* ---- streams.c: what it and session.c know of each other */

/* Whether what has ended is of a stream, which knows it then. */
bool shunter_session_streams_take(
    struct shunter_session *session, const struct shunter_ended *ended);
/* Ask for the parts for which there may be room now. */
void shunter_session_streams_go_on(struct shunter_session *session);
/* When the session is over. */
void shunter_session_streams_free(struct shunter_session *session);

/* ---- session.c */

/* A request has begun. */
void shunter_session_begun(struct shunter_session *session);
/* As shunter_poll, but for what was kept; what is of no stream, and has no room in ``results``, is. */
int shunter_session_poll(
    struct shunter_session *session, struct shunter_result *results, unsigned most,
    uint64_t until_ns);

#endif
