"""How what a handler returns becomes the answers of packed requests."""

from __future__ import annotations

import logging
import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Any

import torch

from shunter.batching.queue.layout import EntryStatus
from shunter.batching.queue.native import Batch
from shunter.batching.queue.native_packed import PackedEnd
from shunter.batching.queue.tensor_spec import ANY, BYTES, TensorSpec
from shunter.handlers.device.torch_types import torch_type

logger = logging.getLogger("shunter.packed_queue")
_LENGTH = struct.Struct("<I")


@dataclass
class Output:
    """One output of all requests, in their order."""

    sizes: list[int]
    """Bytes."""
    shapes: Any
    """Without the rows: of each request, or the one that all have."""
    addresses: list[int]
    """0: it is made of byte strings."""
    strings: list[list[bytes]] = field(default_factory=list)
    held: list[torch.Tensor] = field(default_factory=list)
    """What lies at the addresses."""

    @property
    def bytes(self) -> int:
        """Of all requests."""
        return sum(self.sizes)

    def copy(self) -> Output:
        """Of one request: the same, whatever its handler does with its tensors."""
        held = [tensor.clone() for tensor in self.held]
        return replace(self, addresses=[t.data_ptr() for t in held] or self.addresses, held=held)


class PackedOutputs:
    """Puts answers where they are sent from."""

    def __init__(self, end: PackedEnd) -> None:
        """``end`` stays the caller's."""
        self._end = end
        self._table, self._specs = end.outputs, end.outputs.packing.specs

    def answer(
        self, batch: Batch, begin: int, requests: Sequence[int], rows: Sequence[int], found: Any
    ) -> list[int]:
        """Answer requests of a batch, counted from its ``begin``-th on, of which each has so many
        rows; a status for each. Raises ValueError, or TypeError, for what are no outputs.
        """
        return self.write(batch, begin, requests, rows, self.outputs(rows, found))

    def outputs(self, rows: Sequence[int], found: Any) -> list[Output]:
        """What a handler gave to requests of so many rows. Raises as :meth:`answer`."""
        sides = zip(self._specs, self.by_output(found), strict=True)
        return [self._output(spec, given, rows) for spec, given in sides]

    def write(
        self,
        batch: Batch,
        begin: int,
        requests: Sequence[int],
        rows: Sequence[int],
        outputs: Sequence[Output],
    ) -> list[int]:
        """As :meth:`answer`."""
        count = requests[-1] + 1
        mine: slice | list[int] = slice(count) if count == len(requests) else list(requests)
        table, addresses = self._table.all, self._table.by_tensor
        table[:count, 0] = 0
        table[mine, 0] = rows
        for t, output in enumerate(outputs):
            table[mine, self._table.bytes(t)] = output.sizes
            table[mine, self._table.sizes(t)] = output.shapes
            addresses[mine, t] = output.addresses
        lost = self._end.put(batch, begin, count)
        self._write_strings(batch, begin, requests, outputs)
        return self._statuses(requests) if lost else [EntryStatus.OK] * len(requests)

    def _statuses(self, requests: Sequence[int]) -> list[int]:
        """Where some answers had no room."""
        table, last, statuses = self._table.all, len(self._specs) - 1, []
        for request in requests:
            row, is_there = table[request], bool(table[request, 0])
            if not is_there:
                size = row[self._table.offset(last)] + row[self._table.bytes(last)]
                logger.error(
                    "An answer has %d bytes, and answer_bytes is %d.", size, self._end.answer_bytes
                )
            statuses.append(EntryStatus.OK if is_there else EntryStatus.HANDLER_FAILED)
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

    def _output(self, spec: TensorSpec, given: Any, rows: Sequence[int]) -> Output:
        if spec.dtype == BYTES:
            return _texts(spec, given, rows)
        if isinstance(given, torch.Tensor):
            return _cut(spec, given, rows)
        if not isinstance(given, list | tuple) or len(given) != len(rows):
            raise ValueError(
                f"{spec.name}: the handler gave {_what(given)}; a tensor, or a list of one for "
                f"each of {len(rows)} requests"
            )
        batched, parts = self._table.packing.batched, []
        for each, n in zip(given, rows, strict=True):
            if not isinstance(each, torch.Tensor):
                raise TypeError(f"{spec.name}: {_what(each)} where a tensor belongs")
            parts.append(_cut(spec, each if batched else each[None], [n]))
        return Output(
            [part.sizes[0] for part in parts],
            [part.shapes for part in parts],
            [part.addresses[0] for part in parts],
            held=[part.held[0] for part in parts],
        )

    def _write_strings(
        self, batch: Batch, begin: int, requests: Sequence[int], outputs: Sequence[Output]
    ) -> None:
        table, ring = self._table.all, self._end.ring
        for t, output in enumerate(outputs):
            for request, strings in zip(requests, output.strings, strict=False):
                if not table[request, 0]:
                    continue
                place = self._end.place(batch, begin + request)
                at = place + int(table[request, self._table.offset(t)])
                for content in strings:
                    _LENGTH.pack_into(ring, at, len(content))
                    first = at + _LENGTH.size
                    at = first + len(content)
                    ring[first:at] = content


