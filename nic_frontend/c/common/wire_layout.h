/* Emitted by python -m shunter.nic_frontend.emit. Do not edit. */
#ifndef SHUNTER_WIRE_LAYOUT_H
#define SHUNTER_WIRE_LAYOUT_H

#include "shunter_layout.h"

#define SHUNTER_WIRE_MAGIC 21075 /* first two bytes of a datagram */
#define SHUNTER_WIRE_VERSION 1 /* raised when X64 changes */
#define SHUNTER_HEADER_BYTES 64 /* bytes of X64 */
#define SHUNTER_TAG_OFFSET 56 /* the tag covers what is before it */
#define SHUNTER_MAX_SEGMENTS 2048 /* of one request or response */
#define SHUNTER_WINDOW 64 /* requests of a session that are not acknowledged */
#define SHUNTER_SACK_RECEIVING 1 /* status of a SACK: segments are missing */
#define SHUNTER_TYPE_REQ 1 /* message type */
#define SHUNTER_TYPE_RESP 2 /* message type */
#define SHUNTER_TYPE_SACK 3 /* message type */
#define SHUNTER_TYPE_CREDIT 4 /* message type */
#define SHUNTER_TYPE_HELLO 5 /* message type */
#define SHUNTER_TYPE_HELLO_ACK 6 /* message type */
#define SHUNTER_TYPE_CANCEL 7 /* message type */
#define SHUNTER_TYPE_ERROR 8 /* message type */
#define SHUNTER_TYPE_ACK 9 /* message type */
#define SHUNTER_FLAG_LAST 1 /* flag */
#define SHUNTER_FLAG_RETRANS 2 /* flag */
#define SHUNTER_FLAG_HDR_TAG 4 /* flag */
#define SHUNTER_FLAG_PAYLOAD_AEAD 8 /* flag */
#define SHUNTER_FLAG_PAYLOAD_CRC 16 /* flag */
#define SHUNTER_FLAG_ACK_REQ 32 /* flag */
#define SHUNTER_FLAG_IDEMPOTENT 128 /* flag */
#define SHUNTER_STATUS_OK 200 /* status */
#define SHUNTER_STATUS_BAD_REQUEST 400 /* status */
#define SHUNTER_STATUS_UNKNOWN_FUNCTION 404 /* status */
#define SHUNTER_STATUS_CANCELLED 499 /* status */
#define SHUNTER_STATUS_HANDLER_FAILED 500 /* status */
#define SHUNTER_STATUS_WORKER_DIED 502 /* status */
#define SHUNTER_STATUS_RETRY_LATER 503 /* status */
#define SHUNTER_STATUS_TOO_LATE 504 /* status */
#define SHUNTER_STATUS_MUST_ENCRYPT 426 /* status */
#define SHUNTER_STATUS_CANNOT_ENCRYPT 501 /* status */
#define SHUNTER_STATUS_UNKNOWN_SESSION 410 /* status */
#define SHUNTER_STATUS_LOST_ANSWER 409 /* status */
#define SHUNTER_STATUS_NO_WORKER 521 /* status */
#define SHUNTER_WIRE_DIGEST 0x564f5a55989f3196ULL

struct shunter_x64 {
    uint16_t magic; /* WIRE_MAGIC */
    uint8_t version; /* WIRE_VERSION */
    uint8_t type; /* one of TYPE_... */
    uint16_t flags; /* bits of FLAG_... */
    uint8_t words; /* length of the header in 8-byte words: 8 */
    uint8_t priority; /* of a REQ: 0 its model's class, else 1 + class index */
    uint64_t req_id; /* 1, 2, 3, ... in each session */
    uint16_t func_id; /* function, from HELLO_ACK; its low byte may steer to a socket */
    uint16_t seq; /* segment index */
    uint16_t count; /* segments of the request or response */
    uint16_t length; /* payload bytes of this datagram, without the AEAD tag */
    uint32_t total; /* bytes of the tensor */
    uint32_t offset; /* of this segment in its tensor */
    uint32_t session; /* from HELLO_ACK; selects key and window */
    uint32_t deadline_us; /* budget left when it was sent, 0: none */
    uint32_t credit; /* server: highest req_id that may be sent; client: all below are done */
    uint16_t status; /* of RESP and ERROR */
    uint8_t tensor; /* index of the input or output tensor */
    uint8_t reserved; /* 0 */
    uint32_t crc; /* CRC32C of the payload if FLAG_PAYLOAD_CRC */
    uint32_t pkt_no; /* of each session and direction, never repeated */
    uint64_t tag; /* SipHash-2-4 of the bytes before if FLAG_HDR_TAG, else 0 */
};
_Static_assert(sizeof(struct shunter_x64) == 64, "X64");
_Static_assert(offsetof(struct shunter_x64, magic) == 0, "magic");
_Static_assert(offsetof(struct shunter_x64, version) == 2, "version");
_Static_assert(offsetof(struct shunter_x64, type) == 3, "type");
_Static_assert(offsetof(struct shunter_x64, flags) == 4, "flags");
_Static_assert(offsetof(struct shunter_x64, words) == 6, "words");
_Static_assert(offsetof(struct shunter_x64, priority) == 7, "priority");
_Static_assert(offsetof(struct shunter_x64, req_id) == 8, "req_id");
_Static_assert(offsetof(struct shunter_x64, func_id) == 16, "func_id");
_Static_assert(offsetof(struct shunter_x64, seq) == 18, "seq");
_Static_assert(offsetof(struct shunter_x64, count) == 20, "count");
_Static_assert(offsetof(struct shunter_x64, length) == 22, "length");
_Static_assert(offsetof(struct shunter_x64, total) == 24, "total");
_Static_assert(offsetof(struct shunter_x64, offset) == 28, "offset");
_Static_assert(offsetof(struct shunter_x64, session) == 32, "session");
_Static_assert(offsetof(struct shunter_x64, deadline_us) == 36, "deadline_us");
_Static_assert(offsetof(struct shunter_x64, credit) == 40, "credit");
_Static_assert(offsetof(struct shunter_x64, status) == 44, "status");
_Static_assert(offsetof(struct shunter_x64, tensor) == 46, "tensor");
_Static_assert(offsetof(struct shunter_x64, reserved) == 47, "reserved");
_Static_assert(offsetof(struct shunter_x64, crc) == 48, "crc");
_Static_assert(offsetof(struct shunter_x64, pkt_no) == 52, "pkt_no");
_Static_assert(offsetof(struct shunter_x64, tag) == 56, "tag");

#endif
