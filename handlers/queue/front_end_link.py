"""A worker's connection to the network front end: attach, work on batches, leave, come back.

The front end may end and come again at any time; the worker then attaches anew. The worker ends
when its own server says so: it asks for no more batches, answers those that it has, and leaves.
"""

from __future__ import annotations

import logging
import os
import select
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

import torch

from shunter.batching.queue.attach import Attach, AttachError, receive, send
from shunter.batching.queue.native import LibraryError, WorkerQueue, load
from shunter.batching.queue.shared_memory import Mapping as Mapped
from shunter.batching.queue.size import QueueError
from shunter.batching.queue.tensor_queue import TensorQueue
from shunter.handlers.queue.device_queue import queue_worker
from shunter.handlers.queue.packed_queue import PackedInfer, PackedQueueWorker, keep_batch
from shunter.handlers.queue.shared_regions import FrontEndWords
from shunter.handlers.queue.streaming import StreamingQueueWorker
from shunter.handlers.queue.tensor_config import UNPADDED, USUAL_BACKLOG, Backlog, Padding
from shunter.handlers.queue.tensor_queue import Infer, QueueWorker, keep_inputs

if TYPE_CHECKING:
    from shunter.handlers.device.graphed import Yields
    from shunter.handlers.preemption.gate import Keep
    from shunter.handlers.queue.device_model import DeviceModel

logger = logging.getLogger("shunter.front_end_link")
RETRY_S = 0.5
LEAVE_S = 10.0
ATTACH_S = 2.0
"""So long a server waits for a first front end that is there, and does not answer."""
_LOOK_NS = 1_000_000_000
GONE = (OSError, EOFError, AttachError, QueueError, LibraryError)
"""There is no front end, or it makes no sense."""
_CONNECTIONS: WeakSet[socket.socket] = WeakSet()
"""To front ends, which see by them that this process has ended: a child must not keep them."""


def _leave_to_parent() -> None:
    for each in list(_CONNECTIONS):
        each.close()


os.register_at_fork(after_in_child=_leave_to_parent)


