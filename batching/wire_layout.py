"""The bytes of the split path: the X64 header on the wire, and the queue page beside the tensors.

The rules are those of :mod:`shunter.batching.layout`; what is emitted to C comes from here too.

X64 stands at the start of every datagram (or in front of every payload on a stream), 64 bytes,
little-endian, every field aligned to its width. It holds what the paper's header holds (SplitRPC
section 5.1: request, function, segment) and what a service on a real network needs besides:
version, lengths that can be checked, session, deadline, credit, and a keyed tag.

The queue page, one per function, in a sealed memfd beside the rings of its tensors::

    +------------------+  0
    | header           |  front end writes once
    | front end        |  front end: sleep and doorbell
    +------------------+  QUEUE_WORKERS_OFFSET
    | worker 0         |  mailbox (front end writes) | answers (worker writes)
    | ...              |
    +------------------+  QUEUE_WORKERS_OFFSET + WORKER_COUNT * WORKER_SIZE
    | entry 0          |  whom to answer (front end writes) | status (worker writes)
    | ...              |
    +------------------+  ... + entries * ENTRY_SIZE
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from enum import IntEnum, IntFlag

from shunter.batching.layout import Field, Section, place

WIRE_MAGIC = 0x5253
WIRE_VERSION = 1
HEADER_BYTES = 64
TAG_OFFSET = 56
"""The tag covers the bytes before it."""
MAX_TENSORS = 8
"""Input tensors of a function, and output tensors."""
MAX_SEGMENTS = 2048
"""Segments of one request or response."""
LARGEST_SEGMENT = 15 * 4096
"""Bytes behind a header. Fits into a datagram, and lies in no more than 16 pages: what the kernel
takes at once when it sends the caller's pages themselves (c/gift.c)."""
WINDOW = 64
"""Requests of one session that are not acknowledged; a power of two."""
WORKER_COUNT = 64
"""Workers of one function."""
MAX_ENTRIES = 4096
SACK_RECEIVING = 1
"""Status of a SACK: segments are missing. Any other: the server has the whole request."""
AHEAD = 2
"""Batches that a worker may hold: the one that runs and the next."""


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
    IDEMPOTENT = 128


class WireStatus(IntEnum):
    """Status of a RESP or ERROR; the numbers are those of HTTP where it has one."""

    OK = 200
    BAD_REQUEST = 400
    UNKNOWN_FUNCTION = 404
    CANCELLED = 499
    HANDLER_FAILED = 500
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

QUEUE_MAGIC = int.from_bytes(b"SHUNTERQ", "little")
QUEUE_VERSION = 1

QUEUE = (
    Section(
        "queue_header",
        (
            Field("queue_magic", "QUEUE_MAGIC; written last"),
            Field("queue_version", "QUEUE_VERSION"),
            Field("queue_bytes", "bytes of the whole page"),
            Field("queue_func", "func_id"),
            Field("queue_entries", "entries of every ring"),
            Field("queue_inputs", "input tensors"),
            Field("queue_outputs", "output tensors"),
            Field("queue_input_bytes", "of one entry, by tensor", count=MAX_TENSORS),
            Field("queue_output_bytes", "of one entry, by tensor", count=MAX_TENSORS),
        ),
    ),
    Section(
        "front_end",
        (
            Field("front_end_pid", "process that owns the queue"),
            Field("front_end_asleep", "1: it waits for its doorbell"),
            Field("front_end_wants_done", "1: ring it when a batch is done"),
            Field("front_end_arrivals", "requests that have become complete so far"),
        ),
    ),
)

WORKER = (
    Section(
        "mailbox",
        (
            Field("batch_number", "batches given so far; written last"),
            Field("batch_first", "first entry, of batch n in place n % AHEAD", count=AHEAD),
            Field("batch_count", "entries of it, which may pass the end of the ring", count=AHEAD),
        ),
    ),
    Section(
        "answers",
        (
            Field("done_number", "batches answered so far; written last"),
            Field("worker_asleep", "1: it waits for its doorbell"),
        ),
    ),
)

