"""How what a handler returns becomes the answers of packed requests."""

from __future__ import annotations

import logging
import math
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from shunter.batching.queue.layout import EntryStatus
from shunter.batching.queue.native import Batch
from shunter.batching.queue.native_packed import PackedEnd
from shunter.batching.queue.packed import ALIGN
from shunter.batching.queue.tensor_spec import ANY, BYTES, TensorSpec
from shunter.handlers.device.torch_types import torch_type

logger = logging.getLogger("shunter.packed_queue")
_LENGTH = struct.Struct("<I")


@dataclass
class _Part:
    """One output of one request."""

    shape: tuple[int, ...]
    """Without the rows."""
    size: int
    address: int = 0
    """0: it is made of byte strings."""
    strings: list[bytes] = field(default_factory=list)


class PackedOutputs:
    """Puts answers where they are sent from."""

    def __init__(self, end: PackedEnd) -> None:
        """``end`` stays the caller's."""
        self._end = end
        self._table, self._specs = end.outputs, end.outputs.packing.specs
        self._room = end.answer_bytes

    def answer(
        self, batch: Batch, begin: int, requests: Sequence[int], rows: Sequence[int], found: Any
    ) -> list[int]:
        """Answer requests of a batch, counted from its ``begin``-th on, of which each has so many
        rows; a status for each. Raises ValueError, or TypeError, for what are no outputs.
        """
        sides = self.by_output(found)
        held: list[torch.Tensor] = []  # as long as it is copied from
        parts = [
            list(self._parts(spec, given, rows, held))
            for spec, given in zip(self._specs, sides, strict=True)
        ]
        count = max(requests, default=-1) + 1
        table = self._table.new(count)
        sources = np.zeros((count, len(self._specs)), np.int64)
        statuses = [
            self._place(table[request], sources[request], n, [p[i] for p in parts])
            for i, (request, n) in enumerate(zip(requests, rows, strict=True))
        ]
        self._end.put(batch, begin, table, sources)
        for i, (request, status) in enumerate(zip(requests, statuses, strict=True)):
            if status == EntryStatus.OK:
                self._write_strings(batch, begin + request, table[request], [p[i] for p in parts])
        return statuses

    def by_output(self, found: Any) -> Sequence[Any]:
        """What a handler gave, in the order of the outputs. Raises ValueError for what is none."""
        names = [spec.name for spec in self._specs]
        if isinstance(found, Mapping):
            if set(found) != set(names):
                raise ValueError(f"the handler gave {sorted(found)}; the model has {names}")
            return [found[name] for name in names]
        if len(names) == 1 and not isinstance(found, tuple):
            return [found]
        if not isinstance(found, list | tuple) or len(found) != len(names):
            raise ValueError(f"the handler gave no {len(names)} outputs, but {_what(found)}")
        return found

    def _parts(
        self, spec: TensorSpec, given: Any, rows: Sequence[int], held: list[torch.Tensor]
    ) -> Iterator[_Part]:
        """An output of all requests, one after the other."""
        if spec.dtype == BYTES:
            return _texts(spec, given, rows)
        if isinstance(given, torch.Tensor):
            return _cut(spec, given, rows, held)
        if not isinstance(given, list | tuple) or len(given) != len(rows):
            raise ValueError(
                f"{spec.name}: the handler gave {_what(given)}; a tensor, or a list of one for "
                f"each of {len(rows)} requests"
            )
        batched = self._table.packing.batched
        return (
            part
            for each, n in zip(given, rows, strict=True)
            for part in _cut(spec, each if batched else _tensor(spec, each)[None], [n], held)
        )

    def _place(self, row: Any, sources: Any, rows: int, parts: Sequence[_Part]) -> int:
        """Lay out one answer in a row of the table."""
        at = end = self._table.packing.header
        for t, part in enumerate(parts):
            row[self._table.offset(t)], row[self._table.bytes(t)] = at, part.size
            row[self._table.sizes(t)] = part.shape
            sources[t] = part.address
            end = at + part.size
            at = -(-end // ALIGN) * ALIGN
        if end > self._room:
            logger.error("An answer has %d bytes, and answer_bytes is %d.", end, self._room)
            return EntryStatus.HANDLER_FAILED
        row[0] = rows
        return EntryStatus.OK

    def _write_strings(
        self, batch: Batch, request: int, row: Any, parts: Sequence[_Part]
    ) -> None:
        for t, part in enumerate(parts):
            at, room = int(row[self._table.offset(t)]), self._end.room(batch, request)
            for content in part.strings:
                _LENGTH.pack_into(room, at, len(content))
                begin = at + _LENGTH.size
                at = begin + len(content)
                room[begin:at] = content


def _tensor(spec: TensorSpec, given: Any) -> torch.Tensor:
    if not isinstance(given, torch.Tensor):
        raise TypeError(f"{spec.name}: {_what(given)} where a tensor belongs")
    return given


def _cut(
    spec: TensorSpec, tensor: Any, rows: Sequence[int], held: list[torch.Tensor]
) -> Iterator[_Part]:
    """A tensor of all these rows in parts, one for each request."""
    tensor = _tensor(spec, tensor)
    kind, shape = torch_type(spec.dtype), tuple(tensor.shape)
    is_right = len(shape) == 1 + len(spec.shape) and shape[0] == sum(rows)
    if not is_right or not _fits(spec, shape[1:]) or not torch.can_cast(tensor.dtype, kind):
        raise ValueError(
            f"{spec.name}: the handler gave {tensor.dtype} {list(shape)}, where the model declares "
            f"{kind} {list(spec.shape)} for each of {sum(rows)} rows"
        )
    tensor = tensor.detach().to("cpu", kind).contiguous()
    held.append(tensor)
    each = math.prod(shape[1:]) * kind.itemsize
    at = tensor.data_ptr()
    for n in rows:
        yield _Part(shape[1:], n * each, at)
        at += n * each


def _texts(spec: TensorSpec, given: Any, rows: Sequence[int]) -> Iterator[_Part]:
    """Byte strings of all these rows in parts, one for each request."""
    if not isinstance(given, list | tuple) or len(given) != sum(rows):
        raise ValueError(
            f"{spec.name}: the handler gave {_what(given)}; a list with an element for each of "
            f"{sum(rows)} rows"
        )
    at = 0
    for n in rows:
        shape, strings = None, []
        for each in given[at : at + n]:
            found: list[bytes] = []
            mine = _nested(spec, each, len(spec.shape), found)
            if shape not in (None, mine) or not _fits(spec, mine):
                raise ValueError(f"{spec.name}: {list(mine)}; the model has {list(spec.shape)}")
            shape = mine
            strings += found
        at += n
        yield _Part(shape or (), sum(_LENGTH.size + len(s) for s in strings), 0, strings)


def _nested(spec: TensorSpec, given: Any, depth: int, into: list[bytes]) -> tuple[int, ...]:
    """The shape of lists in lists, and their byte strings; text is taken as UTF-8."""
    if depth == 0:
        content = given.encode() if isinstance(given, str) else given
        if not isinstance(content, bytes | bytearray | memoryview):
            raise TypeError(f"{spec.name}: {_what(given)} where a byte string belongs")
        into.append(bytes(content))
        return ()
    if not isinstance(given, list | tuple):
        raise TypeError(f"{spec.name}: {_what(given)} where a list belongs")
    shapes = {_nested(spec, each, depth - 1, into) for each in given}
    if len(shapes) > 1:
        raise ValueError(f"{spec.name}: lists of different lengths")
    return (len(given), *(shapes.pop() if shapes else (0,) * (depth - 1)))


def _fits(spec: TensorSpec, shape: Sequence[int]) -> bool:
    return len(shape) == len(spec.shape) and all(
        declared in (ANY, n) for declared, n in zip(spec.shape, shape, strict=True)
    )


def _what(given: Any) -> str:
    kind = type(given).__name__
    return f"a {kind} of {len(given)}" if isinstance(given, list | tuple) else f"a {kind}"
