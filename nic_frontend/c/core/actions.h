/* What the core tells its owner: small enough to be part of whoever says it. */
#ifndef SHUNTER_ACTIONS_H
#define SHUNTER_ACTIONS_H

#include "core_parts.h"

static inline uint64_t next_pkt_no(struct session *session, uint32_t count) {
    const uint64_t first = session->pkt_no + 1;
    session->pkt_no += count;
    return first;
}

static inline void emit(const struct shunter_core *core, const struct shunter_action *action) {
    core->emit(core->context, action);
}

static inline void drop(const struct shunter_core *core, enum shunter_drop why) {
    const struct shunter_action action = {
        .kind = SHUNTER_DROP, .drop = (uint16_t)why, .entry = NO_ENTRY};
    emit(core, &action);
}

static inline void withdraw(const struct shunter_core *core, uint16_t func_id, int32_t entry) {
    const struct shunter_action action = {
        .kind = SHUNTER_WITHDRAW, .func_id = func_id, .entry = entry};
    emit(core, &action);
}

/* Nobody needs the input of an entry any more. */
static inline void let_go(const struct shunter_core *core, uint16_t func_id, int32_t entry) {
    const struct shunter_action action = {
        .kind = SHUNTER_LET_GO, .func_id = func_id, .entry = entry};
    emit(core, &action);
}

static inline void ready(
    const struct shunter_core *core, uint16_t func_id, const struct call *call, bool again,
    bool returned) {
    const struct shunter_action action = {
        .kind = SHUNTER_READY,
        .func_id = func_id,
        .entry = call->entry,
        .priority = call->priority,
        .deadline_ns = call->deadline_ns,
        .rows = call->rows,
        .length = call->bytes,
        .again = again,
        .returned = returned};
    emit(core, &action);
}

static inline bool is_direct(const struct session *session) {
    return !session->stream && !session->protect;
}

static inline struct shunter_guard guard_of(
    const struct session *session, uint64_t number, const uint8_t *aead_key) {
    struct shunter_guard guard = {0};
    if (session->protect) {
        guard.protect = session->protect;
        guard.number = number;
        const bool encrypts = session->protect == SHUNTER_FLAG_PAYLOAD_AEAD;
        memcpy(
            guard.key, encrypts ? aead_key : session->keys.tag_to_client, sizeof guard.key);
    }
    return guard;
}

static inline uint64_t nearest(uint32_t low, uint64_t about) {
    const int64_t half = 1LL << 31, whole = 1LL << 32;
    int64_t number = (int64_t)(about - about % (uint64_t)whole) + low;
    if (number > (int64_t)about + half) {
        number -= whole;
    } else if (number <= (int64_t)about - half) {
        number += whole;
    }
    return number > 0 ? (uint64_t)number : 0;
}

/* Whether it is granted, and its place is not that of another. */
static inline bool may_come(const struct session *session, uint64_t req_id) {
    return req_id <= session->grant && req_id <= session->done + SHUNTER_WINDOW;
}

static inline bool has_segment(const struct call *call, uint32_t seq) {
    return call->received[seq / 64] >> (seq % 64) & 1;
}

#endif
