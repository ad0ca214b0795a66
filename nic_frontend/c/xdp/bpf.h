/* The system call bpf(), as far as the split needs it: no library, no compiler for BPF. */
#ifndef SHUNTER_BPF_H
#define SHUNTER_BPF_H

#include <linux/bpf.h>
#include <stdbool.h>
#include <stdint.h>

/* Each returns a descriptor or 0, or a negative errno. */
int shunter_bpf_map(enum bpf_map_type type, uint32_t key, uint32_t value, uint32_t entries, int inner);
int shunter_bpf_put(int map, const void *key, const void *value);
int shunter_bpf_get(int map, const void *key, void *value);
int shunter_bpf_program(
    const struct bpf_insn *instructions, uint32_t count, char *log, uint32_t size);
/* Whether to try again: after a process has ended, the kernel lets go of what it had a little later.
 * ``tries``: how often it was, counted here. */
bool shunter_bpf_again(int error, uint32_t *tries);
/* The program runs on the interface for as long as the descriptor is open. */
int shunter_bpf_attach(int program, uint32_t interface, uint32_t flags);

#endif
