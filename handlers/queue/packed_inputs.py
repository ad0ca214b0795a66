"""How packed requests become a batch: padded, or each as it is."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import numpy as np
import torch

from shunter.batching.queue.native import Batch
from shunter.batching.queue.native_packed import PackedEnd, Words
from shunter.batching.queue.tensor_spec import ANY
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
        self._strings = [t for t, item in enumerate(self._table.items) if not item]
        self._numbers = [t for t, item in enumerate(self._table.items) if item]
        self._dims = [self._table.dims(t) for t in range(len(self._specs))]
        self._declared = [n for spec in self._specs for n in spec.shape]
        self._buckets = bool(padding.buckets)
        self.cells = 0
        """Elements of the padded tensors that were made so far."""
        pinned = device is not None and device.type == "cuda"
        self._host = [Arena(pinned=pinned) for _ in self._specs]
        self._there = [Arena(device=device) for _ in self._specs] if device else self._host

    def sizes(self, batch: Batch) -> tuple[list[int], list[list[int]]]:
        """Of a batch's requests: their rows, 0 where they are malformed, and the sizes of all their
        dimensions, as they are padded when they run alone.

        Raises FrontEndError for a batch that makes no sense.
        """
        table, good = self._end.read(batch, 0, batch.count)
        if good < batch.count:
            table[table[:, 0] == 0] = 0
        sizes = table[:, self._table.first :].tolist()
        if self._buckets:
            sizes = [self._rounded(each) for each in sizes]
        return table[:, 0].tolist(), sizes

    def elements(self, sizes: Sequence[int]) -> int:
        """Numbers in a row that is padded to these sizes."""
        return sum(math.prod(sizes[self._dims[t]]) for t in self._numbers)

    @property
    def pads(self) -> bool:
        """Whether requests of a batch may be padded."""
        declared = (n for t in self._numbers for n in self._specs[t].shape)
        return ANY in declared and not self._padding.ragged

    def gather(self, batch: Batch, begin: int, count: int) -> tuple[PackedBatch, list[int]]:
        """The good ones of these requests of a batch, and their numbers: the others are malformed.

        Raises TooLargeError.
        """
        table, good_count = self._end.read(batch, begin, count)
        found: dict[int, Input] = {}
        if self._strings and good_count:
            found = self._gather_strings(batch, begin, table)
        rows = table[:, 0].tolist()
        good = [i for i, n in enumerate(rows) if n]
        if len(good) < count:
            table[table[:, 0] == 0] = 0
        if good and self._numbers:
            gather = self._gather_ragged if self._padding.ragged else self._gather_padded
            found |= gather(batch, begin, table)
        if len(good) < count:
            rows, table = [rows[i] for i in good], table[good]
        inputs = [found[t] for t in sorted(found)]
        return PackedBatch(self._table, inputs, rows, table.copy()), good

    # ---- numbers

    def _gather_padded(self, batch: Batch, begin: int, table: Words) -> dict[int, Input]:
        total, sizes = self._end.largest(len(table))
        if self._buckets:
            sizes = self._rounded(sizes)
            self._table.largest[:] = sizes
        shapes = {t: (total, *sizes[self._dims[t]]) for t in self._numbers}
        items = self._table.items
        needed = {t: math.prod(shape) * items[t] for t, shape in shapes.items()}
        if sum(needed.values()) > self._most_bytes:
            raise TooLargeError(
                f"padded {sum(needed.values())} bytes; at most {self._most_bytes}"
            )
        into = {t: self._host[t].address(size) for t, size in needed.items()}
        self._end.gather(batch, begin, len(table), into, padded=True)
        self.cells += sum(map(math.prod, shapes.values()))
        return {
            t: self._arena_with(t, size).tensor(0, size, self._specs[t].dtype, shapes[t])
            for t, size in needed.items()
        }

    def _rounded(self, sizes: Sequence[int]) -> list[int]:
        """To buckets."""
        pairs = zip(self._declared, sizes, strict=True)
        return [self._padding.size(size) if n == ANY else size for n, size in pairs]

    def _gather_ragged(self, batch: Batch, begin: int, table: Words) -> dict[int, Input]:
        places = {t: self._places(t, table) for t in self._numbers}
        into = {t: self._host[t].address(ends[-1]) for t, (_, ends) in places.items()}
        self._end.gather(batch, begin, len(table), into, padded=False)
        return {t: self._each_of(t, table, *place) for t, place in places.items()}

    def _each_of(
        self, t: int, table: Words, sizes: list[int], ends: list[int]
    ) -> list[torch.Tensor]:
        arena, dtype = self._arena_with(t, ends[-1]), self._specs[t].dtype
        batched, shapes = self._table.packing.batched, table[:, self._table.sizes(t)].tolist()
        return [
            arena.tensor(end, size, dtype, (rows, *shape) if batched else tuple(shape))
            for rows, end, size, shape in zip(
                table[:, 0].tolist(), [0, *ends], sizes, shapes, strict=False
            )
            if rows
        ]

    def _places(self, t: int, table: Words) -> tuple[list[int], list[int]]:
        """Bytes of a tensor's requests that lie one behind the other, and where the next begins."""
        sizes = table[:, self._table.bytes(t)].tolist()
        return sizes, list(accumulate(-(-size // ALIGN) * ALIGN for size in sizes))

    # ---- byte strings

    def _gather_strings(self, batch: Batch, begin: int, table: Words) -> dict[int, Input]:
        ends = {t: self._places(t, table)[1] for t in self._strings}
        into = {t: self._host[t].address(ends[t][-1]) for t in self._strings}
        self._end.gather(batch, begin, len(table), into, padded=False)
        rows = table[:, 0].copy()
        found = {t: self._texts(t, table, into[t], ends[t][-1]) for t in self._strings}
        if (rows != table[:, 0]).any():  # some are malformed, perhaps not in their first tensor
            found = {t: self._texts(t, table, into[t], ends[t][-1]) for t in self._strings}
        return found

    def _texts(self, t: int, table: Words, address: int, size: int) -> list[Any]:
        """For each row its byte string, or lists of them."""
        most = int((table[:, 0] * table[:, self._table.sizes(t)].prod(1)).sum())
        places = self._end.strings(t, len(table), address, most)
        content = self._host[t].content(0, size)
        texts = [bytes(content[begin:end]) for begin, end in places]
        if not self._specs[t].shape:
            return texts
        found, flat = [], iter(texts)
        for row in table[table[:, 0] > 0]:
            shape = row[0], *row[self._table.sizes(t)]
            mine = np.empty(shape, object)
            for i in range(mine.size):
                mine.flat[i] = next(flat)
            found += mine.tolist()
        return found

    def _arena_with(self, t: int, size: int) -> Arena:
        """Where the handler wants them."""
        host, there = self._host[t], self._there[t]
        if there is not host:
            there.take(host, size)
        return there
