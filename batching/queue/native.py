"""The worker's end of a tensor queue: the C library, which a front end names, and a queue in it."""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Callable, Sequence
from ctypes import (
    Structure,
    c_int,
    c_int32,
    c_uint16,
    c_uint32,
    c_uint64,
    c_void_p,
)
from functools import cache

from shunter.batching.queue.attach import AttachError
from shunter.batching.queue.layout import AHEAD, MAX_TENSORS, digest
from shunter.batching.queue.shared_memory import Mapping
from shunter.batching.queue.tensor_queue import TensorQueue

PEER_BYTES = 64
"""A socket address, and the local one that was asked."""
REGIONS = 128


class QueueView(Structure):
    """``struct shunter_queue``."""

    _fields_ = (
        ("page", c_void_p),
        ("pieces", c_void_p),
        ("outputs", c_void_p * MAX_TENSORS),
        ("input_bytes", c_uint32 * MAX_TENSORS),
        ("output_bytes", c_uint32 * MAX_TENSORS),
        ("input_count", c_uint32),
        ("output_count", c_uint32),
        ("entries", c_uint32),
        ("func_id", c_uint32),
        ("most_pieces", c_uint32),
    )


class BatchView(Structure):
    """``struct shunter_batch``."""

    _fields_ = (
        *(("entries", c_void_p), ("count", c_uint32), ("follow_up", c_uint32)),
        *(("number", c_uint64), ("answered", c_uint32)),
    )


class WaitView(Structure):
    """``struct shunter_wait``."""

    _fields_ = (
        *(("other", c_void_p), ("other_count", c_uint32), ("doorbell", c_int32)),
        *(("spin_ns", c_uint64), ("spins", c_uint64), ("taken", c_uint64)),
    )


class RegionView(Structure):
    """``struct shunter_region``."""

    _fields_ = (("base", c_void_p), ("bytes", c_uint64))


class LibraryError(Exception):
    """The library cannot be used; the message says why."""


@cache
def load(path: str) -> ctypes.CDLL:
    """The library at that path. Raises LibraryError for what is not ours, or of another version."""
    try:
        found = ctypes.CDLL(path, use_errno=True)
        found.shunter_layout_digest.restype = c_uint64
        is_right = found.shunter_layout_digest() == digest()
    except (OSError, AttributeError) as error:  # of another machine, cut short, or not ours
        raise LibraryError(f"{path} cannot be loaded: {error}") from error
    if not is_right:
        raise LibraryError(f"{path} is of another version")
    # Addresses, not pointers: what is passed for every batch is converted only once.
    found.shunter_worker_wait.argtypes = [c_void_p, c_uint32, c_void_p, c_uint64, c_void_p]
    found.shunter_worker_gather.argtypes = [
        *(c_void_p, c_uint32, c_void_p, c_void_p, c_uint32, c_void_p),
    ]
    found.shunter_worker_answer.argtypes = [
        *(c_void_p, c_uint32, c_void_p, c_void_p, c_void_p, c_void_p, c_int),
    ]
    found.shunter_worker_answer_early.argtypes = [
        *(c_void_p, c_uint32, c_void_p, c_uint32, c_void_p, c_void_p, c_int),
    ]
    found.shunter_datagrams_new.restype = c_void_p
    found.shunter_datagrams_new.argtypes = [c_int]
    found.shunter_datagrams_delete.argtypes = [c_void_p]
    return found


def view_of(queue: TensorQueue, func_id: int) -> QueueView:
    """A mapped queue for C; the queue must outlive it."""
    view = QueueView(page=queue.page.address, entries=queue.entries, func_id=func_id)
    view.pieces, view.most_pieces = queue.pieces.address, queue.most_pieces
    view.input_count, view.output_count = len(queue.inputs), len(queue.outputs)
    for i, spec in enumerate(queue.inputs):
        view.input_bytes[i] = spec.bytes
    for i, (spec, ring) in enumerate(zip(queue.outputs, queue.rings, strict=True)):
        view.outputs[i], view.output_bytes[i] = ring.address if ring else None, spec.bytes
    return view


class FrontEndError(OSError):
    """The front end of a queue is gone, or says what makes no sense. What a handler raises while
    it works on a batch is never one."""


def check(result: int, what: str, error: type[OSError] = OSError) -> int:
    """A result that is not negative; else an error with its number."""
    if result < 0:
        raise error(-result, f"{what}: {os.strerror(-result)}")
    return result


class Batch:
    """Requests that run together, from :meth:`WorkerQueue.wait` to :meth:`WorkerQueue.answer`."""

    def __init__(self, most: int) -> None:
        """``most``: requests that it can have."""
        self.entries = (c_uint32 * most)()
        """Of its requests; only the first :attr:`count` mean anything."""
        self.results = (c_void_p * MAX_TENSORS)()
        """By output: where the rows of its results lie, None: in their entries."""
        self._statuses = (c_uint16 * most)()
        self._view = BatchView(entries=ctypes.addressof(self.entries))
        held = self._view, self.entries, self.results, self._statuses
        self.at, self.entries_at, self.results_at, self.statuses_at = map(ctypes.addressof, held)

    @property
    def count(self) -> int:
        """Its requests."""
        return self._view.count

    @property
    def answered(self) -> int:
        """Of its requests the first so many are answered already."""
        return self._view.answered

    @property
    def first(self) -> int | None:
        """The entry of the first, where those of the others follow it one by one."""
        return self.entries[0] if self._view.follow_up else None

    def order(self, requests: Sequence[int]) -> None:
        """Let its requests follow one another in this order from now on."""
        self.entries[: len(requests)] = [self.entries[i] for i in requests]
        self._view.follow_up = 0

    def say(self, statuses: Sequence[int]) -> None:
        """What became of each."""
        self._statuses[: len(statuses)] = statuses


