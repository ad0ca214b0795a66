/*
 * Mutated datagrams through the C core, under the sanitizers.
 *
 *     fuzz_core COUNT SEED
 *
 * With every third seed, 2 and so on, the function is packed: each request has a length of its own;
 * with the next one its answers come in parts, too.
 *
 * Most datagrams are nearly right: a client's next header with a field or two changed. After every
 * one it is checked that what the core says is possible: a place lies inside an entry that nobody
 * uses and that no worker may write into, the number of free entries adds up, nothing becomes ready
 * twice, and what is held is what the requests hold that there are. Ends with status 1 and the
 * number of the datagram otherwise; the sanitizers end it themselves.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core.h"

#define ENTRIES 12
#define SESSIONS 6
#define FUNC 3
#define SEGMENT 4
#define SEGMENTS 4
#define SHARES 3 /* the session whose requests lie in shared memory */
#define REGION 9
#define REGION_BYTES 1000

enum use { FREE, RECEIVING, READY, RUNNING, ENDING };

static const uint32_t INPUTS[2] = {9, 4}, OUTPUTS[1] = {7};
static const uint32_t LONGEST[2] = {70, 0}, LONGEST_ANSWER[1] = {23}; /* of the packed function */
static const struct shunter_runs RUNS = {.rows = 3, .least_request = 9, .least_answer = 2};
static const struct shunter_keys KEYS = {{1, 2, 3}, {4}, {5}, {6}};

static const uint16_t PROTECT[SESSIONS] = {
    0, 0, SHUNTER_FLAG_PAYLOAD_CRC, 0, 0, SHUNTER_FLAG_PAYLOAD_AEAD};

struct world {
    struct shunter_core *core;
    int has_place;
    uint8_t awaited[SHUNTER_HEADER_BYTES];
    uint64_t state, now, datagrams, places, answers, holding, shared;
    uint32_t pkt_no[SESSIONS];
    enum use use[ENTRIES];
    uint8_t said[SHUNTER_HEADER_BYTES + SHUNTER_BITMAP_BYTES], said_to[SHUNTER_PEER_BYTES];
    size_t said_length; /* of what the core said last, 0: nothing yet */
    int is_heeded, is_packed, is_streamed;
    /* By the entry of a request: its places for parts, and how many there were so far; written. */
    uint32_t places_of[ENTRIES][SHUNTER_PARTS_AHEAD], given[ENTRIES], written[ENTRIES];
    struct {
        uint64_t req_id;
        uint32_t parts;
    } streams[SESSIONS]; /* the one that began last */
    uint32_t session[ENTRIES];
    int is_over[ENTRIES]; /* its worker has said that no part follows */
    uint64_t parts;
    struct shunter_runs runs;
};

static struct world world;
static uint64_t line[SHUNTER_HOLDER_SIZE / 8];

static uint64_t next(void) {
    world.state ^= world.state << 13;
    world.state ^= world.state >> 7;
    world.state ^= world.state << 17;
    return world.state;
}

static uint32_t below(uint32_t limit) { return (uint32_t)(next() >> 33) % limit; }
static int chance(uint32_t percent) { return below(100) < percent; }

static void wrong(const char *what) {
    fprintf(stderr, "datagram %llu: %s\n", (unsigned long long)world.datagrams, what);
    exit(1);
}

/* Whether a worker may write a part into this entry. */
static int is_part_of_one(uint32_t entry) {
    for (uint32_t i = 0; i < ENTRIES; i++) {
        for (uint32_t n = world.written[i]; world.use[i] == RUNNING && n < world.given[i]; n++) {
            if (world.places_of[i][n % SHUNTER_PARTS_AHEAD] == entry) {
                return 1;
            }
        }
    }
    return 0;
}

static void begin_parts(uint32_t entry) { world.given[entry] = world.written[entry] = 0; }

static void give_place(uint32_t entry, uint32_t place) {
    if (world.use[entry] != RUNNING || world.is_over[entry] || place >= ENTRIES || is_part_of_one(place) ||
        world.use[place] == READY || world.use[place] == RUNNING ||
        world.given[entry] - world.written[entry] == SHUNTER_PARTS_AHEAD) {
        wrong("a place for a part that it cannot have");
    }
    world.places_of[entry][world.given[entry]++ % SHUNTER_PARTS_AHEAD] = place;
}

