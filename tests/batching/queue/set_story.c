/*
 * set_story SEED STEPS [ordered|exclusive]: dispatchers of several models whose workers are in two sets, in any order of
 * events. Whatever happens to workers and requests, a set never has more batches than it has room for,
 * who goes before whom goes before, nobody who could go is forgotten, and in the end all room is there.
 * With a third word they are in no set but take turns on slices that overlap: where one model runs, no
 * other does.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dispatch.h"
#include "hold_line.h"
#include "turns.h"

#define MODELS 5
#define ENTRIES 12
#define WORKERS 3
#define MOST_ROWS 4
#define SETS 2
#define MS 1000000ULL
#define AGEING_NS (1000 * MS)
#define CHECK(is, what)                                                                            \
    do {                                                                                           \
        if (!(is)) {                                                                               \
            printf("%s: seed %s step %u\n", what, seed, step);                                     \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

static const char *seed;
static uint32_t step;
static uint64_t random_state, now_ns = 1000 * MS;
static struct shunter_sets *sets;
static bool takes_turns, is_exclusive;
static uint64_t turns, given_batches, expired_requests, died_requests, waited_calls;

struct model {
    struct shunter_served *served;
    struct shunter_queue queue;
    struct shunter_counts counts;
    bool yields; /* its batches stand still for strict ones of others */
    bool rings;
    uint64_t next_ns; /* when its timer does */
    bool used[ENTRIES], tried[ENTRIES];
    uint8_t class[ENTRIES];
    uint32_t rows[ENTRIES];
    uint64_t turn[SETS], best_effort_ns[SETS];
};

static struct model models[MODELS];

static uint32_t choose(uint32_t count) {
    random_state = random_state * 6364136223846793005ULL + 1442695040888963407ULL;
    return (uint32_t)(random_state >> 33) % count;
}

/* The third worker of a model is in the set of the first. */
static uint32_t set_of(uint32_t worker) { return worker % SETS; }

/* ---- requests */

static void enqueue(
    struct model *model, uint32_t entry, bool again, bool returned, uint64_t deadline_ns) {
    const struct shunter_arrival arrival = {
        .entry = entry, .class = model->class[entry], .again = again, .returned = returned,
        .deadline_ns = deadline_ns, .rows = model->rows[entry]};
    shunter_enqueue(model->served, &arrival, now_ns);
}

static bool running(void *context, uint32_t entry, uint64_t at_ns) {
    (void)context, (void)entry, (void)at_ns;
    return false;
}

static void finished(void *context, uint32_t entry, uint16_t status, bool sent, uint64_t at_ns) {
    (void)status, (void)sent, (void)at_ns;
    ((struct model *)context)->used[entry] = false;
}

static void died(void *context, uint32_t entry, uint64_t at_ns) {
    struct model *model = context;
    died_requests++;
    if (model->tried[entry]) {
        finished(context, entry, 0, false, at_ns);
        return;
    }
    model->tried[entry] = true;
    enqueue(model, entry, true, false, 0);
}

static void returned(void *context, uint32_t entry, uint64_t at_ns) {
    (void)at_ns;
    enqueue(context, entry, false, true, 0);
}

static void expired(void *context, uint32_t entry, uint64_t at_ns) {
    expired_requests++;
    finished(context, entry, 0, false, at_ns);
}

static void arrive(struct model *model) {
    uint32_t few = 1 + choose(4);
    const uint8_t class = (uint8_t)choose(2);
    for (uint32_t entry = 0; few && entry < ENTRIES; entry++) {
        if (!model->used[entry]) {
            model->used[entry] = true;
            model->tried[entry] = false;
            model->class[entry] = class;
            model->rows[entry] = choose(4) ? 1 : 1 + choose(MOST_ROWS);
            enqueue(model, entry, false, false, choose(8) ? 0 : now_ns + choose(30) * MS);
            few--;
        }
    }
    model->rings = true;
}

static void withdraw(struct model *model) {
    const uint32_t entry = choose(ENTRIES);
    if (model->used[entry] && model->served->waiting[entry].class >= 0) {
        shunter_withdraw(model->served, entry);
        model->used[entry] = false; // and nobody is told, as when a client goes
    }
}

/* ---- workers */

