/* A program that asks a packed model, for test_packed.py: int64 [-1] and bytes [-1] in and out, with
 * sums so far, and the strings backwards. Numbers of rows, where requests are batches. */
#include <errno.h>
#include <shunter_client.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define REQUESTS 200

#define CHECK(what)                                                       \
    do {                                                                  \
        if (!(what)) {                                                    \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #what);    \
            exit(3);                                                      \
        }                                                                 \
    } while (0)

struct call {
    uint8_t *run, *answer;
    int64_t number;
    unsigned size, texts;
};

static uint64_t texts_bytes(unsigned count) {
    uint64_t bytes = 0;
    for (unsigned i = 0; i < count; i++) {
        bytes += 4 + i;
    }
    return bytes;
}

static void lay_out(uint8_t *at, unsigned count) {
    for (uint32_t i = 0; i < count; i++) {
        memcpy(at, &i, 4);
        memset(at + 4, 'a' + (int)i, i);
        at += 4 + i;
    }
}

static int64_t make(shunter_session *session, struct call *call) {
    struct shunter_array inputs[2] = {
        {.shape = {call->size}}, {.shape = {call->texts}, .bytes = texts_bytes(call->texts)}};
    const int64_t bytes = shunter_pack(session, inputs, NULL, 0);
    CHECK(bytes > 0 && !inputs[0].data);
    call->run = malloc((size_t)bytes);
    call->answer = malloc(shunter_packing(session)->answer_bytes);
    CHECK(shunter_pack(session, inputs, call->run, (size_t)bytes - 1) == bytes);
    memset(call->run, 'o', (size_t)bytes); // of another program's memory nothing leaves with it
    CHECK(shunter_pack(session, inputs, call->run, (size_t)bytes) == bytes);
    for (const uint8_t *gap = (uint8_t *)inputs[0].data + 8 * (size_t)call->size;
         gap < (uint8_t *)inputs[1].data; gap++) {
        CHECK(!*gap);
    }
    for (unsigned i = 0; i < call->size; i++) {
        const int64_t value = i + 1;
        memcpy((uint8_t *)inputs[0].data + 8 * (size_t)i, &value, 8);
    }
    lay_out(inputs[1].data, call->texts);
    return bytes;
}

static void look(shunter_session *session, const struct call *call, size_t bytes) {
    struct shunter_array outputs[2];
    CHECK(shunter_unpack(session, call->answer, bytes, outputs) == 1);
    CHECK(outputs[0].shape[0] == call->size && outputs[1].shape[0] == call->texts);
    for (int64_t i = 0; i < call->size; i++) {
        int64_t sum;
        memcpy(&sum, (uint8_t *)outputs[0].data + 8 * (size_t)i, 8);
        CHECK(sum == (i + 1) * (i + 2) / 2);
    }
    uint64_t at = 0;
    uint32_t length;
    for (unsigned i = call->texts; i-- > 0;) {
        const char *text = shunter_next_string(&outputs[1], &at, &length);
        CHECK(text && length == i && (!i || text[i - 1] == 'a' + (int)i));
    }
    CHECK(!shunter_next_string(&outputs[1], &at, &length));
    for (size_t at_zero = 4; at_zero < 64; at_zero += at_zero == 7 ? 1 + 2 * 8 + 2 * 4 : 1) {
        call->answer[at_zero] ^= 1; // beside the rows, and behind the sizes
        CHECK(shunter_unpack(session, call->answer, bytes, outputs) == -EPROTO);
        call->answer[at_zero] ^= 1;
    }
    CHECK(shunter_unpack(session, call->answer, bytes, outputs) == 1);
    for (size_t less = 0; less < bytes && less < 200; less++) {
        CHECK(shunter_unpack(session, call->answer, less, outputs) == -EPROTO);
    }
}

static void run_many(shunter_session *session) {
    struct call *calls = calloc(REQUESTS, sizeof *calls);
    unsigned begun = 0, done = 0;
    while (done < REQUESTS) {
        while (begun < REQUESTS) {
            struct call *call = &calls[begun];
            if (!call->run) {
                call->size = begun % 50 ? begun : 40000;
                call->texts = begun % 13;
                call->number = make(session, call); // its bytes, until it has begun
            }
            const int64_t number = shunter_begin_packed(
                session, call->run, (size_t)call->number, call->answer, NULL);
            if (number == -EAGAIN) {
                break;
            }
            CHECK(number == begun + 2); // one was wrong
            begun++;
        }
        struct shunter_result results[7];
        const int count = shunter_poll(session, results, 7, 1000);
        CHECK(count >= 0);
        for (int i = 0; i < count; i++) {
            CHECK(!results[i].error);
            look(session, &calls[results[i].request - 2], results[i].bytes);
        }
        done += (unsigned)count;
    }
    for (unsigned i = 0; i < REQUESTS; i++) {
        free(calls[i].run);
        free(calls[i].answer);
    }
    free(calls);
}

static void refuse_nonsense(shunter_session *session) {
    uint8_t room[256] = {0}, *answer = malloc(shunter_packing(session)->answer_bytes);
    size_t answered;
    struct shunter_array inputs[2] = {{.shape = {3}}, {.shape = {2}, .bytes = 7}};
    CHECK(shunter_pack(session, inputs, NULL, 0) == -EINVAL); // two lengths have 8 bytes
    inputs[1].bytes = 8;
    CHECK(shunter_pack(session, inputs, NULL, 0) > 0);
    inputs[0].shape[0] = 1 << 20;
    CHECK(shunter_pack(session, inputs, NULL, 0) == -EMSGSIZE);
    const void *from[] = {room, room};
    void *into[] = {room, room};
    CHECK(shunter_begin(session, from, into, NULL) == -EINVAL);
    CHECK(shunter_infer_packed(session, room, 3, answer, &answered, NULL, 1000) == -EINVAL);
    CHECK(shunter_infer_packed(session, room, 2 << 20, answer, &answered, NULL, 1) == -EMSGSIZE);
    room[0] = 1; // one row, and tensors that it does not say
    room[8] = 255;
    CHECK(shunter_infer_packed(session, room, 128, answer, &answered, NULL, 30000) == -400);
    free(answer);
}

int main(int argc, char **argv) {
    struct shunter_open_options options = {.timeout_ms = 30000};
    uint8_t key[32];
    shunter_session *session;
    unsigned count;
    CHECK(argc == 4); // URL MODEL ENCRYPTED
    if (atoi(argv[3])) {
        for (int i = 0; i < 32; i++) {
            key[i] = (uint8_t)i;
        }
        options.key = key;
        options.key_bytes = sizeof key;
        options.protection = SHUNTER_ENCRYPTED;
    }
    const int error = shunter_open(argv[1], argv[2], &options, &session);
    if (error) {
        fprintf(stderr, "%s\n", shunter_strerror(error));
        return 1;
    }
    const struct shunter_tensor *inputs = shunter_inputs(session, &count);
    CHECK(count == 2 && inputs[0].shape[0] == SHUNTER_ANY && !inputs[0].bytes);
    CHECK(!strcmp(inputs[1].dtype, "bytes") && shunter_packing(session)->rows == 1);
    refuse_nonsense(session);
    run_many(session);
    shunter_close(session);
    return 0;
}
