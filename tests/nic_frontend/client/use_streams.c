/* A program that reads answers in parts, for test_streaming.py, whose model Counts it asks. */
#include <errno.h>
#include <poll.h>
#include <shunter_client.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define LONG 30000
#define AT_ONCE 5

#define CHECK(what)                                                       \
    do {                                                                  \
        if (!(what)) {                                                    \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #what);    \
            exit(3);                                                      \
        }                                                                 \
    } while (0)

static shunter_stream *begin(
    shunter_session *session, int64_t parts, int64_t size, int64_t seed) {
    const int64_t asked[] = {parts, size, seed};
    struct shunter_array input = {.data = (void *)(uintptr_t)asked, .shape = {3}};
    uint8_t run[256];
    shunter_stream *stream;
    const int64_t bytes = shunter_pack(session, &input, run, sizeof run);
    CHECK(bytes > 0 && bytes <= (int64_t)sizeof run);
    CHECK(!shunter_stream_begin(session, run, (size_t)bytes, NULL, &stream));
    memset(run, 0, sizeof run); // it was copied
    return stream;
}

static void look(
    shunter_session *session, const void *part, size_t bytes, int64_t number, int64_t size,
    int64_t seed) {
    struct shunter_array output;
    CHECK(shunter_unpack(session, part, bytes, &output) == 1);
    CHECK(output.shape[0] == (uint64_t)size);
    for (int64_t i = 0; i < size; i++) {
        int64_t value;
        memcpy(&value, (const uint8_t *)output.data + 8 * i, sizeof value);
        CHECK(value == i * number + seed);
    }
}

static int read_parts(
    shunter_session *session, shunter_stream *stream, int64_t most, int64_t size, int64_t seed) {
    const void *part;
    size_t bytes;
    for (int64_t number = 1;; number++) {
        const int found = number > most ? 1 : shunter_stream_next(stream, &part, &bytes, LONG);
        if (number > most || found <= 0) {
            return found;
        }
        look(session, part, bytes, number, size, seed);
    }
}

/* Several at once, by an event loop. */
struct expected {
    int64_t parts, size, seed;
};

/* All at once: which of them the worker runs first is its own affair. */
static void read_all(
    shunter_session *session, shunter_stream **streams, const struct expected *all, int count) {
    int64_t numbers[AT_ONCE] = {0};
    int left = count;
    while (left) {
        struct shunter_result none;
        struct pollfd fd = {
            .fd = shunter_descriptor(session),
            .events = (short)(POLLIN | (shunter_wants_write(session) ? POLLOUT : 0))};
        const int due = shunter_due_ms(session);
        CHECK(poll(&fd, 1, due < LONG ? due : LONG) >= 0);
        CHECK(shunter_poll(session, &none, 1, 0) == 0);
        for (int i = 0; i < count; i++) {
            const void *part;
            size_t bytes;
            int found = 0;
            while (streams[i] && (found = shunter_stream_next(streams[i], &part, &bytes, 0)) == 1) {
                look(session, part, bytes, ++numbers[i], all[i].size, all[i].seed);
            }
            if (streams[i] && found != -EAGAIN) {
                CHECK(found == 0 && numbers[i] == all[i].parts);
                CHECK(shunter_stream_next(streams[i], &part, &bytes, 0) == 0);
                shunter_stream_end(streams[i]);
                streams[i] = NULL;
                left--;
            }
        }
    }
}

static void several(shunter_session *session) {
    shunter_stream *streams[AT_ONCE];
    struct expected all[AT_ONCE];
    for (int i = 0; i < AT_ONCE; i++) {
        all[i] = (struct expected){40 * i, 100 * i, i};
        streams[i] = begin(session, all[i].parts, all[i].size, all[i].seed);
    }
    read_all(session, streams, all, AT_ONCE);
}

/* Others begin while the parts of one come. */
static void beside(shunter_session *session) {
    shunter_stream *first = begin(session, 6 * AT_ONCE, 3000, 1), *others[AT_ONCE - 1];
    struct expected all[AT_ONCE - 1];
    const void *part;
    size_t bytes;
    for (int64_t number = 1; number <= 6 * AT_ONCE; number++) {
        if (number % 6 == 0 && number < 6 * AT_ONCE) {
            all[number / 6 - 1] = (struct expected){3, 4, number};
            others[number / 6 - 1] = begin(session, 3, 4, number);
        }
        CHECK(shunter_stream_next(first, &part, &bytes, LONG) == 1);
        look(session, part, bytes, number, 3000, 1);
    }
    CHECK(shunter_stream_next(first, &part, &bytes, LONG) == 0);
    shunter_stream_end(first);
    read_all(session, others, all, AT_ONCE - 1);
}

