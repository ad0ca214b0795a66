/*
 * The two ends of answers in parts, the server's and the worker's, in one process: at each look at a
 * word that they share, and at each change of one, the other may go on, as a seed decides.
 *
 *     parts_events SEED STORIES
 *
 * In a story a worker answers a few requests, whose clients ask for parts as they like. Some go away;
 * a worker may be killed anywhere, a front end stopped. The next story goes on with the same page,
 * unless the front end was stopped. What must hold: a part comes once, in its order, from a place that
 * was its own, and from which nothing is sent any more; after a request is unwanted at most the part that is just being made; nobody sleeps
 * while the other waits for him. Ends with 1 and a line otherwise; the sanitizers end it themselves.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "parts.h"
#include "server_parts.h"

static void step(void);
static int worker_sleeps(struct pollfd *fds);
#define shunter_get(word) (step(), shunter_get(word))
#define shunter_set(word, value) (step(), shunter_set(word, value))
#undef atomic_load
#define atomic_load(word) (step(), atomic_load_explicit(word, memory_order_seq_cst))
#undef atomic_store
#define atomic_store(word, value) \
    (step(), atomic_store_explicit(word, value, memory_order_seq_cst))
#define ppoll(fds, count, timeout, mask) ((void)(timeout), worker_sleeps(fds))

#include "../../../batching/c/worker/parts.c"
#include "../../../nic_frontend/c/server/parts.c"

#define ENTRIES 12
#define REQUESTS 3

enum use { FREE, GIVEN, WRITTEN, SENT };

struct request {
    uint32_t total, window;       /* parts that there are; that are asked for ahead */
    uint32_t asked, given, came;  /* so far */
    int is_over, was_over;        /* said by the worker, 2: it is too slow; known to the core */
    uint32_t announced, late;     /* by the worker; of these when nobody wanted them */
    int is_unwanted, was_told;    /* its client has gone; its worker knows */
    int says;                     /* its worker says at once that there are no more, 2: any more */
    int skips[64];                /* steps without a part of this one */
};

struct place {
    enum use use;
    uint32_t entry, number;
    uint32_t content[2]; /* what the worker has written */
};

static struct {
    uint64_t state;
    unsigned long long story, parts, deaths, stops, unwanted, sleeps, ends;
    struct request of[ENTRIES];
    struct place places[ENTRIES];
    int queued[ENTRIES]; /* what is there, or was, will be sent from there */
    uint32_t first, count; /* requests */
    int killed, stopped, worker_is_over, result;
    int worker_asks, front_asks; /* they sleep, until what they wait for is there */
} world;

static struct shunter_served served;
static struct shunter_serving serving = {.served = &served};
static struct shunter_server server;
static int worker_bell, front_bell;

/* ---- whose turn it is */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t turned = PTHREAD_COND_INITIALIZER;
static int turn; /* 1: the worker's */
static _Thread_local int is_worker;

static uint32_t below(uint32_t limit) {
    world.state ^= world.state << 13;
    world.state ^= world.state >> 7;
    world.state ^= world.state << 17;
    return (uint32_t)(world.state >> 33) % limit;
}

static void wrong(const char *what) {
    fprintf(stderr, "story %llu: %s\n", world.story, what);
    _exit(1);
}

static int is_rung(int bell) {
    struct pollfd fd = {.fd = bell, .events = POLLIN};
    return poll(&fd, 1, 0) == 1;
}

static void hand_over(void) {
    pthread_mutex_lock(&lock);
    turn = !is_worker;
    pthread_cond_broadcast(&turned);
    while (turn != is_worker) {
        pthread_cond_wait(&turned, &lock);
    }
    pthread_mutex_unlock(&lock);
    if (is_worker && world.killed) {
        pthread_mutex_lock(&lock);
        world.worker_is_over = 1;
        turn = 0;
        pthread_cond_broadcast(&turned);
        pthread_mutex_unlock(&lock);
        pthread_exit(NULL);
    }
}

static int worker_may(void) {
    return !world.worker_is_over && (!world.worker_asks || is_rung(worker_bell) || world.stopped);
}

static void step(void) {
    if (is_worker ? below(3) == 0 && (!world.front_asks || is_rung(front_bell))
                  : below(3) == 0 && worker_may()) {
        hand_over();
    }
}

/* ---- the worker */

static int worker_sleeps(struct pollfd *fds) {
    world.sleeps++;
    while (!is_rung(worker_bell) && !world.stopped) {
        world.worker_asks = 1;
        hand_over(); // the front end finds out when it cannot go on, either
    }
    world.worker_asks = 0;
    fds[0].revents = is_rung(worker_bell) ? POLLIN : 0;
    fds[1].revents = world.stopped ? POLLRDHUP : 0;
    return 1;
}