static void act(void *context, const struct shunter_action *action) {
    (void)context;
    const uint32_t *inputs = world.is_packed ? LONGEST : INPUTS;
    const uint32_t answer = world.is_packed ? LONGEST_ANSWER[0] : OUTPUTS[0];
    world.is_heeded |= action->kind != SHUNTER_DROP;
    if (action->kind == SHUNTER_PLACE) {
        const bool is_shared = action->region;
        if (action->entry < 0 || action->entry >= ENTRIES || action->tensor > 1 ||
            (is_shared ? action->region != REGION || action->length ||
                             action->offset > REGION_BYTES - 128
                       : action->offset + (uint64_t)action->length > inputs[action->tensor])) {
            wrong("a place outside of its entry");
        }
        if (world.use[action->entry] > RECEIVING || is_part_of_one((uint32_t)action->entry)) {
            wrong("a place in an entry that is complete, or a part's");
        }
        world.use[action->entry] = RECEIVING;
        world.has_place = 1;
        world.shared += is_shared;
        world.places++;
    } else if (action->kind == SHUNTER_READY) {
        if (world.use[action->entry] != RECEIVING && world.use[action->entry] != ENDING) {
            wrong("ready twice");
        }
        if (world.is_packed
                ? action->rows < 1 || action->rows > RUNS.rows ||
                      action->length < world.runs.least_request || action->length > inputs[0]
                : action->rows != 1) {
            wrong("ready with a size that it cannot have");
        }
        world.use[action->entry] = READY;
        if (!action->returned) {
            begin_parts((uint32_t)action->entry);
        }
    } else if (action->kind == SHUNTER_PART) {
        give_place((uint32_t)action->entry, action->offset);
    } else if (action->kind == SHUNTER_UNWANTED) {
        if (world.use[action->entry] != RUNNING) {
            wrong("what does not run is unwanted");
        }
    } else if (action->kind == SHUNTER_WITHDRAW) {
        world.use[action->entry] = FREE;
    } else if (action->kind == SHUNTER_SEND) {
        if (action->entry >= 0 && (action->guard.protect != 0) != (action->guard.number != 0)) {
            wrong("a payload without its number");
        }
        if (action->length > SHUNTER_BITMAP_BYTES ||
            (action->entry >= 0 && action->offset + action->length > answer)) {
            wrong("more is sent than there is");
        }
        world.answers++;
        memcpy(world.said, action->header, SHUNTER_HEADER_BYTES);
        memcpy(world.said + SHUNTER_HEADER_BYTES, action->payload, SHUNTER_BITMAP_BYTES);
        memcpy(world.said_to, action->peer, sizeof world.said_to);
        struct shunter_x64 header;
        memcpy(&header, action->header, sizeof header);
        world.said_length =
            SHUNTER_HEADER_BYTES + header.length + shunter_behind(header.flags);
    }
}

static void peer_of(uint32_t n, uint8_t peer[SHUNTER_PEER_BYTES]) {
    memset(peer, 0, SHUNTER_PEER_BYTES);
    peer[0] = 2;
    peer[4] = (uint8_t)n;
}

static int shares(uint32_t n) { return n == SHARES && !world.is_streamed; }

static void open_session(uint32_t n) {
    uint8_t peer[SHUNTER_PEER_BYTES];
    peer_of(n, peer);
    struct shunter_opening opening = {
        .session = 0x10000 + n,
        .func_id = FUNC,
        .segment = SEGMENT,
        .window = (uint16_t)(2 + n),
        .protect = PROTECT[n],
        .stream = n == 3,
        .origin = n % 3,
        .tagged = n % 2,
        .may_be_strict = n != 4,
        .key = n % 4,
        .region = shares(n) ? REGION : 0,
        .region_bytes = REGION_BYTES,
        .keys = KEYS};
    memcpy(opening.peer, peer, sizeof opening.peer);
    if (shunter_core_add_session(world.core, &opening, world.now) == 0) {
        world.pkt_no[n] = 0;
    }
}

static void mutate(struct shunter_x64 *header) {
    static const uint64_t EDGES[] = {0, 1, 2, 3, 4, 5, 63, 64, 65, 255, 256, 0x7fff, 0xffff,
                                     1ULL << 31, 0xffffffff, 1ULL << 32, 1ULL << 63, ~0ULL};
    uint8_t *bytes = (uint8_t *)header;
    const uint64_t value = chance(70) ? EDGES[below(sizeof EDGES / 8)] : next();
    const uint32_t width = 1u << below(4), at = below(64 / width) * width;
    memcpy(bytes + at, &value, width);
    if (chance(30)) {
        bytes[below(64)] ^= (uint8_t)(1u << below(8));
    }
}