/* A stream is of the process that began it. */
static void fork_beside(shunter_session *session) {
    shunter_stream *stream = begin(session, 30, 3, 7), *none;
    const void *part;
    size_t bytes;
    CHECK(shunter_stream_next(stream, &part, &bytes, LONG) == 1);
    const pid_t child = fork();
    if (!child) {
        const uint8_t run[64] = {1};
        int found;
        CHECK(shunter_stream_begin(session, run, sizeof run, NULL, &none) == -ECHILD && !none);
        while ((found = shunter_stream_next(stream, &part, &bytes, LONG)) == 1) {
            // what has come before
        }
        CHECK(found == -ECHILD);
        shunter_stream_end(stream); // which says nothing to the server
        shunter_close(session);
        _exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && !status);
    for (int64_t number = 2; number <= 30; number++) {
        CHECK(shunter_stream_next(stream, &part, &bytes, LONG) == 1);
        look(session, part, bytes, number, 3, 7);
    }
    CHECK(shunter_stream_next(stream, &part, &bytes, LONG) == 0);
    shunter_stream_end(stream);
}

static void what_is_no_stream(shunter_session *session) {
    uint8_t run[64] = {2}, answer[1];
    shunter_stream *stream;
    size_t bytes;
    CHECK(shunter_stream_begin(session, NULL, 0, NULL, &stream) == -EINVAL && !stream);
    CHECK(shunter_stream_begin(session, run, 3, NULL, &stream) == -EINVAL);
    CHECK(shunter_stream_begin(session, run, (size_t)1 << 40, NULL, &stream) == -EMSGSIZE);
    const struct shunter_request_options wrong = {.priority = 3};
    CHECK(shunter_stream_begin(session, run, sizeof run, &wrong, &stream) == -EINVAL);
    CHECK(shunter_begin_packed(session, run, sizeof run, answer, NULL) == -EINVAL);
    CHECK(shunter_infer_packed(session, run, sizeof run, answer, &bytes, NULL, 9) == -EINVAL);
    shunter_stream_end(NULL);
    const void *part; // of two rows, which the model does not take
    CHECK(!shunter_stream_begin(session, run, sizeof run, NULL, &stream));
    CHECK(shunter_stream_next(stream, &part, &bytes, LONG) == -400);
    CHECK(shunter_stream_next(stream, &part, &bytes, 0) == -400);
    shunter_stream_end(stream);
}

/* URL KEYED PROTECTION: all that goes well. URL wait: reads until the server is gone. */
int main(int argc, char **argv) {
    uint8_t key[32];
    for (int i = 0; i < 32; i++) {
        key[i] = (uint8_t)i;
    }
    shunter_session *session;
    const int keyed = argc > 2 && atoi(argv[2]);
    const struct shunter_open_options options = {
        .key = keyed ? key : NULL,
        .key_bytes = keyed ? sizeof key : 0,
        .protection = argc > 3 ? atoi(argv[3]) : 0};
    CHECK(argc > 2 && !shunter_open(argv[1], "s", &options, &session));
    CHECK(shunter_packing(session)->streamed);
    if (!strcmp(argv[2], "wait")) {
        const int found =
            read_parts(session, begin(session, 1000000000, 3, 7), INT64_MAX, 3, 7);
        printf("%d\n", found);
        shunter_close(session); // with its stream
        return 0;
    }
    what_is_no_stream(session);
    static const int64_t SHAPES[][2] = {{1, 3}, {0, 1}, {200, 5}, {20, 3000}, {8, 0}};
    for (size_t i = 0; i < sizeof SHAPES / sizeof *SHAPES; i++) {
        shunter_stream *stream = begin(session, SHAPES[i][0], SHAPES[i][1], 9);
        CHECK(read_parts(session, stream, INT64_MAX, SHAPES[i][1], 9) == 0);
        shunter_stream_end(stream);
    }
    shunter_stream *failing = begin(session, 3, 2, 666);
    const void *part;
    size_t bytes;
    CHECK(shunter_stream_next(failing, &part, &bytes, LONG) == -500);
    for (int64_t most = 0; most < 4; most++) { // given up at any time
        shunter_stream *endless = begin(session, 1000000000, 3, 7);
        CHECK(read_parts(session, endless, most, 3, 7) == 1);
        shunter_stream_end(endless);
    }
    shunter_stream_end(failing);
    several(session);
    beside(session);
    fork_beside(session);
    shunter_stream *left = begin(session, 1000000000, 3, 7);
    CHECK(read_parts(session, left, 2, 3, 7) == 1);
    shunter_close(session);
    return 0;
}