static void ring(int bell) {
    const uint64_t one = 1;
    if (write(bell, &one, sizeof one) < 0) {
        wrong("a doorbell is full");
    }
}

static int find_places(const uint32_t *entries, uint32_t count, int *places) {
    static const int other = -1;
    const struct shunter_wait wait = {.doorbell = worker_bell, .other = &other, .other_count = 1};
    for (;;) {
        uint32_t pending[REQUESTS], n = 0;
        uint64_t written[REQUESTS];
        for (uint32_t i = 0; i < count; i++) {
            struct request *request = &world.of[entries[i]];
            if (places[i] < 0 && !request->was_told) {
                places[i] = shunter_part_place(&served.queue, entries[i], request->announced);
                request->was_told = places[i] == -ECANCELED;
            }
            if (places[i] == -EAGAIN) {
                pending[n] = entries[i];
                written[n++] = request->announced;
            } else if (places[i] < 0 && !request->was_told) {
                wrong("a place that makes no sense");
            }
        }
        if (!n) {
            return 0;
        }
        const int found =
            shunter_parts_wait(&served.queue, 0, &wait, pending, written, n, 1000000000);
        if (found < 0) {
            return found;
        }
    }
}

static int write_part(uint32_t entry, uint32_t at) {
    struct request *request = &world.of[entry];
    struct place *place = &world.places[at];
    if (place->use != GIVEN || place->entry != entry || place->number != request->announced + 1) {
        wrong("a place that is not its own");
    }
    if (world.queued[at]) {
        wrong("a place from which another part is about to be sent");
    }
    place->content[0] = entry;
    step();
    place->content[1] = place->number;
    place->use = WRITTEN;
    shunter_set(shunter_entry_word(&served.queue, at, SHUNTER_E_ENTRY_RESULT_BYTES), place->number);
    request->late += (uint32_t)request->is_unwanted;
    return shunter_part_is_there(&served.queue, entry, ++request->announced, front_bell);
}

static int answer(void) {
    for (uint32_t now = 0;; now++) {
        uint32_t entries[REQUESTS], n = 0, left = 0;
        int places[REQUESTS] = {-EAGAIN, -EAGAIN, -EAGAIN};
        for (uint32_t i = 0; i < world.count; i++) {
            const struct request *request = &world.of[world.first + i];
            const int goes_on = !request->was_told && request->announced < request->total;
            left += (uint32_t)goes_on;
            if (goes_on && !request->skips[now % 64]) {
                entries[n++] = world.first + i;
            }
        }
        if (!left) {
            return 0;
        }
        const int found = find_places(entries, n, places);
        for (uint32_t i = 0; i < n && !found; i++) {
            if (places[i] >= 0 && write_part(entries[i], (uint32_t)places[i])) {
                wrong("a doorbell that cannot be rung");
            }
        }
        if (found) {
            return found;
        }
        for (uint32_t i = 0; i < world.count; i++) {
            struct request *request = &world.of[world.first + i];
            if (request->announced == request->total && request->says && !request->was_told &&
                !request->is_over) {
                request->is_over = request->says;
                (request->says == 2 ? shunter_parts_are_late : shunter_parts_are_over)(
                    &served.queue, world.first + i, request->total, front_bell);
            }
        }
    }
}

static void *work(void *context) {
    is_worker = 1;
    pthread_mutex_lock(&lock);
    while (!turn) {
        pthread_cond_wait(&turned, &lock);
    }
    pthread_mutex_unlock(&lock);
    world.result = answer();
    if (!world.result) {
        atomic_store(shunter_worker_word(&served.queue, 0, SHUNTER_W_DONE_NUMBER), 1);
        if (atomic_load(shunter_front_end_word(&served.queue, SHUNTER_Q_FRONT_END_ASLEEP))) {
            ring(front_bell);
        }
    }
    pthread_mutex_lock(&lock);
    world.worker_is_over = 1;
    turn = 0;
    pthread_cond_broadcast(&turned);
    pthread_mutex_unlock(&lock);
    return context;
}

/* ---- the front end, with what its core and its dispatcher would do */

void shunter_nudge(struct shunter_served *of, uint32_t entry) {
    (void)entry;
    if (atomic_load(shunter_worker_word(&of->queue, 0, SHUNTER_W_WORKER_ASLEEP))) {
        ring(worker_bell);
    }
}

void shunter_made_progress(struct shunter_served *of, uint32_t entry, uint64_t now_ns) {
    (void)of, (void)entry, (void)now_ns;
}

void shunter_flush(struct shunter_server *of) {
    of->flushes++;
    memset(world.queued, 0, sizeof world.queued);
}

