/*
 * Two ends of the verbs backend, a server's and a client's, in one process:
 *
 *     verbs_ends DEVICE BLOCKS MEMORY
 *
 * Lines on the standard input, each of which is answered by one line of JSON: "send FIRST COUNT LENGTH
 * HOW" (the client sends; HOW: c copied, d from registered memory, p from any), "poll" (the server looks
 * until nothing comes, and answers each), "answers" (the client does), "keep N" (the next payloads stay),
 * "release", "spoil" (what was sent is changed), "to N" (an address, 0: the server's), "fake WHAT N",
 * "once" (the server looks once), "ready" (what there is, and whether its descriptor can be
 * read), "close".
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "backend.h"
#include "verbs.h"

#define PAYLOAD 4096
#define MOST 100000

static struct {
    uint32_t came, bad, twice, wrong_peer, answers, kept_bad, short_ones;
} seen;
static struct {
    uint32_t number, length;
    const uint8_t *payload;
    int32_t block;
} kept[4096];
static uint8_t there[MOST];
static uint32_t kept_count, keep, blocks;
static struct shunter_landing pools[2];
static struct shunter_backend *ends[2];
static struct shunter_landed *landed;
static uint8_t *registered, *any, to[SHUNTER_PEER_BYTES], client[SHUNTER_PEER_BYTES];
static bool ipv4;
static int (*fake)(const char *, int);

static uint8_t pattern(uint32_t number, uint32_t at) {
    return (uint8_t)(number * 31 + at * 7 + (at >> 8));
}

static bool is_right(uint32_t number, const uint8_t *payload, uint32_t length) {
    for (uint32_t i = 0; i < length; i++) {
        if (payload[i] != pattern(number, i)) {
            return false;
        }
    }
    return true;
}

static struct shunter_backend *opened(
    const char *device, struct shunter_landing *pool, enum shunter_verbs_memory memory) {
    const uint32_t all = blocks + 8;
    uint8_t *base = mmap(
        NULL, (size_t)all * SHUNTER_BLOCK, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1,
        0);
    shunter_landing_init(pool, base, all);
    shunter_landing_grow(pool, all);
    const struct shunter_verbs_settings settings = {
        .device = device,
        .landing = pool,
        .blocks = blocks,
        .memory = memory,
        .dmabuf = 77,
        .dmabuf_offset = 4096};
    char why[256];
    struct shunter_backend *found = shunter_verbs_backend(&settings, why, sizeof why);
    printf("%s\n", why);
    return found;
}

static void send(uint32_t first, uint32_t count, uint32_t length, char how) {
    uint8_t *from = how == 'd' ? registered : any;
    for (uint32_t i = 0; i < count; i++) {
        struct shunter_x64 header;
        memset(&header, 0, sizeof header);
        const uint32_t number = first + i;
        memcpy(&header, &number, 4);
        memcpy((uint8_t *)&header + 4, &length, 4);
        uint8_t *payload = from + (size_t)(i % 64) * PAYLOAD;
        for (uint32_t at = 0; at < length; at++) {
            payload[at] = pattern(number, at);
        }
        ends[1]->tx(ends[1], &header, payload, length, to, how == 'c');
        if (how == 'c') {
            memset(payload, 0xff, length);
        }
        if (i % 64 == 63) {
            ends[1]->flush(ends[1]);
        }
    }
    ends[1]->flush(ends[1]);
}

static void look_at(const struct shunter_landed *one) {
    uint32_t number, length;
    if (one->length < SHUNTER_HEADER_BYTES) {
        seen.short_ones++;
        return;
    }
    memcpy(&number, one->header, 4);
    memcpy(&length, one->header + 4, 4);
    seen.came++;
    seen.twice += number >= MOST || there[number]++;
    seen.bad += one->length != SHUNTER_HEADER_BYTES + length ||
                !is_right(number, one->payload, length);
    uint8_t expected[SHUNTER_PEER_BYTES];
    memcpy(expected, client, sizeof expected);
    if (ipv4) {
        memcpy(expected + 8, "\0\0\0\0\0\0\0\0\0\0\377\377\12\11\10\7", 16);
    }
    expected[2] = expected[3] = 0; // the LID: the fake tells none
    seen.wrong_peer += memcmp(expected, one->peer, sizeof expected) != 0;
    if (keep) {
        keep--;
        shunter_block_ref(&pools[0], one->block);
        kept[kept_count].number = number;
        kept[kept_count].length = length;
        kept[kept_count].payload = one->payload;
        kept[kept_count++].block = one->block;
    }
    struct shunter_x64 header;
    memcpy(&header, one->header, sizeof header);
    ends[0]->tx(ends[0], &header, NULL, 0, one->peer, false);
}

static void serve(int end, int times) {
    uint32_t messages = 0;
    int quiet = 0;
    for (; quiet < 3 && times; times--) {
        const int count = ends[end]->poll(ends[end], landed, &messages);
        for (int i = 0; i < count; i++) {
            if (end == 0) {
                look_at(&landed[i]);
            } else {
                seen.answers++;
            }
        }
        ends[end]->flush(ends[end]);
        quiet = count > 0 ? 0 : quiet + 1;
    }
}

static void release(void) {
    for (uint32_t i = 0; i < kept_count; i++) {
        seen.kept_bad += !is_right(kept[i].number, kept[i].payload, kept[i].length);
        shunter_block_unref(&pools[0], kept[i].block);
    }
    kept_count = 0;
}

static void tell(void) {
    struct shunter_verbs_counts counts[2];
    struct shunter_backend_stats stats[2];
    memset(counts, 0, sizeof counts);
    memset(stats, 0, sizeof stats);
    for (int i = 0; i < 2 && ends[i]; i++) {
        shunter_verbs_counts(ends[i], &counts[i]);
        ends[i]->stats(ends[i], &stats[i]);
    }
    struct pollfd ready = {ends[0] ? ends[0]->ready : -1, POLLIN, 0};
    poll(&ready, 1, 0);
    printf(
        "{\"came\": %u, \"bad\": %u, \"twice\": %u, \"wrong_peer\": %u, \"answers\": %u, "
        "\"kept_bad\": %u, \"short\": %u, \"received\": %lu, \"receive_errors\": %lu, "
        "\"recoveries\": %lu, \"send_errors\": %lu, \"client_recoveries\": %lu, "
        "\"no_address\": %lu, \"direct\": %lu, \"failed\": %lu, \"copied\": %lu, "
        "\"landed_copied\": %lu, \"empty\": %lu, \"sent\": %lu, \"ready\": %s, \"wrong\": %d, "
        "\"alive\": %d, \"free\": [%u, %u], \"far\": %s, \"mtu\": %u}\n",
        seen.came, seen.bad, seen.twice, seen.wrong_peer, seen.answers, seen.kept_bad,
        seen.short_ones, counts[0].received, counts[0].receive_errors, counts[0].recoveries,
        counts[1].send_errors, counts[1].recoveries, counts[1].no_address, counts[1].direct,
        stats[1].failed, stats[1].copied_bytes, stats[0].copied_bytes, stats[0].empty,
        counts[1].sent, ready.revents & POLLIN ? "true" : "false", fake("wrong", 0),
        fake("alive", 0), pools[0].free_count, pools[1].free_count,
        ends[0] && ends[0]->payloads_are_far ? "true" : "false",
        ends[0] ? ends[0]->mtu(ends[0]) : 0);
    fflush(stdout);
}

static void point(uint32_t number) {
    shunter_verbs_address(ends[0], to);
    if (number) { // another GID, from which nobody receives
        memcpy(to + 8, &number, sizeof number);
        memset(to + 4, 0, 4);
    }
}

static void command(const char *line) {
    uint32_t first, count, length;
    char what[32], how;
    int number;
    if (sscanf(line, "send %u %u %u %c", &first, &count, &length, &how) == 4) {
        send(first, count, length, how);
    } else if (sscanf(line, "fake %31s %d", what, &number) == 2) {
        ipv4 = strcmp(what, "ipv4") == 0 ? number : ipv4;
        fake(what, number);
    } else if (sscanf(line, "keep %u", &count) == 1) {
        keep = count;
    } else if (sscanf(line, "to %u", &count) == 1) {
        point(count);
    } else if (strncmp(line, "poll", 4) == 0) {
        serve(0, -1);
    } else if (strncmp(line, "once", 4) == 0) {
        serve(0, 1);
    } else if (strncmp(line, "answers", 7) == 0) {
        serve(1, -1);
    } else if (strncmp(line, "spoil", 5) == 0) {
        memset(any, 0xff, (size_t)64 * PAYLOAD);
        memset(registered, 0xff, (size_t)64 * PAYLOAD);
    } else if (strncmp(line, "release", 7) == 0) {
        release();
    } else if (strncmp(line, "close", 5) == 0) {
        release();
        for (int i = 0; i < 2; i++) {
            ends[i]->close(ends[i]);
            ends[i] = NULL;
        }
    } else if (strncmp(line, "ready", 5) != 0) {
        abort();
    }
    tell();
}

int main(int count, char **arguments) {
    if (count != 4) {
        return 2;
    }
    blocks = (uint32_t)atoi(arguments[2]);
    void *library = dlopen("libibverbs.so.1", RTLD_NOW);
    void *symbol = library ? dlsym(library, "fake_verbs") : NULL;
    memcpy(&fake, &symbol, sizeof fake);
    if (fake && getenv("FAKE")) {
        fake(getenv("FAKE"), 1);
    }
    ends[0] = opened(arguments[1], &pools[0], (enum shunter_verbs_memory)atoi(arguments[3]));
    if (!ends[0]) {
        printf("{\"free\": %u, \"alive\": %d}\n", pools[0].free_count, fake ? fake("alive", 0) : 0);
        return 4;
    }
    ends[1] = opened(arguments[1], &pools[1], SHUNTER_VERBS_HOST);
    fflush(stdout);
    shunter_verbs_address(ends[1], client);
    landed = calloc(ends[0]->most, sizeof *landed);
    registered = calloc(64, PAYLOAD);
    any = calloc(64, PAYLOAD);
    shunter_verbs_register(ends[1], registered, (size_t)64 * PAYLOAD);
    point(0);
    char line[128];
    while (fgets(line, sizeof line, stdin)) {
        command(line);
    }
    free(landed);
    free(registered);
    free(any);
    for (int i = 0; i < 2; i++) {
        shunter_landing_free(&pools[i]);
    }
    return 0;
}
