/* Workers come, stay and leave. */
#include <errno.h>

#include "dispatch.h"

static struct shunter_worker_state *present(struct shunter_served *served, uint32_t worker) {
    const bool is = worker < SHUNTER_WORKER_COUNT && served->workers[worker].present;
    return is ? &served->workers[worker] : NULL;
}

int shunter_worker_comes(
    struct shunter_served *served, uint32_t worker, uint32_t cap, int doorbell,
    uint64_t now_ns) {
    if (worker >= SHUNTER_WORKER_COUNT || cap < 1) {
        return -EINVAL;
    }
    if (present(served, worker)) {
        return -EEXIST;
    }
    served->workers[worker] = (struct shunter_worker_state){
        .present = true,
        .cap = cap < SHUNTER_MAX_CAP ? cap : SHUNTER_MAX_CAP,
        .doorbell = doorbell,
        .free_since_ns = now_ns};
    const uint32_t words[] = {
        SHUNTER_W_BATCH_NUMBER, SHUNTER_W_DONE_NUMBER, SHUNTER_W_WORKER_ASLEEP,
        SHUNTER_W_WORKER_GATHERED, SHUNTER_W_WORKER_TAKEN, SHUNTER_W_WORKER_EARLY};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        shunter_set(shunter_worker_word(&served->queue, worker, words[i]), 0);
    }
    served->worker_count = worker >= served->worker_count ? worker + 1 : served->worker_count;
    return 0;
}

int shunter_worker_joins(
    struct shunter_served *served, uint32_t worker, struct shunter_member *member) {
    if (!member) {
        return -ENOMEM;
    }
    served->workers[worker].member = member;
    served->members++;
    return 0;
}

void shunter_worker_leaves_set(struct shunter_served *served, uint32_t worker, uint64_t now_ns) {
    struct shunter_worker_state *state = &served->workers[worker];
    if (state->member) {
        shunter_set_leave(state->member, now_ns);
        state->member = NULL;
        served->members--;
    }
}

int shunter_room(
    const struct shunter_served *served, const struct shunter_worker_state *state, uint8_t class,
    uint64_t now_ns) {
    const struct shunter_class_list *list = &served->lists[class];
    if (shunter_most_urgent_of(served, class, state->cap) < 0) {
        return -1; // none of them is for it
    }
    const struct shunter_want want = {
        class, served->waiting[list->first].arrival_ns, served->policy.ageing_ns,
        list->deadlines ? served->waiting[list->heap[0]].deadline_ns : SHUNTER_SET_NO_DEADLINE};
    return shunter_set_ask(state->member, &want, now_ns);
}

int shunter_worker_drains(struct shunter_served *served, uint32_t worker) {
    struct shunter_worker_state *state = present(served, worker);
    if (!state) {
        return -ENOENT;
    }
    state->draining = true;
    return 0;
}

bool shunter_worker_is_idle(const struct shunter_served *served, uint32_t worker) {
    const bool is = worker < SHUNTER_WORKER_COUNT && served->workers[worker].present;
    return !is || !shunter_in_flight(&served->workers[worker]);
}

void shunter_made_progress(struct shunter_served *served, uint32_t entry, uint64_t now_ns) {
    served->workers[served->waiting[entry].worker].progress_ns = now_ns;
}

uint64_t shunter_worker_busy_ns(
    const struct shunter_served *served, uint32_t worker, uint64_t now_ns) {
    if (shunter_worker_is_idle(served, worker)) {
        return 0;
    }
    const struct shunter_worker_state *state = &served->workers[worker];
    uint64_t since_ns = state->began_ns;
    if (state->member) {
        const uint64_t first_ns = shunter_set_first_since_ns(state->member);
        if (!first_ns) {
            return 1; // others run, whose time this is
        }
        since_ns = first_ns > since_ns ? first_ns : since_ns;
    }
    const uint64_t began_ns =
        (state->progress_ns > since_ns ? state->progress_ns : since_ns) + state->excused_ns;
    return now_ns > began_ns ? now_ns - began_ns : 0;
}

void shunter_disturb(struct shunter_served *served) {
    for (uint32_t worker = 0; served->in_flight && worker < served->worker_count; worker++) {
        served->workers[worker].disturbed = true;
    }
}

void shunter_excuse(
    struct shunter_served *served, uint32_t worker, uint64_t for_ns, uint64_t most_ns) {
    struct shunter_worker_state *state = present(served, worker);
    if (state && shunter_in_flight(state) && state->excused_ns < most_ns) {
        state->excused_ns += for_ns;
    }
}

uint64_t shunter_gathered_bytes(const struct shunter_served *served) {
    uint64_t bytes = served->gathered_bytes;
    for (uint32_t worker = 0; worker < served->worker_count; worker++) {
        if (served->workers[worker].present) {
            bytes += shunter_get(
                shunter_worker_word(&served->queue, worker, SHUNTER_W_WORKER_GATHERED));
        }
    }
    return bytes;
}
