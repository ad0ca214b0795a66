/* Emitted by python -m shunter.nic_frontend.emit. Do not edit. */
#ifndef SHUNTER_WIRE_LAYOUT_H
#define SHUNTER_WIRE_LAYOUT_H

#include "shunter_layout.h"

#define SHUNTER_WIRE_MAGIC 21075 /* first two bytes of a datagram */
#define SHUNTER_WIRE_VERSION 2 /* raised when X64 changes */
#define SHUNTER_HEADER_BYTES 64 /* bytes of X64 */
#define SHUNTER_TAG_OFFSET 56 /* the tag covers what is before it */
#define SHUNTER_MAX_SEGMENTS 2048 /* of one request or response */
#define SHUNTER_WINDOW 64 /* requests of a session that are not acknowledged */
#define SHUNTER_SACK_RECEIVING 1 /* status of a SACK: segments are missing */
#define SHUNTER_MAC_BYTES 32 /* of HELLO, and of the HELLO_ACK that opens a session */
#define SHUNTER_WANT_SHARED_MEMORY 32768 /* in HELLO, by a Unix socket */
#define SHUNTER_SHARED_ALIGN 64 /* a tensor in shared memory begins at a multiple of it */
#define SHUNTER_RIGHT_STRICT 1 /* right */
#define SHUNTER_RIGHT_SHARED_MEMORY 2 /* right */
#define SHUNTER_TYPE_REQ 1 /* message type */
#define SHUNTER_TYPE_RESP 2 /* message type */
#define SHUNTER_TYPE_SACK 3 /* message type */
#define SHUNTER_TYPE_CREDIT 4 /* message type */
#define SHUNTER_TYPE_HELLO 5 /* message type */
#define SHUNTER_TYPE_HELLO_ACK 6 /* message type */
#define SHUNTER_TYPE_CANCEL 7 /* message type */
#define SHUNTER_TYPE_ERROR 8 /* message type */
#define SHUNTER_TYPE_ACK 9 /* message type */
#define SHUNTER_TYPE_QUERY 10 /* message type */
#define SHUNTER_FLAG_LAST 1 /* flag */
#define SHUNTER_FLAG_RETRANS 2 /* flag */
#define SHUNTER_FLAG_HDR_TAG 4 /* flag */
#define SHUNTER_FLAG_PAYLOAD_AEAD 8 /* flag */
#define SHUNTER_FLAG_PAYLOAD_CRC 16 /* flag */
#define SHUNTER_FLAG_ACK_REQ 32 /* flag */
#define SHUNTER_FLAG_NEXT 64 /* flag */
#define SHUNTER_FLAG_IDEMPOTENT 128 /* flag */
#define SHUNTER_STATUS_OK 200 /* status */
#define SHUNTER_STATUS_UNDER_WAY 202 /* status */
#define SHUNTER_STATUS_END 204 /* status */
#define SHUNTER_STATUS_NOT_YET 102 /* status */
#define SHUNTER_STATUS_COOKIE 100 /* status */
#define SHUNTER_STATUS_BAD_REQUEST 400 /* status */
#define SHUNTER_STATUS_UNAUTHORIZED 401 /* status */
#define SHUNTER_STATUS_FORBIDDEN 403 /* status */
#define SHUNTER_STATUS_UNKNOWN_FUNCTION 404 /* status */
#define SHUNTER_STATUS_TOO_LARGE 413 /* status */
#define SHUNTER_STATUS_TOO_SLOW 408 /* status */
#define SHUNTER_STATUS_WOULD_BE_LATE 429 /* status */
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
#define SHUNTER_WIRE_DIGEST 0x425d8abf7dfd04f4ULL

#define SHUNTER_LABEL_HELLO "shunter x64 v2 hello"
#define SHUNTER_LABEL_HELLO_ACK "shunter x64 v2 hello ack"
#define SHUNTER_LABEL_TAG_TO_SERVER "shunter x64 v2 tag to server"
#define SHUNTER_LABEL_TAG_TO_CLIENT "shunter x64 v2 tag to client"
#define SHUNTER_LABEL_PAYLOAD_TO_SERVER "shunter x64 v2 payload to server"
#define SHUNTER_LABEL_PAYLOAD_TO_CLIENT "shunter x64 v2 payload to client"

