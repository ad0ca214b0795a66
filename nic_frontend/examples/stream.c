/*
 * Ask a model whose answers come in parts, with one text: its one input is a byte string.
 *
 *     cc stream.c $(pkg-config --cflags --libs shunter_client) -o stream
 *     ./stream udp://127.0.0.1:8083 chat "a prompt" 20
 *
 * Prints the texts of each part as soon as it is there, and stops after so many parts if that is given.
 */
#include <errno.h>
#include <shunter_client.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The run of a request, which is to be freed; its bytes, or an error. */
static int64_t pack(shunter_session *session, const char *text, void **run) {
    const uint32_t length = (uint32_t)strlen(text);
    unsigned count;
    const struct shunter_tensor *input = shunter_inputs(session, &count);
    if (!shunter_packing(session) || count != 1 || strcmp(input->dtype, "bytes") ||
        input->dimensions + (shunter_packing(session)->batched != 0) > 1) {
        fprintf(stderr, "the model does not take one text\n");
        return -EINVAL;
    }
    struct shunter_array array = {.bytes = sizeof length + length, .shape = {1}};
    const int64_t bytes = shunter_pack(session, &array, NULL, 0); // how many it takes
    if (bytes < 0) {
        return bytes;
    }
    *run = malloc((size_t)bytes);
    if (!*run) {
        return -ENOMEM;
    }
    shunter_pack(session, &array, *run, (size_t)bytes);
    memcpy(array.data, &length, sizeof length); // to where it belongs, since it had no data
    memcpy((char *)array.data + sizeof length, text, length);
    return bytes;
}

static int print(shunter_session *session, const void *part, size_t bytes) {
    struct shunter_array outputs[SHUNTER_MOST_TENSORS];
    unsigned count;
    const struct shunter_tensor *tensors = shunter_outputs(session, &count);
    const int rows = shunter_unpack(session, part, bytes, outputs);
    for (unsigned i = 0; rows > 0 && i < count; i++) {
        uint64_t at = 0;
        uint32_t length;
        const char *text;
        while (!strcmp(tensors[i].dtype, "bytes") &&
               (text = shunter_next_string(&outputs[i], &at, &length))) {
            printf("%.*s\n", (int)length, text);
        }
    }
    fflush(stdout);
    return rows < 0 ? rows : 0;
}

int main(int argc, char **argv) {
    shunter_session *session = NULL;
    shunter_stream *stream = NULL;
    void *run = NULL;
    if (argc < 4) {
        fprintf(stderr, "usage: %s URL MODEL TEXT [PARTS]\n", argv[0]);
        return 2;
    }
    const long most = argc > 4 ? atol(argv[4]) : -1;
    int error = shunter_open(argv[1], argv[2], NULL, &session);
    const int64_t bytes = error ? error : pack(session, argv[3], &run);
    error = bytes < 0 ? (int)bytes
                      : shunter_stream_begin(session, run, (size_t)bytes, NULL, &stream);
    for (long number = 0; !error && number != most; number++) {
        const void *part;
        size_t length;
        const int found = shunter_stream_next(stream, &part, &length, 10000);
        if (found == 0) {
            break; // there are no more
        }
        error = found < 0 ? found : print(session, part, length);
    }
    if (error) {
        fprintf(stderr, "%s\n", shunter_strerror(error));
    }
    shunter_stream_end(stream); // of one that has not ended the model need not go on
    shunter_close(session);
    free(run);
    return error ? 1 : 0;
}
