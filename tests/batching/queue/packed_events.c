/*
 * The worker's end of packed requests, driven by events on its input; what it does is its output.
 *
 *     packed_events ENTRIES MOST_PIECES ROOM MOST_ROWS N (ITEM NDIM SIZE...)...
 *
 *   M region hex                  there is a region with these bytes
 *   I entry index offset length region    a piece     C entry count    how many it has
 *   L entry bytes rows            what the page says of its run
 *   r entry...                    read their headers into the table
 *   g n size...                   gather the entries of the table: n sizes to pad to, or none
 *   l                             rows of all, and the largest of each dimension
 *   b                             begins and ends of the byte strings that were gathered, and rows
 *   p                             put what was gathered as their answers
 *
 * Every piece of memory is exactly as long as it has to be, and full of something before.
 */
#define _GNU_SOURCE
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "packed.h"

static struct shunter_queue queue;
static struct shunter_region regions[SHUNTER_REGIONS];
static struct shunter_packed packed;
static uint32_t entries[64], count;
static uint64_t *table;
static uint8_t *gathered[SHUNTER_MAX_TENSORS]; /* by tensor: of all requests */
static size_t places[64 * SHUNTER_MAX_TENSORS]; /* of a request there */

static void *full(size_t bytes) {
    uint8_t *found = malloc(bytes);
    memset(found, 0xAA, bytes);
    return found;
}

static void show(const uint8_t *bytes, size_t size) {
    printf(" ");
    for (size_t i = 0; i < size; i++) {
        printf("%02x", bytes[i]);
    }
}

static uint32_t listed(char *text, uint64_t *found) {
    uint32_t n = 0;
    for (char *word = strtok(text, " \n"); word; word = strtok(NULL, " \n")) {
        found[n++] = strtoull(word, NULL, 10);
    }
    return n;
}

static uint64_t *row_of(uint32_t i) { return table + (size_t)i * shunter_packed_words(&packed); }

static void forget(void) {
    for (uint32_t t = 0; t < packed.count; t++) {
        free(gathered[t]);
        gathered[t] = NULL;
    }
}

static void read_headers(char *text) {
    uint64_t found[64];
    forget();
    free(table);
    count = listed(text, found);
    for (uint32_t i = 0; i < count; i++) {
        entries[i] = (uint32_t)found[i];
    }
    table = full(count * shunter_packed_words(&packed) * sizeof *table);
    const int result = shunter_packed_read(&queue, 0, regions, &packed, entries, count, table);
    printf("%d", result);
    for (uint32_t i = 0; result >= 0 && i < count; i++) {
        printf(" %" PRIu64, *row_of(i));
    }
    printf("\n");
}

static void largest(void) {
    uint64_t sizes[64 * SHUNTER_MAX_DIMS];
    printf("%" PRIu64, shunter_packed_largest(&packed, table, count, sizes));
    for (uint32_t i = 0; i < packed.dims; i++) {
        printf(" %" PRIu64, sizes[i]);
    }
    printf("\n");
}

static size_t room_of(uint32_t i, uint32_t t, const uint64_t *padded) {
    size_t bytes = packed.item[t] * row_of(i)[0];
    for (uint32_t d = 0; d < packed.ndim[t]; d++) {
        bytes *= padded[d];
    }
    return bytes;
}

static void gather(char *text) {
    uint64_t said[1 + 64 * SHUNTER_MAX_DIMS];
    size_t sizes[64 * SHUNTER_MAX_TENSORS] = {0};
    uint32_t before = 0;
    listed(text, said);
    const uint64_t *padded = said[0] ? said + 1 : NULL;
    for (uint32_t t = 0; t < packed.count; before += packed.ndim[t++]) {
        const bool pads = padded && packed.item[t];
        size_t at = 0, end = 0;
        for (uint32_t i = 0; i < count; i++) {
            const size_t size = pads ? room_of(i, t, padded + before) : row_of(i)[2 + 2 * t];
            places[i * packed.count + t] = at;
            sizes[i * packed.count + t] = size;
            end = at + size;
            at = pads ? end : shunter_packed_up(end);
        }
        free(gathered[t]);
        gathered[t] = full(end);
    }
    const int result = shunter_packed_gather(
        &queue, 0, regions, &packed, entries, count, table, gathered, padded);
    printf("%d", result);
    for (uint32_t at = 0; result == 0 && at < count * packed.count; at++) {
        show(gathered[at % packed.count] + places[at], sizes[at]);
    }
    printf("\n");
}

static void strings(void) {
    for (uint32_t t = 0; t < packed.count; t++) {
        uint64_t most = 0;
        if (packed.item[t]) {
            continue;
        }
        for (uint32_t i = 0; i < count; i++) {
            most += row_of(i)[2 + 2 * t] / SHUNTER_STRING_LENGTH;
        }
        uint64_t *found = full(2 * most * sizeof *found);
        const uint64_t n =
            shunter_packed_strings(&packed, table, count, t, gathered[t], found);
        printf("%" PRIu64, n);
        for (uint64_t k = 0; k < 2 * n; k++) {
            printf(" %" PRIu64, found[k]);
        }
        printf(";");
        free(found);
    }
    for (uint32_t i = 0; i < count; i++) {
        printf(" %" PRIu64, *row_of(i));
    }
    printf("\n");
}

