/* Keys of a session and the MACs of its hellos. Twin of nic_frontend/wire/keys.py. */
#ifndef SHUNTER_KEYS_H
#define SHUNTER_KEYS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "message.h"
#include "wire_layout.h"

#define SHUNTER_KEY_BYTES 16
/* Of a HELLO before its MAC, with its header. */
#define SHUNTER_SAID_BYTES \
    (SHUNTER_HEADER_BYTES + sizeof(struct shunter_wire_hello) - SHUNTER_MAC_BYTES)

struct shunter_secret {
    const uint8_t *bytes;
    size_t length;
};

struct shunter_hello_keys {
    struct shunter_keys session;
    uint8_t hello_ack[SHUNTER_MAC_BYTES];
};

/* MAC of a HELLO, of which ``said`` is the header and the payload before the MAC. */
void shunter_hello_mac(
    const struct shunter_secret *secret, const uint8_t *said, uint8_t mac[SHUNTER_MAC_BYTES]);

/*
 * Keys of the session that a HELLO_ACK opens. ``shared``: 32 bytes of X25519, or NULL. ``said`` as
 * above. ``opened``: the payload of HELLO_ACK before its MAC.
 */
void shunter_session_keys(
    const struct shunter_secret *secret, const uint8_t *shared, const uint8_t *said,
    const uint8_t *opened, size_t length, struct shunter_hello_keys *keys);

/* MAC of a HELLO_ACK with this header. */
void shunter_hello_ack_mac(
    const struct shunter_hello_keys *keys, const uint8_t *header, uint8_t mac[SHUNTER_MAC_BYTES]);

/* In a time that says nothing of them. */
bool shunter_is_same(const uint8_t *one, const uint8_t *other, size_t length);

#endif
