/* Where a front end is, and sockets to it. */
#ifndef SHUNTER_ADDRESS_H
#define SHUNTER_ADDRESS_H

#include <netdb.h>
#include <stdbool.h>
#include <stdint.h>

#include "wire_layout.h"

struct shunter_address {
    bool stream, unix_socket;
    bool falls_back; /* to a stream, for tensors that are too large */
    char host[256];  /* or the path of a Unix socket */
    char port[8];
};

/* 0 or -EINVAL. */
int shunter_parse_url(const char *url, struct shunter_address *address);
/* What the name stands for: 0, -EHOSTUNREACH or -ENOMEM. Unix sockets have none. */
int shunter_resolve(const struct shunter_address *address, struct addrinfo **found);
/*
 * A connected socket that does not block, until ``until_ns`` (CLOCK_MONOTONIC); ``where`` is NULL
 * for a Unix socket. ``segment``: the largest payload of a datagram on this path.
 */
int shunter_connect(
    const struct shunter_address *address, const struct addrinfo *where, uint64_t until_ns,
    uint32_t *segment);
/* Wait for ``events``: 1, 0 when the time is over, or a negative errno. */
int shunter_wait(int descriptor, short events, uint64_t until_ns);

#endif
