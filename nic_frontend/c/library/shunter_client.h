/*
 * A client of Shunter's network front end, for C and C++.
 *
 * A session is one model at one front end. It belongs to one thread at a time; a program has as
 * many as it likes. Tensors are the caller's memory, sent from where they lie and received where
 * they shall be. A session stays with the process that opened it: in a child that is forked what
 * would send or receive is -ECHILD, and shunter_close and shunter_stream_end only let go.
 *
 *     shunter_session *session;
 *     int error = shunter_open("udp://127.0.0.1:8083", "resnet50", NULL, &session);
 *     const void *inputs[] = {pixels};
 *     void *outputs[] = {scores};
 *     if (!error) error = shunter_infer(session, inputs, outputs, NULL, 1000);
 *     if (error) fprintf(stderr, "%s\n", shunter_strerror(error));
 *     shunter_close(session);
 *
 * Results below 0 are errors: the negative of an errno, or of a status of the server (400 and
 * above, as docs/wire.md lists them). shunter_strerror says each in words.
 */
#ifndef SHUNTER_CLIENT_PUBLIC_H
#define SHUNTER_CLIENT_PUBLIC_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define SHUNTER_API __attribute__((visibility("default")))
#else
#define SHUNTER_API
#endif

#define SHUNTER_MOST_TENSORS 64    /* inputs, and outputs, of a model */
#define SHUNTER_MOST_DIMENSIONS 32 /* of a tensor */
#define SHUNTER_MOST_NAME 127      /* bytes of its name */
#define SHUNTER_MOST_AT_ONCE 64    /* requests of a session on their way */
#define SHUNTER_ANY UINT64_MAX     /* a size in a shape that each request, or answer, chooses */

typedef struct shunter_session shunter_session;

/* What protects tensors on their way. */
enum shunter_protection {
    SHUNTER_PLAIN = 0,
    SHUNTER_CHECKED = 1,   /* a CRC */
    SHUNTER_ENCRYPTED = 2, /* AES-128-GCM: needs a key, and libcrypto of OpenSSL at run time */
};

/* How a session is opened; zeros are good values. */
struct shunter_open_options {
    const char *version;  /* of the model; NULL: the default one */
    const void *key;      /* the pre-shared key, at least 32 bytes; NULL: none */
    size_t key_bytes;
    const char *key_id;   /* how the server names the key; NULL: "default" */
    int protection;       /* enum shunter_protection */
    unsigned window;      /* most requests on their way; 0: 64 */
    unsigned timeout_ms;  /* to open it; 0: 5000 */
};

/* A tensor of one request. */
struct shunter_tensor {
    char name[SHUNTER_MOST_NAME + 1];
    char dtype[16]; /* numpy's name, such as "float32"; torch's, such as "bfloat16"; or "bytes" */
    uint32_t dimensions;
    uint64_t shape[SHUNTER_MOST_DIMENSIONS];
    uint64_t bytes; /* 0 where requests differ in that */
};

/*
 * A packed model: requests choose the sizes of its tensors, or are batches themselves. A request is
 * one run of bytes, and so is its answer: shunter_pack and shunter_unpack know what is in it.
 */
struct shunter_packing {
    int batched;  /* tensors have one dimension more in front, of the rows of the request */
    int streamed; /* answers come in parts */
    uint32_t rows; /* most of a request */
    uint32_t request_bytes, answer_bytes; /* longest runs */
};

/* A tensor in a run. */
struct shunter_array {
    void *data;
    uint64_t bytes;
    uint64_t shape[SHUNTER_MOST_DIMENSIONS + 1]; /* first the rows, where requests are batches */
};

/* How a request is to be treated; zeros are good values. */
struct shunter_request_options {
    uint32_t deadline_ms; /* from now on: the server drops what cannot run by then; 0: the model's */
    int priority;         /* 0: the model's class, 1: strict, 2: best effort */
    int idempotent;       /* it may run twice */
};

/* The end of a request. */
struct shunter_result {
    int64_t request;
    int error; /* 0: the outputs are there */
    uint32_t bytes; /* of the answer of a packed model */
};

/*
 * Open a session with a model. ``url``: udp://HOST:PORT, tcp://HOST:PORT, unix:///PATH, or
 * shunter://HOST:PORT for UDP, or TCP where the tensors are too large for it. ``options`` may be
 * NULL. Waits. 0 or an error: -ETIMEDOUT nobody answered, -401 the key, -404 there is no such
 * model, -521 it has no worker now.
 */
SHUNTER_API int shunter_open(
    const char *url, const char *model, const struct shunter_open_options *options,
    shunter_session **session);
/* End it; NULL does nothing. Memory of requests on their way is the caller's again. */
SHUNTER_API void shunter_close(shunter_session *session);

/* The model's tensors, as long as the session lives. */
SHUNTER_API const struct shunter_tensor *shunter_inputs(
    const shunter_session *session, unsigned *count);
SHUNTER_API const struct shunter_tensor *shunter_outputs(
    const shunter_session *session, unsigned *count);

/*
 * On a Unix socket, where tensors are not protected, a session shares memory with the model's workers
 * if the server lets it, and inputs are copied there. What is written there in the first place is
 * not: where the inputs of the next request belong. 0, -ENOTSUP when nothing is shared, or -EAGAIN
 * while an earlier request has the place: poll, then try again.
 */
