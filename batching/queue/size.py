"""How many entries a tensor queue has, and what is too much."""

from __future__ import annotations

from collections.abc import Sequence

from shunter.batching.queue.layout import MAX_ENTRIES
from shunter.batching.queue.tensor_spec import TensorSpec

USUAL_ENTRIES, USUAL_BYTES = 1024, 64 << 20
"""A queue is not larger than either without need."""


class QueueError(Exception):
    """The descriptors are not a queue that this program can use; the message says why."""


class QueueTooLargeError(QueueError):
    """The queue would take more memory than it may."""

    def __init__(self, message: str, needs_mb: int) -> None:
        """``needs_mb``: with so many megabytes it could be."""
        super().__init__(message)
        self.needs_mb = needs_mb


def entries_within(specs: Sequence[TensorSpec], batch: int, most_bytes: int) -> int:
    """How many entries a queue is to have whose tensors may take so many bytes together.

    Two batches, or more up to what is usual; fewer, though at least one batch, where that is too
    much. Raises QueueTooLargeError, which says what is needed, when even one batch is too much.
    """
    each = sum(spec.bytes for spec in specs)
    if batch > MAX_ENTRIES:
        raise QueueError(f"batches of {batch}; at most {MAX_ENTRIES}")
    if batch * each > most_bytes:
        needs_mb = -(-batch * each >> 20)
        raise QueueTooLargeError(
            f"{batch} entries of {each} bytes need {needs_mb} MB; "
            f"queue_mb allows {most_bytes >> 20}",
            needs_mb,
        )
    room = min(MAX_ENTRIES, most_bytes // each) if each else MAX_ENTRIES
    return min(room, max(2 * batch, min(USUAL_ENTRIES, USUAL_BYTES // max(1, each))))
