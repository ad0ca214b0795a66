"""The worker's end of packed requests, in C: see ``packed.h``."""

from __future__ import annotations

import ctypes
from ctypes import Structure, c_uint32, c_uint64, c_void_p

import numpy as np
from numpy.typing import NDArray

from shunter.batching.queue.native import Batch, WorkerQueue
from shunter.batching.queue.packed import Packing
from shunter.batching.queue.tensor_spec import BYTES, dtype_of

Words = NDArray[np.int64]


class _PackedView(Structure):
    """``struct shunter_packed``."""

    _fields_ = (
        *(("count", c_uint32), ("dims", c_uint32), ("header", c_uint32), ("most_rows", c_uint32)),
        ("most_bytes", c_uint32),
        *(("item", c_void_p), ("ndim", c_void_p), ("shape", c_void_p), ("scratch", c_void_p)),
    )


class Table:
    """Of a packing: what its requests, or answers, are, a row for each.

    Column 0 are the rows of a request, 0: it is none. Of the tensor ``t``, ``bytes(t)`` is the
    column of its bytes, and ``sizes(t)`` are those of its dimensions without the rows.
    """

    def __init__(self, packing: Packing, most_rows: int, most_bytes: int, most: int) -> None:
        """``most_rows`` and ``most_bytes``: of a request; ``most``: requests of a batch."""
        specs = packing.specs
        ndim = [len(spec.shape) for spec in specs]
        self.packing, self.header = packing, packing.header
        first = 1 + 2 * len(specs)
        ends = [first + sum(ndim[: t + 1]) for t in range(len(specs))]
        self._sizes = [slice(end - n, end) for end, n in zip(ends, ndim, strict=True)]
        self.first = first
        """Column of the first dimension of all."""
        self.items = [0 if s.dtype == BYTES else dtype_of(s.dtype).itemsize for s in specs]
        """Bytes of an element of each tensor; 0: of byte strings."""
        shape = [n for spec in specs for n in spec.shape]
        self._held = (
            np.array(self.items, np.uint32),
            np.array(ndim, np.uint32),
            np.array(shape, np.int64),
            np.empty(packing.header, np.uint8),
        )
        self._view = _PackedView(
            *(len(specs), len(shape), packing.header, most_rows, most_bytes),
            *(each.ctypes.data for each in self._held),
        )
        self.at = ctypes.addressof(self._view)
        # Those of all batches: what is made for each costs more than what is done with it.
        self.all = np.zeros((most, first + len(shape)), np.int64)
        self.all_at = self.all.ctypes.data
        self.by_tensor = np.zeros((most, len(specs)), np.int64)
        self.by_tensor_at = self.by_tensor.ctypes.data
        self.largest = np.zeros(len(shape), np.int64)
        self.largest_at = self.largest.ctypes.data

    def offset(self, t: int) -> int:
        """A column, where C says where a tensor lies."""
        return 1 + 2 * t

    def bytes(self, t: int) -> int:
        """A column."""
        return 2 + 2 * t

    def sizes(self, t: int) -> slice:
        """Columns."""
        return self._sizes[t]

    def dims(self, t: int) -> slice:
        """Of a tensor among all dimensions."""
        return slice(self._sizes[t].start - self.first, self._sizes[t].stop - self.first)


class PackedEnd:
    """What a worker does with the requests of a batch, from its ``begin``-th on, and answers."""

    def __init__(
        self, end: WorkerQueue, inputs: Packing, outputs: Packing, most_rows: int
    ) -> None:
        """``most_rows``: of a request, and of requests in a batch."""
        self._end = end
        rows = most_rows if inputs.batched else 1
        self.inputs, self.outputs = (
            Table(packing, rows, sides[0].bytes, most_rows)
            for packing, sides in ((inputs, end.queue.inputs), (outputs, end.queue.outputs))
        )
        self._declare(end.library)
        self.answer_bytes = end.queue.outputs[0].bytes
        """Most of an answer."""
        ring = end.queue.rings[0]
        assert ring is not None  # an answer has a header
        self.ring = memoryview(ring.bytes).cast("B")
        """All answers."""
        self._into = (c_void_p * len(inputs.specs))()
        self._into_at = ctypes.addressof(self._into)

    def _declare(self, library: ctypes.CDLL) -> None:
        at = c_void_p
        self._read, self._gather = library.shunter_packed_read, library.shunter_packed_gather
        self._strings, self._put = library.shunter_packed_strings, library.shunter_packed_put
        self._largest = library.shunter_packed_largest
        self._read.argtypes = [at, c_uint32, at, at, at, c_uint32, at]
        self._gather.argtypes = [at, c_uint32, at, at, at, c_uint32, at, at, at]
        self._largest.argtypes, self._largest.restype = [at, at, c_uint32, at], c_uint64
        self._strings.argtypes = [at, at, c_uint32, c_uint32, at, at]
        self._strings.restype = c_uint64
        self._put.argtypes = [at, at, at, c_uint32, at, at]
        self._put.restype = c_uint32

    def read(self, batch: Batch, begin: int, count: int) -> tuple[Words, int]:
        """What the requests say they are, until the next call; and how many of them are any."""
        entries, table = batch.entries_at + 4 * begin, self.inputs
        good = self._end.inputs_by(self._read, table.at, entries, count, table.all_at)
        return table.all[:count], good

    def largest(self, count: int) -> tuple[int, list[int]]:
        """Rows of all requests that were read, and the largest size of each dimension."""
        table = self.inputs
        rows = self._largest(table.at, table.all_at, count, table.largest_at)
        return rows, table.largest.tolist()

    def gather(
        self, batch: Batch, begin: int, count: int, into: dict[int, int], padded: bool
    ) -> None:
        """Copy tensors of the requests that were read to these addresses.

        ``padded``: to the sizes in ``inputs.largest``; else as they are.
        """
        table, entries = self.inputs, batch.entries_at + 4 * begin
        for t in range(len(self._into)):
            self._into[t] = into.get(t)
        self._end.inputs_by(
            *(self._gather, table.at, entries, count, table.all_at),
            *(self._into_at, table.largest_at if padded else None),
        )

    def strings(self, t: int, count: int, address: int, most: int) -> list[list[int]]:
        """Begin and end of each byte string of a tensor that was gathered at this address, at most
        so many. Requests whose strings are none have no rows any more."""
        places = np.empty((most, 2), np.int64)
        table = self.inputs
        found = self._strings(table.at, table.all_at, count, t, address, places.ctypes.data)
        return places[:found].tolist()  # type: ignore[no-any-return]

    def put(self, batch: Batch, begin: int, count: int) -> int:
        """Make answers as the table ``outputs`` says, of tensors whose addresses are in its
        ``by_tensor``; 0: it will be written there. How many had no room, and no rows any more."""
        table, entries = self.outputs, batch.entries_at + 4 * begin
        where = table.at, entries, count, table.all_at, table.by_tensor_at
        return int(self._put(self._end.view_at, *where))

    def place(self, batch: Batch, request: int) -> int:
        """Where in ``ring`` the answer of a request begins."""
        return int(batch.entries[request]) * self.answer_bytes
