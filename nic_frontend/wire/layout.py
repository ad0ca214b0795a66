"""The bytes of a message on the wire: the X64 header, its types, flags and statuses. Pure.

X64 stands at the start of every datagram (or in front of every payload on a stream), 64 bytes,
little-endian, every field aligned to its width. It holds what the paper's header holds (SplitRPC
section 5.1: request, function, segment) and what a service on a real network needs besides:
version, lengths that can be checked, session, deadline, credit, and a keyed tag.
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass
from enum import IntEnum, IntFlag

from shunter.batching.queue import layout as queue_layout
from shunter.batching.queue.layout import EntryStatus

WIRE_MAGIC = 0x5253
WIRE_VERSION = 2
HEADER_BYTES = 64
TAG_OFFSET = 56
"""The tag covers the bytes before it."""
MAX_SEGMENTS = 2048
"""Segments of one request or response."""
LARGEST_SEGMENT = 15 * 4096
"""Bytes behind a header. Fits into a datagram, and lies in no more than 16 pages: what the kernel
takes at once when it sends the caller's pages themselves (c/client/page_send.c)."""
WINDOW = 64
"""Requests of one session that are not acknowledged; a power of two."""
SHARED_ALIGN = 64
"""A cache line."""
SACK_RECEIVING = 1
"""Status of a SACK: segments are missing. Any other: the server has the whole request."""


class MessageType(IntEnum):
    """What a datagram is."""

    REQ = 1
    RESP = 2
    SACK = 3
    """Of the server: bits of the segments of a request that are here."""
    CREDIT = 4
    """Of the server: so much may be sent. Its req_id is that of a refused request, which is to be
    sent again now; 0: there is none."""
    HELLO = 5
    HELLO_ACK = 6
    CANCEL = 7
    ERROR = 8
    ACK = 9
    QUERY = 10
    """Of the client: bits of the segments of an answer that are here, of which it gets the rest;
    with ACK_REQ it asks: who has no answer yet gets a SACK, or the error."""


OF_CLIENT = frozenset(
    (
        MessageType.REQ,
        MessageType.HELLO,
        MessageType.CANCEL,
        MessageType.ACK,
        MessageType.QUERY,
    )
)
"""No type is sent by both sides: what is reflected is dropped, with a key or without."""


class Flags(IntFlag):
    """Bits of the header's flags; all others must be 0."""

    LAST = 1
    """Of the segments; of an ACK: the client ends the session."""
    RETRANS = 2
    HDR_TAG = 4
    PAYLOAD_AEAD = 8
    PAYLOAD_CRC = 16
    ACK_REQ = 32
    """Of a REQ or ACK: say how it stands. Of a RESP: say that it is there, others want its room."""
    NEXT = 64
    """Of a REQ: it asks for a part of an answer, the one whose number ``total`` says; ``offset``
    holds the low bits of the req_id of the request that is answered so."""
    IDEMPOTENT = queue_layout.IDEMPOTENT


class WireStatus(IntEnum):
    """Status of a RESP or ERROR; the numbers are those of HTTP where it has one."""

    OK = EntryStatus.OK
    UNDER_WAY = 202
    """It is whole, and its answer comes in parts, for which its client asks."""
    END = 204
    """There is no such part: the answer had those before it."""
    NOT_YET = 102
    """Nothing can be said of this part so far: ask for it again, others need its place."""
    COOKIE = 100
    """To a HELLO: say it again, with this cookie."""
    BAD_REQUEST = EntryStatus.BAD_REQUEST
    UNAUTHORIZED = 401
    """To a HELLO: there is no such key, or its MAC is wrong."""
    FORBIDDEN = 403
    """To a HELLO: its key is not for this model."""
    UNKNOWN_FUNCTION = 404
    TOO_LARGE = 413
    """To a HELLO: the tensors need too many segments of this size. A stream takes them."""
    TOO_SLOW = 408
    """Of an answer in parts: its client took them so slowly that others would have waited."""
    WOULD_BE_LATE = 429
    """It has not run: admission is on, and its answer was predicted to miss its deadline."""
    CANCELLED = 499
    HANDLER_FAILED = EntryStatus.HANDLER_FAILED
    WORKER_DIED = 502
    RETRY_LATER = 503
    TOO_LATE = 504
    MUST_ENCRYPT = 426
    """To a HELLO: the server serves encrypted sessions only."""
    CANNOT_ENCRYPT = 501
    """To a HELLO: encryption is wanted, and the server has no key or no cipher."""
    UNKNOWN_SESSION = 410
    """There is no such session. It bears no tag, so all that it may cause is another HELLO."""
    LOST_ANSWER = 409
    """It ran, and its answer is no longer kept."""
    NO_WORKER = 521
    """It has not run, and there is nobody who could run it."""