struct shunter_x64 {
    uint16_t magic; /* WIRE_MAGIC */
    uint8_t version; /* WIRE_VERSION */
    uint8_t type; /* one of TYPE_... */
    uint16_t flags; /* bits of FLAG_... */
    uint8_t words; /* length of the header in 8-byte words: 8 */
    uint8_t priority; /* of a REQ: 0 its model's class, else 1 + class index */
    uint64_t req_id; /* 1, 2, 3, ... in each session */
    uint16_t func_id; /* function, from HELLO_ACK */
    uint16_t seq; /* segment index */
    uint16_t count; /* segments of the request or response */
    uint16_t length; /* payload bytes of this datagram, without the AEAD tag */
    uint32_t total; /* bytes of the tensor, or of the run of a packed model */
    uint32_t offset; /* of this segment in its tensor, or of a request in shared memory */
    uint32_t session; /* from HELLO_ACK; selects key, window and, by its high byte, a socket */
    uint32_t deadline_us; /* budget left when it was sent, 0: none */
    uint32_t credit; /* server: highest req_id that may be sent; client: all below are done */
    uint16_t status; /* of RESP, ERROR, SACK and HELLO_ACK; a packed model's REQ: rows */
    uint8_t tensor; /* index of the input or output tensor */
    uint8_t reserved; /* 0 */
    uint32_t crc; /* CRC32C of the payload if FLAG_PAYLOAD_CRC */
    uint32_t pkt_no; /* of each session and direction, never repeated */
    uint64_t tag; /* SipHash-2-4 of the bytes before if FLAG_HDR_TAG, else 0 */
};
_Static_assert(sizeof(struct shunter_x64) == 64, "shunter_x64");
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

struct shunter_wire_hello {
    uint8_t nonce[16]; /* random, of this try to open a session */
    uint8_t cookie[16]; /* what the server gave, 0 at first */
    uint32_t segment; /* largest payload of a datagram that the client's path takes */
    uint16_t window; /* requests that it would like to have on their way */
    uint16_t want; /* FLAG_PAYLOAD_CRC, FLAG_PAYLOAD_AEAD or WANT_SHARED_MEMORY, or 0 */
    uint8_t key_id[32]; /* UTF-8, which key; empty: none */
    uint8_t public[32]; /* X25519 public key with FLAG_PAYLOAD_AEAD, else 0 */
    uint8_t model[128]; /* UTF-8 */
    uint8_t version[64]; /* UTF-8; empty: the default one */
    uint8_t mac[32]; /* over all that is before it, with the header; 0 without a key */
};
_Static_assert(sizeof(struct shunter_wire_hello) == 328, "shunter_wire_hello");
_Static_assert(offsetof(struct shunter_wire_hello, nonce) == 0, "nonce");
_Static_assert(offsetof(struct shunter_wire_hello, cookie) == 16, "cookie");
_Static_assert(offsetof(struct shunter_wire_hello, segment) == 32, "segment");
_Static_assert(offsetof(struct shunter_wire_hello, window) == 36, "window");
_Static_assert(offsetof(struct shunter_wire_hello, want) == 38, "want");
_Static_assert(offsetof(struct shunter_wire_hello, key_id) == 40, "key_id");
_Static_assert(offsetof(struct shunter_wire_hello, public) == 72, "public");
_Static_assert(offsetof(struct shunter_wire_hello, model) == 104, "model");
_Static_assert(offsetof(struct shunter_wire_hello, version) == 232, "version");
_Static_assert(offsetof(struct shunter_wire_hello, mac) == 296, "mac");

struct shunter_wire_cookie {
    uint8_t nonce[16]; /* of the HELLO */
    uint8_t cookie[16]; /* for the next HELLO */
};
_Static_assert(sizeof(struct shunter_wire_cookie) == 32, "shunter_wire_cookie");
_Static_assert(offsetof(struct shunter_wire_cookie, nonce) == 0, "nonce");
_Static_assert(offsetof(struct shunter_wire_cookie, cookie) == 16, "cookie");

struct shunter_wire_opened {
    uint8_t client_nonce[16]; /* of the HELLO */
    uint8_t server_nonce[16]; /* random, of this session */
    uint32_t segment; /* largest payload of a REQ or RESP, without its AEAD tag */
    uint16_t window; /* most requests that are not acknowledged */
    uint16_t protect; /* FLAG_PAYLOAD_CRC, FLAG_PAYLOAD_AEAD or 0: what payloads carry */
    uint16_t rights; /* bits of RIGHT_... */
    uint16_t reserved[3]; /* 0 */
    uint8_t public[32]; /* X25519 public key with FLAG_PAYLOAD_AEAD, else 0 */
};
_Static_assert(sizeof(struct shunter_wire_opened) == 80, "shunter_wire_opened");
_Static_assert(offsetof(struct shunter_wire_opened, client_nonce) == 0, "client_nonce");
_Static_assert(offsetof(struct shunter_wire_opened, server_nonce) == 16, "server_nonce");
_Static_assert(offsetof(struct shunter_wire_opened, segment) == 32, "segment");
_Static_assert(offsetof(struct shunter_wire_opened, window) == 36, "window");
_Static_assert(offsetof(struct shunter_wire_opened, protect) == 38, "protect");
_Static_assert(offsetof(struct shunter_wire_opened, rights) == 40, "rights");
_Static_assert(offsetof(struct shunter_wire_opened, reserved) == 42, "reserved");
_Static_assert(offsetof(struct shunter_wire_opened, public) == 48, "public");

#endif
