/*
 * Ask a model with the tensors of a file, or with zeros.
 *
 *     cc infer.c $(pkg-config --cflags --libs shunter_client) -o infer
 *     ./infer udp://127.0.0.1:8083 resnet50 [REQUESTS [INPUT_FILE [KEY_FILE]]]
 *
 * All inputs stand in the file one behind the other, each as it lies in memory. REQUESTS are on
 * their way as many at once as may be. With a key tensors are encrypted.
 */
#include <errno.h>
#include <inttypes.h>
#include <shunter_client.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct tensors {
    unsigned count;
    const struct shunter_tensor *each;
    uint8_t *memory[SHUNTER_MOST_TENSORS];
};

static int allocate(struct tensors *tensors, const char *kind) {
    for (unsigned i = 0; i < tensors->count; i++) {
        const struct shunter_tensor *tensor = &tensors->each[i];
        printf("%s %s: %s [", kind, tensor->name, tensor->dtype);
        for (uint32_t d = 0; d < tensor->dimensions; d++) {
            printf("%s%" PRIu64, d ? ", " : "", tensor->shape[d]);
        }
        printf("], %" PRIu64 " bytes\n", tensor->bytes);
        tensors->memory[i] = calloc(1, tensor->bytes ? tensor->bytes : 1);
        if (!tensors->memory[i]) {
            return -ENOMEM;
        }
    }
    return 0;
}

static void release(struct tensors *tensors) {
    for (unsigned i = 0; i < tensors->count; i++) {
        free(tensors->memory[i]);
    }
}

static int read_inputs(struct tensors *inputs, const char *path) {
    FILE *file = fopen(path, "rb");
    int error = file ? 0 : -errno;
    for (unsigned i = 0; !error && i < inputs->count; i++) {
        const size_t bytes = inputs->each[i].bytes;
        error = fread(inputs->memory[i], 1, bytes, file) == bytes ? 0 : -ENODATA;
    }
    if (file) {
        fclose(file);
    }
    return error;
}

/* The same request again and again; its answer is the same each time, so all share its memory. */
static int ask(
    shunter_session *session, const struct tensors *inputs, struct tensors *outputs,
    unsigned long requests) {
    const struct shunter_request_options options = {.idempotent = 1};
    const void *from[SHUNTER_MOST_TENSORS] = {NULL};
    void *into[SHUNTER_MOST_TENSORS] = {NULL};
    unsigned long begun = 0, ended = 0;
    for (unsigned i = 0; i < inputs->count; i++) {
        from[i] = inputs->memory[i];
    }
    for (unsigned i = 0; i < outputs->count; i++) {
        into[i] = outputs->memory[i];
    }
    while (ended < requests) {
        struct shunter_result results[SHUNTER_MOST_AT_ONCE];
        int64_t number = shunter_cork(session, 1); // they go together, with the poll
        while (begun < requests && number >= 0) {
            number = shunter_begin(session, from, into, &options);
            begun += number > 0;
        }
        if (number < 0 && number != -EAGAIN) {
            return (int)number;
        }
        const int count = shunter_poll(session, results, SHUNTER_MOST_AT_ONCE, 1000);
        if (count < 0) {
            return count;
        }
        for (int i = 0; i < count; i++) {
            if (results[i].error) {
                return results[i].error;
            }
        }
        ended += (unsigned long)count;
    }
    return 0;
}

static void print_first(const struct tensors *outputs) {
    for (unsigned i = 0; i < outputs->count; i++) {
        printf("%s:", outputs->each[i].name);
        for (uint64_t at = 0; at < outputs->each[i].bytes && at < 16; at++) {
            printf(" %02x", outputs->memory[i][at]);
        }
        printf("\n");
    }
}

int main(int argc, char **argv) {
    static uint8_t key[4096];
    struct shunter_open_options options = {0};
    shunter_session *session = NULL;
    if (argc < 3) {
        fprintf(stderr, "usage: %s URL MODEL [REQUESTS [INPUT_FILE [KEY_FILE]]]\n", argv[0]);
        return 2;
    }
    if (argc > 5) {
        FILE *file = fopen(argv[5], "rb");
        options.key_bytes = file ? fread(key, 1, sizeof key, file) : 0;
        options.key = key;
        options.protection = SHUNTER_ENCRYPTED;
        if (file) {
            fclose(file);
        }
    }
    int error = shunter_open(argv[1], argv[2], &options, &session);
    struct tensors inputs = {0}, outputs = {0};
    if (!error) {
        inputs.each = shunter_inputs(session, &inputs.count);
        outputs.each = shunter_outputs(session, &outputs.count);
        error = allocate(&inputs, "input");
        error = error ? error : allocate(&outputs, "output");
    }
    if (!error && argc > 4) {
        error = read_inputs(&inputs, argv[4]);
    }
    if (!error) {
        error = ask(session, &inputs, &outputs, argc > 3 ? strtoul(argv[3], NULL, 10) : 1);
    }
    if (error) {
        fprintf(stderr, "%s\n", shunter_strerror(error));
    } else {
        print_first(&outputs);
    }
    shunter_close(session);
    release(&inputs);
    release(&outputs);
    return error ? 1 : 0;
}
