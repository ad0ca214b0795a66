/*
 * What protects payloads: AES-128-GCM by the system's libcrypto, and CRC32C.
 *
 * libcrypto is looked for when it is first needed; without it there is no encryption, and all else
 * works. Nonce: four bytes 0, then the datagram's number; associated data: the header before its
 * tag. Twin of nic_frontend/aead.py.
 */
#ifndef SHUNTER_AEAD_H
#define SHUNTER_AEAD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "message.h"

struct shunter_aead;

/* Whether libcrypto is there, with what is needed of it. */
bool shunter_aead_is_there(void);

/* For one thread. NULL without memory or libcrypto. */
struct shunter_aead *shunter_aead_new(void);
void shunter_aead_free(struct shunter_aead *aead);

/* ``into`` has room for the tag behind the payload; it may be ``payload``. False: libcrypto failed. */
bool shunter_aead_seal(
    struct shunter_aead *aead, const struct shunter_guard *guard, const void *header,
    const uint8_t *payload, size_t length, uint8_t *into);

/* Decrypt in place. False when the tag is wrong: ``payload`` is then worth nothing. */
bool shunter_aead_open(
    struct shunter_aead *aead, const struct shunter_guard *guard, const void *header,
    uint8_t *payload, size_t length, const uint8_t *tag);

uint32_t shunter_crc32c(const void *data, size_t length);

#endif