static void put(void) {
    uint64_t from[64 * SHUNTER_MAX_TENSORS];
    for (uint32_t at = 0; at < count * packed.count; at++) {
        from[at] = (uintptr_t)gathered[at % packed.count] + places[at];
    }
    printf("%u", shunter_packed_put(&queue, &packed, entries, count, table, from));
    for (uint32_t i = 0; i < count; i++) {
        const uint64_t bytes =
            shunter_get(shunter_entry_word(&queue, entries[i], SHUNTER_E_ENTRY_RESULT_BYTES));
        show(queue.outputs[0] + (size_t)entries[i] * queue.output_bytes[0], bytes);
    }
    printf("\n");
}

static void make_region(char *line) {
    char *text = line + 2;
    const unsigned long region = strtoul(text, &text, 10);
    const size_t bytes = strcspn(++text, "\n") / 2;
    uint8_t *content = malloc(bytes);
    for (size_t i = 0; i < bytes; i++) {
        const char digits[3] = {text[2 * i], text[2 * i + 1], 0};
        content[i] = (uint8_t)strtoul(digits, NULL, 16);
    }
    regions[region] = (struct shunter_region){content, bytes};
}

static void event(char *line) {
    uint64_t a, b;
    uint32_t entry, index;
    struct shunter_piece piece;
    if (line[0] == 'M') {
        make_region(line);
    } else if (
        sscanf(
            line, "I %u %u %" SCNu64 " %u %u", &entry, &index, &piece.offset, &piece.length,
            &piece.region) == 5) {
        shunter_pieces_of(&queue, entry)[index] = piece;
    } else if (sscanf(line, "C %u %" SCNu64, &entry, &a) == 2) {
        shunter_set(shunter_entry_word(&queue, entry, SHUNTER_E_ENTRY_PIECES), a);
    } else if (sscanf(line, "L %u %" SCNu64 " %" SCNu64, &entry, &a, &b) == 3) {
        shunter_set(shunter_entry_word(&queue, entry, SHUNTER_E_ENTRY_BYTES), a);
        shunter_set(shunter_entry_word(&queue, entry, SHUNTER_E_ENTRY_ROWS), b);
    } else if (line[0] == 'r') {
        read_headers(line + 1);
    } else if (line[0] == 'g') {
        gather(line + 1);
    } else if (line[0] == 'l') {
        largest();
    } else if (line[0] == 'b') {
        strings();
    } else if (line[0] == 'p') {
        put();
    }
}

static void make_specs(char **argv, uint32_t *item, uint32_t *ndim, int64_t *shape) {
    for (uint32_t t = 0; t < packed.count; t++) {
        item[t] = (uint32_t)atoi(*argv++);
        ndim[t] = (uint32_t)atoi(*argv++);
        for (uint32_t d = 0; d < ndim[t]; d++) {
            shape[packed.dims++] = atoll(*argv++);
        }
    }
    packed.item = item;
    packed.ndim = ndim;
    packed.shape = shape;
    packed.header = (uint32_t)shunter_packed_up(8 + 8 * packed.count + 4 * packed.dims);
    packed.scratch = malloc(packed.header);
}

int main(int argc, char **argv) {
    static uint32_t item[SHUNTER_MAX_TENSORS], ndim[SHUNTER_MAX_TENSORS];
    static int64_t shape[SHUNTER_MAX_TENSORS * SHUNTER_MAX_DIMS];
    if (argc < 6) {
        return 1;
    }
    queue.entries = (uint32_t)atoi(argv[1]);
    queue.most_pieces = (uint32_t)atoi(argv[2]);
    queue.output_bytes[0] = (uint32_t)atoi(argv[3]);
    packed.most_rows = (uint32_t)atoi(argv[4]);
    packed.count = (uint32_t)atoi(argv[5]);
    packed.most_bytes = SHUNTER_PACKED_MOST;
    make_specs(argv + 6, item, ndim, shape);
    const size_t bytes = SHUNTER_QUEUE_ENTRIES_OFFSET + queue.entries * SHUNTER_ENTRY_SIZE;
    queue.page = aligned_alloc(64, bytes);
    memset(queue.page, 0, bytes);
    queue.pieces = calloc((size_t)queue.entries * queue.most_pieces, sizeof *queue.pieces);
    queue.outputs[0] = full((size_t)queue.entries * queue.output_bytes[0]);
    char *line = NULL;
    size_t room = 0;
    while (getline(&line, &room, stdin) > 0) {
        event(line);
    }
    for (uint32_t i = 0; i < SHUNTER_REGIONS; i++) {
        free((void *)(uintptr_t)regions[i].base);
    }
    forget();
    free(table);
    free(line);
    free(packed.scratch);
    free(queue.outputs[0]);
    free(queue.pieces);
    free(queue.page);
    return 0;
}
