#define _GNU_SOURCE
#include "kernel.h"

#ifdef SHUNTER_HAS_XDP

#include "headers.h"

#include <errno.h>
#include <sys/mman.h>
#include <unistd.h>

int shunter_xdp_headers_open(struct shunter_xdp_headers *headers, int map, uint32_t bytes) {
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    *headers = (struct shunter_xdp_headers){.mask = bytes - 1, .page = page};
    uint8_t *ours = mmap(NULL, page, PROT_READ | PROT_WRITE, MAP_SHARED, map, 0);
    if (ours == MAP_FAILED) {
        return -errno;
    }
    headers->mapped = ours;
    uint8_t *theirs =
        mmap(NULL, page + 2 * (size_t)bytes, PROT_READ, MAP_SHARED, map, (off_t)page);
    if (theirs == MAP_FAILED) {
        return -errno;
    }
    headers->mapped_records = theirs;
    headers->consumer = (void *)ours;
    headers->producer = (void *)theirs;
    headers->records = theirs + page;
    return 0;
}

void shunter_xdp_headers_close(struct shunter_xdp_headers *headers) {
    if (headers->mapped_records) {
        munmap(headers->mapped_records, headers->page + 2 * (size_t)(headers->mask + 1));
    }
    if (headers->mapped) {
        munmap(headers->mapped, headers->page);
    }
    *headers = (struct shunter_xdp_headers){0};
}

#endif
