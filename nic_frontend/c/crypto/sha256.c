#include "sha256.h"

#include <string.h>

static const uint32_t K[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

static uint32_t rotate(uint32_t x, int bits) { return x >> bits | x << (32 - bits); }

static uint32_t read_be(const uint8_t *at) {
    return (uint32_t)at[0] << 24 | (uint32_t)at[1] << 16 | (uint32_t)at[2] << 8 | at[3];
}

static void write_be(uint8_t *at, uint32_t value) {
    for (int i = 0; i < 4; i++) {
        at[i] = (uint8_t)(value >> (24 - 8 * i));
    }
}

static void compress(struct shunter_sha256 *hash) {
    uint32_t w[64], v[8];
    for (int i = 0; i < 16; i++) {
        w[i] = read_be(hash->block + 4 * i);
    }
    for (int i = 16; i < 64; i++) {
        const uint32_t a = w[i - 15], b = w[i - 2];
        w[i] = w[i - 16] + (rotate(a, 7) ^ rotate(a, 18) ^ a >> 3) + w[i - 7] +
               (rotate(b, 17) ^ rotate(b, 19) ^ b >> 10);
    }
    memcpy(v, hash->state, sizeof v);
    for (int i = 0; i < 64; i++) {
        const uint32_t one = v[7] + (rotate(v[4], 6) ^ rotate(v[4], 11) ^ rotate(v[4], 25)) +
                             ((v[4] & v[5]) ^ (~v[4] & v[6])) + K[i] + w[i];
        const uint32_t two = (rotate(v[0], 2) ^ rotate(v[0], 13) ^ rotate(v[0], 22)) +
                             ((v[0] & v[1]) ^ (v[0] & v[2]) ^ (v[1] & v[2]));
        memmove(v + 1, v, 7 * sizeof *v);
        v[4] += one;
        v[0] = one + two;
    }
    for (int i = 0; i < 8; i++) {
        hash->state[i] += v[i];
    }
}

void shunter_sha256_begin(struct shunter_sha256 *hash) {
    static const uint32_t FIRST[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                      0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
    memcpy(hash->state, FIRST, sizeof FIRST);
    hash->length = 0;
}

void shunter_sha256_add(struct shunter_sha256 *hash, const void *data, size_t length) {
    const uint8_t *at = data;
    while (length) {
        const size_t have = hash->length % 64;
        const size_t taken = length < 64 - have ? length : 64 - have;
        memcpy(hash->block + have, at, taken);
        hash->length += taken;
        at += taken;
        length -= taken;
        if (hash->length % 64 == 0) {
            compress(hash);
        }
    }
}

void shunter_sha256_end(struct shunter_sha256 *hash, uint8_t digest[SHUNTER_SHA256_BYTES]) {
    static const uint8_t PADDING[64] = {0x80};
    const uint64_t bits = 8 * hash->length;
    uint8_t length[8];
    write_be(length, (uint32_t)(bits >> 32));
    write_be(length + 4, (uint32_t)bits);
    shunter_sha256_add(hash, PADDING, 1 + (119 - hash->length % 64) % 64);
    shunter_sha256_add(hash, length, sizeof length);
    for (int i = 0; i < 8; i++) {
        write_be(digest + 4 * i, hash->state[i]);
    }
}

void shunter_hmac_begin(struct shunter_hmac *hmac, const void *key, size_t length) {
    uint8_t block[64] = {0}, pad[64];
    if (length > sizeof block) {
        shunter_sha256_begin(&hmac->inner);
        shunter_sha256_add(&hmac->inner, key, length);
        shunter_sha256_end(&hmac->inner, block);
    } else if (length) {
        memcpy(block, key, length);
    }
    struct shunter_sha256 *const both[] = {&hmac->inner, &hmac->outer};
    for (int i = 0; i < 2; i++) {
        for (size_t at = 0; at < sizeof pad; at++) {
            pad[at] = block[at] ^ (i ? 0x5c : 0x36);
        }
        shunter_sha256_begin(both[i]);
        shunter_sha256_add(both[i], pad, sizeof pad);
    }
}

void shunter_hmac_add(struct shunter_hmac *hmac, const void *data, size_t length) {
    shunter_sha256_add(&hmac->inner, data, length);
}

void shunter_hmac_end(struct shunter_hmac *hmac, uint8_t mac[SHUNTER_SHA256_BYTES]) {
    uint8_t digest[SHUNTER_SHA256_BYTES];
    shunter_sha256_end(&hmac->inner, digest);
    shunter_sha256_add(&hmac->outer, digest, sizeof digest);
    shunter_sha256_end(&hmac->outer, mac);
}