static void bell(void *of) {
    waited_calls++;
    ((struct model *)of)->rings = true;
}

/* Of a model that has no other worker in a set nothing is known there. */
static void forget(struct model *model, uint32_t set) {
    for (uint32_t worker = set; worker < WORKERS; worker += SETS) {
        if (model->served->workers[worker].present) {
            return;
        }
    }
    model->turn[set] = model->best_effort_ns[set] = 0;
}

/* The third one's overlap with both others'. */
static struct shunter_slice_set slices_of(uint32_t worker) {
    return (struct shunter_slice_set){{0, worker + 1}};
}

static void comes(struct model *model, uint32_t worker) {
    forget(model, set_of(worker));
    if (!shunter_worker_comes(model->served, worker, 1 + choose(MOST_ROWS), -1, now_ns)) {
        const struct shunter_wake wake = {bell, model};
        const struct shunter_slice_set slices = slices_of(worker);
        struct shunter_member *member = takes_turns
            ? shunter_turns_join(sets, model->served, wake, &slices)
            : shunter_set_join(sets, 1 + set_of(worker), model->served, model->yields, wake);
        CHECK(!shunter_worker_joins(model->served, worker, member), "joins");
        model->rings = true;
    }
}

/* A batch of best effort that has ended counts as one that is given. */
static void collect(struct model *model) {
    uint64_t done[WORKERS];
    for (uint32_t worker = 0; worker < WORKERS; worker++) {
        done[worker] = model->served->workers[worker].done;
    }
    shunter_collect(model->served, now_ns);
    for (uint32_t worker = 0; worker < WORKERS; worker++) {
        const struct shunter_worker_state *state = &model->served->workers[worker];
        while (done[worker] < state->done) {
            if (state->held[++done[worker] % SHUNTER_AHEAD].class) {
                model->best_effort_ns[set_of(worker)] = now_ns;
            }
        }
    }
}

static void goes(struct model *model, uint32_t worker) {
    const struct shunter_worker_state *state = &model->served->workers[worker];
    shunter_set(
        shunter_worker_word(&model->queue, worker, SHUNTER_W_WORKER_TAKEN),
        state->done + choose(3));
    collect(model); // as it does, too
    shunter_worker_goes(model->served, worker, now_ns);
    model->rings = true;
}

/* It has answered its oldest batch; its dispatcher hears of that later. */
static void answers(struct model *model, uint32_t worker) {
    const struct shunter_worker_state *state = &model->served->workers[worker];
    _Atomic uint64_t *word = shunter_worker_word(&model->queue, worker, SHUNTER_W_DONE_NUMBER);
    const uint64_t number = shunter_get(word) + 1;
    if (!state->present || number > state->given) {
        return;
    }
    for (int32_t at = state->held[number % SHUNTER_AHEAD].first; at >= 0;
         at = model->served->waiting[at].next) {
        shunter_set(
            shunter_entry_word(&model->queue, (uint32_t)at, SHUNTER_E_ENTRY_STATUS),
            SHUNTER_ENTRY_OK);
    }
    shunter_set(
        shunter_worker_word(
            &model->queue, worker, SHUNTER_W_DONE_NS + 8 * (uint32_t)(number % SHUNTER_AHEAD)),
        now_ns);
    shunter_set(word, number);
    model->rings = true;
}

/* ---- what must be so */

/* Of those that yield, or of those that do not. */
static uint32_t batches_in(uint32_t set, bool yields) {
    uint32_t count = 0;
    for (uint32_t i = 0; i < MODELS; i++) {
        for (uint32_t worker = set; models[i].yields == yields && worker < WORKERS;
             worker += SETS) {
            const struct shunter_worker_state *state = &models[i].served->workers[worker];
            count += state->present ? shunter_in_flight(state) : 0;
        }
    }
    return count;
}

static bool passes(const struct model *model, uint8_t class) {
    return class == 0 && !model->yields;
}

/* Whether those that pass have room, or the others. */
static bool has_room(uint32_t set, bool passing) {
    return batches_in(set, false) + (passing ? 0 : batches_in(set, true)) < SHUNTER_SET_DEPTH;
}

