"""How a file of weights is laid out: safetensors, with every tensor at an aligned address. Pure.

Eight bytes with the length of the header, the header in JSON, the data. A file of ours may be read
by whatever reads that format: what fills the gaps are tensors of bytes, which the format wants, and
the header is filled with spaces up to a page.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

ALIGN = 64
"""Of each tensor, in bytes."""
PAGE = 4096
_MOST_HEADER = 100_000_000
"""Bytes, as the format says."""
_LENGTH = 8
_GAP = ".gap."

SIZES = {
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2"), 1),
    **dict.fromkeys(("I16", "U16", "F16", "BF16"), 2),
    **dict.fromkeys(("I32", "U32", "F32"), 4),
    **dict.fromkeys(("I64", "U64", "F64", "C64"), 8),
}
"""Type, as the format calls it -> bytes of a number."""


class LayoutError(ValueError):
    """Bytes that are no file of weights; the message says what is wrong."""


@dataclass(frozen=True)
class Record:
    """A tensor of a file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    begin: int
    """Offset of its first byte in the data."""

    @property
    def bytes(self) -> int:
        """Of its numbers."""
        return prod(self.shape) * SIZES[self.dtype]

    @property
    def end(self) -> int:
        """Offset behind its last byte."""
        return self.begin + self.bytes


def placed(tensors: Sequence[tuple[str, str, tuple[int, ...]]]) -> tuple[Record, ...]:
    """Names, types and shapes as records, in this order."""
    found: list[Record] = []
    end = 0
    for name, dtype, shape in tensors:
        begin = -(-end // ALIGN) * ALIGN
        found.append(Record(name, dtype, shape, begin))
        end = found[-1].end
    return tuple(found)


def _with_gaps(records: Sequence[Record]) -> Iterator[Record]:
    end = 0
    for number, record in enumerate(records):
        if record.begin > end:
            yield Record(f"{_GAP}{number}", "U8", (record.begin - end,), end)
        yield record
        end = record.end


def header(records: Sequence[Record], said: Mapping[str, str]) -> bytes:
    """All that stands before the data. ``said``: texts about the file."""
    content: dict[str, Any] = {"__metadata__": dict(said)}
    for each in _with_gaps(records):
        offsets = [each.begin, each.end]
        content[each.name] = {"dtype": each.dtype, "shape": each.shape, "data_offsets": offsets}
    text = json.dumps(content, separators=(",", ":")).encode()
    length = -(-(_LENGTH + len(text)) // PAGE) * PAGE - _LENGTH
    return length.to_bytes(_LENGTH, "little") + text.ljust(length)


def header_bytes(start: bytes) -> int:
    """Bytes before the data, from the first eight of a file. Raises LayoutError."""
    if len(start) < _LENGTH:
        raise LayoutError("it is shorter than the length of its header")
    length = int.from_bytes(start[:_LENGTH], "little")
    if not 2 <= length <= _MOST_HEADER:
        raise LayoutError(f"a header of {length} bytes")
    return _LENGTH + length


def parsed(head: bytes, size: int) -> tuple[tuple[Record, ...], dict[str, str]]:
    """Records and texts of a file of ``size`` bytes that begins with ``head``.

    Raises LayoutError: it is cut, has tensors that overlap or are not aligned, or is no such file.
    """
    try:
        content = json.loads(head[_LENGTH:])
        said = content.pop("__metadata__", {})
        records = [
            Record(
                str(name), str(each["dtype"]), tuple(map(int, each["shape"])),
                int(each["data_offsets"][0]),
            )
            for name, each in content.items()
        ]  # fmt: skip
        ends = [int(each["data_offsets"][1]) for each in content.values()]
        if any(record.end != end for record, end in zip(records, ends, strict=True)):
            raise LayoutError("a tensor has another size than its type and shape say")
    except (KeyError, TypeError, AttributeError, IndexError, ValueError) as error:
        raise LayoutError(f"its header cannot be read: {error!r}") from error
    _check(records, size - len(head))
    return tuple(each for each in records if not each.name.startswith(_GAP)), said


def _check(records: Sequence[Record], size: int) -> None:
    end = 0
    for each in sorted(records, key=lambda each: (each.begin, each.end)):
        if min(each.shape, default=0) < 0 or each.begin != end:
            raise LayoutError(f"{each.name!r} is not where the tensor before it ends")
        if not each.name.startswith(_GAP) and each.begin % ALIGN:
            raise LayoutError(f"{each.name!r} is not at a multiple of {ALIGN} bytes")
        end = each.end
    if end != size:
        raise LayoutError(f"it has {size} bytes of data, its header says {end}")
