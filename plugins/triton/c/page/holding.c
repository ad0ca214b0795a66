/* What strict requests hold, on the line of the control page that is the server's own. */
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "backend.h"

static bool is_somewhere(const struct shunter_function_hold *hold) {
    uint64_t any = 0;
    for (uint32_t i = 0; i < SHUNTER_SLICE_WORDS; i++) {
        any |= hold->slices.words[i];
    }
    return any != 0;
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
        if (each->hold.is_up && is_somewhere(&each->hold)) {
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
    const bool changes = is_up != hold->is_up;
    hold->is_up = is_up;
    hold->steps = steps;
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
    shunter_hold_beat(&backend->line, now_ns);
    pthread_mutex_unlock(&backend->lock);
}
