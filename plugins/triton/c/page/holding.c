/* What strict requests hold, on the line of the control page that is the server's own. */
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "backend.h"

/* As batching/page/holds.py and Hold.java have them. */
#define MAX_HOLD_NS 2000000000ULL
#define STALE_NS 2000000000ULL
#define LONGEST_PARK_NS 1000000000ULL

static bool is_somewhere(const struct shunter_function_hold *hold) {
    uint64_t any = 0;
    for (uint32_t i = 0; i < SHUNTER_SLICE_WORDS; i++) {
        any |= hold->slices.words[i];
    }
    return any != 0;
}

static uint64_t word_at(const struct shunter_backend *backend, uint32_t offset) {
    return shunter_get(shunter_word(backend->page, offset));
}

static bool is_stuck(
    const struct shunter_backend *backend, const struct shunter_function_hold *hold,
    uint64_t now_ns) {
    const uint64_t us = word_at(backend, SHUNTER_H_MAX_HOLD_US);
    return now_ns > hold->moved_ns && now_ns - hold->moved_ns > (us ? us * 1000 : MAX_HOLD_NS);
}

/* Under the lock of the backend. Where the classes take turns nothing is held. */
static void show(struct shunter_backend *backend, uint64_t now_ns, bool raises) {
    struct shunter_hold held = {0};
    if (!backend->page) {
        return;
    }
    const uint64_t exclusive = shunter_get(shunter_word(backend->page, SHUNTER_H_EXCLUSIVE));
    for (const struct shunter_function *each = backend->functions; each && !exclusive;
         each = each->next) {
        if (each->hold.is_up && is_somewhere(&each->hold) &&
            !is_stuck(backend, &each->hold, now_ns)) {
            shunter_hold_add(&held, &each->hold.slices, each->hold.slot);
        }
    }
    shunter_hold_say(&backend->line, &held, now_ns, raises);
}

bool shunter_hold_on(struct shunter_backend *backend, int descriptor) {
    struct stat found;
    if (fstat(descriptor, &found) || found.st_size != SHUNTER_PAGE_SIZE) {
        return false;
    }
    void *page = mmap(NULL, SHUNTER_PAGE_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
    if (page == MAP_FAILED) {
        return false;
    }
    const uint64_t now_ns = shunter_now_ns();
    pthread_mutex_lock(&backend->lock);
    shunter_hold_move(&backend->line, (uint8_t *)page + SHUNTER_HEADER_SIZE, now_ns);
    shunter_set(
        shunter_word(page, SHUNTER_HEADER_SIZE + SHUNTER_K_HOLDER_PID), (uint64_t)getpid());
    if (backend->page) {
        munmap(backend->page, SHUNTER_PAGE_SIZE);
    }
    backend->page = page;
    show(backend, now_ns, true);
    pthread_mutex_unlock(&backend->lock);
    shunter_see_turns(backend);
    return true;
}

void shunter_show_hold(struct shunter_function *function, uint64_t now_ns) {
    struct shunter_backend *backend = function->backend;
    struct shunter_function_hold *hold = &function->hold;
    const bool is_up = shunter_has_strict_work(function->served);
    const uint64_t steps = function->served->strict_steps;
    if (is_up == hold->is_up && (!is_up || steps == hold->steps)) {
        return;
    }
    pthread_mutex_lock(&backend->lock);
    const bool comes_back =
        hold->is_up && backend->page && is_stuck(backend, hold, now_ns);
    const bool changes = is_up != hold->is_up || comes_back;
    hold->is_up = is_up;
    hold->steps = steps;
    hold->moved_ns = now_ns;
    if (changes) {
        show(backend, now_ns, is_up);
    } else if (is_somewhere(hold)) {
        shunter_hold_progress(&backend->line, now_ns);
    }
    pthread_mutex_unlock(&backend->lock);
}

void shunter_hold_where(struct shunter_function *function, int32_t slot) {
    struct shunter_slice_set slices = {{0}};
    for (uint32_t worker = 0; worker < SHUNTER_WORKER_COUNT; worker++) {
        const struct shunter_attached *each = &function->workers[worker];
        for (uint32_t i = 0; each->connection >= 0 && i < SHUNTER_SLICE_WORDS; i++) {
            slices.words[i] |= each->slices.words[i];
        }
    }
    pthread_mutex_lock(&function->backend->lock);
    function->hold.slices = slices;
    function->hold.slot = slot >= 0 && slot < SHUNTER_SLOT_COUNT ? slot : -1;
    if (function->hold.is_up) {
        show(function->backend, shunter_now_ns(), true);
    }
    pthread_mutex_unlock(&function->backend->lock);
}

void shunter_hold_lives(struct shunter_backend *backend, uint64_t now_ns) {
    pthread_mutex_lock(&backend->lock);
    show(backend, now_ns, false); // without those that got nowhere
    shunter_hold_beat(&backend->line, now_ns);
    pthread_mutex_unlock(&backend->lock);
}

struct shunter_holds shunter_holds_now(struct shunter_backend *backend, uint64_t now_ns) {
    struct shunter_holds holds = {.longest_park_ns = LONGEST_PARK_NS};
    pthread_mutex_lock(&backend->lock);
    for (uint32_t i = 0; backend->page && i < SHUNTER_HOLDER_COUNT; i++) {
        const uint32_t line = SHUNTER_HEADER_SIZE + i * SHUNTER_HOLDER_SIZE;
        const uint64_t number = word_at(backend, line + SHUNTER_K_HOLD_NUMBER);
        const uint64_t beat_ns = word_at(backend, line + SHUNTER_K_HOLDER_HEARTBEAT_NS);
        const bool lives = word_at(backend, line + SHUNTER_K_HOLDER_PID) &&
                           beat_ns + STALE_NS > now_ns;
        holds.any |= lives && number;
        holds.changes = 31 * holds.changes + number;
    }
    if (backend->page && word_at(backend, SHUNTER_H_LONGEST_PARK_US)) {
        holds.longest_park_ns = 1000 * word_at(backend, SHUNTER_H_LONGEST_PARK_US);
    }
    pthread_mutex_unlock(&backend->lock);
    return holds;
}
