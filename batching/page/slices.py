"""Slices: the parts of one machine that work runs on, CPUs and parts of devices. Pure.

A set of slices is a whole number. CPU c is bit c; of device d the bits from
``CPU_SLICES + d * DEVICE_SLICES`` on are its memory slices. A whole GPU is all of its bits, so that
it overlaps with each of its MIG instances; two instances never do.

What is beyond the last bit stands for everything of its kind: no two parts ever share a bit
because there are too many, but a CPU or a device beyond the last overlaps with all of them. Its
best-effort work stands still more often than it must, and never less.

Shared memory holds a set as ``SLICE_WORDS`` signed 8-byte words, the lowest bits first.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from shunter.batching.page.layout import CPU_SLICES, DEVICE_COUNT, DEVICE_SLICES, SLICE_WORDS

SliceSet: TypeAlias = int
ALL_CPUS: SliceSet = (1 << CPU_SLICES) - 1
EVERY: SliceSet = (1 << 64 * SLICE_WORDS) - 1
ALL_DEVICES: SliceSet = EVERY & ~ALL_CPUS
_WORD = (1 << 64) - 1


@dataclass(frozen=True)
class Slice:
    """Where an instance runs."""

    cpus: SliceSet = 0
    """0: wherever the model's others do."""
    device: str = ""
    """Its one name, or that of the part of one; empty: none."""


def of_cpus(cpus: Iterable[int]) -> SliceSet:
    """The slices of these CPUs; of all, if one of them has no bit.

    >>> bin(of_cpus([0, 1, 3]))
    '0b1011'
    >>> of_cpus([1, 512]) == ALL_CPUS
    True
    """
    found = 0
    for cpu in cpus:
        found |= 1 << cpu if 0 <= cpu < CPU_SLICES else ALL_CPUS
    return found


def of_device(device: int, start: int = 0, size: int = DEVICE_SLICES) -> SliceSet:
    """``size`` slices of a device from ``start`` on; what has no bit stands for all of its kind.

    >>> hex(of_device(0, 4, 4) >> CPU_SLICES), hex(of_device(1) >> CPU_SLICES)
    ('0xf0', '0xff00')
    """
    if not 0 <= device < DEVICE_COUNT:
        return ALL_DEVICES
    if start < 0 or size < 1 or start + size > DEVICE_SLICES:
        start, size = 0, DEVICE_SLICES
    return ((1 << size) - 1) << CPU_SLICES + device * DEVICE_SLICES + start


def bits(slices: SliceSet) -> Iterator[int]:
    """The numbers of its slices, in rising order.

    >>> list(bits(0b1011))
    [0, 1, 3]
    """
    while slices:
        lowest = slices & -slices
        yield lowest.bit_length() - 1
        slices ^= lowest


def has_device(slices: SliceSet) -> bool:
    """Whether there is a part of a device among them."""
    return slices & ALL_DEVICES != 0


def read_slices(words: memoryview, at: int) -> SliceSet:
    """The set at index ``at`` of shared words.

    Each slice is as it was at some moment of the call, not all of them at the same one.
    """
    return int.from_bytes(words[at : at + SLICE_WORDS].tobytes(), "little")


def words_of(mask: int, count: int = SLICE_WORDS) -> list[int]:
    """A mask as signed words: bit 63 of a word is its sign in Python and Java.

    >>> words_of(1 << 63 | 1 << 64, 2)
    [-9223372036854775808, 1]
    """
    return memoryview(mask.to_bytes(8 * count, "little")).cast("q").tolist()


def mask_of(words: Sequence[int], at: int, count: int) -> int:
    """The mask in ``count`` signed words from index ``at``, the lowest bits first."""
    return sum((words[at + i] & _WORD) << 64 * i for i in range(count))
