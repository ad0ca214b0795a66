#define _GNU_SOURCE
#include "hello.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "segments.h"
#include "x25519.h"

static bool put_name(uint8_t *into, size_t room, const char *name) {
    const size_t length = name ? strlen(name) : 0;
    if (length > room) {
        return false;
    }
    if (length) {
        memcpy(into, name, length);
    }
    return true;
}

static uint16_t wanted(int protection) {
    return protection == SHUNTER_ENCRYPTED ? SHUNTER_FLAG_PAYLOAD_AEAD
         : protection == SHUNTER_CHECKED   ? SHUNTER_FLAG_PAYLOAD_CRC
                                           : 0;
}

static struct shunter_wire_hello payload_of(const struct shunter_hello *hello) {
    struct shunter_wire_hello said;
    memcpy(&said, hello->message + SHUNTER_HEADER_BYTES, sizeof said);
    return said;
}

static void sign(struct shunter_hello *hello) {
    uint8_t *mac = hello->message + SHUNTER_SAID_BYTES;
    memset(mac, 0, SHUNTER_MAC_BYTES);
    if (hello->secret.length) {
        shunter_hello_mac(&hello->secret, hello->message, mac);
    }
}

int shunter_hello_make(
    struct shunter_hello *hello, const char *model, const struct shunter_open_options *options) {
    const struct shunter_x64 header = {
        .magic = SHUNTER_WIRE_MAGIC,
        .version = SHUNTER_WIRE_VERSION,
        .type = SHUNTER_TYPE_HELLO,
        .flags = SHUNTER_FLAG_LAST,
        .words = SHUNTER_HEADER_BYTES / 8,
        .count = 1,
        .length = sizeof(struct shunter_wire_hello)};
    struct shunter_wire_hello said = {
        .window = (uint16_t)(options->window ? options->window : SHUNTER_WINDOW),
        .want = wanted(options->protection)};
    const char *key_id = options->key_id ? options->key_id : SHUNTER_DEFAULT_KEY;
    hello->secret = (struct shunter_secret){options->key, options->key ? options->key_bytes : 0};
    hello->encrypts = said.want == SHUNTER_FLAG_PAYLOAD_AEAD;
    hello->memory = -1;
    if (!put_name(said.model, sizeof said.model, model) ||
        !put_name(said.version, sizeof said.version, options->version) ||
        (hello->secret.length && !put_name(said.key_id, sizeof said.key_id, key_id))) {
        return -ENAMETOOLONG;
    }
    if (getrandom(said.nonce, sizeof said.nonce, 0) != sizeof said.nonce ||
        getrandom(hello->private_key, sizeof hello->private_key, 0) !=
            sizeof hello->private_key) {
        return -EIO;
    }
    if (hello->encrypts && !shunter_x25519_public(hello->private_key, said.public)) {
        return -ENOTSUP;
    }
    memcpy(hello->message, &header, sizeof header);
    memcpy(hello->message + sizeof header, &said, sizeof said);
    return 0;
}

void shunter_hello_set_path(struct shunter_hello *hello, uint32_t segment, bool unix_socket) {
    struct shunter_wire_hello said = payload_of(hello);
    said.segment = segment;
    said.want |= unix_socket && !said.want ? SHUNTER_WANT_SHARED_MEMORY : 0;
    memcpy(hello->message + SHUNTER_HEADER_BYTES, &said, sizeof said);
    sign(hello);
}

/* ---- what comes */

static bool is_right(const struct shunter_x64 *header, size_t length) {
    return header->magic == SHUNTER_WIRE_MAGIC && header->version == SHUNTER_WIRE_VERSION &&
           header->words == SHUNTER_HEADER_BYTES / 8 && !header->reserved &&
           header->type == SHUNTER_TYPE_HELLO_ACK &&
           !(header->flags & ~(unsigned)SHUNTER_FLAG_LAST) &&
           length == SHUNTER_HEADER_BYTES + (size_t)header->length;
}

