#include "x25519.h"

#include <stddef.h>

#include "libcrypto.h"

#define PKEY_X25519 1034

/* Declared here, so that nothing need be installed to build this. */
static struct {
    void *(*private_new)(int type, void *engine, const uint8_t *key, size_t length);
    void *(*public_new)(int type, void *engine, const uint8_t *key, size_t length);
    int (*get_public)(const void *pkey, uint8_t *key, size_t *length);
    void (*free)(void *pkey);
    void *(*context_new)(void *pkey, void *engine);
    void (*context_free)(void *context);
    int (*derive_init)(void *context);
    int (*set_peer)(void *context, void *pkey);
    int (*derive)(void *context, uint8_t *shared, size_t *length);
} evp;

bool shunter_x25519_is_there(void) {
    static int state; // 0: not looked for yet
    if (!state) {
        const struct shunter_symbol symbols[] = {
            {"EVP_PKEY_new_raw_private_key", &evp.private_new},
            {"EVP_PKEY_new_raw_public_key", &evp.public_new},
            {"EVP_PKEY_get_raw_public_key", &evp.get_public},
            {"EVP_PKEY_free", &evp.free},
            {"EVP_PKEY_CTX_new", &evp.context_new},
            {"EVP_PKEY_CTX_free", &evp.context_free},
            {"EVP_PKEY_derive_init", &evp.derive_init},
            {"EVP_PKEY_derive_set_peer", &evp.set_peer},
            {"EVP_PKEY_derive", &evp.derive},
        };
        state = shunter_libcrypto_find(symbols, sizeof symbols / sizeof *symbols) ? 1 : -1;
    }
    return state > 0;
}

static void *private_of(const uint8_t *key) {
    return shunter_x25519_is_there()
        ? evp.private_new(PKEY_X25519, NULL, key, SHUNTER_X25519_BYTES)
        : NULL;
}

bool shunter_x25519_public(const uint8_t *private_key, uint8_t *public_key) {
    void *mine = private_of(private_key);
    size_t length = SHUNTER_X25519_BYTES;
    const bool good = mine && evp.get_public(mine, public_key, &length) > 0;
    if (mine) {
        evp.free(mine);
    }
    return good;
}

bool shunter_x25519_shared(
    const uint8_t *private_key, const uint8_t *public_key, uint8_t *shared) {
    void *mine = private_of(private_key);
    if (!mine) {
        return false;
    }
    void *other = evp.public_new(PKEY_X25519, NULL, public_key, SHUNTER_X25519_BYTES);
    void *context = evp.context_new(mine, NULL);
    size_t length = SHUNTER_X25519_BYTES;
    const bool good = other && context && evp.derive_init(context) > 0 &&
                      evp.set_peer(context, other) > 0 &&
                      evp.derive(context, shared, &length) > 0 && length == SHUNTER_X25519_BYTES;
    evp.context_free(context);
    evp.free(other);
    evp.free(mine);
    return good;
}