uint64_t shunter_siphash24(const uint8_t key[16], const void *data, size_t length);

/* A segment of a request that has a length of its own. */
static void as_run(struct shunter_x64 *header) {
    static const uint32_t TOTALS[] = {9, 12, 9, 17, 13, 70, 8, 71};
    static const uint16_t ROWS[] = {1, 1, 1, 2, 3, 0, 4, 1};
    const uint32_t which = chance(10) ? below(8) : (uint32_t)(header->req_id % 5);
    header->total = world.is_streamed && chance(70) ? SEGMENT : TOTALS[which];
    header->status = ROWS[which];
    header->count = (uint16_t)((header->total + SEGMENT - 1) / SEGMENT);
    header->seq = (uint16_t)below(header->count);
    header->tensor = 0;
    header->offset = header->seq * (uint32_t)SEGMENT;
    const uint32_t left = header->total - header->offset;
    header->length = (uint16_t)(left < SEGMENT ? left : SEGMENT);
    header->flags &= (uint16_t)~SHUNTER_FLAG_LAST;
    header->flags |= header->seq + 1 == header->count ? SHUNTER_FLAG_LAST : 0;
}

/* It asks for a part of the answer that began last, or of none. */
static void as_next(struct shunter_x64 *header, uint32_t n) {
    header->flags = SHUNTER_FLAG_NEXT | SHUNTER_FLAG_LAST;
    header->flags |= chance(30) ? SHUNTER_FLAG_ACK_REQ : 0;
    header->total = world.streams[n].parts + below(11) - (chance(10) ? 2 : 0);
    header->offset = (uint32_t)world.streams[n].req_id + (chance(3) ? below(3) : 0);
    header->count = 1;
    header->seq = header->length = header->status = header->tensor = 0;
}

static void datagram(void) {
    static const struct {
        uint8_t tensor;
        uint32_t offset, length, total;
    } PARTS[SEGMENTS] = {{0, 0, 4, 9}, {0, 4, 4, 9}, {0, 8, 1, 9}, {1, 0, 4, 4}};
    static const uint8_t RARE[] = {2, 3, 4, 5, 6, 7, 7, 8, 9, 9, 9, 10, 10, 11};
    uint8_t data[SHUNTER_HEADER_BYTES + 512], peer[SHUNTER_PEER_BYTES];
    const uint32_t n = below(SESSIONS), seq = below(SEGMENTS);
    const uint64_t grant = shunter_core_grant(world.core, 0x10000 + n);
    // What is done is about a window below the grant; now and then the client moves on.
    const uint64_t window = n ? 3 : 2, done = grant > window ? grant - window : 0;
    struct shunter_x64 header = {
        .magic = SHUNTER_WIRE_MAGIC,
        .version = SHUNTER_WIRE_VERSION,
        .type = chance(85) ? SHUNTER_TYPE_REQ : RARE[below(sizeof RARE)],
        .flags = (uint16_t)((seq == 3 ? SHUNTER_FLAG_LAST : 0) |
                            (chance(20) ? SHUNTER_FLAG_ACK_REQ : 0) |
                            (chance(20) ? SHUNTER_FLAG_IDEMPOTENT : 0)),
        .words = 8,
        .priority = (uint8_t)below(3),
        .req_id = done + below((uint32_t)window + 2),
        .func_id = FUNC,
        .seq = (uint16_t)seq,
        .count = SEGMENTS,
        .length = (uint16_t)PARTS[seq].length,
        .total = PARTS[seq].total,
        .offset = PARTS[seq].offset,
        .session = 0x10000 + n,
        .deadline_us = below(20),
        .credit = (uint32_t)(done + 1 + (chance(world.is_streamed ? 60 : 15) ? below(3) : 0)),
        .tensor = PARTS[seq].tensor,
        .pkt_no = ++world.pkt_no[n] - (chance(20) ? below(6) : 0)};
    if (world.is_packed) {
        as_run(&header);
    }
    if (shares(n)) {
        header.seq = header.tensor = 0;
        header.length = 0;
        header.total = world.is_packed ? header.total : 0;
        header.count = 1;
        header.flags |= SHUNTER_FLAG_LAST;
        header.offset = below(4) ? below(REGION_BYTES - 127) : below(2 * REGION_BYTES);
    }
    if (world.is_streamed && header.type == SHUNTER_TYPE_REQ && chance(75)) {
        as_next(&header, n);
    }
    if (header.type == SHUNTER_TYPE_REQ) {
        header.flags |= PROTECT[n];
    }
    if (chance(25)) {
        mutate(&header);
    }
    if (header.pkt_no - world.pkt_no[n] < 1u << 20) {
        world.pkt_no[n] = header.pkt_no; // or all that follow would look old
    }
    if (n % 2 && chance(97)) {
        header.flags |= SHUNTER_FLAG_HDR_TAG;
        header.tag = shunter_siphash24(KEYS.tag_to_server, &header, SHUNTER_TAG_OFFSET);
    }
    memcpy(data, &header, sizeof header);
    for (uint32_t i = sizeof header; i < sizeof data; i += 8) {
        const uint64_t word = next();
        memcpy(data + i, &word, 8);
    }
    size_t length = sizeof header + header.length + shunter_behind(header.flags);
    if (chance(3)) {
        length = below(70);
    }
    peer_of(chance(98) ? n : below(SESSIONS), peer);
    // Exactly what there is, so that one byte too far is seen.
    const size_t given = length < sizeof data ? length : sizeof data;
    uint8_t *exact = malloc(given ? given : 1);
    memcpy(exact, data, given);
    world.has_place = 0;
    shunter_core_receive(world.core, peer, exact, length, world.now);
    free(exact);
    if (world.has_place) {
        memcpy(world.awaited, data, sizeof world.awaited);
    }
    if (chance(95)) { // of this one, or of an earlier one, or a wrong one that never counts
        shunter_core_accept(world.core, world.awaited, world.now);
    }
    world.datagrams++;
}

