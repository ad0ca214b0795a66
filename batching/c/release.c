/* When a batch leaves, and how requests are divided: a copy of batching/forming/release.py. */
#include "dispatch.h"

bool shunter_should_release(
    uint64_t queued, uint64_t oldest_wait_us, bool has_deadline, int64_t slack_us,
    double threshold, uint64_t max_wait_us, uint64_t free_capacity, uint64_t predicted_us,
    uint64_t margin_us) {
    if (queued == 0 || free_capacity == 0) {
        return false;
    }
    const double least = threshold < (double)free_capacity ? threshold : (double)free_capacity;
    if ((double)queued >= least || oldest_wait_us >= max_wait_us) {
        return true;
    }
    return has_deadline && slack_us - (int64_t)predicted_us <= (int64_t)margin_us;
}

void shunter_split(uint32_t queued, const uint32_t *caps, uint32_t count, uint32_t *sizes) {
    uint64_t remaining_caps = 0;
    bool used[SHUNTER_WORKER_COUNT] = {false};
    for (uint32_t i = 0; i < count; i++) {
        sizes[i] = 0;
        remaining_caps += caps[i];
    }
    uint64_t remaining = queued < remaining_caps ? queued : remaining_caps;
    for (uint32_t step = 0; step < count && remaining; step++) {
        uint32_t best = count;
        for (uint32_t i = 0; i < count; i++) {
            if (!used[i] && (best == count || caps[i] > caps[best])) {
                best = i;
            }
        }
        used[best] = true;
        uint64_t size = (remaining * caps[best] + remaining_caps - 1) / remaining_caps;
        size = size < caps[best] ? size : caps[best];
        sizes[best] = (uint32_t)size;
        remaining -= size;
        remaining_caps -= caps[best];
    }
}