/* The session's keys, if its MAC is right: 0, -EAGAIN or -401. */
static int take_keys(
    struct shunter_hello *hello, const uint8_t *message, size_t length,
    const struct shunter_wire_opened *opened, struct shunter_hello_keys *keys) {
    static const uint8_t NO_MAC[SHUNTER_MAC_BYTES] = {0};
    const uint8_t *mac = message + length;
    uint8_t shared[SHUNTER_X25519_BYTES], expected[SHUNTER_MAC_BYTES];
    if (!hello->secret.length) { // a server with keys wants one
        return shunter_is_same(mac, NO_MAC, sizeof NO_MAC) ? 0 : -SHUNTER_STATUS_UNAUTHORIZED;
    }
    if (hello->encrypts && !shunter_x25519_shared(hello->private_key, opened->public, shared)) {
        return -EAGAIN;
    }
    shunter_session_keys(
        &hello->secret, hello->encrypts ? shared : NULL, hello->message,
        message + SHUNTER_HEADER_BYTES, length - SHUNTER_HEADER_BYTES, keys);
    shunter_hello_ack_mac(keys, message, expected);
    return shunter_is_same(mac, expected, sizeof expected) ? 0 : -SHUNTER_STATUS_UNAUTHORIZED;
}

static int take_opened(
    struct shunter_hello *hello, const struct shunter_x64 *header, const uint8_t *message,
    size_t length, struct shunter_client_settings *settings, struct shunter_tensors *tensors) {
    const struct shunter_wire_hello said = payload_of(hello);
    struct shunter_wire_opened opened;
    struct shunter_hello_keys keys = {0};
    if (length < SHUNTER_HEADER_BYTES + sizeof opened + SHUNTER_MAC_BYTES) {
        return -EAGAIN;
    }
    length -= SHUNTER_MAC_BYTES;
    memcpy(&opened, message + SHUNTER_HEADER_BYTES, sizeof opened);
    const size_t at = SHUNTER_HEADER_BYTES + sizeof opened;
    if (memcmp(opened.client_nonce, said.nonce, sizeof said.nonce)) {
        return -EAGAIN;
    }
    const int error = take_keys(hello, message, length, &opened, &keys);
    if (error) {
        return error;
    }
    if (opened.protect != (said.want & ~SHUNTER_WANT_SHARED_MEMORY)) {
        return -SHUNTER_STATUS_UNAUTHORIZED; // it does not protect what it was asked to
    }
    if (!opened.segment || opened.segment > said.segment ||
        !shunter_parse_tensors((const char *)message + at, length - at, tensors)) {
        return -EPROTO;
    }
    settings->tagged = hello->secret.length;
    settings->protect = opened.protect;
    settings->keys = keys.session;
    settings->session = header->session;
    settings->func_id = header->func_id;
    settings->segment = (uint16_t)opened.segment;
    settings->grant = header->credit;
    settings->shared_requests =
        opened.rights & SHUNTER_RIGHT_SHARED_MEMORY && said.want & SHUNTER_WANT_SHARED_MEMORY
        ? opened.window
        : 0;
    return 0;
}

int shunter_hello_take(
    struct shunter_hello *hello, const uint8_t *message, size_t length,
    struct shunter_client_settings *settings, struct shunter_tensors *tensors) {
    struct shunter_x64 header;
    struct shunter_wire_hello said = payload_of(hello);
    if (length < sizeof header) {
        return -EAGAIN;
    }
    memcpy(&header, message, sizeof header);
    const uint8_t *payload = message + sizeof header;
    if (!is_right(&header, length) || header.length < sizeof said.nonce ||
        memcmp(payload, said.nonce, sizeof said.nonce)) {
        return -EAGAIN;
    }
    if (header.session) {
        return header.status == SHUNTER_STATUS_OK
            ? take_opened(hello, &header, message, length, settings, tensors)
            : -EAGAIN;
    }
    if (header.status == SHUNTER_STATUS_COOKIE) {
        if (header.length != sizeof(struct shunter_wire_cookie)) {
            return -EAGAIN;
        }
        memcpy(
            hello->message + SHUNTER_HEADER_BYTES + offsetof(struct shunter_wire_hello, cookie),
            payload + offsetof(struct shunter_wire_cookie, cookie), sizeof said.cookie);
        sign(hello);
        return 1;
    }
    return header.status < SHUNTER_STATUS_BAD_REQUEST ? -EAGAIN : -(int)header.status;
}