/* Whether a worker has nothing to do that takes a request of a class which waits. */
static bool wants(const struct model *model, uint32_t set, uint8_t class) {
    bool wants = false;
    for (uint32_t worker = set; worker < WORKERS; worker += SETS) {
        const struct shunter_worker_state *state = &model->served->workers[worker];
        wants |= shunter_is_ready(state) && !shunter_in_flight(state) &&
                 shunter_most_urgent_of(model->served, class, state->cap) >= 0;
    }
    return wants;
}

/* As it was before a decision. */
struct before {
    uint32_t used[SETS][2]; /* of models that do not yield, and that do */
    uint32_t ahead_of[SETS][SHUNTER_CLASSES][2]; /* that do not pass, and that do */
    uint64_t given[WORKERS];
};

/* ``may_be``: by the oldest that waits, which may be the first when others have gone. */
static bool is_urgent(const struct model *model, uint32_t set, uint8_t class, bool may_be) {
    uint64_t since_ns = now_ns;
    for (int32_t at = model->served->lists[class].first; at >= 0;
         at = may_be ? model->served->waiting[at].next : -1) {
        const uint64_t came_ns = model->served->waiting[at].arrival_ns;
        since_ns = came_ns < since_ns ? came_ns : since_ns;
    }
    since_ns = since_ns > model->best_effort_ns[set] ? since_ns : model->best_effort_ns[set];
    return class == 0 || now_ns - since_ns >= AGEING_NS;
}

/* How many others certainly go before a model: of those that have nothing to decide, by what is
 * known of them; where the order depends on who came first, it is not looked at. */
static uint32_t ahead_of(
    const struct model *model, uint32_t set, uint8_t class, bool passing) {
    uint32_t count = 0;
    const bool urgent = is_urgent(model, set, class, true);
    for (const struct model *each = models; each < models + MODELS; each++) {
        const bool strict = wants(each, set, 0);
        if (each == model || each->rings || each->next_ns != SHUNTER_NEVER ||
            (!strict && !wants(each, set, 1)) || passes(each, strict ? 0 : 1) != passing) {
            continue;
        }
        const bool is = is_urgent(each, set, strict ? 0 : 1, false);
        count += is != urgent ? is : each->turn[set] < model->turn[set];
    }
    return count;
}

static struct before look(const struct model *model) {
    struct before before;
    for (uint32_t set = 0; set < SETS; set++) {
        for (int i = 0; i < 2; i++) {
            before.used[set][i] = batches_in(set, i);
            for (uint8_t class = 0; class < SHUNTER_CLASSES; class ++) {
                before.ahead_of[set][class][i] = ahead_of(model, set, class, i);
            }
        }
    }
    for (uint32_t worker = 0; worker < WORKERS; worker++) {
        before.given[worker] = model->served->workers[worker].given;
    }
    return before;
}

/* Whether a batch of a class had room, after those that had room and went before it. */
static bool had_room(
    const struct model *model, const struct before *before, uint32_t set, uint8_t class) {
    const uint32_t stay = before->used[set][0], all = stay + before->used[set][1];
    uint32_t ahead = before->ahead_of[set][class][1];
    ahead += all < SHUNTER_SET_DEPTH ? before->ahead_of[set][class][0] : 0;
    return (passes(model, class) ? stay : all) + ahead < SHUNTER_SET_DEPTH;
}

static void check_batch(
    struct model *model, struct before *before, uint32_t set, uint8_t class) {
    CHECK(takes_turns || had_room(model, before, set, class), "the order");
    before->used[set][model->yields]++;
    model->turn[set] = ++turns;
    model->best_effort_ns[set] = class ? now_ns : model->best_effort_ns[set];
    given_batches++;
}

/* Whose turn it was not must not have been given a batch. Of those of one decision, which have no order
 * here, those that pass come last. */
static void check_order(struct model *model, struct before before) {
    for (int passing = 0; passing < 2; passing++) {
        for (uint32_t worker = 0; worker < WORKERS; worker++) {
            const struct shunter_worker_state *state = &model->served->workers[worker];
            for (uint64_t number = before.given[worker]; number < state->given; number++) {
                const uint8_t class = state->held[(number + 1) % SHUNTER_AHEAD].class;
                if (passes(model, class) == passing) {
                    check_batch(model, &before, set_of(worker), class);
                }
            }
        }
    }
}

