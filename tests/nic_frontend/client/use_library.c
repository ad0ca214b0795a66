/* A program that uses the client library, for test_c_library.py. */
#include <errno.h>
#include <poll.h>
#include <shunter_client.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define REQUESTS 300

#define CHECK(what)                                                       \
    do {                                                                  \
        if (!(what)) {                                                    \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #what);    \
            exit(3);                                                      \
        }                                                                 \
    } while (0)

struct call {
    uint8_t *input, *output;
    int64_t number;
    int is_done;
};

static size_t size_of(const struct shunter_tensor *tensors, unsigned count) {
    CHECK(count == 1 && !strcmp(tensors->dtype, "uint8") && tensors->dimensions == 1);
    CHECK(tensors->shape[0] == tensors->bytes);
    return tensors->bytes;
}

static void wait_for(shunter_session *session) {
    const int due = shunter_due_ms(session);
    struct pollfd ready = {.fd = shunter_descriptor(session), .events = POLLIN};
    if (shunter_wants_write(session)) {
        ready.events |= POLLOUT;
    }
    poll(&ready, 1, due < 20 ? due : 20);
}

/* Many at once in an event loop; each answer is its request plus one. */
static void run_many(shunter_session *session, size_t size) {
    struct call *calls = calloc(REQUESTS, sizeof *calls);
    unsigned begun = 0, done = 0;
    for (unsigned i = 0; i < REQUESTS; i++) {
        calls[i].input = malloc(size);
        calls[i].output = calloc(1, size);
        memset(calls[i].input, (int)(i % 200), size);
    }
    while (done < REQUESTS) {
        CHECK(!shunter_cork(session, begun % 2));
        while (begun < REQUESTS) {
            struct call *call = &calls[begun];
            const void *from[] = {call->input};
            void *into[] = {call->output};
            call->number = shunter_begin(session, from, into, NULL);
            if (call->number == -EAGAIN) {
                break;
            }
            CHECK(call->number == begun + 1);
            begun++;
        }
        struct shunter_result results[7];
        const int count = shunter_poll(session, results, 7, 0);
        CHECK(count >= 0);
        for (int i = 0; i < count; i++) {
            struct call *call = &calls[results[i].request - 1];
            CHECK(!results[i].error && !call->is_done);
            call->is_done = 1;
            for (size_t at = 0; at < size; at++) {
                CHECK(call->output[at] == call->input[at] + 1);
            }
        }
        done += (unsigned)count;
        if (!count) {
            wait_for(session);
        }
    }
    for (unsigned i = 0; i < REQUESTS; i++) {
        free(calls[i].input);
        free(calls[i].output);
    }
    free(calls);
}

/* What was given up is not written to, and the session goes on. */
static void cancel_one(shunter_session *session, size_t size) {
    uint8_t *input = calloc(1, size), *output = calloc(1, size);
    const void *from[] = {input};
    void *into[] = {output};
    const int64_t number = shunter_begin(session, from, into, NULL);
    CHECK(number > 0 && !shunter_cancel(session, number));
    CHECK(shunter_cancel(session, number) == -ENOENT && shunter_cancel(session, 0) == -ENOENT);
    free(output);
    output = into[0] = calloc(1, size);
    CHECK(!shunter_infer(session, from, into, NULL, 30000));
    CHECK(output[0] == 1 && output[size - 1] == 1);
    free(input);
    free(output);
}

/* Who waits for one request takes the endings of others from nobody. */
static void wait_for_the_last_of_many(shunter_session *session, size_t size) {
    enum { MANY = 8 };
    uint8_t *input = calloc(1, size), *output = calloc(MANY + 1, size);
    const void *from[] = {input};
    int64_t numbers[MANY];
    int begun = 0;
    for (; begun < MANY; begun++) {
        void *into[] = {output + (size_t)begun * size};
        numbers[begun] = shunter_begin(session, from, into, NULL);
        if (begun && numbers[begun] == -EAGAIN) {
            break; // a stream is full
        }
        CHECK(numbers[begun] > 0);
    }
    void *last[] = {output + MANY * size};
    CHECK(!shunter_infer(session, from, last, NULL, 30000));
    for (int done = 0; done < begun;) {
        struct shunter_result results[3];
        const int count = shunter_poll(session, results, 3, 30000);
        CHECK(count > 0 && count <= 3);
        for (int i = 0; i < count; i++) {
            int at = 0;
            while (at < begun && numbers[at] != results[i].request) {
                at++;
            }
            CHECK(at < begun && !results[i].error);
            numbers[at] = 0;
            CHECK(output[(size_t)at * size] == 1);
        }
        done += count;
    }
    free(input);
    free(output);
}

/* Take how so many have ended; there are no more. */
static void take(shunter_session *session, unsigned endings) {
    struct shunter_result results[7];
    for (unsigned told = 0; told < endings;) {
        const int count = shunter_poll(session, results, 7, 30000);
        CHECK(count > 0);
        for (int i = 0; i < count; i++) {
            CHECK(!results[i].error);
        }
        told += (unsigned)count;
        CHECK(told <= endings);
    }
    CHECK(shunter_poll(session, results, 7, 0) == 0);
}

/* Who never polls may go on to wait for one; and when he polls he is told of all. */
static void poll_at_last(shunter_session *session, size_t size) {
    uint8_t *input = calloc(1, size), *output = calloc(2, size);
    const void *from[] = {input};
    void *into[] = {output}, *own[] = {output + size};
    unsigned begun = 0;
    for (int more = 0; more < 3; more += begun >= SHUNTER_MOST_AT_ONCE) {
        int64_t number;
        while ((number = shunter_begin(session, from, into, NULL)) > 0) {
            begun++;
        }
        CHECK(number == -EAGAIN);
        own[0] = memset(output + size, 0, size);
        CHECK(!shunter_infer(session, from, own, NULL, 30000) && output[size] == 1);
    }
    CHECK(begun == SHUNTER_MOST_AT_ONCE);
    take(session, begun);
    free(input);
    free(output);
}