/* What the core says comes back, as if its client had said it. */
static void reflect(void) {
    world.is_heeded = 0;
    shunter_core_receive(
        world.core, world.said_to, world.said, world.said_length, world.now);
    if (world.is_heeded) {
        wrong("it heeds what it has said itself");
    }
}

static void forget_unused(void) {
    uint32_t used = 0;
    for (uint32_t i = 0; i < ENTRIES; i++) {
        used += world.use[i] == READY || world.use[i] == RUNNING;
    }
    if (shunter_core_free_entries(world.core, FUNC) > ENTRIES - used) {
        wrong("an entry in use counts as free");
    }
}

static void work(void) {
    struct shunter_whom whom;
    uint32_t entry = below(ENTRIES);
    for (uint32_t i = 0; world.is_streamed && i < ENTRIES && world.use[entry] != RUNNING; i++) {
        entry = chance(70) ? (entry + 1) % ENTRIES : entry; // parts need many turns
    }
    if (world.use[entry] == READY) {
        if (chance(10)) {
            world.use[entry] = FREE;
            shunter_core_expired(world.core, FUNC, entry, world.now);
            return;
        }
        world.use[entry] = RUNNING;
        world.is_over[entry] = 0;
        shunter_core_running(world.core, FUNC, entry, world.now, &whom);
        world.session[entry] = whom.session - 0x10000;
        if (world.streams[world.session[entry]].req_id != whom.req_id) {
            world.streams[world.session[entry]].req_id = whom.req_id;
            world.streams[world.session[entry]].parts = 0;
        }
    } else if (world.use[entry] == RUNNING && world.is_streamed && chance(2)) {
        world.is_over[entry] = 1;
        world.given[entry] = world.written[entry];
        const uint16_t why = chance(50) ? SHUNTER_STATUS_END : SHUNTER_STATUS_TOO_SLOW;
        shunter_core_parts_over(world.core, FUNC, entry, why, world.now);
    } else if (
        world.use[entry] == RUNNING && world.written[entry] < world.given[entry] && chance(80)) {
        static const uint32_t PARTS[] = {2, 4, 5, 23, 23, 7, 24, ~0u};
        world.streams[world.session[entry]].parts++;
        world.written[entry]++;
        world.parts++;
        shunter_core_part(world.core, FUNC, entry, PARTS[below(8)], world.now);
    } else if (world.use[entry] == RUNNING && !(world.is_streamed && chance(95))) {
        const uint32_t how = below(10);
        world.use[entry] = ENDING;
        if (how == 0) {
            shunter_core_worker_died(world.core, FUNC, entry, world.now);
        } else if (how == 1) {
            shunter_core_returned(world.core, FUNC, entry, world.now);
        } else {
            static const uint32_t ANSWERS[] = {2, 4, 5, 23, 23, 1, 24, ~0u};
            const uint32_t bytes = world.is_packed ? ANSWERS[below(8)] : 0;
            shunter_core_finished(
                world.core, FUNC, entry, how == 2 ? 500 : 200, how > 5, bytes, world.now);
        }
        if (world.use[entry] == ENDING) {
            world.use[entry] = FREE; // or kept, which nobody may run
        }
    }
}

