#include "keys.h"

#include <stddef.h>
#include <string.h>

#include "sha256.h"

#define NONCE_AT (SHUNTER_HEADER_BYTES + offsetof(struct shunter_wire_hello, nonce))
#define COOKIE_AT (SHUNTER_HEADER_BYTES + offsetof(struct shunter_wire_hello, cookie))
#define NONCE_BYTES 16
#define COOKIE_BYTES 16

static void expand(
    const uint8_t prk[32], const char *label, const uint8_t hash[32], uint8_t *into, size_t length) {
    static const uint8_t ONE = 1;
    struct shunter_hmac hmac;
    uint8_t whole[SHUNTER_SHA256_BYTES];
    shunter_hmac_begin(&hmac, prk, 32);
    shunter_hmac_add(&hmac, label, strlen(label));
    shunter_hmac_add(&hmac, hash, 32);
    shunter_hmac_add(&hmac, &ONE, 1);
    shunter_hmac_end(&hmac, whole);
    memcpy(into, whole, length);
}

void shunter_hello_mac(
    const struct shunter_secret *secret, const uint8_t *said, uint8_t mac[SHUNTER_MAC_BYTES]) {
    struct shunter_sha256 hash;
    struct shunter_hmac hmac;
    uint8_t digest[32], prk[32];
    shunter_sha256_begin(&hash);
    shunter_sha256_add(&hash, said, SHUNTER_SAID_BYTES);
    shunter_sha256_end(&hash, digest);
    shunter_hmac_begin(&hmac, said + NONCE_AT, NONCE_BYTES);
    shunter_hmac_add(&hmac, secret->bytes, secret->length);
    shunter_hmac_end(&hmac, prk);
    expand(prk, SHUNTER_LABEL_HELLO, digest, mac, SHUNTER_MAC_BYTES);
}

void shunter_session_keys(
    const struct shunter_secret *secret, const uint8_t *shared, const uint8_t *said,
    const uint8_t *opened, size_t length, struct shunter_hello_keys *keys) {
    static const uint8_t NO_COOKIE[COOKIE_BYTES] = {0};
    const size_t behind = COOKIE_AT + COOKIE_BYTES;
    struct shunter_sha256 hash;
    struct shunter_hmac hmac;
    uint8_t digest[32], prk[32];
    // There may be several cookies, and the answer to any of these hellos is good.
    shunter_sha256_begin(&hash);
    shunter_sha256_add(&hash, said, COOKIE_AT);
    shunter_sha256_add(&hash, NO_COOKIE, sizeof NO_COOKIE);
    shunter_sha256_add(&hash, said + behind, SHUNTER_SAID_BYTES - behind);
    shunter_sha256_add(&hash, opened, length);
    shunter_sha256_end(&hash, digest);
    shunter_hmac_begin(&hmac, opened, (size_t)2 * NONCE_BYTES); // both nonces
    shunter_hmac_add(&hmac, secret->bytes, secret->length);
    if (shared) {
        shunter_hmac_add(&hmac, shared, 32);
    }
    shunter_hmac_end(&hmac, prk);
    const struct {
        const char *label;
        uint8_t *into;
        size_t length;
    } every[] = {
        {SHUNTER_LABEL_TAG_TO_SERVER, keys->session.tag_to_server, SHUNTER_KEY_BYTES},
        {SHUNTER_LABEL_TAG_TO_CLIENT, keys->session.tag_to_client, SHUNTER_KEY_BYTES},
        {SHUNTER_LABEL_PAYLOAD_TO_SERVER, keys->session.payload_to_server, SHUNTER_KEY_BYTES},
        {SHUNTER_LABEL_PAYLOAD_TO_CLIENT, keys->session.payload_to_client, SHUNTER_KEY_BYTES},
        {SHUNTER_LABEL_HELLO_ACK, keys->hello_ack, SHUNTER_MAC_BYTES},
    };
    for (size_t i = 0; i < sizeof every / sizeof *every; i++) {
        expand(prk, every[i].label, digest, every[i].into, every[i].length);
    }
}

void shunter_hello_ack_mac(
    const struct shunter_hello_keys *keys, const uint8_t *header, uint8_t mac[SHUNTER_MAC_BYTES]) {
    struct shunter_hmac hmac;
    shunter_hmac_begin(&hmac, keys->hello_ack, sizeof keys->hello_ack);
    shunter_hmac_add(&hmac, header, SHUNTER_HEADER_BYTES);
    shunter_hmac_end(&hmac, mac);
}

bool shunter_is_same(const uint8_t *one, const uint8_t *other, size_t length) {
    unsigned different = 0;
    for (size_t i = 0; i < length; i++) {
        different |= (unsigned)(one[i] ^ other[i]);
    }
    return !different;
}
