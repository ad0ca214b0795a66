"""The bytes of a message on the wire: the X64 header, its types, flags and statuses. Pure.

X64 stands at the start of every datagram (or in front of every payload on a stream), 64 bytes,
little-endian, every field aligned to its width. It holds what the paper's header holds (SplitRPC
section 5.1: request, function, segment) and what a service on a real network needs besides:
version, lengths that can be checked, session, deadline, credit, and a keyed tag.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from enum import IntEnum, IntFlag

from shunter.batching.queue import layout as queue_layout
from shunter.batching.queue.layout import EntryStatus

WIRE_MAGIC = 0x5253
WIRE_VERSION = 1
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
SACK_RECEIVING = 1
"""Status of a SACK: segments are missing. Any other: the server has the whole request."""


class MessageType(IntEnum):
    """What a datagram is."""

    REQ = 1
    RESP = 2
    SACK = 3
    """Bits of the segments that are here. A client's is about an answer, of which it gets the rest;
    with ACK_REQ it asks: who has no answer yet says which segments of the request are here."""
    CREDIT = 4
    """Of the server: so much may be sent. Its req_id is that of a refused request, which is to be
    sent again now; 0: there is none."""
    HELLO = 5
    HELLO_ACK = 6
    CANCEL = 7
    ERROR = 8
    ACK = 9


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
    IDEMPOTENT = queue_layout.IDEMPOTENT


class WireStatus(IntEnum):
    """Status of a RESP or ERROR; the numbers are those of HTTP where it has one."""

    OK = EntryStatus.OK
    BAD_REQUEST = 400
    UNKNOWN_FUNCTION = 404
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


@dataclass(frozen=True)
class WireField:
    """One field of X64. ``width`` in bytes: 1, 2, 4 or 8."""

    name: str
    width: int
    meaning: str


X64 = (
    WireField("magic", 2, "WIRE_MAGIC"),
    WireField("version", 1, "WIRE_VERSION"),
    WireField("type", 1, "one of TYPE_..."),
    WireField("flags", 2, "bits of FLAG_..."),
    WireField("words", 1, "length of the header in 8-byte words: 8"),
    WireField("priority", 1, "of a REQ: 0 its model's class, else 1 + class index"),
    WireField("req_id", 8, "1, 2, 3, ... in each session"),
    WireField("func_id", 2, "function, from HELLO_ACK; its low byte may steer to a socket"),
    WireField("seq", 2, "segment index"),
    WireField("count", 2, "segments of the request or response"),
    WireField("length", 2, "payload bytes of this datagram, without the AEAD tag"),
    WireField("total", 4, "bytes of the tensor"),
    WireField("offset", 4, "of this segment in its tensor"),
    WireField("session", 4, "from HELLO_ACK; selects key and window"),
    WireField("deadline_us", 4, "budget left when it was sent, 0: none"),
    WireField("credit", 4, "server: highest req_id that may be sent; client: all below are done"),
    WireField("status", 2, "of RESP and ERROR"),
    WireField("tensor", 1, "index of the input or output tensor"),
    WireField("reserved", 1, "0"),
    WireField("crc", 4, "CRC32C of the payload if FLAG_PAYLOAD_CRC"),
    WireField("pkt_no", 4, "of each session and direction, never repeated"),
    WireField("tag", 8, "SipHash-2-4 of the bytes before if FLAG_HDR_TAG, else 0"),
)
"""``credit`` holds the low 32 bits of a req_id."""


def place_wire(fields: tuple[WireField, ...]) -> dict[str, tuple[int, WireField]]:
    """Offset of every field by name. Each lies on a multiple of its width."""
    placed, at = {}, 0
    for field in fields:
        assert at % field.width == 0, field.name
        placed[field.name] = (at, field)
        at += field.width
    assert at == HEADER_BYTES
    return placed


X64_FIELDS = place_wire(X64)
X64_STRUCT = "<" + "".join({1: "B", 2: "H", 4: "I", 8: "Q"}[field.width] for field in X64)
"""For :mod:`struct`."""


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
    ]
    rows += [(f"TYPE_{t.name}", t.value, "message type") for t in MessageType]
    rows += [(f"FLAG_{f.name}", f.value, "flag") for f in Flags]
    return rows + [(f"STATUS_{s.name}", s.value, "status") for s in WireStatus]


def digest() -> int:
    """63 bits over all of it: a library of other bytes than these is not used."""
    content = repr((constants(), X64_STRUCT)).encode()
    return int.from_bytes(hashlib.sha256(content).digest()[:8], "little") >> 1


def c_struct() -> list[str]:
    """X64 as a C structure, its offsets asserted."""
    lines = ["struct shunter_x64 {"]
    lines += [f"    uint{8 * f.width}_t {f.name}; /* {f.meaning} */" for f in X64]
    lines += ["};", f"_Static_assert(sizeof(struct shunter_x64) == {HEADER_BYTES}, \"X64\");"]
    lines += [
        f"_Static_assert(offsetof(struct shunter_x64, {name}) == {at}, \"{name}\");"
        for name, (at, _) in X64_FIELDS.items()
    ]
    return lines