class Rights(IntFlag):
    """What a session has, in HELLO_ACK."""

    STRICT = 1
    """Its requests may be strict; without this right all are best effort."""
    SHARED_MEMORY = 2
    """Memory for the inputs of as many requests as its window has: its descriptor comes with the
    message, and no input comes in any other way."""


WANT_SHARED_MEMORY = 1 << 15
"""Beside the protection that a HELLO wants."""


@dataclass(frozen=True)
class WireField:
    """One field. ``width`` in bytes: 1, 2, 4 or 8; ``count``: of an array of them."""

    name: str
    width: int
    meaning: str
    count: int = 1


X64 = (
    WireField("magic", 2, "WIRE_MAGIC"),
    WireField("version", 1, "WIRE_VERSION"),
    WireField("type", 1, "one of TYPE_..."),
    WireField("flags", 2, "bits of FLAG_..."),
    WireField("words", 1, "length of the header in 8-byte words: 8"),
    WireField("priority", 1, "of a REQ: 0 its model's class, else 1 + class index"),
    WireField("req_id", 8, "1, 2, 3, ... in each session"),
    WireField("func_id", 2, "function, from HELLO_ACK"),
    WireField("seq", 2, "segment index"),
    WireField("count", 2, "segments of the request or response"),
    WireField("length", 2, "payload bytes of this datagram, without the AEAD tag"),
    WireField("total", 4, "bytes of the tensor, or of the run of a packed model"),
    WireField("offset", 4, "of this segment in its tensor, or of a request in shared memory"),
    WireField("session", 4, "from HELLO_ACK; selects key, window and, by its high byte, a socket"),
    WireField("deadline_us", 4, "budget left when it was sent, 0: none"),
    WireField("credit", 4, "server: highest req_id that may be sent; client: all below are done"),
    WireField("status", 2, "of RESP, ERROR, SACK and HELLO_ACK; a packed model's REQ: rows"),
    WireField("tensor", 1, "index of the input or output tensor"),
    WireField("reserved", 1, "0"),
    WireField("crc", 4, "CRC32C of the payload if FLAG_PAYLOAD_CRC"),
    WireField("pkt_no", 4, "of each session and direction, never repeated"),
    WireField("tag", 8, "SipHash-2-4 of the bytes before if FLAG_HDR_TAG, else 0"),
)
"""``credit`` holds the low 32 bits of a req_id."""


HELLO = (
    WireField("nonce", 1, "random, of this try to open a session", 16),
    WireField("cookie", 1, "what the server gave, 0 at first", 16),
    WireField("segment", 4, "largest payload of a datagram that the client's path takes"),
    WireField("window", 2, "requests that it would like to have on their way"),
    WireField("want", 2, "FLAG_PAYLOAD_CRC, FLAG_PAYLOAD_AEAD or WANT_SHARED_MEMORY, or 0"),
    WireField("key_id", 1, "UTF-8, which key; empty: none", 32),
    WireField("public", 1, "X25519 public key with FLAG_PAYLOAD_AEAD, else 0", 32),
    WireField("model", 1, "UTF-8", 128),
    WireField("version", 1, "UTF-8; empty: the default one", 64),
    WireField("mac", 1, "over all that is before it, with the header; 0 without a key", 32),
)
"""Payload of HELLO. Names are padded with zeros."""

COOKIE = (
    WireField("nonce", 1, "of the HELLO", 16),
    WireField("cookie", 1, "for the next HELLO", 16),
)
"""Payload of a HELLO_ACK with STATUS_COOKIE."""