/* Nobody has anything to decide: nobody waits who could go. */
static void check_nobody_is_forgotten(void) {
    for (uint32_t i = 0; i < MODELS; i++) {
        if (models[i].rings) {
            return;
        }
    }
    for (uint32_t i = 0; i < MODELS; i++) {
        for (uint32_t set = 0; set < SETS; set++) {
            CHECK(
                models[i].next_ns != SHUNTER_NEVER ||
                    !((wants(&models[i], set, 0) && has_room(set, passes(&models[i], 0))) ||
                      (wants(&models[i], set, 1) && has_room(set, false))),
                "forgotten");
        }
    }
}

/* By worker and class: how many batches run that take turns. */
static uint32_t running_at(const struct model *model, uint32_t worker, uint8_t class) {
    const struct shunter_worker_state *state = &model->served->workers[worker];
    uint32_t count = 0;
    for (uint64_t n = state->done + 1; state->present && n <= state->given; n++) {
        const struct shunter_held *batch = &state->held[n % SHUNTER_AHEAD];
        count += batch->in_set && batch->class == class;
    }
    return count;
}

static void check_pair(const struct model *one, uint32_t worker, uint8_t class) {
    const uint64_t slices = slices_of(worker).words[1];
    for (const struct model *each = models; each < models + MODELS; each++) {
        for (uint32_t at = 0; at < WORKERS; at++) {
            for (uint8_t of = 0; of < SHUNTER_CLASSES; of++) {
                const bool conflicts = of == class ? each != one : is_exclusive;
                CHECK(
                    !conflicts || !(slices_of(at).words[1] & slices) ||
                        !running_at(each, at, of),
                    "at once");
            }
        }
    }
}

/* Where one runs no other does; and one of those that wait does. */
static void check_turns(void) {
    uint32_t count = 0;
    bool waits = false, rings = false;
    for (struct model *model = models; model < models + MODELS; model++) {
        rings |= model->rings || model->next_ns != SHUNTER_NEVER;
        for (uint8_t class = 0; class < 1 + is_exclusive; class ++) {
            waits |= wants(model, 0, class) || wants(model, 1, class);
        }
        for (uint32_t worker = 0; worker < WORKERS; worker++) {
            for (uint8_t class = 0; class < SHUNTER_CLASSES; class ++) {
                const uint32_t batches = running_at(model, worker, class);
                count += batches;
                if (batches) {
                    check_pair(model, worker, class);
                }
            }
        }
    }
    CHECK(rings || !waits || count, "forgotten");
}

static void check(void) {
    if (takes_turns) {
        check_turns();
        return;
    }
    for (uint32_t set = 0; set < SETS; set++) {
        CHECK(batches_in(set, false) <= SHUNTER_SET_DEPTH, "too many");
        CHECK(batches_in(set, true) <= SHUNTER_SET_DEPTH, "too many that yield");
    }
    check_nobody_is_forgotten();
}

/* ---- the story */

static void decide(struct model *model) {
    model->rings = false;
    collect(model);
    const struct before before = look(model);
    model->next_ns = shunter_dispatch(model->served, now_ns);
    check_order(model, before);
}

static void one_step(void) {
    struct model *model = &models[choose(MODELS)];
    const uint32_t worker = choose(WORKERS);
    switch (choose(40)) {
    case 0: case 39:
        comes(model, worker);
        break;
    case 1:
        if (choose(2)) {
            shunter_worker_drains(model->served, worker);
        }
        break;
    case 2:
        if (choose(2) || model->served->workers[worker].draining) {
            goes(model, worker);
        }
        break;
    case 3:
        withdraw(model);
        break;
    case 4:
        now_ns += choose(2) ? choose(40) * MS : AGEING_NS;
        break;
    case 5: case 6: case 7: case 8: case 9: case 10:
        arrive(model);
        break;
    case 11: case 12: case 13: case 14: case 15: case 16: case 17: case 18: case 19: case 20:
        for (uint32_t i = choose(2) * WORKERS; i < WORKERS; i++) { // or of one worker
            answers(model, i);
        }
        answers(model, worker);
        now_ns += choose(3) * MS;
        break;
    default:
        if (model->rings || now_ns >= model->next_ns) {
            decide(model);
        }
    }
    check();
}

