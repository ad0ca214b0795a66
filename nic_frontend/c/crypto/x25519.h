/* X25519 (RFC 7748) by the system's libcrypto. Of nic_frontend/x25519.py, and of clients in C. */
#ifndef SHUNTER_X25519_H
#define SHUNTER_X25519_H

#include <stdbool.h>
#include <stdint.h>

#define SHUNTER_X25519_BYTES 32

bool shunter_x25519_is_there(void);
/* The public key of a private one, which is 32 random bytes. False: libcrypto failed. */
bool shunter_x25519_public(const uint8_t *private_key, uint8_t *public_key);
/* What both sides share. False also when it would be 0: the other's key is none. */
bool shunter_x25519_shared(
    const uint8_t *private_key, const uint8_t *public_key, uint8_t *shared);

#endif
