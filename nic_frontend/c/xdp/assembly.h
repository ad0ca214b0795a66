/* Instructions of BPF by what they do, and jumps to places that are not known yet. */
#ifndef SHUNTER_BPF_ASSEMBLY_H
#define SHUNTER_BPF_ASSEMBLY_H

#include <linux/bpf.h>
#include <stdint.h>

#include "bpf.h"

#define SHUNTER_BPF_MOST 256

enum { R0 = BPF_REG_0, R1, R2, R3, R4, FRAME = BPF_REG_10 };

enum label { VERSION_6, PASS, FULL, DISCARD, LABELS, NOWHERE };

struct assembly {
    struct bpf_insn code[SHUNTER_BPF_MOST];
    enum label target[SHUNTER_BPF_MOST]; /* of a jump */
    uint32_t at[LABELS];
    uint32_t count; /* above the most: it does not fit */
};

static inline void add_jump(
    struct assembly *a, int code, int to, int from, int offset, int value, enum label target) {
    const uint32_t at = a->count++;
    if (at < SHUNTER_BPF_MOST) {
        a->code[at] = (struct bpf_insn){
            .code = (uint8_t)code,
            .dst_reg = (uint8_t)(to & 0xf),
            .src_reg = (uint8_t)(from & 0xf),
            .off = (int16_t)offset,
            .imm = value};
        a->target[at] = target;
    }
}

static inline void add(struct assembly *a, int code, int to, int from, int offset, int value) {
    add_jump(a, code, to, from, offset, value, NOWHERE);
}

static inline void place(struct assembly *a, enum label label) { a->at[label] = a->count; }

static inline void set(struct assembly *a, int to, int value) {
    add(a, BPF_ALU64 | BPF_MOV | BPF_K, to, 0, 0, value);
}

static inline void copy(struct assembly *a, int to, int from) {
    add(a, BPF_ALU64 | BPF_MOV | BPF_X, to, from, 0, 0);
}

static inline void plus(struct assembly *a, int to, int value) {
    add(a, BPF_ALU64 | BPF_ADD | BPF_K, to, 0, 0, value);
}

static inline void mask(struct assembly *a, int to, int value) {
    add(a, BPF_ALU64 | BPF_AND | BPF_K, to, 0, 0, value);
}

/* ``size``: BPF_B, BPF_H, BPF_W or BPF_DW. */
static inline void load(struct assembly *a, int size, int to, int from, int offset) {
    add(a, BPF_LDX | BPF_MEM | size, to, from, offset, 0);
}

static inline void store(struct assembly *a, int size, int to, int offset, int from) {
    add(a, BPF_STX | BPF_MEM | size, to, from, offset, 0);
}

static inline void store_value(struct assembly *a, int size, int to, int offset, int value) {
    add(a, BPF_ST | BPF_MEM | size, to, 0, offset, value);
}

/* Of the network's order. */
static inline void load_16_bits(struct assembly *a, int to, int from, int offset) {
    load(a, BPF_H, to, from, offset);
    add(a, BPF_ALU | BPF_END | BPF_TO_BE, to, 0, 0, 16);
}

/* One more at this place of a map's value; ``old``: 1, and afterwards what was there. */
static inline void count_up(struct assembly *a, int at, int offset, int old) {
    set(a, old, 1);
    add(a, BPF_STX | BPF_ATOMIC | BPF_DW, at, old, offset, BPF_ADD | BPF_FETCH);
}

static inline void if_value(struct assembly *a, int is, int left, int value, enum label label) {
    add_jump(a, BPF_JMP | is | BPF_K, left, 0, 0, value, label);
}

static inline void if_register(struct assembly *a, int is, int left, int right, enum label label) {
    add_jump(a, BPF_JMP | is | BPF_X, left, right, 0, 0, label);
}

static inline void call(struct assembly *a, enum bpf_func_id function) {
    add(a, BPF_JMP | BPF_CALL, 0, 0, 0, (int)function);
}

static inline void leave(struct assembly *a) { add(a, BPF_JMP | BPF_EXIT, 0, 0, 0, 0); }

static inline void load_map(struct assembly *a, int to, int map) {
    add(a, BPF_LD | BPF_IMM | BPF_DW, to, BPF_PSEUDO_MAP_FD, 0, map);
    add(a, 0, 0, 0, 0, 0);
}

/* R0: the value of the key at this place of the stack, or on to PASS. */
static inline void look_up(struct assembly *a, int map, int key) {
    load_map(a, R1, map);
    copy(a, R2, FRAME);
    plus(a, R2, key);
    call(a, BPF_FUNC_map_lookup_elem);
    if_value(a, BPF_JEQ, R0, 0, PASS);
}

#endif
