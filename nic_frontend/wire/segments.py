"""How the tensors of a request or response are cut into segments (SplitRPC section 5.1). Pure.

Sizes are fixed by the registration and the segment size by the session, so a segment's number says
which bytes it holds. A header that says otherwise is wrong, whatever else it says.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import NamedTuple

from shunter.batching.queue.layout import MAX_TENSORS
from shunter.nic_frontend.wire.layout import MAX_SEGMENTS, SHARED_ALIGN


class TooLarge(ValueError):
    """The tensors need more segments than there may be; the message names both."""


class Segment(NamedTuple):
    """Bytes ``offset`` to ``offset + length`` of tensor ``tensor``."""

    tensor: int
    offset: int
    length: int


@dataclass(frozen=True)
class SegmentPlan:
    """Tensors of ``sizes`` bytes in segments of at most ``segment`` bytes.

    No segment holds parts of two tensors. A tensor of 0 bytes has none, but there is always at
    least one segment. Raises TooLarge when there are too many, ValueError for what is no plan.
    """

    sizes: tuple[int, ...]
    segment: int

    def __post_init__(self) -> None:
        """Check the sizes."""
        if not 1 <= len(self.sizes) <= MAX_TENSORS or min(self.sizes) < 0 or self.segment < 1:
            raise ValueError(f"no segments for tensors of {self.sizes} bytes at {self.segment}")
        if self.count > MAX_SEGMENTS:
            raise TooLarge(
                f"{sum(self.sizes)} bytes are {self.count} segments of {self.segment} bytes, "
                f"at most {MAX_SEGMENTS}"
            )

    @cached_property
    def _firsts(self) -> Sequence[int]:
        """Number of each tensor's first segment, and of what would follow the last."""
        return [0, *accumulate(-(-size // self.segment) for size in self.sizes)]

    @cached_property
    def count(self) -> int:
        """Segments of the whole."""
        return max(1, self._firsts[-1])

    def place(self, number: int) -> Segment:
        """The segment with this number, 0 <= number < count.

        >>> SegmentPlan((10, 4), 8).place(1), SegmentPlan((10, 4), 8).place(2)
        (Segment(tensor=0, offset=8, length=2), Segment(tensor=1, offset=0, length=4))
        """
        if not 0 <= number < self.count:
            raise IndexError(f"segment {number} of {self.count}")
        if self._firsts[-1] == 0:
            return Segment(0, 0, 0)
        tensor = bisect_right(self._firsts, number, 0, len(self.sizes)) - 1
        offset = (number - self._firsts[tensor]) * self.segment
        return Segment(tensor, offset, min(self.segment, self.sizes[tensor] - offset))


def shared_places(sizes: Sequence[int]) -> tuple[list[int], int]:
    """Where tensors lie in shared memory, one behind the other, and the bytes of all of them.

    Each begins a cache line.

    >>> shared_places((10, 64, 0, 4))
    ([0, 64, 128, 128], 192)
    """
    lengths = [-(-size // SHARED_ALIGN) * SHARED_ALIGN for size in sizes]
    *places, end = accumulate(lengths, initial=0)
    return places, end
