"""How many entries a tensor queue has, and what is too much."""

from __future__ import annotations

import math
from collections.abc import Sequence

from shunter.batching.queue.double_map import PAGE
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


def ring_entries(sizes: Sequence[int], wanted: int) -> int:
    """At least ``wanted`` entries so that the rings of all these sizes end on a page.

    Only then can a second mapping begin where the first ends. Raises QueueError when that needs
    more than MAX_ENTRIES.
    """
    step = _step(sizes)
    entries = -(-max(1, wanted) // step) * step
    if entries > MAX_ENTRIES:
        raise QueueError(
            f"rings of entries of {', '.join(map(str, sizes))} bytes have {entries} entries, at "
            f"most {MAX_ENTRIES}: make the tensors a multiple of a larger power of two"
        )
    return entries


def _step(sizes: Sequence[int]) -> int:
    """Entries of every ring are a multiple of this."""
    return math.lcm(*(PAGE // math.gcd(PAGE, size) for size in sizes if size))


def entries_within(
    inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], batch: int, most_bytes: int
) -> int:
    """How many entries a queue is to have whose tensors may take so many bytes together.

    Two batches, or more up to what is usual; fewer, though at least one batch, where that is too
    much. Raises QueueTooLargeError, which says what is needed, when even one batch is too much.
    """
    sizes = [spec.bytes for spec in outputs]
    each, step = sum(spec.bytes for spec in inputs) + sum(sizes), _step(sizes)
    least = ring_entries(sizes, batch)
    if least * each > most_bytes:
        worst = max(outputs, key=lambda spec: _step([spec.bytes]))
        why = f" ({worst.name}, {worst.bytes} bytes, must come in multiples of {step})"
        needs_mb = -(-least * each >> 20)
        raise QueueTooLargeError(
            f"{least} entries of {each} bytes{why if least > batch else ''} need "
            f"{needs_mb} MB; queue_mb allows {most_bytes >> 20}",
            needs_mb,
        )
    room = min(MAX_ENTRIES, most_bytes // each) if each else MAX_ENTRIES
    wanted = max(2 * batch, min(USUAL_ENTRIES, room, USUAL_BYTES // max(1, each)))
    return min(-(-wanted // step), room // step) * step