void shunter_core_part(
    struct shunter_core *core, uint16_t func_id, uint32_t entry, uint32_t bytes,
    uint64_t now_ns) {
    (void)core, (void)func_id, (void)now_ns;
    struct request *request = &world.of[entry];
    const uint32_t number = ++request->came;
    if (request->was_over) {
        wrong("a part after the end");
    }
    for (uint32_t at = 0; at < ENTRIES; at++) {
        struct place *place = &world.places[at];
        if (place->use == WRITTEN && place->entry == entry && place->number == number) {
            if (place->content[0] != entry || place->content[1] != number || bytes != number) {
                wrong("another part");
            }
            place->use = SENT; // its client may say at once that it has it
            world.queued[at] = 1;
            shunter_parts_sent(&serving, at);
            world.parts++;
            return;
        }
    }
    wrong("a part that nobody has written");
}

static int may_be_place(uint32_t at) {
    return world.places[at].use == FREE && (at < world.first || at >= world.first + world.count);
}

/* A place for the next part; as in the core the last ones are for requests that have none. */
static int place_for(const struct request *request) {
    uint32_t left = 0, found = ENTRIES;
    for (uint32_t at = 0; at < ENTRIES; at++) {
        left += (uint32_t)may_be_place(at);
        found = may_be_place(at) && (found == ENTRIES || below(2)) ? at : found;
    }
    return left > (request->given > request->came ? world.count : 0) ? (int)found : -1;
}

void shunter_core_parts_over(
    struct shunter_core *core, uint16_t func_id, uint32_t entry, uint16_t status,
    uint64_t now_ns) {
    (void)core, (void)func_id, (void)now_ns;
    struct request *request = &world.of[entry];
    const uint16_t why = request->is_over == 2 ? SHUNTER_STATUS_TOO_SLOW : SHUNTER_STATUS_END;
    if (status != why) {
        wrong("an end for another reason");
    }
    if (request->was_over || !request->is_over || request->came != request->total) {
        wrong("an end that is none");
    }
    request->was_over = 1;
    world.ends++;
    for (uint32_t at = 0; at < ENTRIES; at++) {
        if (world.places[at].use == GIVEN && world.places[at].entry == entry) {
            world.places[at].use = FREE;
        }
    }
    request->given = request->came;
}

/* Places for what was asked for, as long as there are some. */
static void give(uint32_t entry) {
    struct request *request = &world.of[entry];
    while (!request->is_unwanted && !request->was_over && request->given < request->asked &&
           request->given - request->came < SHUNTER_PARTS_AHEAD) {
        const int at = place_for(request);
        if (at < 0) {
            return;
        }
        world.places[at] = (struct place){.use = GIVEN, .entry = entry, .number = ++request->given};
        shunter_parts_place(&serving, entry, (uint32_t)at);
    }
}

static void give_all(void) {
    for (uint32_t i = 0; i < world.count; i++) {
        give(world.first + i);
    }
}

/* A client asks, or has got what was sent; whether it could do anything. */
static int client_goes_on(void) {
    const uint32_t from = below(ENTRIES);
    for (uint32_t i = 0; i < ENTRIES; i++) {
        struct place *place = &world.places[(from + i) % ENTRIES];
        if (place->use == SENT && below(2)) {
            place->use = FREE;
            give_all();
            return 1;
        }
    }
    for (uint32_t i = 0; i < world.count; i++) {
        struct request *request = &world.of[world.first + (from + i) % world.count];
        if (!request->is_unwanted && request->asked < request->total + 1 &&
            request->asked - request->came < request->window) {
            request->asked++;
            give_all();
            return 1;
        }
    }
    for (uint32_t at = 0; at < ENTRIES; at++) {
        if (world.places[at].use == SENT) {
            return 1;
        }
    }
    return 0;
}

static int is_done(void) {
    return atomic_load(shunter_worker_word(&served.queue, 0, SHUNTER_W_DONE_NUMBER)) != 0;
}

static void front_sleeps(void) {
    _Atomic uint64_t *asleep = shunter_front_end_word(&served.queue, SHUNTER_Q_FRONT_END_ASLEEP);
    atomic_store(asleep, 1);
    if (!shunter_parts_collect(&serving, 0) && !is_done()) {
        world.front_asks = 1;
        while (!is_rung(front_bell) && (below(3) || !client_goes_on())) {
            if (!worker_may()) {
                if (!client_goes_on()) {
                    wrong("both wait for ever");
                }
                break;
            }
            hand_over();
        }
        world.front_asks = 0;
    }
    shunter_set(asleep, 0);
    uint64_t rings;
    if (is_rung(front_bell) && read(front_bell, &rings, sizeof rings) < 0) {
        wrong("a doorbell that cannot be read");
    }
}