SHUNTER_API int shunter_next_inputs(const shunter_session *session, void **inputs);

/*
 * Ask once and wait. ``inputs`` and ``outputs``: memory of each tensor. ``options`` may be NULL.
 * 0 or an error; after -ETIMEDOUT the request is given up.
 */
SHUNTER_API int shunter_infer(
    shunter_session *session, const void *const *inputs, void *const *outputs,
    const struct shunter_request_options *options, unsigned timeout_ms);

/*
 * Begin a request; its number, or an error: -EAGAIN when as many are on their way as may be, those
 * included that have ended while shunter_infer waited for another: poll, then try again. The memory
 * must stay until the request has ended.
 */
SHUNTER_API int64_t shunter_begin(
    shunter_session *session, const void *const *inputs, void *const *outputs,
    const struct shunter_request_options *options);
/*
 * Several small requests are to begin: by datagrams they wait for each other and go in few system
 * calls, at the latest when ``corked`` is 0 again, or by shunter_poll. 0 or an error of sending.
 */
SHUNTER_API int shunter_cork(shunter_session *session, int corked);
/*
 * Take in what has come until a request has ended or begin is worth another try, at most
 * ``timeout_ms`` (0: do not wait). How many results there are, or an error: of the connection,
 * after which the session is of no use, or -410 when the server seems to have forgotten it.
 */
SHUNTER_API int shunter_poll(
    shunter_session *session, struct shunter_result *results, unsigned most, int timeout_ms);
/* Give a request up: it does not end any more, and its memory is the caller's. 0 or -ENOENT. */
SHUNTER_API int shunter_cancel(shunter_session *session, int64_t request);

/* ---- packed models; for them the functions above that take inputs and outputs are -EINVAL */

/* NULL: the model is not packed. */
SHUNTER_API const struct shunter_packing *shunter_packing(const shunter_session *session);

/*
 * Make a request's run of its ``inputs``, one for each tensor of the model: what they have as data is
 * copied to its place; where that is NULL it becomes the place, for the caller to write to. The bytes
 * of numbers follow from their shapes and are set; those of byte strings are the caller's: each has
 * its length in 4 bytes, little-endian, before it. The bytes of the run: if these are more than
 * ``room`` nothing was written. -EINVAL for shapes that are not the model's, -EMSGSIZE for more than
 * it takes.
 */
SHUNTER_API int64_t shunter_pack(
    const shunter_session *session, struct shunter_array *inputs, void *run, size_t room);
/*
 * Where the ``outputs`` of an answer are in its run, which must stay. Its rows, or -EPROTO when it
 * is none.
 */
SHUNTER_API int shunter_unpack(
    const shunter_session *session, const void *run, size_t bytes, struct shunter_array *outputs);
/*
 * The next byte string of a tensor; ``at`` is 0 at first and moves on. NULL: there is none, or it
 * ends behind the tensor.
 */
SHUNTER_API const char *shunter_next_string(
    const struct shunter_array *tensor, uint64_t *at, uint32_t *length);

/*
 * As shunter_infer and shunter_begin, with runs; ``answer`` has room for ``answer_bytes`` of the
 * packing. ``answered``: the bytes of the answer.
 */
SHUNTER_API int shunter_infer_packed(
    shunter_session *session, const void *run, size_t bytes, void *answer, size_t *answered,
    const struct shunter_request_options *options, unsigned timeout_ms);
SHUNTER_API int64_t shunter_begin_packed(
    shunter_session *session, const void *run, size_t bytes, void *answer,
    const struct shunter_request_options *options);

/* ---- models whose answers come in parts; for them the functions above that begin are -EINVAL */

typedef struct shunter_stream shunter_stream;

/*
 * Begin a request, of which a copy is kept, made by shunter_pack. A session has as many as it likes at
 * once. Never waits: where there is no room it begins later. 0 or an error.
 */
SHUNTER_API int shunter_stream_begin(
    shunter_session *session, const void *run, size_t bytes,
    const struct shunter_request_options *options, shunter_stream **stream);
/*
 * Wait at most ``timeout_ms`` for the next part. 1: there is one, a run as shunter_unpack takes it,
 * which stays until the next call for this stream. 0: there are no more. Else an error, after which
 * there are no more, but for -ETIMEDOUT (-EAGAIN where ``timeout_ms`` is 0), after which it goes on;
 * the parts before it were right. -408: they were taken too slowly for others that the model served
 * at once. A part that the caller does not ask for is not sent, but for the first eight. Where others
 * of the session need its room, the server lets go of who waits for a part; that ends nothing, and
 * the next call, or shunter_poll, asks for the part again.
 */
SHUNTER_API int shunter_stream_next(
    shunter_stream *stream, const void **part, size_t *bytes, unsigned timeout_ms);
/*
 * Let it go, at any time: the model need not go on. NULL does nothing. shunter_close ends those of
 * the session that are left.
 */
SHUNTER_API void shunter_stream_end(shunter_stream *stream);

/*
 * For event loops: poll when this descriptor can be read, or written if shunter_wants_write, and
 * when so many ms have passed.
 */
SHUNTER_API int shunter_descriptor(const shunter_session *session);
SHUNTER_API int shunter_wants_write(const shunter_session *session);
SHUNTER_API int shunter_due_ms(const shunter_session *session);

/* An error in words. */
SHUNTER_API const char *shunter_strerror(int error);

#ifdef __cplusplus
}
#endif

#endif
