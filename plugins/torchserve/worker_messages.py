"""Messages to a model worker, in TorchServe's worker protocol."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from shunter.handlers.sample import Sample

_END = b"\xff" * 4


def load_message(name: str, folder: str, batch: int, handler: str) -> bytes:
    """Load a model for batches of at most ``batch``, on the CPU."""
    message = _field(name.encode()) + _field(folder.encode())
    message += struct.pack("!i", batch) + _field(handler.encode())
    return b"L" + message + struct.pack("!i", -1) + _field(b"") + b"\1"


def batch_message(samples: Sequence[Sample]) -> bytes:
    """Run one batch."""
    parts = [b"I"]
    for number, sample in enumerate(samples):
        parts += [_field(b"%036d" % number), _END, _field(b"body")]
        parts += [_field(sample.content_type.encode()), _field(sample.body), _END]
    return b"".join([*parts, _END])


def _field(data: bytes) -> bytes:
    return struct.pack("!i", len(data)) + data
