/* What a message is for and what its payload carries. */
#ifndef SHUNTER_MESSAGE_H
#define SHUNTER_MESSAGE_H

#include <stdint.h>

#include "segments.h"
#include "wire_layout.h"

#define SHUNTER_BITMAP_BYTES (SHUNTER_MAX_SEGMENTS / 8)
/*
 * Whom a datagram came from: a socket address, and behind SHUNTER_PEER_LOCAL the address of ours
 * that it was sent to, where that is not the socket's own (family, 16 bytes; family 0: none). Of a
 * stream: what stands for it.
 */
#define SHUNTER_PEER_BYTES 64
#define SHUNTER_PEER_LOCAL 32

/* Of a session; none is used for two purposes, or in both directions. */
struct shunter_keys {
    uint8_t tag_to_server[16], tag_to_client[16];         /* of headers */
    uint8_t payload_to_server[16], payload_to_client[16]; /* of PAYLOAD_AEAD */
};

/* What the payload of a datagram carries, and what is needed to check it or to add it. */
struct shunter_guard {
    uint16_t protect; /* FLAG_PAYLOAD_CRC, FLAG_PAYLOAD_AEAD, or 0 */
    uint64_t number;  /* of the datagram, all of its bits; the rest of the nonce is 0 */
    uint8_t key[16];  /* AEAD: of this direction; CRC: of the tag of a header that is sent */
};

#endif
