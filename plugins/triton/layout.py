"""What the host and the backend in the server say to each other, byte by byte. Pure.

Messages over a Unix socket of whole messages (SOCK_SEQPACKET). Each begins with its kind; the
backend answers each with a ``reply``. Whole words, so that nothing lies between fields; text ends
with a zero.
What is emitted to C comes from here: ``python -m shunter.plugins.triton.emit``.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from shunter.batching.page.layout import SIZE_BUCKETS, SLICE_WORDS, SLOT_FIELDS, Claims
from shunter.batching.queue.layout import MAX_TENSORS

MAGIC = int.from_bytes(b"SHUNTERT", "little")
VERSION = 1
PAGE_PARAMETER = "SHUNTER_PAGE"
"""Of the configuration of an existing model: the path of its ``strategy`` page."""
MOST_DIMS = 8
TENSORS = 2 * MAX_TENSORS
TELEMETRY_WORDS = (
    SLOT_FIELDS["network_batch_requests"].offset - SLOT_FIELDS["network_arrivals"].offset
) // 8 + 1
"""``struct shunter_telemetry``: so many words of a slot, in its order."""
STREAM_PLACES = 3
"""Entries of a request, beside its own, for the next parts of its answer: one is written, one is
on its way, and one is between them."""


CLAIMS_UNREAD = 1 + max(Claims)
"""Beside ``CLAIMS_...`` of the page: the settings may forbid something, and are not read yet."""


class Kind(IntEnum):
    """Of a message of the host."""

    HELLO = 1
    FUNCTION = 2
    WORKER = 3
    DRAIN = 4
    POLICY = 5
    LIST = 6
    PAGE = 7
    """With a descriptor: a control page, on which strict requests hold."""
    EXPECT = 8


class Said(IntEnum):
    """What the backend answers."""

    DONE = 0
    NO_FUNCTION = 1
    OTHER_TENSORS = 2
    NO_ROOM = 3
    WRONG = 4
    NO_WORKER = 5


@dataclass(frozen=True)
class ControlField:
    """A field of a message."""

    name: str
    meaning: str
    kind: str = "Q"
    """``Q``, ``q`` or ``d``: words of struct; ``s``: text."""
    count: int = 1
    """Words in a row, or bytes of a text."""


_WHICH = (
    ControlField("kind", "KIND_..."),
    ControlField("model", "its name", "s", 256),
    ControlField("version", "of the model"),
)

STRUCTURES: Mapping[str, tuple[ControlField, ...]] = {
    "hello": (
        ControlField("kind", "KIND_HELLO"),
        ControlField("magic", "CONTROL_MAGIC"),
        ControlField("digest", "CONTROL_DIGEST of who says it"),
        ControlField("queue_digest", "LAYOUT_DIGEST of who says it"),
    ),
    "reply": (
        ControlField("said", "SAID_..."),
        ControlField("number", "index of the worker; functions that follow a list"),
        ControlField("pid", "of the server"),
    ),
    "function": (
        *_WHICH,
        ControlField("tensors_digest", "the same for all workers of a function"),
        ControlField("inputs", "tensors of a request"),
        ControlField("outputs", "tensors of an answer"),
        ControlField("entries", "of its queue"),
        ControlField("pieces", "most of an entry"),
        ControlField("landing_bytes", "that the pool can ever have"),
        ControlField("landing_blocks", "that it has"),
        ControlField("dtype", "of each tensor, as the server counts types", "Q", TENSORS),
        ControlField("dims", "of each tensor, without the batch", "Q", TENSORS),
        ControlField("shape", "of each tensor", "q", TENSORS * MOST_DIMS),
        ControlField("bytes", "of each tensor; packed: of an element, 0: a text", "Q", TENSORS),
        ControlField("names", "of each tensor, 64 bytes", "s", TENSORS * 64),
        ControlField("library", "for its workers", "s", 512),
        ControlField("packed", "1: requests and answers are runs of bytes"),
        ControlField("batched", "packed; 1: a request is a batch for its worker, too"),
        ControlField("request_bytes", "packed: most"),
        ControlField("answer_bytes", "packed: most"),
        ControlField("streamed", "packed; 1: an answer comes in parts, each such a run"),
        ControlField("optional", "packed: so many of the last inputs may be missing"),
    ),
    "worker": (
        *_WHICH,
        ControlField("tensors_digest", "see function"),
        ControlField("cap", "largest batch"),
        ControlField("timeout_ns", "a batch may run so long; 0: as long as it wants"),
        ControlField("class", "of requests that name none"),
        ControlField("slo_ns", "deadline of strict requests that have none; 0: none"),
        ControlField("client_timeout_ns", "latest deadline of all; 0: none"),
        ControlField("slot", "of the model on the control page, -1: none", "q"),
        ControlField("slices", "where its strict requests run", "q", SLICE_WORDS),
        ControlField("once", "1: a request whose worker died does not run again, unless it may"),
        ControlField("pool", "the process that it shares with other models, 0: it has its own"),
        ControlField("place", "where it runs, 0: that is not known", "q", SLICE_WORDS),
    ),
    "drain": (
        *_WHICH,
        ControlField("pid", "of the worker"),
    ),
    "expect": _WHICH,
    "policy": (
        *_WHICH,
        *(ControlField(name, "batching/c/policy.h", "d") for name in ("threshold", "alpha", "cap")),
        *(
            ControlField(name, "batching/c/policy.h")
            for name in (
                *("max_wait_ns", "margin_ns", "ageing_ns", "fixed_ns", "per_request_ns"),
                *("slo_ns", "ahead", "mixes", "admission"),
            )
        ),
        ControlField("capacity", "requests that may wait; 0: any number"),
        ControlField("generation", "of its workers: of others, nothing is known of latency"),
        ControlField("claims", "which requests may say that they are strict, CLAIMS_..."),
        ControlField("strict_key", "SHA-256 of the secret that such claims need", "q", 4),
    ),
    "list": (ControlField("kind", "KIND_LIST"),),
    "state": (
        ControlField("model", "its name", "s", 256),
        ControlField("version", "of the model"),
        ControlField("loaded", "by the server now: so many times"),
        ControlField("entries", "of its queue, 0: it has none yet"),
        ControlField("free", "of these"),
        ControlField("queued", "requests that wait"),
        ControlField("workers", "that are attached"),
        ControlField("pids", "of these", "Q", 64),
        ControlField("busy_ns", "how long each has run its oldest batch", "Q", 64),
        ControlField("batches", "given to workers"),
        ControlField("requests", "rows that came"),
        ControlField("answered", "of these"),
        ControlField("failed", "of these"),
        ControlField("expired", "of these"),
        ControlField("rejected", "of these"),
        ControlField("abandoned", "of these"),
        ControlField("waiting", "requests that wait, by class", "Q", 2),
        ControlField("oldest_ns", "when the oldest of these came, 0: none waits", "Q", 2),
        ControlField("running", "requests that workers have"),
        ControlField("running_batches", "of these"),
        ControlField("threshold", "requests that are worth a batch, now", "d"),
        ControlField("fixed_ns", "a batch of n takes fixed + n * per_request"),
        ControlField("per_request_ns", "see fixed_ns"),
        ControlField("error_ns", "mean of the errors of that"),
        ControlField("fitted", "batches that it was learnt from; 0: it is not known"),
        ControlField("telemetry", "as on the control page", "Q", TELEMETRY_WORDS),
        ControlField("service_ns", "of batches, by size", "Q", SIZE_BUCKETS),
        ControlField("strict_batches", "of strict requests, by size", "Q", SIZE_BUCKETS),
        ControlField("strict_batch_ns", "of these", "Q", SIZE_BUCKETS),
    ),
    "page": (ControlField("kind", "KIND_PAGE"),),
    # No message but a file, for the batches of a model of another backend: ``existing``.
    "strategy": (
        ControlField("magic", "CONTROL_MAGIC"),
        ControlField("digest", "CONTROL_DIGEST of who writes it"),
        ControlField("sequence", "odd while it is written"),
        ControlField("until_ns", "of CLOCK_MONOTONIC: the numbers hold so long"),
        ControlField("cap", "most rows of a batch, 0: as many as the server takes"),
        ControlField("apart", "1: strict and best-effort requests in different batches"),
        ControlField("class", "of requests that name none"),
        ControlField("slo_ns", "deadline of strict requests that have none, 0: none"),
        ControlField("fixed_ns", "a batch of n rows takes fixed + n * per_row; both 0: unknown"),
        ControlField("per_row_ns", "see fixed_ns"),
        ControlField("waited_ns", "how long a request has usually waited when it is asked about"),
    ),
}


def format_of(name: str) -> struct.Struct:
    """Of a message."""
    return struct.Struct("<" + "".join(f"{each.count}{each.kind}" for each in STRUCTURES[name]))


def pack(name: str, **values: Any) -> bytes:
    """A message; what is not named is zero. Raises ValueError for text that is too long."""
    parts: list[Any] = []
    for field in STRUCTURES[name]:
        value = values.pop(field.name, None)
        if field.kind == "s":
            text = (value or "").encode() if not isinstance(value, bytes) else value
            if len(text) >= field.count and not isinstance(value, bytes):
                raise ValueError(f"{field.name} {value!r}; at most {field.count - 1} bytes")
            parts.append(text)
        elif field.count == 1:
            parts.append(value or 0)
        else:
            row = list(value or ())
            parts += row + [0] * (field.count - len(row))
    if values:
        raise ValueError(f"{name} has no {', '.join(values)}")
    return format_of(name).pack(*parts)


def unpack(name: str, data: bytes) -> dict[str, Any]:
    """The inverse of :func:`pack`. Raises struct.error for another length."""
    words = iter(format_of(name).unpack(data))
    found: dict[str, Any] = {}
    for field in STRUCTURES[name]:
        if field.kind == "s":
            found[field.name] = next(words).split(b"\0")[0].decode("utf-8", "replace")
        elif field.count == 1:
            found[field.name] = next(words)
        else:
            found[field.name] = tuple(next(words) for _ in range(field.count))
    return found


def digest() -> int:
    """63 bits over all of it: another version's backend is not spoken to."""
    shapes = {
        name: [(each.name, each.kind, each.count) for each in fields]
        for name, fields in STRUCTURES.items()
    }
    text = repr((VERSION, shapes, list(Kind), list(Said)))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little") >> 1