class WorkerQueue:
    """The worker's end of a queue. What happens for every batch is in C: see ``worker.h``."""

    def __init__(
        self,
        library: ctypes.CDLL,
        queue: TensorQueue,
        func_id: int,
        worker: int,
        landing: Mapping,
        *,
        doorbell: int,
        socket: int,
        front: int,
    ) -> None:
        """``landing``: the pool in which payloads land; ``socket`` sends the answers, ``front`` is
        the front end's doorbell."""
        self.library = library
        self.queue = queue
        self._view = view_of(queue, func_id)
        self._worker, self.front = worker, front
        self._batches = [Batch(queue.entries) for _ in range(AHEAD)]
        self._wait = WaitView(doorbell=doorbell)
        self._regions = (RegionView * REGIONS)(RegionView(landing.address, landing.size))
        self.look: Callable[[], bool] = lambda: False
        """Called when inputs lie where nothing is; it says whether something may be there now."""
        self._other: Sequence[int] = ()
        self._descriptors = (c_int * 0)()
        held = self._view, self._wait, self._regions
        self.view_at, self._wait_at, self._regions_at = map(ctypes.addressof, held)
        self._datagrams = library.shunter_datagrams_new(socket)
        if not self._datagrams:
            raise OSError(errno.ENOMEM, "no memory for datagrams")

    @property
    def waiting_at(self) -> tuple[int, int, int]:
        """The queue, the worker, and how it waits, for C."""
        return self.view_at, self._worker, self._wait_at

    @property
    def is_given(self) -> bool:
        """Whether there is a batch that nobody has taken."""
        words = self.queue.words
        return bool(words[self.queue.worker(self._worker, "batch_number")] > self._wait.taken)

    def always_ring(self) -> None:
        """Let the doorbell ring for every batch: somebody else waits for it, and not this.

        :meth:`wait` with a time-out takes that back, and so do parts of answers.
        """
        self.queue.words[self.queue.worker(self._worker, "worker_asleep")] = 1

    def set_region(self, number: int, memory: Mapping | None) -> None:
        """Inputs may lie in this memory from now on, too; None: not any more."""
        self._regions[number] = RegionView(memory.address, memory.size) if memory else RegionView()

    def wait(self, other: Sequence[int], spin_us: int, timeout_ns: int) -> Batch | None:
        """The next batch, which the worker holds until it is answered; None when something else is
        up, or it holds ``AHEAD``.

        ``other``: descriptors that the caller also waits for; the same sequence, unless changed.
        ``timeout_ns`` 0: only look. Raises FrontEndError (EPROTO) when what the front end says
        makes no sense.
        """
        wait = self._wait
        if other is not self._other:
            self._other, self._descriptors = other, (c_int * len(other))(*other)
            wait.other, wait.other_count = ctypes.addressof(self._descriptors), len(other)
        wait.spin_ns = spin_us * 1000
        batch = self._batches[(wait.taken + 1) % AHEAD]
        result = self.library.shunter_worker_wait(
            self.view_at, self._worker, self._wait_at, timeout_ns, batch.at
        )
        if result == -errno.EINTR or check(result, "waiting for a batch", FrontEndError) == 0:
            return None
        return batch

    def gather(self, batch: Batch, begin: int, count: int, into: ctypes.Array[c_void_p]) -> None:
        """Bring inputs of a batch together, from its ``begin``-th request on.

        ``into``: the address of the first row for each input. Raises
        FrontEndError (EPROTO) for pieces that are no tensors of the model.
        """
        entries = batch.entries_at + 4 * begin
        self.inputs_by(self.library.shunter_worker_gather, entries, count, into)

    def inputs_by(self, function: Callable[..., int], *rest: object) -> int:
        """What a function of the library, which takes the rest, too, says to inputs.

        Raises FrontEndError, EPROTO for pieces that make no sense.
        """
        where = self.view_at, self._worker, self._regions_at, *rest
        result = function(*where)
        if result == -errno.EPROTO and self._listen():
            result = function(*where)
        return check(result, "the inputs of a batch", FrontEndError)

    def _listen(self) -> bool:
        try:
            return self.look()
        except (OSError, EOFError, AttachError) as error:
            raise FrontEndError(errno.EPROTO, f"listening to the front end: {error}") from error

    def answer(self, batch: Batch, statuses: Sequence[int]) -> None:
        """Answer the batch that was taken first, with a status for each entry."""
        batch.say(statuses)
        # What does not leave counts as lost; the front end repeats it when it is asked for.
        self.library.shunter_worker_answer(
            self.view_at,
            self._worker,
            batch.at,
            batch.statuses_at,
            batch.results_at,
            self._datagrams,
            self.front,
        )

    def answer_early(self, batch: Batch, statuses: Sequence[int]) -> None:
        """Answer the first of its requests that are not answered yet, before the others have run.
        ``statuses``: of all so far. Their entries, inputs and results are not the worker's then."""
        batch.say(statuses)
        self.library.shunter_worker_answer_early(
            *(self.view_at, self._worker, batch.at, len(statuses) - batch.answered),
            *(batch.statuses_at, self._datagrams, self.front),
        )

    def close(self) -> None:
        """Free what C holds."""
        self.library.shunter_datagrams_delete(self._datagrams)
        self._datagrams = None
