/* Of interfaces and their addresses. */
#define _GNU_SOURCE
#include "kernel.h"

#ifdef SHUNTER_HAS_XDP

#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <linux/ethtool.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <net/if_arp.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "bpf.h"
#include "xdp_parts.h"

/* Queues that datagrams come in by; 1 where the driver does not say. */
static uint32_t queues_of(int socket, struct ifreq *request) {
    struct ethtool_channels channels = {.cmd = ETHTOOL_GCHANNELS};
    request->ifr_data = (void *)&channels;
    if (ioctl(socket, SIOCETHTOOL, request)) {
        return 1;
    }
    const uint32_t found = channels.combined_count + channels.rx_count;
    return found ? found : 1;
}

int shunter_xdp_look_at(const char *name, struct shunter_xdp_interface *found) {
    struct ifreq request = {0};
    if (strlen(name) >= sizeof request.ifr_name) {
        return -ENODEV;
    }
    memcpy(request.ifr_name, name, strlen(name));
    found->index = if_nametoindex(name);
    const int socket_ = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (socket_ < 0) {
        return -errno;
    }
    int error = found->index ? 0 : -ENODEV;
    if (!error && ioctl(socket_, SIOCGIFHWADDR, &request)) {
        error = -errno;
    }
    const int kind = request.ifr_hwaddr.sa_family;
    if (!error && kind != ARPHRD_ETHER && kind != ARPHRD_LOOPBACK) {
        error = -EMEDIUMTYPE;
    }
    if (!error && ioctl(socket_, SIOCGIFMTU, &request)) {
        error = -errno;
    }
    found->mtu = (uint32_t)request.ifr_mtu;
    found->queues = error ? 0 : queues_of(socket_, &request);
    close(socket_);
    return error;
}

/* ---- addresses */

static int put(int map, const uint8_t *address) {
    const uint32_t there = 1;
    return shunter_bpf_put(map, address, &there);
}

/* Of any family into 16 bytes. False: it has none that counts. */
static bool bytes_of(const struct sockaddr *address, uint8_t bytes[16]) {
    if (address && address->sa_family == AF_INET) {
        memcpy(bytes, "\0\0\0\0\0\0\0\0\0\0\377\377", 12);
        memcpy(bytes + 12, &((const struct sockaddr_in *)(const void *)address)->sin_addr, 4);
        return true;
    }
    if (address && address->sa_family == AF_INET6) {
        memcpy(bytes, &((const struct sockaddr_in6 *)(const void *)address)->sin6_addr, 16);
        return true;
    }
    return false;
}

/* All of the host that have one of these families; those of a link only of this interface. */
static int put_all(int map, uint32_t interface, bool four, bool six) {
    struct ifaddrs *all;
    int error = 0;
    if (getifaddrs(&all)) {
        return -errno;
    }
    for (const struct ifaddrs *each = all; each && !error; each = each->ifa_next) {
        uint8_t bytes[16];
        if (!bytes_of(each->ifa_addr, bytes)) {
            continue;
        }
        const bool is_four = each->ifa_addr->sa_family == AF_INET;
        const struct sockaddr_in6 *address = (const void *)each->ifa_addr;
        const bool elsewhere = !is_four && IN6_IS_ADDR_LINKLOCAL(&address->sin6_addr) &&
                               address->sin6_scope_id != interface;
        if ((is_four ? four : six) && !elsewhere) {
            error = put(map, bytes);
        }
    }
    freeifaddrs(all);
    return error;
}

static bool tells_local(int socket, bool six) {
    int tells = 0;
    socklen_t size = sizeof tells;
    return getsockopt(
               socket, six ? IPPROTO_IPV6 : IPPROTO_IP, six ? IPV6_RECVPKTINFO : IP_PKTINFO, &tells,
               &size) == 0 &&
           tells;
}

int shunter_xdp_put_addresses(
    int socket, uint32_t interface, int map, struct shunter_xdp_parameters *parameters) {
    struct sockaddr_storage bound;
    socklen_t size = sizeof bound;
    if (getsockname(socket, (struct sockaddr *)&bound, &size)) {
        return -errno;
    }
    uint8_t bytes[16];
    if (!bytes_of((struct sockaddr *)&bound, bytes)) {
        return -EAFNOSUPPORT;
    }
    const struct sockaddr_in *address = (const void *)&bound;
    const bool six = bound.ss_family == AF_INET6;
    int alone = 0; // a socket of IPv6 that does without IPv4
    size = sizeof alone;
    if (six && getsockopt(socket, IPPROTO_IPV6, IPV6_V6ONLY, &alone, &size)) {
        return -errno;
    }
    parameters->port = ntohs(address->sin_port); // at the same place in both
    parameters->mapped = six;
    parameters->local = tells_local(socket, six);
    static const uint8_t any[16];
    if (memcmp(bytes + (six ? 0 : 12), any, six ? 16 : 4)) {
        return put(map, bytes);
    }
    return put_all(map, interface, !six || !alone, six);
}

#endif
