#define _GNU_SOURCE
#include "address.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "client_parts.h"

#define BUFFER (4 << 20)

static bool copy(char *into, size_t room, const char *from, size_t length) {
    if (!length || length >= room) {
        return false;
    }
    memcpy(into, from, length);
    into[length] = 0;
    return true;
}

static const char *behind(const char *text, const char *prefix) {
    const size_t length = strlen(prefix);
    return strncmp(text, prefix, length) ? NULL : text + length;
}

int shunter_parse_url(const char *url, struct shunter_address *address) {
    const char *at;
    memset(address, 0, sizeof *address);
    if ((at = behind(url, "unix://"))) {
        address->stream = address->unix_socket = true;
        const size_t most = sizeof(((struct sockaddr_un *)0)->sun_path);
        const bool fits = copy(address->host, sizeof address->host, at, strlen(at));
        return *at == '/' && fits && strlen(at) < most ? 0 : -EINVAL;
    }
    if ((at = behind(url, "tcp://"))) {
        address->stream = true;
    } else if ((at = behind(url, "shunter://"))) {
        address->falls_back = true;
    } else if (!(at = behind(url, "udp://"))) {
        return -EINVAL;
    }
    const bool bracket = *at == '[';
    const char *end = strchr(at += bracket, bracket ? ']' : ':');
    if (!end || !copy(address->host, sizeof address->host, at, (size_t)(end - at)) ||
        (bracket && *++end != ':')) {
        return -EINVAL;
    }
    char *last;
    const char *port = end + 1;
    const unsigned long number = *port >= '0' && *port <= '9' ? strtoul(port, &last, 10) : 0;
    if (!number || number > 65535 || (*last && strcmp(last, "/"))) {
        return -EINVAL;
    }
    return copy(address->port, sizeof address->port, port, (size_t)(last - port)) ? 0 : -EINVAL;
}

int shunter_resolve(const struct shunter_address *address, struct addrinfo **found) {
    const struct addrinfo wanted = {
        .ai_socktype = address->stream ? SOCK_STREAM : SOCK_DGRAM, .ai_flags = AI_NUMERICSERV};
    *found = NULL;
    if (address->unix_socket) {
        return 0;
    }
    const int error = getaddrinfo(address->host, address->port, &wanted, found);
    return error == EAI_MEMORY ? -ENOMEM : error ? -EHOSTUNREACH : 0;
}

int shunter_wait(int descriptor, short events, uint64_t until_ns) {
    struct pollfd wanted = {.fd = descriptor, .events = events};
    for (;;) {
        const uint64_t now = shunter_client_now_ns();
        const uint64_t left = until_ns > now ? until_ns - now : 0;
        const struct timespec time = {
            .tv_sec = (time_t)(left / 1000000000ULL), .tv_nsec = (long)(left % 1000000000ULL)};
        const int ready = ppoll(&wanted, 1, &time, NULL);
        if (ready >= 0) {
            return ready;
        }
        if (errno != EINTR) {
            return -errno;
        }
    }
}

/* Largest payload of a datagram that is not cut on the way. */
static uint32_t segment_of(int descriptor, int family) {
    const bool six = family == AF_INET6;
    const int level = six ? IPPROTO_IPV6 : IPPROTO_IP, whole = IP_PMTUDISC_DO;
    int mtu = 0;
    socklen_t length = sizeof mtu;
    setsockopt(
        descriptor, level, six ? IPV6_MTU_DISCOVER : IP_MTU_DISCOVER, &whole, sizeof whole);
    getsockopt(descriptor, level, six ? IPV6_MTU : IP_MTU, &mtu, &length);
    const int room = mtu - (six ? 48 : 28) - (int)SHUNTER_HEADER_BYTES;
    if (room < (int)SHUNTER_SMALLEST_SEGMENT) {
        return SHUNTER_SMALLEST_SEGMENT;
    }
    return (uint32_t)room < SHUNTER_LARGEST_SEGMENT ? (uint32_t)room : SHUNTER_LARGEST_SEGMENT;
}

static int finish(int descriptor, uint64_t until_ns) {
    const int ready = shunter_wait(descriptor, POLLOUT, until_ns);
    int error = 0;
    socklen_t length = sizeof error;
    if (ready <= 0) {
        return ready ? ready : -ETIMEDOUT;
    }
    return getsockopt(descriptor, SOL_SOCKET, SO_ERROR, &error, &length) ? -errno : -error;
}

int shunter_connect(
    const struct shunter_address *address, const struct addrinfo *where, uint64_t until_ns,
    uint32_t *segment) {
    struct sockaddr_un path = {.sun_family = AF_UNIX};
    const struct sockaddr *to = where ? where->ai_addr : (const struct sockaddr *)(void *)&path;
    const socklen_t length = where ? where->ai_addrlen : sizeof path;
    const int kind = address->stream ? SOCK_STREAM : SOCK_DGRAM;
    const int descriptor = socket(to->sa_family, kind | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (descriptor < 0) {
        return -errno;
    }
    if (!where) {
        memcpy(path.sun_path, address->host, strlen(address->host)); // which fits: it was checked
    }
    const int size = BUFFER, on = 1;
    if (!address->stream) {
        setsockopt(descriptor, SOL_SOCKET, SO_RCVBUF, &size, sizeof size);
        setsockopt(descriptor, SOL_SOCKET, SO_SNDBUF, &size, sizeof size);
    } else if (where) {
        setsockopt(descriptor, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    }
    int error = connect(descriptor, to, length) ? -errno : 0;
    if (error == -EINPROGRESS) {
        error = finish(descriptor, until_ns);
    }
    if (error) {
        close(descriptor);
        return error;
    }
    *segment =
        address->stream ? SHUNTER_LARGEST_SEGMENT : segment_of(descriptor, to->sa_family);
    return descriptor;
}