bool holds_are_right(
    const struct shunter_core *core, uint16_t func_id, uint32_t sessions, const uint64_t *line);

/* The workers of the function come or go, or its page does. */
static void move(void) {
    const int32_t slot = (int32_t)below(SHUNTER_SLOT_COUNT + 1) - 1;
    if (chance(80)) {
        uint64_t slices[SHUNTER_SLICE_WORDS] = {0};
        for (uint32_t i = 0; i < SHUNTER_SLICE_WORDS; i++) {
            slices[i] = chance(50) ? next() : 0;
        }
        shunter_core_set_hold(world.core, FUNC, slot, slices, world.now);
    } else {
        shunter_core_hold_at(world.core, chance(70) ? line : NULL, world.now);
    }
}

int main(int argc, char **argv) {
    const uint64_t count = argc > 1 ? strtoull(argv[1], NULL, 10) : 1000000;
    world.state = 0x9e3779b97f4a7c15ULL ^ (argc > 2 ? strtoull(argv[2], NULL, 10) : 1);
    const uint64_t kind = argc > 2 ? strtoull(argv[2], NULL, 10) % 3 : 1;
    world.is_streamed = kind == 0;
    world.is_packed = kind != 1;
    world.runs = RUNS;
    world.core = shunter_core_new(act, NULL);
    if (world.is_packed) {
        shunter_core_add_function(
            world.core, FUNC, LONGEST, 1, LONGEST_ANSWER, 1, ENTRIES, ENTRIES);
        if (world.is_streamed) {
            world.runs.streamed = 1;
            world.runs.idle_ns = 3000000000;
            world.runs.least_request = SEGMENT;
        }
        if (shunter_core_set_runs(world.core, FUNC, &world.runs)) {
            wrong("it cannot be packed");
        }
    } else {
        shunter_core_add_function(world.core, FUNC, INPUTS, 2, OUTPUTS, 1, ENTRIES, ENTRIES);
    }
    const struct shunter_defaults defaults = {.slo_ns = 7000, .timeout_ns = 12000, .priority = 1};
    shunter_core_set_defaults(world.core, FUNC, &defaults);
    shunter_core_limit(world.core, SESSIONS - 1, 1); // one of them gives way, or is not let in
    for (uint32_t n = 0; n < SESSIONS; n++) {
        open_session(n);
    }
    while (world.datagrams < count) {
        datagram();
        if (chance(40)) {
            work();
        }
        if (chance(2)) {
            world.now += (uint64_t)1 << below(33);
            shunter_core_tick(world.core, world.now);
        }
        if (world.said_length && chance(3)) {
            reflect();
        }
        if (below(5000) == 0) {
            shunter_core_remove_key(world.core, below(4), world.now);
        }
        if (below(2000) == 0) {
            const uint32_t n = below(SESSIONS);
            shunter_core_remove_session(world.core, 0x10000 + n, world.now);
        }
        if (below(50) == 0) {
            open_session(below(SESSIONS));
        }
        if (below(300) == 0) {
            move();
        }
        world.holding += line[SHUNTER_K_HOLD_NUMBER / 8] != 0;
        if (!holds_are_right(world.core, FUNC, SESSIONS, line)) {
            wrong("what is held is not what the requests hold");
        }
        forget_unused();
    }
    shunter_core_free(world.core);
    printf("%llu datagrams, %llu places, %llu answers, %llu held, %llu shared, %llu parts\n",
           (unsigned long long)world.datagrams, (unsigned long long)world.places,
           (unsigned long long)world.answers, (unsigned long long)world.holding,
           (unsigned long long)world.shared, (unsigned long long)world.parts);
    return 0;
}