ENTRY = (
    Section(
        "whom",
        (
            Field("entry_req_id", "request"),
            Field("entry_session", "session"),
            Field("entry_flags", "HDR_TAG, ACK_REQ: of the answer; IDEMPOTENT: it may run twice"),
            Field("entry_segment", "largest payload of one datagram of the answer"),
            Field("entry_pkt_no", "of the answer's first datagram"),
            Field("entry_credit", "grant that the answer carries"),
            Field("entry_direct", "1: the worker sends the answer to entry_peer itself"),
            Field("entry_key", "of the session, for the tag", width=16),
            Field("entry_peer", "socket address", width=32),
            Field("entry_arrival", "number among arrivals while it waits, negative once given"),
        ),
    ),
    Section("answer", (Field("entry_status", "0: none yet; one of STATUS_..."),)),
)


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

QUEUE_FIELDS, QUEUE_WORKERS_OFFSET = place(QUEUE)
WORKER_FIELDS, WORKER_SIZE = place(WORKER)
ENTRY_FIELDS, ENTRY_SIZE = place(ENTRY)
QUEUE_ENTRIES_OFFSET = QUEUE_WORKERS_OFFSET + WORKER_COUNT * WORKER_SIZE


def queue_bytes(entries: int) -> int:
    """Bytes of the queue page for so many entries."""
    return QUEUE_ENTRIES_OFFSET + entries * ENTRY_SIZE


def constants() -> list[tuple[str, int, str]]:
    """Every constant emitted to C: name, value, meaning."""
    rows = [
        ("WIRE_MAGIC", WIRE_MAGIC, "first two bytes of a datagram"),
        ("WIRE_VERSION", WIRE_VERSION, "raised when X64 changes"),
        ("HEADER_BYTES", HEADER_BYTES, "bytes of X64"),
        ("TAG_OFFSET", TAG_OFFSET, "the tag covers what is before it"),
        ("MAX_TENSORS", MAX_TENSORS, "inputs, and outputs, of a function"),
        ("MAX_SEGMENTS", MAX_SEGMENTS, "of one request or response"),
        ("WINDOW", WINDOW, "requests of a session that are not acknowledged"),
        ("WORKER_COUNT", WORKER_COUNT, "workers of a function"),
        ("MAX_ENTRIES", MAX_ENTRIES, "entries of a queue"),
        ("SACK_RECEIVING", SACK_RECEIVING, "status of a SACK: segments are missing"),
        ("AHEAD", AHEAD, "batches that a worker may hold"),
        ("QUEUE_MAGIC", QUEUE_MAGIC, "'SHUNTERQ', little-endian"),
        ("QUEUE_VERSION", QUEUE_VERSION, "raised when the queue page changes"),
        ("QUEUE_WORKERS_OFFSET", QUEUE_WORKERS_OFFSET, "offset of worker 0"),
        ("WORKER_SIZE", WORKER_SIZE, "bytes of one worker"),
        ("QUEUE_ENTRIES_OFFSET", QUEUE_ENTRIES_OFFSET, "offset of entry 0"),
        ("ENTRY_SIZE", ENTRY_SIZE, "bytes of one entry's record"),
    ]
    rows += [(f"TYPE_{t.name}", t.value, "message type") for t in MessageType]
    rows += [(f"FLAG_{f.name}", f.value, "flag") for f in Flags]
    rows += [(f"STATUS_{s.name}", s.value, "status") for s in WireStatus]
    for prefix, fields in (("Q", QUEUE_FIELDS), ("W", WORKER_FIELDS), ("E", ENTRY_FIELDS)):
        for name, placed in fields.items():
            extent = f" [{placed.field.count}]" if placed.field.count > 1 else ""
            rows.append((f"{prefix}_{name.upper()}", placed.offset, placed.field.meaning + extent))
    return rows


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