def _cut(spec: TensorSpec, tensor: torch.Tensor, rows: Sequence[int]) -> Output:
    """A tensor of all these rows."""
    kind, shape, total = torch_type(spec.dtype), tuple(tensor.shape), sum(rows)
    is_right = len(shape) == 1 + len(spec.shape) and shape[0] == total
    if not is_right or not _fits(spec, shape[1:]) or not torch.can_cast(tensor.dtype, kind):
        raise ValueError(
            f"{spec.name}: the handler gave {tensor.dtype} {list(shape)}, where the model declares "
            f"{kind} {list(spec.shape)} for each of {total} rows"
        )
    tensor = tensor.detach().to("cpu", kind).contiguous()
    each, at = math.prod(shape[1:]) * kind.itemsize, tensor.data_ptr()
    sizes = [n * each for n in rows]
    return Output(sizes, shape[1:], list(accumulate(sizes[:-1], initial=at)), held=[tensor])


def _texts(spec: TensorSpec, given: Any, rows: Sequence[int]) -> Output:
    """Byte strings of all these rows."""
    if not isinstance(given, list | tuple) or len(given) != sum(rows):
        raise ValueError(
            f"{spec.name}: the handler gave {_what(given)}; a list with an element for each of "
            f"{sum(rows)} rows"
        )
    if not spec.shape:
        given = [each if type(each) is bytes else _content(spec, each) for each in given]
    found, at = Output([], [], [0] * len(rows)), 0
    for n in rows:
        strings, shape = _row_strings(spec, given[at : at + n])
        found.shapes.append(shape)
        found.strings.append(strings)
        found.sizes.append(_LENGTH.size * len(strings) + sum(map(len, strings)))
        at += n
    return found


def _row_strings(spec: TensorSpec, rows: Sequence[Any]) -> tuple[list[bytes], tuple[int, ...]]:
    """Byte strings of the rows of a request, and the shape that all rows have."""
    if not spec.shape:
        return list(rows), ()
    strings: list[bytes] = []
    shapes = {_nested(spec, each, len(spec.shape), strings) for each in rows}
    shape = shapes.pop()
    if shapes or not _fits(spec, shape):
        raise ValueError(f"{spec.name}: {list(shape)}; the model has {list(spec.shape)}")
    return strings, shape


def _nested(spec: TensorSpec, given: Any, depth: int, into: list[bytes]) -> tuple[int, ...]:
    """The shape of lists in lists, and their byte strings."""
    if depth == 0:
        into.append(_content(spec, given))
        return ()
    if not isinstance(given, list | tuple):
        raise TypeError(f"{spec.name}: {_what(given)} where a list belongs")
    shapes = {_nested(spec, each, depth - 1, into) for each in given}
    if len(shapes) > 1:
        raise ValueError(f"{spec.name}: lists of different lengths")
    return (len(given), *(shapes.pop() if shapes else (0,) * (depth - 1)))


def _content(spec: TensorSpec, given: Any) -> bytes:
    """A byte string; text is taken as UTF-8."""
    content = given.encode() if isinstance(given, str) else given
    if not isinstance(content, bytes | bytearray | memoryview):
        raise TypeError(f"{spec.name}: {_what(given)} where a byte string belongs")
    return bytes(content)


def _fits(spec: TensorSpec, shape: Sequence[int]) -> bool:
    return len(shape) == len(spec.shape) and all(
        declared in (ANY, n) for declared, n in zip(spec.shape, shape, strict=True)
    )


def _what(given: Any) -> str:
    kind = type(given).__name__
    return f"a {kind} of {len(given)}" if isinstance(given, list | tuple) else f"a {kind}"
