/*
 * Ask a model of any size with texts: its one input is byte strings of any number.
 *
 *     cc infer_text.c $(pkg-config --cflags --libs shunter_client) -o infer_text
 *     ./infer_text udp://127.0.0.1:8083 reverse "first text" "second text"
 *
 * Prints the shapes of the outputs, and those that are texts.
 */
#include <errno.h>
#include <inttypes.h>
#include <shunter_client.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Each with its length before it. */
static uint64_t lay_out(char **texts, unsigned count, uint8_t *into) {
    uint64_t at = 0;
    for (unsigned i = 0; i < count; i++) {
        const uint32_t length = (uint32_t)strlen(texts[i]);
        if (into) {
            memcpy(into + at, &length, sizeof length);
            memcpy(into + at + sizeof length, texts[i], length);
        }
        at += sizeof length + length;
    }
    return at;
}

/* A request's run, which is to be freed; its bytes, or an error. */
static int64_t pack(shunter_session *session, char **texts, unsigned count, void **run) {
    unsigned tensors;
    const struct shunter_packing *packing = shunter_packing(session);
    const struct shunter_tensor *input = shunter_inputs(session, &tensors);
    if (!packing || tensors != 1 || strcmp(input->dtype, "bytes") ||
        input->dimensions + (packing->batched != 0) != 1) {
        fprintf(stderr, "the model does not take texts\n");
        return -EINVAL;
    }
    struct shunter_array array = {.bytes = lay_out(texts, count, NULL), .shape = {count}};
    const int64_t bytes = shunter_pack(session, &array, NULL, 0); // how many it takes
    if (bytes < 0) {
        return bytes;
    }
    *run = malloc((size_t)bytes);
    if (!*run) {
        return -ENOMEM;
    }
    shunter_pack(session, &array, *run, (size_t)bytes);
    lay_out(texts, count, array.data); // where the tensor belongs, since it had none
    return bytes;
}

static int print(shunter_session *session, const void *answer, size_t bytes) {
    struct shunter_array outputs[SHUNTER_MOST_TENSORS];
    unsigned count;
    const struct shunter_tensor *tensors = shunter_outputs(session, &count);
    const int rows = shunter_unpack(session, answer, bytes, outputs);
    for (unsigned i = 0; rows > 0 && i < count; i++) {
        const uint32_t dimensions =
            tensors[i].dimensions + (shunter_packing(session)->batched != 0);
        printf("%s: %s [", tensors[i].name, tensors[i].dtype);
        for (uint32_t d = 0; d < dimensions; d++) {
            printf("%s%" PRIu64, d ? ", " : "", outputs[i].shape[d]);
        }
        printf("]\n");
        uint64_t at = 0;
        uint32_t length;
        const char *text;
        while (!strcmp(tensors[i].dtype, "bytes") &&
               (text = shunter_next_string(&outputs[i], &at, &length))) {
            printf("  %.*s\n", (int)length, text);
        }
    }
    return rows < 0 ? rows : 0;
}

int main(int argc, char **argv) {
    shunter_session *session = NULL;
    void *run = NULL, *answer = NULL;
    size_t answered = 0;
    if (argc < 3) {
        fprintf(stderr, "usage: %s URL MODEL [TEXT...]\n", argv[0]);
        return 2;
    }
    int error = shunter_open(argv[1], argv[2], NULL, &session);
    const int64_t bytes =
        error ? error : pack(session, argv + 3, (unsigned)argc - 3, &run);
    error = bytes < 0 ? (int)bytes : 0;
    if (!error) {
        answer = malloc(shunter_packing(session)->answer_bytes);
        error = answer ? shunter_infer_packed(
                             session, run, (size_t)bytes, answer, &answered, NULL, 10000)
                       : -ENOMEM;
    }
    error = error ? error : print(session, answer, answered);
    if (error) {
        fprintf(stderr, "%s\n", shunter_strerror(error));
    }
    shunter_close(session);
    free(run);
    free(answer);
    return error ? 1 : 0;
}
