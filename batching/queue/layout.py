"""The bytes of a tensor queue's page, beside its pieces and the rings of its results.

The rules are those of :mod:`shunter.batching.page.layout`; what is emitted to C comes from here
too. One page per function, in a sealed memfd::

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

A queue is *packed* when its requests choose their tensors' sizes (:mod:`shunter.batching.queue.
packed`): its one input, and its one result, are runs of bytes up to a size.

Where the input of an entry lies, its *pieces* say, which only the front end writes: up to
``queue_pieces`` of them for an entry, each a part of a region of shared memory. One behind the
other they are the bytes of the tensors, one tensor behind the other. Region 0 is the pool in which
payloads land (:mod:`shunter.batching.queue.landing`).
"""

from __future__ import annotations

import hashlib
import struct
from enum import IntEnum

from shunter.batching.page.fields import Field, Section, place

MAX_TENSORS = 64
"""Input tensors of a function, and output tensors."""
WORKER_COUNT = 64
"""Workers of one function."""
MAX_ENTRIES = 4096
AHEAD = 2
"""Batches that a worker may hold: the one that runs and the next."""
PARTS_AHEAD = 8
"""Places that a worker has at most for the next parts of an answer."""
IDEMPOTENT = 128
"""Bit of an entry's flags, as on the wire: the request may run twice."""


class EntryStatus(IntEnum):
    """What a worker says of a request; the numbers are those of HTTP."""

    OK = 200
    BAD_REQUEST = 400
    """It is not what the model takes; others of its batch have run."""
    HANDLER_FAILED = 500
    SAYS = 1000
    """From here on: it failed with that many less, as over HTTP, and the answer, whose first output
    is then a text, says why."""


QUEUE_MAGIC = int.from_bytes(b"SHUNTERQ", "little")
QUEUE_VERSION = 6
PIECE = struct.Struct("<QII")
"""Of an input: offset in its region, bytes (0: it is not there), region."""
BLOCK = 1 << 16
"""Bytes of a block of the pool in which payloads land."""

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
            Field("queue_pieces", "most pieces of the input of an entry"),
            Field("queue_packed", "1: inputs and results are runs of any length up to these"),
        ),
    ),
    Section(
        "front_end",
        (
            Field("front_end_pid", "process that owns the queue"),
            Field("front_end_asleep", "1: it waits for its doorbell"),
            Field("front_end_wants_done", "1: ring it when a batch is done"),
            Field("front_end_since_ns", "since when the first request waits for a worker; 0: none"),
        ),
    ),
)

WORKER = (
    Section(
        "mailbox",
        (
            Field("batch_number", "batches given so far; written last"),
            Field("batch_first", "first entry, of batch n in place n % AHEAD", count=AHEAD),
            Field("batch_count", "entries of it, each names the next; BATCH_TAKEN", count=AHEAD),
        ),
    ),
    Section(
        "answers",
        (
            Field("done_number", "batches answered so far; written last"),
            Field("worker_asleep", "1: it waits for its doorbell"),
            Field("done_ns", "when batch n was done, in place n % AHEAD", count=AHEAD),
            Field("worker_gathered", "bytes of inputs that it has copied so far"),
            Field("worker_taken", "batches taken so far: those not done may have run in part"),
            Field("worker_early", "how often it has answered a part of a batch; written last"),
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
            Field("entry_direct", "not 0: the worker sends the answer; if packed, so many bytes"),
            Field("entry_key", "of the session, for the tag", width=16),
            Field("entry_peer", "socket address, and the local one that was asked", width=64),
            Field("entry_next", "the next entry of the batch"),
            Field("entry_pieces", "pieces of its input"),
            Field("entry_bytes", "of its input where the queue is packed"),
            Field("entry_rows", "of its request, from the dispatcher; 1 unless it is a batch"),
            Field("entry_places", "entries for parts, n in place n % PARTS_AHEAD", PARTS_AHEAD),
            Field("entry_given", "places given so far; written last"),
            Field("entry_unwanted", "1: nobody waits for it any more"),
        ),
    ),
    Section(
        "answer",
        (
            Field("entry_status", "0: none yet; one of STATUS_..."),
            Field("entry_result_bytes", "of its result where the queue is packed"),
            Field("entry_parts", "parts in their places; the highest bit: no more follow"),
            Field("entry_early_ns", "when it was answered, if before its batch is done; else 0"),
        ),
    ),
)

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
        ("MAX_TENSORS", MAX_TENSORS, "inputs, and outputs, of a function"),
        ("WORKER_COUNT", WORKER_COUNT, "workers of a function"),
        ("MAX_ENTRIES", MAX_ENTRIES, "entries of a queue"),
        ("AHEAD", AHEAD, "batches that a worker may hold"),
        ("PARTS_AHEAD", PARTS_AHEAD, "places for the next parts of an answer"),
        ("BLOCK", BLOCK, "bytes of a block of the landing pool"),
        ("ENTRY_OK", int(EntryStatus.OK), "status of an entry: answered"),
        ("ENTRY_BAD", int(EntryStatus.BAD_REQUEST), "status of an entry: not the model's tensors"),
        ("ENTRY_FAILED", int(EntryStatus.HANDLER_FAILED), "status of an entry: the handler failed"),
        ("ENTRY_SAYS", int(EntryStatus.SAYS), "above: it failed with that many less, and says why"),
        ("QUEUE_MAGIC", QUEUE_MAGIC, "'SHUNTERQ', little-endian"),
        ("QUEUE_VERSION", QUEUE_VERSION, "raised when the queue page changes"),
        ("QUEUE_WORKERS_OFFSET", QUEUE_WORKERS_OFFSET, "offset of worker 0"),
        ("WORKER_SIZE", WORKER_SIZE, "bytes of one worker"),
        ("QUEUE_ENTRIES_OFFSET", QUEUE_ENTRIES_OFFSET, "offset of entry 0"),
        ("ENTRY_SIZE", ENTRY_SIZE, "bytes of one entry's record"),
    ]
    for prefix, fields in (("Q", QUEUE_FIELDS), ("W", WORKER_FIELDS), ("E", ENTRY_FIELDS)):
        for name, placed in fields.items():
            extent = f" [{placed.field.count}]" if placed.field.count > 1 else ""
            rows.append((f"{prefix}_{name.upper()}", placed.offset, placed.field.meaning + extent))
    return rows


def digest() -> int:
    """63 bits over all of it: a library of other bytes than these is not used."""
    return int.from_bytes(hashlib.sha256(repr(constants()).encode()).digest()[:8], "little") >> 1
