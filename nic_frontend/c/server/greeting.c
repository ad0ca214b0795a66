/*
 * Hellos before it is known who says them: anybody may send any number, under any address.
 *
 * Who has not shown that an address is his own gets a cookie there, and nothing is kept; the answer
 * is shorter than what came. What comes back with a good cookie is the caller's, who may have to
 * compute a lot for it: only so many are handed on at once and in a second from one address, and
 * nobody's push out those of who has fewer.
 */
#include <string.h>

#include "server_parts.h"
#include "siphash.h"

#define COOKIE_NS 60000000000ULL /* a cookie is good for so long */
/* From one address one hello is handed on in such a time, or so many together after a while. */
#define INTERVAL_NS 1000000ULL
#define BURST 256
/* The same of the cookies that are given to all together: most of what a hello costs is its answer. */
#define COOKIE_INTERVAL_NS 15625ULL
#define COOKIE_BURST 512
#define LARGE sizeof(struct shunter_wire_hello)

struct cookie {
    uint64_t time_ns, proof;
};

/* Whoever looks at a cookie shall not learn for how long this machine has run. */
static uint64_t since(const struct shunter_server *server) {
    return shunter_siphash24(server->settings.cookie_secret, "", 0);
}

static uint64_t proof_of(
    const struct shunter_server *server, const uint8_t *peer, uint64_t time_ns) {
    uint8_t said[SHUNTER_PEER_BYTES + sizeof time_ns];
    memcpy(said, peer, SHUNTER_PEER_BYTES);
    memcpy(said + SHUNTER_PEER_BYTES, &time_ns, sizeof time_ns);
    return shunter_siphash24(server->settings.cookie_secret, said, sizeof said);
}

/* How long ago it was given, or UINT64_MAX when it is not good. */
static uint64_t age_of(
    const struct shunter_server *server, const uint8_t *peer, const uint8_t *bytes) {
    struct cookie cookie;
    memcpy(&cookie, bytes, sizeof cookie);
    const uint64_t age_ns = server->now_ns + since(server) - cookie.time_ns;
    return age_ns <= COOKIE_NS && cookie.proof == proof_of(server, peer, cookie.time_ns)
        ? age_ns
        : UINT64_MAX;
}

static void give_cookie(
    struct shunter_server *server, const uint8_t *peer, const uint8_t *message) {
    struct shunter_x64 header;
    struct cookie cookie = {.time_ns = server->now_ns + since(server)};
    struct shunter_wire_cookie payload;
    memcpy(&header, message, sizeof header);
    cookie.proof = proof_of(server, peer, cookie.time_ns);
    memcpy(payload.nonce, message + SHUNTER_HEADER_BYTES, sizeof payload.nonce);
    memcpy(payload.cookie, &cookie, sizeof payload.cookie);
    const struct shunter_x64 answer = {
        .magic = SHUNTER_WIRE_MAGIC,
        .version = SHUNTER_WIRE_VERSION,
        .type = SHUNTER_TYPE_HELLO_ACK,
        .flags = SHUNTER_FLAG_LAST,
        .words = SHUNTER_HEADER_BYTES / 8,
        .req_id = header.req_id,
        .count = 1,
        .length = sizeof payload,
        .status = SHUNTER_STATUS_COOKIE};
    server->stats.bytes_out += sizeof answer + sizeof payload;
    server->backend->tx(server->backend, &answer, &payload, sizeof payload, peer, true);
}

/* Whether it is the turn of one more, of those that are due one interval after the other. */
static bool is_in_turn(
    const struct shunter_server *server, uint64_t *due_ns, uint64_t interval_ns, uint64_t burst) {
    const uint64_t now_ns = server->now_ns, due = *due_ns > now_ns ? *due_ns : now_ns;
    if (due - now_ns > burst * interval_ns) {
        return false;
    }
    *due_ns = due + interval_ns;
    return true;
}

/* Whether this address has not said too much lately. */
static bool is_in_time(struct shunter_server *server, uint64_t origin) {
    const uint64_t hash =
        shunter_siphash24(server->settings.cookie_secret, &origin, sizeof origin);
    uint64_t *due_ns = &server->hello_due_ns[hash % SHUNTER_HELLO_ROWS];
    return is_in_turn(server, due_ns, INTERVAL_NS, BURST);
}

/* A place for a hello of this address: a free one, or the last one of an address that has more. */
static struct shunter_hello *place_for(struct shunter_server *server, uint64_t origin) {
    struct shunter_hello *all = server->hellos, *last = NULL;
    if (server->hello_count < server->hello_most) {
        return &all[server->hello_count++];
    }
    uint32_t mine = 0, most = 0;
    for (uint32_t i = 0; i < server->hello_count; i++) {
        uint32_t count = 0;
        for (uint32_t k = 0; k < server->hello_count; k++) {
            count += all[k].origin == all[i].origin;
        }
        mine += all[i].origin == origin;
        if (count >= most) {
            most = count;
            last = &all[i];
        }
    }
    return most > mine + 1 ? last : NULL;
}

void shunter_greet(
    struct shunter_server *server, const uint8_t *peer, const uint8_t *header,
    const uint8_t *payload, uint32_t length) {
    uint8_t message[SHUNTER_HELLO_BYTES];
    if (length != LARGE || !payload) {
        server->stats.drops[SHUNTER_DROP_LENGTH]++;
        return;
    }
    memcpy(message, header, SHUNTER_HEADER_BYTES);
    memcpy(message + SHUNTER_HEADER_BYTES, payload, LARGE);
    const size_t cookie = SHUNTER_HEADER_BYTES + offsetof(struct shunter_wire_hello, cookie);
    const uint64_t trip_ns = age_of(server, peer, message + cookie);
    if (trip_ns == UINT64_MAX) {
        if (is_in_turn(server, &server->cookies_due_ns, COOKIE_INTERVAL_NS, COOKIE_BURST)) {
            give_cookie(server, peer, message);
        } else {
            server->stats.hellos_unanswered++;
        }
        return;
    }
    const uint64_t origin = shunter_origin_of(peer);
    struct shunter_hello *hello = is_in_time(server, origin) ? place_for(server, origin) : NULL;
    if (hello) { // else it will be said again
        hello->origin = origin;
        hello->trip_ns = trip_ns;
        memcpy(hello->peer, peer, SHUNTER_PEER_BYTES);
        memcpy(hello->message, message, sizeof message);
    }
}

/* ---- whose sessions, and hellos, are counted together */

/* Of the first of these bytes, the first one the highest. */
static uint64_t number_of(const uint8_t *bytes, unsigned count) {
    uint64_t number = 0;
    for (unsigned i = 0; i < count; i++) {
        number = number << 8 | bytes[i];
    }
    return number;
}

uint64_t shunter_origin_of(const uint8_t *peer) {
    static const uint8_t MAPPED[12] = {[10] = 0xff, [11] = 0xff}; // what is an IPv4 address
    static const uint8_t LINK[7] = {0xfe, 0x80};
    // No host has such a prefix of IPv6: those addresses are of groups.
    const uint64_t inet = 0xffffffffULL << 32;
    if (peer[0] == AF_INET && !peer[1]) {
        return number_of(peer + 4, 4) | inet;
    }
    if (memcmp(peer + 8, MAPPED, sizeof MAPPED) == 0) {
        return number_of(peer + 20, 4) | inet;
    }
    if (memcmp(peer + 8, LINK, sizeof LINK) == 0) { // neighbours have addresses of their own
        return number_of(LINK, 2) << 48 | number_of(peer + 18, 6);
    }
    return number_of(peer + 8, 7) << 8;
}
