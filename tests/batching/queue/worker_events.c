/*
 * The worker's end of a queue, driven by events on its input; what it does is its output.
 *
 *     worker_events ENTRIES MOST_PIECES N INPUT... M OUTPUT...
 *
 *   M region bytes               there is a region, full of bytes_of()
 *   I entry index offset length region    a piece     C entry count    how many it has
 *   X entry next                 the word entry_next
 *   B given first count          the mailbox          W                look into it, and be done
 *   t                            take what is there   d                the oldest is done
 *   g entry...                   gather               s entry...       scatter what bytes_of() says
 *   Z                            the same without any result of the worker's own
 *
 * Every piece of memory is exactly as long as it has to be.
 */
#define _GNU_SOURCE
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "worker.h"

static struct shunter_queue queue;
static struct shunter_region regions[SHUNTER_REGIONS];
static struct shunter_batch batches[SHUNTER_AHEAD + 1]; /* by number */
static uint64_t done;
static struct shunter_wait waiting;

static uint8_t byte_of(uint32_t region, size_t i) { return (uint8_t)(region * 31 + i * 7 + i / 256); }

static uint8_t *bytes_of(uint32_t region, size_t bytes) {
    uint8_t *found = malloc(bytes);
    for (size_t i = 0; i < bytes; i++) {
        found[i] = byte_of(region, i);
    }
    return found;
}

static void show(const uint8_t *bytes, size_t count) {
    printf(" ");
    for (size_t i = 0; i < count; i++) {
        printf("%02x", bytes[i]);
    }
}

static uint32_t listed(char *text, uint32_t *entries) {
    uint32_t count = 0;
    for (char *word = strtok(text, " \n"); word; word = strtok(NULL, " \n")) {
        entries[count++] = (uint32_t)atoi(word);
    }
    return count;
}

static void gather(char *text) {
    uint32_t entries[256];
    const uint32_t count = listed(text, entries);
    uint8_t *into[SHUNTER_MAX_TENSORS];
    for (uint32_t t = 0; t < queue.input_count; t++) {
        into[t] = calloc(1, (size_t)count * queue.input_bytes[t]);
    }
    const int result = shunter_worker_gather(&queue, 0, regions, entries, count, into);
    printf("%d", result);
    for (uint32_t t = 0; t < queue.input_count; t++) {
        if (result == 0) {
            show(into[t], (size_t)count * queue.input_bytes[t]);
        }
        free(into[t]);
    }
    printf("\n");
}

static void scatter(char *text, bool own) {
    uint32_t entries[256];
    const uint32_t count = listed(text, entries);
    uint8_t *from[SHUNTER_MAX_TENSORS] = {0};
    for (uint32_t t = 0; t < queue.output_count && own; t++) {
        from[t] = bytes_of(t, (size_t)count * queue.output_bytes[t]);
    }
    shunter_worker_scatter(&queue, entries, count, from);
    for (uint32_t t = 0; t < queue.output_count; t++) {
        show(queue.outputs[t], (size_t)queue.entries * queue.output_bytes[t]);
        free(from[t]);
    }
    printf("\n");
}

static bool take(void) {
    struct shunter_batch *batch = &batches[(waiting.taken + 1) % (SHUNTER_AHEAD + 1)];
    const int result = shunter_worker_wait(&queue, 0, &waiting, 0, batch);
    printf("%d", result);
    for (uint32_t i = 0; result == 1 && i < batch->count; i++) {
        printf(i ? " %u" : " %u %u", i ? batch->entries[i] : batch->follow_up, batch->entries[i]);
    }
    printf("\n");
    return result == 1;
}

static void be_done(void) {
    const struct shunter_batch *batch = &batches[++done % (SHUNTER_AHEAD + 1)];
    shunter_worker_done(&queue, 0, batch, waiting.doorbell, 0);
    printf(
        "%" PRIu64 " %" PRIu64 "\n",
        shunter_get(shunter_worker_word(&queue, 0, SHUNTER_W_DONE_NUMBER)),
        shunter_get(shunter_worker_word(&queue, 0, SHUNTER_W_WORKER_TAKEN)));
}

static void look(void) {
    if (take()) {
        shunter_worker_done(
            &queue, 0, &batches[++done % (SHUNTER_AHEAD + 1)], waiting.doorbell, 0);
    }
}