static void serve(void) {
    while (!is_done() && !world.stopped && !world.killed) {
        const uint32_t what = below(400);
        struct request *request = &world.of[world.first + below(world.count)];
        if (what == 0) {
            world.killed = 1; // its worker never goes on from where it is
            world.deaths++;
        } else if (what == 1) {
            world.stopped = 1;
            world.stops++;
        } else if (what < 6 && !request->is_unwanted) {
            shunter_parts_unwanted(&serving, (uint32_t)(request - world.of));
            request->is_unwanted = 1; // from now on its worker can see it
            world.unwanted++;
        } else if (what < 100) {
            client_goes_on();
        } else if (what < 200) {
            shunter_parts_collect(&serving, 0);
            give_all();
        } else {
            shunter_flush(&server);
            front_sleeps();
            give_all();
        }
    }
}

static void new_page(void) {
    memset(served.queue.page, 0, SHUNTER_QUEUE_ENTRIES_OFFSET + ENTRIES * SHUNTER_ENTRY_SIZE);
    memset(world.places, 0, sizeof world.places);
    shunter_parts_free(serving.parts);
    serving.parts = shunter_parts_new(ENTRIES);
}

static void begin(void) {
    shunter_flush(&server); // before anything is dispatched
    world.count = 1 + below(REQUESTS);
    world.first = below(ENTRIES - world.count + 1);
    world.killed = world.stopped = world.worker_asks = world.result = 0;
    world.worker_is_over = 1; // it has not begun
    shunter_set(shunter_worker_word(&served.queue, 0, SHUNTER_W_DONE_NUMBER), 0);
    shunter_set(shunter_worker_word(&served.queue, 0, SHUNTER_W_WORKER_ASLEEP), 0);
    for (uint32_t i = 0; i < world.count; i++) {
        const uint32_t entry = world.first + i;
        world.of[entry] =
            (struct request){.total = below(4) ? below(40) : 0, .window = 1 + below(12),
                             .says = (int)below(3)};
        for (uint32_t k = 0; k < 64; k++) {
            world.of[entry].skips[k] = k % 4 && below(4) == 0;
        }
        shunter_parts_ready(&serving, entry);
        give(entry);
        shunter_parts_run(&serving, entry);
    }
}

/* What became of them, when none runs any more. */
static void end(void) {
    for (uint32_t i = 0; i < world.count && !world.stopped; i++) {
        const struct request *request = &world.of[world.first + i];
        shunter_parts_end(&serving, world.first + i, 0);
        const uint64_t said = shunter_get(
            shunter_entry_word(&served.queue, world.first + i, SHUNTER_E_ENTRY_PARTS));
        if (request->came != (said & ~(SHUNTER_PARTS_ARE_OVER | SHUNTER_PARTS_ARE_LATE)) ||
            request->was_over != (said != request->came)) {
            wrong("a part that was written before the end is lost");
        }
        if (!world.killed && !request->is_unwanted && request->came != request->total) {
            wrong("an answer that is not whole");
        }
        if (request->late > 1) {
            wrong("more parts of what nobody wants");
        }
    }
    if (!world.stopped && serving.parts->count) {
        wrong("something is said to run");
    }
    if (world.result && !(world.stopped && world.result == -ECONNRESET)) {
        wrong("the worker has failed");
    }
    memset(world.places, 0, sizeof world.places);
}

int main(int argc, char **argv) {
    const unsigned long long stories = argc > 2 ? strtoull(argv[2], NULL, 10) : 100;
    world.state = 0x9e3779b97f4a7c15ULL ^ (argc > 1 ? strtoull(argv[1], NULL, 10) << 20 : 0);
    served.queue.entries = ENTRIES;
    served.queue.page =
        aligned_alloc(64, SHUNTER_QUEUE_ENTRIES_OFFSET + ENTRIES * SHUNTER_ENTRY_SIZE);
    serving.server = &server;
    worker_bell = eventfd(0, EFD_NONBLOCK);
    front_bell = eventfd(0, EFD_NONBLOCK);
    new_page();
    for (; world.story < stories; world.story++) {
        pthread_t worker;
        begin();
        turn = world.worker_is_over = 0;
        pthread_create(&worker, NULL, work, NULL);
        serve();
        while (!world.worker_is_over) { // killed, or it sees by itself that its front end is gone
            hand_over();
        }
        pthread_join(worker, NULL);
        end();
        if (world.stopped) {
            new_page();
        }
    }
    shunter_parts_free(serving.parts);
    free(served.queue.page);
    printf(
        "%llu stories, %llu parts, %llu deaths, %llu stops, %llu unwanted, %llu sleeps, %llu ends\n",
        world.story, world.parts, world.deaths, world.stops, world.unwanted, world.sleeps,
        world.ends);
    return 0;
}
