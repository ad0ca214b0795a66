#include "siphash.h"

#include <string.h>

static uint64_t rotate(uint64_t x, int bits) { return (x << bits) | (x >> (64 - bits)); }

static void rounds(uint64_t v[4], int count) {
    while (count-- > 0) {
        v[0] += v[1];
        v[1] = rotate(v[1], 13) ^ v[0];
        v[0] = rotate(v[0], 32);
        v[2] += v[3];
        v[3] = rotate(v[3], 16) ^ v[2];
        v[0] += v[3];
        v[3] = rotate(v[3], 21) ^ v[0];
        v[2] += v[1];
        v[1] = rotate(v[1], 17) ^ v[2];
        v[2] = rotate(v[2], 32);
    }
}

static void absorb(uint64_t v[4], uint64_t word) {
    v[3] ^= word;
    rounds(v, 2);
    v[0] ^= word;
}

uint64_t shunter_siphash24(const uint8_t key[16], const void *data, size_t length) {
    const uint8_t *at = data;
    uint64_t k[2], word;
    memcpy(k, key, sizeof k);
    uint64_t v[4] = {
        k[0] ^ 0x736f6d6570736575ULL, k[1] ^ 0x646f72616e646f6dULL,
        k[0] ^ 0x6c7967656e657261ULL, k[1] ^ 0x7465646279746573ULL};
    for (size_t i = 0; i < length / 8; i++) {
        memcpy(&word, at + 8 * i, sizeof word);
        absorb(v, word);
    }
    word = (uint64_t)length << 56;
    for (size_t i = length - length % 8; i < length; i++) {
        word |= (uint64_t)at[i] << (8 * (i % 8));
    }
    absorb(v, word);
    v[2] ^= 0xff;
    rounds(v, 4);
    return v[0] ^ v[1] ^ v[2] ^ v[3];
}