static void put(uint32_t field, uint64_t value) {
    shunter_set(shunter_worker_word(&queue, 0, field), value);
}

static void event(char *line) {
    uint64_t a, b, c;
    uint32_t entry, index;
    struct shunter_piece piece;
    if (sscanf(line, "M %u %" SCNu64, &index, &a) == 2) {
        regions[index] = (struct shunter_region){bytes_of(index, a), a};
    } else if (
        sscanf(
            line, "I %u %u %" SCNu64 " %u %u", &entry, &index, &piece.offset, &piece.length,
            &piece.region) == 5) {
        shunter_pieces_of(&queue, entry)[index] = piece;
    } else if (sscanf(line, "C %u %" SCNu64, &entry, &a) == 2) {
        shunter_set(shunter_entry_word(&queue, entry, SHUNTER_E_ENTRY_PIECES), a);
    } else if (sscanf(line, "X %u %" SCNu64, &entry, &a) == 2) {
        shunter_set(shunter_entry_word(&queue, entry, SHUNTER_E_ENTRY_NEXT), a);
    } else if (sscanf(line, "B %" SCNu64 " %" SCNu64 " %" SCNu64, &a, &b, &c) == 3) {
        put(SHUNTER_W_BATCH_FIRST + 8 * (uint32_t)(a % SHUNTER_AHEAD), b);
        put(SHUNTER_W_BATCH_COUNT + 8 * (uint32_t)(a % SHUNTER_AHEAD), c);
        put(SHUNTER_W_BATCH_NUMBER, a);
    } else if (line[0] == 'W') {
        look();
    } else if (line[0] == 't') {
        take();
    } else if (line[0] == 'd') {
        be_done();
    } else if (line[0] == 'g') {
        gather(line + 1);
    } else if (line[0] == 's' || line[0] == 'Z') {
        scatter(line + 1, line[0] == 's');
    }
}

int main(int argc, char **argv) {
    uint32_t *const sizes[2] = {queue.input_bytes, queue.output_bytes};
    uint32_t *const counts[2] = {&queue.input_count, &queue.output_count};
    int at = 3;
    if (argc < 5) {
        return 1;
    }
    queue.entries = (uint32_t)atoi(argv[1]);
    queue.most_pieces = (uint32_t)atoi(argv[2]);
    for (int kind = 0; kind < 2; kind++) {
        *counts[kind] = (uint32_t)atoi(argv[at++]);
        for (uint32_t t = 0; t < *counts[kind]; t++) {
            sizes[kind][t] = (uint32_t)atoi(argv[at++]);
        }
    }
    const size_t bytes = SHUNTER_QUEUE_ENTRIES_OFFSET + queue.entries * SHUNTER_ENTRY_SIZE;
    queue.page = aligned_alloc(64, bytes);
    memset(queue.page, 0, bytes);
    queue.pieces = calloc((size_t)queue.entries * queue.most_pieces, sizeof *queue.pieces);
    for (uint32_t t = 0; t < queue.output_count; t++) {
        queue.outputs[t] = calloc(queue.entries, queue.output_bytes[t]);
    }
    for (uint32_t i = 0; i <= SHUNTER_AHEAD; i++) {
        batches[i].entries = malloc(queue.entries * sizeof(uint32_t));
    }
    waiting.doorbell = eventfd(0, EFD_NONBLOCK);
    char *line = NULL;
    size_t room = 0;
    while (getline(&line, &room, stdin) > 0) {
        event(line);
    }
    printf(
        "%" PRIu64 "\n", shunter_get(shunter_worker_word(&queue, 0, SHUNTER_W_WORKER_GATHERED)));
    for (uint32_t i = 0; i < SHUNTER_REGIONS; i++) {
        free((void *)(uintptr_t)regions[i].base);
    }
    for (uint32_t t = 0; t < queue.output_count; t++) {
        free(queue.outputs[t]);
    }
    free(line);
    for (uint32_t i = 0; i <= SHUNTER_AHEAD; i++) {
        free(batches[i].entries);
    }
    free(queue.pieces);
    free(queue.page);
    close(waiting.doorbell);
    return 0;
}