/* What is corked goes by a poll that has something to tell, too. */
static void poll_corked(shunter_session *session, size_t size) {
    uint8_t *input = calloc(1, size), *output = calloc(1, size);
    const void *from[] = {input};
    void *into[] = {output};
    struct shunter_result result;
    for (int i = 0; i < 3; i++) {
        CHECK(shunter_begin(session, from, into, NULL) > 0);
        CHECK(!shunter_infer(session, from, into, NULL, 30000));
    }
    CHECK(!shunter_cork(session, 1));
    CHECK(shunter_begin(session, from, into, NULL) > 0);
    CHECK(shunter_poll(session, &result, 1, 30000) == 1);
    struct pollfd answer = {.fd = shunter_descriptor(session), .events = POLLIN};
    CHECK(poll(&answer, 1, 30000) == 1);
    CHECK(!shunter_cork(session, 0));
    take(session, 3);
    free(input);
    free(output);
}

/* A session is of the process that opened it. */
static void fork_once(shunter_session *session, size_t size) {
    uint8_t *input = calloc(1, size), *output = calloc(1, size);
    const void *from[] = {input};
    void *into[] = {output};
    struct shunter_result result;
    const int64_t number = shunter_begin(session, from, into, NULL);
    CHECK(number > 0);
    const pid_t child = fork();
    if (!child) {
        void *inputs[1];
        CHECK(shunter_begin(session, from, into, NULL) == -ECHILD);
        CHECK(shunter_infer(session, from, into, NULL, 30000) == -ECHILD);
        CHECK(shunter_poll(session, &result, 1, 30000) == -ECHILD);
        CHECK(shunter_cancel(session, number) == -ECHILD);
        CHECK(shunter_cork(session, 0) == -ECHILD);
        CHECK(shunter_next_inputs(session, inputs) == -ECHILD);
        shunter_close(session); // which says no farewell
        _exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && !status);
    CHECK(shunter_poll(session, &result, 1, 30000) == 1 && result.request == number);
    CHECK(!shunter_infer(session, from, into, NULL, 30000) && output[0] == 1);
    free(input);
    free(output);
}

/* Where workers read inputs, they can be written in the first place. */
static void write_in_place(shunter_session *session, size_t size, int is_shared) {
    uint8_t *output = calloc(1, size);
    void *from[1], *into[] = {output};
    for (int i = 0; i < 100; i++) {
        const int error = shunter_next_inputs(session, from);
        if (!is_shared) {
            CHECK(error == -ENOTSUP);
            break;
        }
        CHECK(!error);
        memset(from[0], i, size);
        CHECK(!shunter_infer(session, (const void *const *)from, into, NULL, 30000));
        CHECK(output[0] == i + 1 && output[size - 1] == i + 1);
    }
    free(output);
}

static void refuse_nonsense(const char *url, const char *model) {
    static const uint8_t SHORT[31] = {0};
    static const char *const URLS[] = {
        "", "udp", "http://a:1", "udp://", "udp://a", "udp://a:", "udp://a:0", "udp://a:65536",
        "udp://a:1x", "udp://:1", "udp://[::1", "udp://[::1]", "udp://[::1]1", "unix://",
        "unix://a", "tcp://a:-1"};
    shunter_session *session;
    for (size_t i = 0; i < sizeof URLS / sizeof *URLS; i++) {
        CHECK(shunter_open(URLS[i], "m", NULL, &session) == -EINVAL && !session);
    }
    struct shunter_open_options options = {.protection = SHUNTER_ENCRYPTED};
    CHECK(shunter_open(url, model, &options, &session) == -EINVAL);
    options = (struct shunter_open_options){.key = SHORT, .key_bytes = sizeof SHORT};
    CHECK(shunter_open(url, model, &options, &session) == -EINVAL);
    char name[130];
    memset(name, 'm', sizeof name - 1);
    name[sizeof name - 1] = 0;
    CHECK(shunter_open(url, name, NULL, &session) == -ENAMETOOLONG);
    shunter_close(NULL);
}

int main(int argc, char **argv) {
    struct shunter_open_options options = {.timeout_ms = 30000};
    static const int KINDS[] = {SHUNTER_PLAIN, SHUNTER_CHECKED, SHUNTER_ENCRYPTED};
    uint8_t key[32];
    shunter_session *session;
    unsigned count;
    CHECK(argc == 6); // URL MODEL PROTECTION KEYED SHARED, which may be -1: it is not known
    for (int i = 0; i < 32; i++) {
        key[i] = (uint8_t)i;
    }
    refuse_nonsense(argv[1], argv[2]);
    options.protection = KINDS[atoi(argv[3])];
    if (atoi(argv[4])) {
        options.key = key;
        options.key_bytes = sizeof key;
    }
    const int error = shunter_open(argv[1], argv[2], &options, &session);
    if (error) {
        printf("%d %s\n", error, shunter_strerror(error));
        return 1;
    }
    const struct shunter_tensor *tensors = shunter_inputs(session, &count);
    const size_t size = size_of(tensors, count);
    tensors = shunter_outputs(session, &count);
    CHECK(size_of(tensors, count) == size);
    run_many(session, size);
    cancel_one(session, size);
    wait_for_the_last_of_many(session, size);
    poll_at_last(session, size);
    fork_once(session, size);
    if (atoi(argv[5]) >= 0) { // and nothing is lost on the way
        poll_corked(session, size);
        write_in_place(session, size, atoi(argv[5]));
    }
    shunter_close(session);
    return 0;
}