static bool is_over(void) {
    bool is = true;
    for (uint32_t i = 0; i < MODELS; i++) {
        for (uint32_t entry = 0; entry < ENTRIES; entry++) {
            is &= !models[i].used[entry];
        }
    }
    return is;
}

/* Workers that take requests stay; everything ends. */
static void finish(void) {
    for (uint32_t i = 0; i < MODELS; i++) {
        goes(&models[i], i % WORKERS);
        comes(&models[i], i % WORKERS);
    }
    for (uint32_t rounds = 0; !is_over(); rounds++) {
        CHECK(rounds < 20000, "never over");
        for (uint32_t i = 0; i < MODELS; i++) {
            for (uint32_t worker = 0; worker < WORKERS; worker++) {
                answers(&models[i], worker);
            }
            decide(&models[i]);
            check();
        }
        now_ns += MS;
    }
}

static void nothing(void *of) { (void)of; }

/* There is as much room as at the beginning: none was given back twice, and none never. */
static void check_room(void) {
    const struct shunter_want want = {.class = 0, .since_ns = now_ns};
    const bool none[SHUNTER_CLASSES] = {false};
    for (uint32_t set = 1; set <= SETS; set++) {
        struct shunter_member *probes[SHUNTER_SET_DEPTH + 1];
        for (int i = 0; i <= SHUNTER_SET_DEPTH; i++) {
            probes[i] = shunter_set_join(
                sets, set, &probes[i], false, (struct shunter_wake){nothing, NULL});
            const int behind = shunter_set_ask(probes[i], &want, now_ns);
            CHECK(behind == (i < SHUNTER_SET_DEPTH ? i : -1), "room");
            shunter_set_give(probes[i], 0, now_ns);
            shunter_set_settle(probes[i], none, now_ns);
        }
        for (int i = 0; i <= SHUNTER_SET_DEPTH; i++) {
            shunter_set_leave(probes[i], now_ns);
        }
    }
}

static void begin(struct model *model) {
    const size_t bytes = SHUNTER_QUEUE_ENTRIES_OFFSET + ENTRIES * SHUNTER_ENTRY_SIZE;
    const struct shunter_owner owner = {model, running, finished, died, returned, expired};
    const struct shunter_policy policy = {
        .threshold = 1, .alpha = 0.5, .threshold_cap = 1e9, .ageing_ns = AGEING_NS,
        .ahead = choose(2)};
    model->queue = (struct shunter_queue){
        .page = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096), .entries = ENTRIES};
    memset(model->queue.page, 0, bytes);
    model->served = shunter_served_new(&model->queue, &policy, &owner, &model->counts);
    model->served->most_rows = MOST_ROWS;
    model->next_ns = SHUNTER_NEVER;
    for (uint32_t worker = 0; worker < WORKERS; worker++) {
        comes(model, worker);
    }
}

int main(int count, char **given) {
    if (count < 3) {
        return 2;
    }
    seed = given[1];
    random_state = strtoull(seed, NULL, 10) * 2654435761u + 1;
    sets = shunter_sets_new();
    takes_turns = count > 3;
    is_exclusive = takes_turns && !strcmp(given[3], "exclusive");
    if (takes_turns) {
        const uint32_t orders[] = {SHUNTER_ORDER_FIFO, SHUNTER_ORDER_EDF};
        shunter_turns_obey(
            sets, (struct shunter_turn_rules){
                      orders[choose(2)], SHUNTER_ORDER_ROUND_ROBIN, is_exclusive});
    }
    for (uint32_t i = 0; i < MODELS; i++) {
        models[i].yields = i % 2; // two of five; in no set it says nothing
        begin(&models[i]);
    }
    for (const uint32_t steps = (uint32_t)atoi(given[2]); step < steps; step++) {
        one_step();
    }
    finish();
    check_room();
    for (uint32_t i = 0; i < MODELS; i++) {
        shunter_served_free(models[i].served);
        free(models[i].queue.page);
    }
    shunter_sets_free(sets);
    printf(
        "%lu %lu %lu %lu\n", (unsigned long)given_batches, (unsigned long)waited_calls,
        (unsigned long)expired_requests, (unsigned long)died_requests);
    return 0;
}
