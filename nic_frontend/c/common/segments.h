/* How tensors are cut into segments. Twin of nic_frontend/wire/segments.py. */
#ifndef SHUNTER_SEGMENTS_H
#define SHUNTER_SEGMENTS_H

#include <errno.h>
#include <stdint.h>

#include "wire_layout.h"

struct shunter_plan {
    unsigned tensors;
    uint32_t segment;
    uint32_t count;
    const uint32_t *sizes;
    uint32_t firsts[SHUNTER_MAX_TENSORS + 1];
};

struct shunter_segment {
    uint8_t tensor;
    uint32_t offset;
    uint32_t length;
};

#define SHUNTER_AEAD_TAG 16u

/* Bytes behind the payload of a datagram with these flags. */
static inline uint32_t shunter_behind(uint32_t flags) {
    return flags & SHUNTER_FLAG_PAYLOAD_AEAD ? SHUNTER_AEAD_TAG : 0;
}

/* 0, or -E2BIG. ``sizes`` must live as long as the plan; ``segment`` is at least 1. */
static inline int shunter_make_plan(
    struct shunter_plan *plan, const uint32_t *sizes, unsigned tensors, uint32_t segment) {
    uint64_t first = 0;
    plan->tensors = tensors;
    plan->segment = segment;
    plan->sizes = sizes;
    for (unsigned i = 0; i < tensors; i++) {
        plan->firsts[i] = (uint32_t)first;
        first += ((uint64_t)sizes[i] + segment - 1) / segment;
        if (first > SHUNTER_MAX_SEGMENTS) {
            return -E2BIG;
        }
    }
    plan->firsts[tensors] = (uint32_t)first;
    plan->count = first ? (uint32_t)first : 1;
    return 0;
}

/*
 * Where a tensor of ``size`` bytes lies of those that lie in shared memory one behind the other,
 * each at the beginning of a cache line. ``end`` is the end of the one before, and becomes its end.
 */
static inline uint64_t shunter_shared_place(uint64_t *end, uint32_t size) {
    const uint64_t align = SHUNTER_SHARED_ALIGN, at = *end;
    *end = at + (size + align - 1) / align * align;
    return at;
}

/* Bytes of all tensors of a request there. */
static inline uint64_t shunter_shared_bytes(const uint32_t *sizes, unsigned tensors) {
    uint64_t end = 0;
    for (unsigned i = 0; i < tensors; i++) {
        (void)shunter_shared_place(&end, sizes[i]);
    }
    return end;
}

/* What a request sends whose tensors lie there: one segment of nothing. Always 0. */
static inline int shunter_plan_nothing(struct shunter_plan *plan, uint32_t segment) {
    static const uint32_t nothing = 0;
    return shunter_make_plan(plan, &nothing, 1, segment);
}

/* ``number`` < count. */
static inline struct shunter_segment shunter_place(
    const struct shunter_plan *plan, uint32_t number) {
    struct shunter_segment found = {0, 0, 0};
    if (plan->firsts[plan->tensors] == 0) {
        return found;
    }
    unsigned tensor = plan->tensors - 1;
    while (plan->firsts[tensor] > number) {
        tensor--;
    }
    found.tensor = (uint8_t)tensor;
    found.offset = (number - plan->firsts[tensor]) * plan->segment;
    const uint32_t left = plan->sizes[tensor] - found.offset;
    found.length = left < plan->segment ? left : plan->segment;
    return found;
}

/* Of a run of bytes that has a length of its own: in how many segments it comes. */
static inline uint32_t shunter_run_count(uint32_t bytes, uint32_t segment) {
    return bytes ? (bytes - 1) / segment + 1 : 1;
}

/* ``number`` < its count. */
static inline struct shunter_segment shunter_run_place(
    uint32_t bytes, uint32_t segment, uint32_t number) {
    const uint32_t offset = number * segment, left = bytes - offset;
    return (struct shunter_segment){0, offset, left < segment ? left : segment};
}

#endif
