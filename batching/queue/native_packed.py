"""The worker's end of packed requests, in C: see ``packed.h``."""

from __future__ import annotations

import ctypes
import errno
from ctypes import Structure, c_uint32, c_uint64, c_void_p

import numpy as np
from numpy.typing import NDArray

from shunter.batching.queue.native import Batch, WorkerQueue, check
from shunter.batching.queue.packed import Packing
from shunter.batching.queue.tensor_spec import BYTES, dtype_of

Words = NDArray[np.int64]


class _PackedView(Structure):
    """``struct shunter_packed``."""

    _fields_ = (
        *(("count", c_uint32), ("dims", c_uint32), ("header", c_uint32), ("most_rows", c_uint32)),
        *(("item", c_void_p), ("ndim", c_void_p), ("shape", c_void_p), ("scratch", c_void_p)),
    )


class Table:
    """Of a packing: what the columns of a table mean that has a row for each request.

    ``rows`` are the rows of a request, 0: it is none. Of the tensor ``t``, ``offset(t)`` and
    ``bytes(t)`` are where it is in the run, ``sizes(t)`` those of its dimensions without the rows.
    """

    def __init__(self, packing: Packing, most_rows: int) -> None:
        """``most_rows``: of a request."""
        specs = packing.specs
        ndim = [len(spec.shape) for spec in specs]
        self.packing = packing
        first = 1 + 2 * len(specs)
        ends = [first + sum(ndim[: t + 1]) for t in range(len(specs))]
        self._sizes = [slice(end - n, end) for end, n in zip(ends, ndim, strict=True)]
        self.words = first + sum(ndim)
        item = [0 if s.dtype == BYTES else dtype_of(s.dtype).itemsize for s in specs]
        shape = [n for spec in specs for n in spec.shape]
        self._held = (
            np.array(item, np.uint32),
            np.array(ndim, np.uint32),
            np.array(shape, np.int64),
            np.empty(packing.header, np.uint8),
        )
        self._view = _PackedView(
            *(len(specs), len(shape), packing.header, most_rows),
            *(each.ctypes.data for each in self._held),
        )
        self.at = ctypes.addressof(self._view)

    def new(self, count: int) -> Words:
        """For so many requests."""
        return np.zeros((count, self.words), np.int64)

    def offset(self, t: int) -> int:
        """A column."""
        return 1 + 2 * t

    def bytes(self, t: int) -> int:
        """A column."""
        return 2 + 2 * t

    def sizes(self, t: int) -> slice:
        """Columns."""
        return self._sizes[t]


class PackedEnd:
    """What a worker does with the requests of a batch, from its ``begin``-th on, and answers."""

    def __init__(
        self, end: WorkerQueue, inputs: Packing, outputs: Packing, most_rows: int
    ) -> None:
        """``most_rows``: of a request."""
        self._end = end
        rows = most_rows if inputs.batched else 1
        self.inputs, self.outputs = Table(inputs, rows), Table(outputs, rows)
        library = end.library
        self._read, self._gather = library.shunter_packed_read, library.shunter_packed_gather
        self._strings, self._put = library.shunter_packed_strings, library.shunter_packed_put
        at = c_void_p
        self._read.argtypes = [at, c_uint32, at, at, at, c_uint32, at]
        self._gather.argtypes = [at, c_uint32, at, at, at, c_uint32, at, at, at]
        self._strings.argtypes = [at, c_uint64, c_uint64, at]
        self._put.argtypes = [at, at, at, c_uint32, at, at]

    @property
    def answer_bytes(self) -> int:
        """Most of an answer."""
        return self._end.queue.outputs[0].bytes

    def read(self, batch: Batch, begin: int, count: int) -> Words:
        """What the requests say they are; rows 0: malformed."""
        table = self.inputs.new(count)
        entries = batch.entries_at + 4 * begin
        self._end.inputs_by(self._read, self.inputs.at, entries, count, table.ctypes.data)
        return table

    def gather(
        self, batch: Batch, begin: int, table: Words, into: Words, padded: Words | None
    ) -> None:
        """Copy tensors of requests to the addresses ``into``, 0: not this one.

        ``padded``: to these sizes of all dimensions; None: as they are.
        """
        entries = batch.entries_at + 4 * begin
        sizes = padded.ctypes.data if padded is not None else None
        self._end.inputs_by(
            *(self._gather, self.inputs.at, entries, len(table), table.ctypes.data),
            *(into.ctypes.data, sizes),
        )

    def strings(self, address: int, size: int, count: int) -> list[int] | None:
        """Where each byte string of a tensor ends; None: they are malformed."""
        ends = np.empty(count, np.int64)
        result = self._strings(address, size, count, ends.ctypes.data)
        return None if result == -errno.EBADMSG else ends.tolist()

    def put(self, batch: Batch, begin: int, table: Words, sources: Words) -> None:
        """Make answers of tensors at these addresses; 0: it is there already."""
        entries = batch.entries_at + 4 * begin
        where = entries, len(table), table.ctypes.data, sources.ctypes.data
        check(self._put(self._end.view_at, self.outputs.at, *where), "the answers of a batch")

    def room(self, batch: Batch, request: int) -> memoryview:
        """Where the answer of a request belongs."""
        ring, size = self._end.queue.rings[0], self.answer_bytes
        assert ring is not None  # an answer has a header
        entry = batch.entries[request]
        return memoryview(ring.bytes).cast("B")[entry * size : (entry + 1) * size]
