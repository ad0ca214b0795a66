"""How packed requests become a batch: padded, or each as it is."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from shunter.batching.queue.native import Batch
from shunter.batching.queue.native_packed import PackedEnd, Words
from shunter.batching.queue.tensor_spec import ANY, BYTES, dtype_of
from shunter.handlers.queue.arena import ALIGN, Arena
from shunter.handlers.queue.packed_batch import Input, PackedBatch
from shunter.handlers.queue.tensor_config import Padding


class TooLargeError(Exception):
    """Padded, the requests would need more memory than a batch may."""


class PackedInputs:
    """Brings the inputs of batches together, always at the same place."""

    def __init__(
        self, end: PackedEnd, padding: Padding, most_bytes: int, device: torch.device | None
    ) -> None:
        """``most_bytes``: of a padded batch; ``device``: where the handler wants its tensors."""
        self._end, self._padding, self._most_bytes = end, padding, most_bytes
        self._table, self._specs = end.inputs, end.inputs.packing.specs
        self._strings = [t for t, spec in enumerate(self._specs) if spec.dtype == BYTES]
        self._numbers = [t for t, spec in enumerate(self._specs) if spec.dtype != BYTES]
        pinned = device is not None and device.type == "cuda"
        self._host = [Arena(pinned=pinned) for _ in self._specs]
        self._there = [Arena(device=device) for _ in self._specs] if device else self._host

    def gather(self, batch: Batch, begin: int, count: int) -> tuple[PackedBatch, list[int]]:
        """The good ones of these requests of a batch, and their numbers: the others are malformed.

        Raises TooLargeError.
        """
        table = self._end.read(batch, begin, count)
        table[table[:, 0] == 0] = 0
        found: dict[int, Input] = {}
        if self._strings:
            texts = self._gather_strings(batch, begin, table)
            found |= {t: _rows_of(texts[t], table[:, 0]) for t in self._strings}
        good = np.flatnonzero(table[:, 0])
        if len(good) and self._numbers:
            gather = self._gather_ragged if self._padding.ragged else self._gather_padded
            found |= gather(batch, begin, table, good)
        shapes = [table[good][:, self._table.sizes(t)] for t in range(len(self._specs))]
        inputs = [found[t] for t in sorted(found)]
        rows, batched = table[good, 0].tolist(), self._table.packing.batched
        return PackedBatch(self._specs, inputs, rows, shapes, batched), good.tolist()

    # ---- numbers

    def _gather_padded(
        self, batch: Batch, begin: int, table: Words, good: NDArray[Any]
    ) -> dict[int, Input]:
        rows = table[:, 0]
        before, total = np.cumsum(rows) - rows, int(rows.sum())
        padded = np.zeros(sum(len(spec.shape) for spec in self._specs), np.int64)
        into, shapes, needed = self._nowhere(table), {}, 0
        for t in self._numbers:
            shapes[t] = (total, *self._padded_shape(t, table[good]))
            padded[self._dims(t)] = shapes[t][1:]
            needed += self._size(t, shapes[t])
        if needed > self._most_bytes:
            raise TooLargeError(f"padded {needed} bytes; at most {self._most_bytes}")
        for t, shape in shapes.items():
            size = self._size(t, shape)
            into[:, t] = self._host[t].address(size) + before * (size // total)
        self._end.gather(batch, begin, table, into, padded)
        return {t: self._all_of(t, shape) for t, shape in shapes.items()}

    def _padded_shape(self, t: int, good: Words) -> list[int]:
        largest = good[:, self._table.sizes(t)].max(0).tolist()
        return [
            self._padding.size(n) if declared == ANY else n
            for declared, n in zip(self._specs[t].shape, largest, strict=True)
        ]

    def _all_of(self, t: int, shape: tuple[int, ...]) -> torch.Tensor:
        size = self._size(t, shape)
        return self._arena_with(t, size).tensor(0, size, self._specs[t].dtype, shape)

    def _gather_ragged(
        self, batch: Batch, begin: int, table: Words, good: NDArray[Any]
    ) -> dict[int, Input]:
        into = self._nowhere(table)
        places = {t: self._place(t, table, into) for t in self._numbers}
        self._end.gather(batch, begin, table, into, None)
        return {t: self._each_of(t, table, good, *place) for t, place in places.items()}

    def _each_of(
        self, t: int, table: Words, good: NDArray[Any], offsets: Words, size: int
    ) -> list[torch.Tensor]:
        arena, spec, found = self._arena_with(t, size), self._specs[t], []
        for i in good.tolist():
            shape = tuple(table[i, self._table.sizes(t)].tolist())
            if self._table.packing.batched:
                shape = (int(table[i, 0]), *shape)
            length = int(table[i, self._table.bytes(t)])
            found.append(arena.tensor(int(offsets[i]), length, spec.dtype, shape))
        return found

    # ---- byte strings

    def _gather_strings(
        self, batch: Batch, begin: int, table: Words
    ) -> dict[int, list[NDArray[Any]]]:
        """By tensor, for each request an array; a request whose strings are none becomes empty."""
        into = self._nowhere(table)
        places = {t: self._place(t, table, into) for t in self._strings}
        self._end.gather(batch, begin, table, into, None)
        return {
            t: [self._strings_of(t, table[i], int(offsets[i])) for i in range(len(table))]
            for t, (offsets, _) in places.items()
        }

    def _strings_of(self, t: int, row: Words, offset: int) -> NDArray[Any]:
        shape = row[0], *row[self._table.sizes(t)]
        found = np.empty(shape if row[0] else 0, object)
        size = int(row[self._table.bytes(t)])
        address = self._host[t].address(0) + offset
        ends = self._end.strings(address, size, found.size) if row[0] else []
        if ends is None:
            row[:] = 0
            return found
        content, flat, at = self._host[t].content(offset, size), found.reshape(-1), 4
        for i, end in enumerate(ends):
            flat[i] = bytes(content[at:end])
            at = end + 4
        return found

    # ---- places

    def _nowhere(self, table: Words) -> Words:
        return np.zeros((len(table), len(self._specs)), np.int64)

    def _place(self, t: int, table: Words, into: Words) -> tuple[Words, int]:
        """Offsets of a tensor's requests one behind the other, and the bytes of all."""
        sizes = -(-table[:, self._table.bytes(t)] // ALIGN) * ALIGN
        offsets, size = np.cumsum(sizes) - sizes, int(sizes.sum())
        into[:, t] = self._host[t].address(size) + offsets
        return offsets, size

    def _arena_with(self, t: int, size: int) -> Arena:
        """Where the handler wants them."""
        host, there = self._host[t], self._there[t]
        if there is not host:
            there.take(host, size)
        return there

    def _size(self, t: int, shape: tuple[int, ...]) -> int:
        return math.prod(shape) * dtype_of(self._specs[t].dtype).itemsize

    def _dims(self, t: int) -> slice:
        """Of a tensor among all dimensions."""
        columns, first = self._table.sizes(t), self._table.sizes(0).start
        return slice(columns.start - first, columns.stop - first)


def _rows_of(texts: list[NDArray[Any]], rows: Words) -> list[Any]:
    """For each row its byte string, or its list of them."""
    return [row for text, n in zip(texts, rows, strict=True) if n for row in text.tolist()]
