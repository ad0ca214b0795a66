#include "aead.h"

#include <stdlib.h>
#include <string.h>

#include "libcrypto.h"

#define NONCE_BYTES 12
#define CTRL_GET_TAG 0x10
#define CTRL_SET_TAG 0x11

/* Of libcrypto 1.1 and 3; declared here, so that nothing need be installed to build this. */
static struct {
    void *(*context_new)(void);
    void (*context_free)(void *context);
    const void *(*aes_128_gcm)(void);
    int (*init)(
        void *context, const void *cipher, void *engine, const uint8_t *key, const uint8_t *nonce,
        int encrypt);
    int (*update)(void *context, uint8_t *out, int *out_length, const uint8_t *in, int length);
    int (*final)(void *context, uint8_t *out, int *out_length);
    int (*ctrl)(void *context, int what, int number, void *bytes);
} evp;

/* One direction. */
struct cipher {
    void *context;
    bool keyed;
    uint8_t key[16]; /* of the last datagram: the next one is often of the same session */
};

struct shunter_aead {
    struct cipher open, seal;
};

static bool load(void) {
    const struct shunter_symbol symbols[] = {
        {"EVP_CIPHER_CTX_new", &evp.context_new}, {"EVP_CIPHER_CTX_free", &evp.context_free},
        {"EVP_aes_128_gcm", &evp.aes_128_gcm},    {"EVP_CipherInit_ex", &evp.init},
        {"EVP_CipherUpdate", &evp.update},        {"EVP_CipherFinal_ex", &evp.final},
        {"EVP_CIPHER_CTX_ctrl", &evp.ctrl},
    };
    return shunter_libcrypto_find(symbols, sizeof symbols / sizeof *symbols);
}

bool shunter_aead_is_there(void) {
    static int state; // 0: not looked for yet
    if (!state) {
        state = load() ? 1 : -1;
    }
    return state > 0;
}

struct shunter_aead *shunter_aead_new(void) {
    struct shunter_aead *aead = shunter_aead_is_there() ? calloc(1, sizeof *aead) : NULL;
    if (aead) {
        aead->open.context = evp.context_new();
        aead->seal.context = evp.context_new();
        if (!aead->open.context || !aead->seal.context) {
            shunter_aead_free(aead);
            aead = NULL;
        }
    }
    return aead;
}

void shunter_aead_free(struct shunter_aead *aead) {
    if (aead) {
        evp.context_free(aead->open.context);
        evp.context_free(aead->seal.context);
        free(aead);
    }
}

/* The key is set up only when it is another one. */
static bool begin(
    struct cipher *cipher, const struct shunter_guard *guard, const void *header, int encrypt) {
    uint8_t nonce[NONCE_BYTES] = {0};
    memcpy(nonce + 4, &guard->number, sizeof guard->number);
    const bool same =
        cipher->keyed && memcmp(cipher->key, guard->key, sizeof cipher->key) == 0;
    const void *kind = cipher->keyed ? NULL : evp.aes_128_gcm();
    const uint8_t *key = same ? NULL : guard->key;
    int written;
    cipher->keyed = evp.init(cipher->context, kind, NULL, key, nonce, encrypt) > 0;
    memcpy(cipher->key, guard->key, sizeof cipher->key);
    return cipher->keyed &&
           evp.update(cipher->context, NULL, &written, header, SHUNTER_TAG_OFFSET) > 0;
}

static bool work(struct cipher *cipher, const uint8_t *from, size_t length, uint8_t *into) {
    int written;
    return length == 0 || evp.update(cipher->context, into, &written, from, (int)length) > 0;
}

bool shunter_aead_seal(
    struct shunter_aead *aead, const struct shunter_guard *guard, const void *header,
    const uint8_t *payload, size_t length, uint8_t *into) {
    struct cipher *cipher = &aead->seal;
    int written;
    return begin(cipher, guard, header, 1) && work(cipher, payload, length, into) &&
           evp.final(cipher->context, into + length, &written) > 0 &&
           evp.ctrl(cipher->context, CTRL_GET_TAG, SHUNTER_AEAD_TAG, into + length) > 0;
}

bool shunter_aead_open(
    struct shunter_aead *aead, const struct shunter_guard *guard, const void *header,
    uint8_t *payload, size_t length, const uint8_t *tag) {
    struct cipher *cipher = &aead->open;
    uint8_t expected[SHUNTER_AEAD_TAG], rest[SHUNTER_AEAD_TAG];
    int written;
    memcpy(expected, tag, sizeof expected);
    return begin(cipher, guard, header, 0) && work(cipher, payload, length, payload) &&
           evp.ctrl(cipher->context, CTRL_SET_TAG, sizeof expected, expected) > 0 &&
           evp.final(cipher->context, rest, &written) > 0;
}

/* ---- CRC32C */

#define POLYNOMIAL 0x82f63b78u /* Castagnoli's, its bits reversed */

static uint32_t by_table(uint32_t crc, const uint8_t *data, size_t length) {
    static uint32_t table[256];
    if (!table[1]) {
        for (uint32_t i = 256; i-- > 0;) { // downwards: with 1 all the others are there
            uint32_t value = i;
            for (int bit = 0; bit < 8; bit++) {
                value = value >> 1 ^ (value & 1 ? POLYNOMIAL : 0);
            }
            table[i] = value;
        }
    }
    while (length--) {
        crc = table[(crc ^ *data++) & 0xff] ^ crc >> 8;
    }
    return crc;
}

#if defined(__x86_64__) && defined(__GNUC__) && !defined(SHUNTER_PORTABLE)
#include <nmmintrin.h>

__attribute__((target("sse4.2"))) static uint32_t by_instruction(
    uint32_t crc, const uint8_t *data, size_t length) {
    uint64_t wide = crc;
    for (; length >= 8; data += 8, length -= 8) {
        uint64_t word;
        memcpy(&word, data, sizeof word);
        wide = _mm_crc32_u64(wide, word);
    }
    crc = (uint32_t)wide;
    while (length--) {
        crc = _mm_crc32_u8(crc, *data++);
    }
    return crc;
}

uint32_t shunter_crc32c(const void *data, size_t length) {
    return ~(__builtin_cpu_supports("sse4.2") ? by_instruction(~0u, data, length)
                                              : by_table(~0u, data, length));
}
#else
uint32_t shunter_crc32c(const void *data, size_t length) {
    return ~by_table(~0u, data, length);
}
#endif
