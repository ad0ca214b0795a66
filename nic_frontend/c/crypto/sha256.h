/* SHA-256 (FIPS 180-4) and HMAC with it (RFC 2104): for a few hellos, so small and not fast. */
#ifndef SHUNTER_SHA256_H
#define SHUNTER_SHA256_H

#include <stddef.h>
#include <stdint.h>

#define SHUNTER_SHA256_BYTES 32

struct shunter_sha256 {
    uint32_t state[8];
    uint64_t length;
    uint8_t block[64];
};

void shunter_sha256_begin(struct shunter_sha256 *hash);
void shunter_sha256_add(struct shunter_sha256 *hash, const void *data, size_t length);
void shunter_sha256_end(struct shunter_sha256 *hash, uint8_t digest[SHUNTER_SHA256_BYTES]);

struct shunter_hmac {
    struct shunter_sha256 inner, outer;
};

void shunter_hmac_begin(struct shunter_hmac *hmac, const void *key, size_t length);
void shunter_hmac_add(struct shunter_hmac *hmac, const void *data, size_t length);
void shunter_hmac_end(struct shunter_hmac *hmac, uint8_t mac[SHUNTER_SHA256_BYTES]);

#endif
