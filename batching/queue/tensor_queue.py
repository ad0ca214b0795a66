"""The tensor queue of a function: its page, the pieces of its inputs, and a ring of entries for
every tensor of its results.

The front end creates a queue and hands its descriptors to workers over a Unix socket; both sides
then work on the same memory. :mod:`shunter.batching.queue.layout` declares the page. Every word is
one aligned 8-byte load or store with one writer; who reads a word that publishes others reads it
first.
"""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from shunter.batching.queue.layout import (
    ENTRY_FIELDS,
    ENTRY_SIZE,
    MAX_ENTRIES,
    MAX_TENSORS,
    PIECE,
    QUEUE_ENTRIES_OFFSET,
    QUEUE_FIELDS,
    QUEUE_MAGIC,
    QUEUE_VERSION,
    QUEUE_WORKERS_OFFSET,
    WORKER_FIELDS,
    WORKER_SIZE,
    queue_bytes,
)
from shunter.batching.queue.shared_memory import (
    PAGE,
    Mapping,
    is_sealed,
    read_only,
    sealed_memory,
)
from shunter.batching.queue.size import QueueError
from shunter.batching.queue.tensor_spec import TensorSpec, dtype_of


def _page_up(size: int) -> int:
    return -(-size // PAGE) * PAGE


def _pieces_bytes(entries: int, most_pieces: int) -> int:
    return _page_up(entries * most_pieces * PIECE.size)


class TensorQueue:
    """A mapped queue. Use as a context manager or call :meth:`close`."""

    def __init__(
        self,
        descriptors: Sequence[int],
        entries: int,
        inputs: Sequence[TensorSpec],
        outputs: Sequence[TensorSpec],
        most_pieces: int,
        *,
        owned: bool,
    ) -> None:
        """Map descriptors of page, pieces and outputs. Use :meth:`create` or :meth:`attach`."""
        self.descriptors = list(descriptors)
        self.entries = entries
        self.inputs, self.outputs = tuple(inputs), tuple(outputs)
        self.most_pieces = most_pieces
        """Of the input of an entry."""
        self._mappings: list[Mapping] = []
        try:
            self.page = self._map(descriptors[0], _page_up(queue_bytes(entries)))
            self.pieces = self._map(
                descriptors[1], _pieces_bytes(entries, most_pieces), writable=owned
            )
            self.rings = [
                self._map(descriptor, _page_up(entries * spec.bytes)) if spec.bytes else None
                for descriptor, spec in zip(descriptors[2:], outputs, strict=True)
            ]
            """Mapping of each output, None for an empty one."""
        except BaseException:
            self.close()
            raise
        self.words = memoryview(self.page.bytes).cast("B").cast("q")

    def _map(self, descriptor: int, size: int, *, writable: bool = True) -> Mapping:
        self._mappings.append(Mapping(descriptor, size, writable=writable))
        return self._mappings[-1]

    @classmethod
    def create(
        cls,
        func_id: int,
        inputs: Sequence[TensorSpec],
        outputs: Sequence[TensorSpec],
        entries: int,
        most_pieces: int,
        free_bytes: Callable[[], float] = lambda: math.inf,
        *,
        packed: bool = False,
    ) -> TensorQueue:
        """Make a queue of so many entries, each of at most so many pieces.

        ``free_bytes`` says how much memory the host has free. ``packed``: inputs and results are
        runs of bytes up to the sizes of these.

        Raises QueueError for what cannot be a queue, OSError when there is no memory.
        """
        for kind, specs in (("inputs", inputs), ("outputs", outputs)):
            if not 1 <= len(specs) <= MAX_TENSORS:
                raise QueueError(f"{len(specs)} {kind}; allowed: 1 to {MAX_TENSORS}")
        if not 1 <= entries <= MAX_ENTRIES:
            raise QueueError(f"{entries} entries; allowed: 1 to {MAX_ENTRIES}")
        made: list[int] = []
        try:
            sizes = {
                "queue": _page_up(queue_bytes(entries)),
                "pieces": _pieces_bytes(entries, most_pieces),
            }
            sizes |= {spec.name: _page_up(max(1, entries * spec.bytes)) for spec in outputs}
            for name, size in sizes.items():
                made.append(sealed_memory(f"shunter-{name}"[:200], size, free_bytes()))
            queue = cls(made, entries, inputs, outputs, most_pieces, owned=True)
        except BaseException:
            for descriptor in made:
                _close(descriptor)
            raise
        queue.descriptors[1] = read_only(made[1])  # of pieces the owner has its mapping
        _close(made[1])
        header = {
            "queue_version": QUEUE_VERSION,
            "queue_bytes": queue_bytes(entries),
            "queue_func": func_id,
            "queue_entries": entries,
            "queue_inputs": len(inputs),
            "queue_outputs": len(outputs),
            "queue_pieces": most_pieces,
            "queue_packed": int(packed),
        }
        for name, value in header.items():
            queue.words[_Q[name]] = value
        for name, of in (("queue_input_bytes", inputs), ("queue_output_bytes", outputs)):
            for i, spec in enumerate(of):
                queue.words[_Q[name] + i] = spec.bytes
        queue.words[_Q["queue_magic"]] = QUEUE_MAGIC
        return queue

    @classmethod
    def attach(
        cls,
        descriptors: Sequence[int],
        inputs: Sequence[TensorSpec],
        outputs: Sequence[TensorSpec],
        *,
        packed: bool = False,
    ) -> TensorQueue:
        """Map a queue that another process made; it takes the descriptors, whatever comes of it.

        Raises QueueError when the descriptors, or the sizes on the page, do not fit the tensors.
        """
        try:
            entries, most_pieces = cls._sizes_of(descriptors, inputs, outputs, packed)
        except BaseException:
            for descriptor in descriptors:
                _close(descriptor)
            raise
        return cls(descriptors, entries, inputs, outputs, most_pieces, owned=False)

    @staticmethod
    def _sizes_of(
        descriptors: Sequence[int],
        inputs: Sequence[TensorSpec],
        outputs: Sequence[TensorSpec],
        packed: bool,
    ) -> tuple[int, int]:
        if len(descriptors) != 2 + len(outputs):
            raise QueueError(
                f"{len(descriptors)} descriptors for {len(outputs)} results, a page and pieces"
            )
        if not is_sealed(descriptors[0], queue_bytes(1)):
            raise QueueError("the page of the queue is not sealed memory")
        with Mapping(descriptors[0], PAGE) as first:
            words = memoryview(first.bytes).cast("B").cast("q")
            entries, most_pieces = _checked(words, inputs, outputs)
            if words[_Q["queue_packed"]] != packed:
                raise QueueError("one of model and queue has packed requests, the other has not")
            words.release()
        sizes = [queue_bytes(entries), _pieces_bytes(entries, most_pieces)]
        sizes += [entries * spec.bytes for spec in outputs]
        for descriptor, size in zip(descriptors, sizes, strict=True):
            if not is_sealed(descriptor, size):
                raise QueueError(f"a ring is not sealed memory of {size} bytes")
        return entries, most_pieces

    def close(self) -> None:
        """Unmap and close everything. No view may be used afterwards."""
        if hasattr(self, "words"):
            self.words.release()
        for mapping in self._mappings:
            mapping.close()
        self._mappings.clear()
        for descriptor in self.descriptors:
            _close(descriptor)
        self.descriptors.clear()

    def __enter__(self) -> TensorQueue:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---- tensors

    def results(self) -> list[NDArray[np.generic]]:
        """Outputs as arrays whose first axis are the entries.

        ``array[i : i + n]`` are the results of n entries that follow one another, without a copy.
        """
        found = []
        for spec, ring in zip(self.outputs, self.rings, strict=True):
            shape = (self.entries, *spec.shape)
            if ring is None:
                found.append(np.empty(shape, dtype_of(spec.dtype)))
            else:
                raw = np.frombuffer(ring.bytes, np.uint8, self.entries * spec.bytes)
                found.append(raw.view(dtype_of(spec.dtype)).reshape(shape))
        return found

    # ---- words

    def front_end(self, name: str) -> int:
        """Index into ``words`` of a field of the front end."""
        return _Q[name]

    def worker(self, index: int, name: str) -> int:
        """Index into ``words`` of a field of a worker."""
        return (QUEUE_WORKERS_OFFSET + index * WORKER_SIZE) // 8 + _W[name]

    def entry(self, index: int, name: str) -> int:
        """Index into ``words`` of a field of an entry."""
        return (QUEUE_ENTRIES_OFFSET + index * ENTRY_SIZE) // 8 + _E[name]


_Q = {name: placed.offset // 8 for name, placed in QUEUE_FIELDS.items()}
_W = {name: placed.offset // 8 for name, placed in WORKER_FIELDS.items()}
_E = {name: placed.offset // 8 for name, placed in ENTRY_FIELDS.items()}


def _checked(
    words: memoryview, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]
) -> tuple[int, int]:
    """Entries of a queue whose page begins with these words, and most pieces of one."""
    if words[_Q["queue_magic"]] != QUEUE_MAGIC:
        raise QueueError("the memory is not a tensor queue")
    if words[_Q["queue_version"]] != QUEUE_VERSION:
        raise QueueError(
            f"the queue has version {words[_Q['queue_version']]}, this program {QUEUE_VERSION}"
        )
    entries = words[_Q["queue_entries"]]
    if not 1 <= entries <= MAX_ENTRIES:
        raise QueueError(f"{entries} entries; allowed: 1 to {MAX_ENTRIES}")
    for kind, specs in (("input", inputs), ("output", outputs)):
        count = words[_Q[f"queue_{kind}s"]]
        at = _Q[f"queue_{kind}_bytes"]
        sizes = [words[at + i] for i in range(min(max(count, 0), MAX_TENSORS))]
        if sizes != [spec.bytes for spec in specs]:
            raise QueueError(f"{kind}s of {sizes} bytes; the model has {[s.bytes for s in specs]}")
    most_pieces = words[_Q["queue_pieces"]]
    if not 1 <= most_pieces < 1 << 16:
        raise QueueError(f"{most_pieces} pieces of an entry; allowed: 1 to {(1 << 16) - 1}")
    return int(entries), int(most_pieces)


def _close(descriptor: int) -> None:
    with contextlib.suppress(OSError):
        os.close(descriptor)
