/* Answers to a hello, changed at random, into the client: fuzz_hello ANSWER SEED ROUNDS. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "hello.h"

static uint64_t state;

static uint32_t draw(uint32_t below) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (uint32_t)(state % below);
}

int main(int argc, char **argv) {
    static uint8_t answer[1 << 16];
    FILE *file = argc == 4 ? fopen(argv[1], "rb") : NULL;
    const size_t whole = file ? fread(answer, 1, sizeof answer, file) : 0;
    long opened = 0, changed = 0;
    if (!whole || fclose(file)) {
        return 2;
    }
    state = strtoull(argv[2], NULL, 10) + 1;
    for (long round = strtol(argv[3], NULL, 10); round-- > 0;) {
        const struct shunter_open_options options = {0};
        struct shunter_hello hello = {0};
        struct shunter_client_settings settings;
        struct shunter_tensors tensors;
        if (shunter_hello_make(&hello, "m", &options)) {
            return 2;
        }
        shunter_hello_set_path(&hello, 1408, round % 2);
        const size_t length = draw(4) ? whole : draw((uint32_t)whole + 1);
        uint8_t *message = malloc(length + !length); // whose end the sanitizer watches
        memcpy(message, answer, length);
        if (length >= 80) { // of this hello
            memcpy(message + 64, hello.message + 64, 16);
        }
        for (uint32_t i = draw(4); i-- > 0 && length;) {
            message[draw((uint32_t)length)] = (uint8_t)draw(256);
            changed++;
        }
        if (length < whole && length >= 64) { // a header that says so
            message[22] = (uint8_t)(length - 64);
            message[23] = (uint8_t)((length - 64) >> 8);
        }
        const int found = shunter_hello_take(&hello, message, length, &settings, &tensors);
        opened += !found;
        free(message);
    }
    printf("%ld %ld\n", opened, changed);
    return 0;
}
