"""The data path's C library, and the worker's part of it.

The library is built by :mod:`shunter.nic_frontend.build`. Without it everything works in Python,
only slower: :func:`library` is None then.
"""

from __future__ import annotations

import ctypes
import errno
import logging
import os
import socket as sockets
from collections.abc import Sequence
from ctypes import (
    Structure,
    c_int,
    c_uint16,
    c_uint32,
    c_uint64,
    c_void_p,
)
from functools import cache
from pathlib import Path

from shunter.batching.queue_worker import PythonWorkerQueue
from shunter.batching.tensor_queue import TensorQueue
from shunter.batching.wire_layout import MAX_TENSORS, digest

logger = logging.getLogger("shunter.native")
PATH = Path(__file__).resolve().parent.parent / "nic_frontend/build/libshunter.so"
VARIABLE = "SHUNTER_NATIVE"
"""Environment: path of another library, or ``0`` for none."""
PEER_BYTES = 32


class QueueView(Structure):
    """``struct shunter_queue``."""

    _fields_ = (
        ("page", c_void_p),
        ("inputs", c_void_p * MAX_TENSORS),
        ("outputs", c_void_p * MAX_TENSORS),
        ("input_bytes", c_uint32 * MAX_TENSORS),
        ("output_bytes", c_uint32 * MAX_TENSORS),
        ("input_count", c_uint32),
        ("output_count", c_uint32),
        ("entries", c_uint32),
        ("func_id", c_uint32),
    )


class BatchView(Structure):
    """``struct shunter_batch``."""

    _fields_ = (("first", c_uint32), ("count", c_uint32), ("number", c_uint64), ("spins", c_uint64))


@cache
def library() -> ctypes.CDLL | None:
    """The library, None when there is none or it is not wanted."""
    wanted = os.environ.get(VARIABLE, "")
    path = Path(wanted) if wanted not in ("", "0") else PATH
    if wanted == "0" or not path.exists():
        return None
    try:
        found = ctypes.CDLL(str(path), use_errno=True)
        found.shunter_layout_digest.restype = c_uint64
        is_right = found.shunter_layout_digest() == digest()
    except (OSError, AttributeError) as error:  # of another machine, cut short, or not ours
        logger.warning("%s cannot be loaded, so the data path runs in Python: %s", path, error)
        return None
    if not is_right:
        logger.warning("%s is of another version; it is not used. shunter nic builds it.", path)
        return None
    # Addresses, not pointers: what is passed for every batch is converted only once.
    found.shunter_worker_wait.argtypes = [
        *(c_void_p, c_uint32, c_int, c_void_p, c_uint32, c_uint64, c_int, c_void_p),
    ]
    found.shunter_worker_answer.argtypes = [
        *(c_void_p, c_uint32, c_void_p, c_void_p, c_void_p, c_int),
    ]
    found.shunter_datagrams_new.restype = c_void_p
    found.shunter_datagrams_new.argtypes = [c_int]
    found.shunter_datagrams_delete.argtypes = [c_void_p]
    return found


def view_of(queue: TensorQueue, func_id: int) -> QueueView:
    """A mapped queue for C; the queue must outlive it."""
    view = QueueView(page=queue.page.address, entries=queue.entries, func_id=func_id)
    view.input_count, view.output_count = len(queue.inputs), len(queue.outputs)
    addresses = [ring.address if ring else None for ring in queue.rings]
    count = len(queue.inputs)
    for i, (spec, address) in enumerate(zip(queue.inputs, addresses[:count], strict=True)):
        view.inputs[i], view.input_bytes[i] = address, spec.bytes
    for i, (spec, address) in enumerate(zip(queue.outputs, addresses[count:], strict=True)):
        view.outputs[i], view.output_bytes[i] = address, spec.bytes
    return view


def check(result: int, what: str) -> int:
    """A result that is not negative; else OSError with its number."""
    if result < 0:
        raise OSError(-result, f"{what}: {os.strerror(-result)}")
    return result


class NativeWorkerQueue:
    """The worker's end of a queue, in C. See ``worker.h``."""

    def __init__(
        self, queue: TensorQueue, func_id: int, worker: int, doorbell: int, socket: int, front: int
    ) -> None:
        """``socket`` sends the answers, ``front`` is the front end's doorbell."""
        found = library()
        assert found is not None
        self._library, self._queue = found, queue
        self._view = view_of(queue, func_id)
        self._worker, self._doorbell, self._front = worker, doorbell, front
        self._batch = BatchView()
        self._statuses = (c_uint16 * queue.entries)()
        self._other: Sequence[int] = ()
        self._descriptors = (c_int * 0)()
        held = self._view, self._batch, self._statuses
        self._view_at, self._batch_at, self._statuses_at = map(ctypes.addressof, held)
        self._datagrams = found.shunter_datagrams_new(socket)
        if not self._datagrams:
            raise OSError(errno.ENOMEM, "no memory for datagrams")

    def wait(
        self, other: Sequence[int], spin_us: int, timeout_ms: int
    ) -> tuple[int, int] | None:
        """First entry and length of the next batch; None when something else is up.

        ``other``: descriptors that the caller also waits for; the same sequence, unless changed.
        """
        if other is not self._other:
            self._other, self._descriptors = other, (c_int * len(other))(*other)
        result = self._library.shunter_worker_wait(
            self._view_at,
            self._worker,
            self._doorbell,
            ctypes.addressof(self._descriptors),
            len(other),
            spin_us * 1000,
            timeout_ms,
            self._batch_at,
        )
        if result == -errno.EINTR or check(result, "waiting for a batch") == 0:
            return None
        return self._batch.first, self._batch.count

    def answer(self, statuses: Sequence[int]) -> None:
        """Answer the batch that :meth:`wait` gave, with a status for each entry."""
        self._statuses[: len(statuses)] = statuses
        # What does not leave counts as lost; the front end repeats it when it is asked for.
        self._library.shunter_worker_answer(
            self._view_at,
            self._worker,
            self._batch_at,
            self._statuses_at,
            self._datagrams,
            self._front,
        )

    def close(self) -> None:
        """Free what C holds."""
        self._library.shunter_datagrams_delete(self._datagrams)
        self._datagrams = None


WorkerQueue = NativeWorkerQueue | PythonWorkerQueue


def worker_queue(
    queue: TensorQueue,
    func_id: int,
    worker: int,
    doorbell: int,
    sender: sockets.socket,
    front: int,
) -> WorkerQueue:
    """A worker's end of a queue: in C where the library is, else in Python."""
    if library() is None:
        return PythonWorkerQueue(queue, func_id, worker, doorbell, sender, front)
    return NativeWorkerQueue(queue, func_id, worker, doorbell, sender.fileno(), front)