OPENED = (
    WireField("client_nonce", 1, "of the HELLO", 16),
    WireField("server_nonce", 1, "random, of this session", 16),
    WireField("segment", 4, "largest payload of a REQ or RESP, without its AEAD tag"),
    WireField("window", 2, "most requests that are not acknowledged"),
    WireField("protect", 2, "FLAG_PAYLOAD_CRC, FLAG_PAYLOAD_AEAD or 0: what payloads carry"),
    WireField("rights", 2, "bits of RIGHT_..."),
    WireField("reserved", 2, "0", 3),
    WireField("public", 1, "X25519 public key with FLAG_PAYLOAD_AEAD, else 0", 32),
)
"""Payload of a HELLO_ACK with STATUS_OK begins with it; then the tensors as JSON, then the MAC."""

MAC_BYTES = 32
LABELS = {
    "HELLO": b"shunter x64 v2 hello",
    "HELLO_ACK": b"shunter x64 v2 hello ack",
    "TAG_TO_SERVER": b"shunter x64 v2 tag to server",
    "TAG_TO_CLIENT": b"shunter x64 v2 tag to client",
    "PAYLOAD_TO_SERVER": b"shunter x64 v2 payload to server",
    "PAYLOAD_TO_CLIENT": b"shunter x64 v2 payload to client",
}
"""Of HKDF's expansion: see :mod:`shunter.nic_frontend.wire.keys`."""


def place_wire(fields: tuple[WireField, ...]) -> dict[str, tuple[int, WireField]]:
    """Offset of every field by name. Each lies on a multiple of its width."""
    placed, at = {}, 0
    for field in fields:
        assert at % field.width == 0, field.name
        placed[field.name] = (at, field)
        at += field.width * field.count
    return placed


def format_of(fields: tuple[WireField, ...]) -> str:
    """For :mod:`struct`; an array of bytes is one value."""
    return "<" + "".join(map(_code, fields))


def _code(field: WireField) -> str:
    if field.width == 1 and field.count > 1:
        return f"{field.count}s"
    return {1: "B", 2: "H", 4: "I", 8: "Q"}[field.width] * field.count


STRUCTURES = {"x64": X64, "wire_hello": HELLO, "wire_cookie": COOKIE, "wire_opened": OPENED}
"""In C with ``shunter_`` before their names."""
X64_FIELDS, HELLO_FIELDS = place_wire(X64), place_wire(HELLO)
X64_STRUCT = format_of(X64)
assert struct.calcsize(X64_STRUCT) == HEADER_BYTES


def constants() -> list[tuple[str, int, str]]:
    """Every constant emitted to C: name, value, meaning."""
    rows = [
        ("WIRE_MAGIC", WIRE_MAGIC, "first two bytes of a datagram"),
        ("WIRE_VERSION", WIRE_VERSION, "raised when X64 changes"),
        ("HEADER_BYTES", HEADER_BYTES, "bytes of X64"),
        ("TAG_OFFSET", TAG_OFFSET, "the tag covers what is before it"),
        ("MAX_SEGMENTS", MAX_SEGMENTS, "of one request or response"),
        ("WINDOW", WINDOW, "requests of a session that are not acknowledged"),
        ("SACK_RECEIVING", SACK_RECEIVING, "status of a SACK: segments are missing"),
        ("MAC_BYTES", MAC_BYTES, "of HELLO, and of the HELLO_ACK that opens a session"),
        ("WANT_SHARED_MEMORY", WANT_SHARED_MEMORY, "in HELLO, by a Unix socket"),
        ("SHARED_ALIGN", SHARED_ALIGN, "a tensor in shared memory begins at a multiple of it"),
    ]
    rows += [(f"RIGHT_{r.name}", r.value, "right") for r in Rights]
    rows += [(f"TYPE_{t.name}", t.value, "message type") for t in MessageType]
    rows += [(f"FLAG_{f.name}", f.value, "flag") for f in Flags]
    return rows + [(f"STATUS_{s.name}", s.value, "status") for s in WireStatus]


def digest() -> int:
    """63 bits over all of it: a library of other bytes than these is not used."""
    formats = [format_of(fields) for fields in STRUCTURES.values()]
    content = repr((constants(), formats, LABELS)).encode()
    return int.from_bytes(hashlib.sha256(content).digest()[:8], "little") >> 1
