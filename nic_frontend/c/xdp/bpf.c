#define _GNU_SOURCE
#include "kernel.h"

#ifdef SHUNTER_HAS_XDP

#include <errno.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "bpf.h"

#define TRIES 100

static int bpf(enum bpf_cmd command, union bpf_attr *attributes) {
    const long result = syscall(SYS_bpf, command, attributes, sizeof *attributes);
    return result < 0 ? -errno : (int)result;
}

static uint64_t address_of(const void *pointer) { return (uint64_t)(uintptr_t)pointer; }

int shunter_bpf_map(
    enum bpf_map_type type, uint32_t key, uint32_t value, uint32_t entries, int inner) {
    union bpf_attr attributes = {0};
    attributes.map_type = type;
    attributes.key_size = key;
    attributes.value_size = value;
    attributes.max_entries = entries;
    attributes.inner_map_fd = (uint32_t)inner;
    return bpf(BPF_MAP_CREATE, &attributes);
}

int shunter_bpf_put(int map, const void *key, const void *value) {
    union bpf_attr attributes = {0};
    attributes.map_fd = (uint32_t)map;
    attributes.key = address_of(key);
    attributes.value = address_of(value);
    return bpf(BPF_MAP_UPDATE_ELEM, &attributes);
}

int shunter_bpf_get(int map, const void *key, void *value) {
    union bpf_attr attributes = {0};
    attributes.map_fd = (uint32_t)map;
    attributes.key = address_of(key);
    attributes.value = address_of(value);
    return bpf(BPF_MAP_LOOKUP_ELEM, &attributes);
}

int shunter_bpf_program(
    const struct bpf_insn *instructions, uint32_t count, char *log, uint32_t size) {
    union bpf_attr attributes = {0};
    attributes.prog_type = BPF_PROG_TYPE_XDP;
    attributes.expected_attach_type = BPF_XDP;
    attributes.insns = address_of(instructions);
    attributes.insn_cnt = count;
    attributes.license = address_of("Apache-2.0"); // none of the helpers is for the GPL only
    memcpy(attributes.prog_name, "shunter_split", sizeof "shunter_split");
    const int found = bpf(BPF_PROG_LOAD, &attributes);
    if (found >= 0 || !log || size == 0) {
        return found;
    }
    attributes.log_level = 1;
    attributes.log_buf = address_of(log);
    attributes.log_size = size;
    return bpf(BPF_PROG_LOAD, &attributes);
}

bool shunter_bpf_again(int error, uint32_t *tries) {
    const struct timespec moment = {.tv_nsec = 10000000};
    return error == -EBUSY && ++*tries < TRIES && nanosleep(&moment, NULL) == 0;
}

int shunter_bpf_attach(int program, uint32_t interface, uint32_t flags) {
    union bpf_attr attributes = {0};
    attributes.link_create.prog_fd = (uint32_t)program;
    attributes.link_create.target_ifindex = interface;
    attributes.link_create.attach_type = BPF_XDP;
    attributes.link_create.flags = flags;
    uint32_t tries = 0;
    int found;
    do {
        found = bpf(BPF_LINK_CREATE, &attributes);
    } while (shunter_bpf_again(found, &tries));
    return found;
}

#endif