@dataclass
class Attachment:
    """A front end that gives batches, until it is gone."""

    end: WorkerQueue
    words: FrontEndWords
    worker: QueueWorker | PackedQueueWorker
    doorbell: int
    _held: ExitStack

    def run_next(self, others: Sequence[int], spin_us: int, wait_ns: int) -> bool:
        """One batch, and answers to all that are finished; whether there was one.

        ``others``: see :meth:`WorkerQueue.wait`. Raises what is in ``GONE``.
        """
        batch = self.end.wait(others, spin_us, wait_ns)
        if batch is not None:
            self.worker.begin(batch)
        while finished := self.worker.finished():
            self.end.answer(*finished)
        return batch is not None

    def close(self) -> None:
        """Let go of it."""
        self._held.close()

    def __enter__(self) -> Attachment:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class FrontEndLink:
    """Serves batches of one front end after another."""

    def __init__(
        self,
        path: Path,
        attach: Attach,
        infer: Infer | PackedInfer,
        *,
        spin_us: int = 0,
        device: torch.device | None = None,
        padding: Padding = UNPADDED,
        backlog: Backlog = USUAL_BACKLOG,
        on_device: Callable[..., DeviceModel | None] | None = None,
        outlives: bool = False,
    ) -> None:
        """``path``: where the front end listens for workers; ``device``: where the model is;
        ``padding``: of packed requests, whose ``infer`` is a PackedInfer; ``backlog``: of streamed
        answers; ``on_device`` makes the model ready there, see :func:`device_model`; ``outlives``:
        what started it is not what is served: it goes on until its front end ends."""
        self.outlives = outlives
        self.path, self._attach, self._device = path, attach, device
        self._infer: Any = infer
        self._spin_us, self._padding, self._on_device = spin_us, padding, on_device
        self._backlog = backlog
        self._guarded: Callable[[Any], Any] = lambda infer: infer
        self._yields: Yields | None = None
        self._model: DeviceModel | None = None
        self._told = ""
        self._settled: Callable[[], None] | None = None

    def when_settled(self, then: Callable[[], None]) -> None:
        """Call it once, when a first front end gives batches, or there is none that does soon.

        What a server is told then is true for the front end's clients, too. It must not raise.
        """
        self._settled = then
        if self.outlives:  # its host asks the server itself, which may come after it
            self.settle()

    def settle(self) -> None:
        """It is known whether there is a front end, or known not to be known soon."""
        then, self._settled = self._settled, None
        if then is not None:
            then()

    def guard(self, wrap: Callable[[Any, Keep], Any], yields: Yields | None = None) -> None:
        """From now on let batches run as ``wrap`` makes them, captured ones stand still inside
        where ``yields`` says so."""
        keep = keep_batch if self._attach.packing else keep_inputs
        self._guarded, self._yields = lambda infer: wrap(infer, keep), yields

    def run(self, server: socket.socket, is_over: Callable[[], bool]) -> None:
        """Serve until ``server``, which is then readable, says that it is over."""
        with ExitStack() as stack:
            stack.enter_context(torch.inference_mode())
            if self._on_device is not None:
                self._model = self._on_device(yields=self._yields)
            if self._model is not None:
                self._model.infer = self._guarded(self._model.infer)
                stack.callback(self._model.close)
            self.obey_guard()
            self._attend(server, is_over)

    def obey_guard(self) -> None:
        """Let batches run as :meth:`guard` has said, where :meth:`run` is not what serves."""
        self._infer = self._guarded(self._infer)

    def _attend(self, server: socket.socket, is_over: Callable[[], bool]) -> None:
        """One front end after another."""
        while True:
            try:
                with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
                    connection.connect(str(self.path))
                    self._serve(connection, server, is_over)
                    return
            except GONE as error:
                self.tell(error)
            self.settle()
            if select.select([server], [], [], RETRY_S)[0] and is_over():
                return

    def tell(self, error: Exception) -> None:
        """Why there is no front end now."""
        text = f"{type(error).__name__}: {error}"
        if text != self._told:  # once, not twice a second
            # That none is there yet, or not any more, is as it should be.
            level = logging.INFO if isinstance(error, OSError | EOFError) else logging.WARNING
            logger.log(level, "No front end serves %s: %s", self._attach.model, text)
            self._told = text

    def _serve(
        self, connection: socket.socket, server: socket.socket, is_over: Callable[[], bool]
    ) -> None:
        """Serve one front end until it is over. Raises OSError or EOFError when it is gone."""
        self.greet(connection)
        if self._settled and not select.select([connection], [], [], ATTACH_S)[0]:
            self.settle()
        with self.attached(connection) as attachment:
            self._work(connection, server, is_over, attachment)

    def greet(self, connection: socket.socket) -> None:
        """Say to a front end which model this is. Raises OSError."""
        _CONNECTIONS.add(connection)
        send(connection, self._attach.to_json())

    def attached(self, connection: socket.socket) -> Attachment:
        """What a front end answers to that; this waits for it.

        Raises OSError, EOFError, AttachError, QueueError, LibraryError.
        """
        with ExitStack() as stack:
            answer, descriptors = receive(connection)
            if "refused" in answer:
                raise AttachError(answer["refused"])
            udp = socket.socket(fileno=descriptors[0])
            stack.callback(udp.close)
            doorbell, front, pool, *rings = descriptors[1:]
            for descriptor in (doorbell, front, pool):
                stack.callback(os.close, descriptor)
            attach = self._attach
            queue = stack.enter_context(
                TensorQueue.attach(
                    *(rings, attach.carried_inputs, attach.carried_outputs),
                    packed=attach.packing is not None,
                )
            )
            index, func_id = int(answer["worker"]), int(answer["func_id"])
            landing = stack.enter_context(Mapped(pool, int(answer["landing"]), writable=False))
            end = WorkerQueue(
                load(str(answer["library"])),
                *(queue, func_id, index, landing),
                doorbell=doorbell,
                socket=udp.fileno(),
                front=front,
            )
            stack.callback(end.close)
            words = FrontEndWords(connection, end)
            stack.callback(words.close)
            end.look = words.hear
            self._told = ""
            worker = self._worker_of(end)
            stack.callback(worker.close)
            self.settle()
            return Attachment(end, words, worker, doorbell, stack.pop_all())

    def _worker_of(self, end: WorkerQueue) -> QueueWorker | PackedQueueWorker:
        attach, device = self._attach, self._device
        if attach.packing:
            what = end, self._infer, attach, self._padding, device
            if attach.packing.streamed:
                return StreamingQueueWorker(*what, self._backlog)
            return PackedQueueWorker(*what)
        return queue_worker(end, self._infer, attach.batch, device, self._model)

    def _work(
        self,
        connection: socket.socket,
        server: socket.socket,
        is_over: Callable[[], bool],
        attachment: Attachment,
    ) -> None:
        others = [connection.fileno(), server.fileno()]
        deadline = look = 0.0
        worker, words = attachment.worker, attachment.words
        while True:
            pause_ns = worker.pause_ns()
            wait_ns = _LOOK_NS if pause_ns is None else pause_ns
            had_batch = attachment.run_next(others, self._spin_us, wait_ns)
            if (had_batch or pause_ns is not None) and time.monotonic() < look:
                continue
            look = time.monotonic() + _LOOK_NS / 1e10  # also while there is no end of batches
            ready = select.select(others, [], [], 0)[0]
            if connection.fileno() in ready:
                words.hear()
            if words.is_dismissed:
                return
            if len(others) == 2 and server.fileno() in ready and is_over():
                others = others[:1]
                if not self.outlives:
                    send(connection, {"leave": True})
                    deadline = time.monotonic() + LEAVE_S
            if deadline and time.monotonic() > deadline:
                return
