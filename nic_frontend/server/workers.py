"""A function, the workers that are attached to it, and what is asked of a worker."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import select
import signal
import socket
import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from shunter.batching.page.layout import CLASSES
from shunter.batching.page.slices import SliceSet
from shunter.batching.queue.attach import Attach, AttachError, peer_process, send
from shunter.batching.queue.packed import Packing
from shunter.batching.queue.regions import Regions
from shunter.batching.queue.size import entries_within
from shunter.batching.queue.tensor_queue import TensorQueue
from shunter.batching.queue.tensor_spec import TensorSpec
from shunter.nic_frontend.server.loops import Loops
from shunter.nic_frontend.server.model_policy import Defaults, Runs
from shunter.nic_frontend.wire.header import AEAD_TAG
from shunter.nic_frontend.wire.hello import SMALLEST_SEGMENT
from shunter.nic_frontend.wire.layout import LARGEST_SEGMENT, MAX_SEGMENTS

LOGGER = logging.getLogger("shunter.nic")
KILL_NS = 2_000_000_000
IDLE_NS = 60_000_000_000
"""So long an answer in parts is kept for whom nobody asks, where the worker does not say."""
"""A process that is killed should end in so long a time; it is said when it does not."""
_PAYLOAD = LARGEST_SEGMENT - AEAD_TAG
"""The most that a segment of any session carries."""
_LEAST = SMALLEST_SEGMENT - AEAD_TAG
"""The least, but for the last of a tensor."""
_TRUESIZE = 1.1
"""Memory of the kernel for a byte of a large datagram."""
_USUAL_RUN = 1 << 16
"""Most requests of a packed function have fewer bytes, whatever they may have."""
_SMALL = 2304
"""The same for a small datagram as a whole."""


@dataclass
class Worker:
    """A worker that is attached."""

    connection: socket.socket
    func_id: int
    index: int
    doorbell: int
    pid: int
    timeout_ns: int
    """A batch may run so long; 0: as long as it wants."""
    process: int = -1
    """Descriptor of the process, -1: it cannot be seen from here."""
    shares: bool = False
    """Its process with other models: what is known here is its seat, which does not run batches."""
    killed: bool = False
    told: bool = False
    """That it does not end."""
    leaving: bool = False
    left: bool = False
    model: str = ""
    slices: SliceSet = 0
    """Where its strict requests run."""
    batch: int = 1
    """Largest that it takes."""

    @classmethod
    def of(
        cls, connection: socket.socket, func_id: int, index: int, doorbell: int, attach: Attach
    ) -> Worker:
        """The process at the other end of a connection, as it describes itself."""
        timeout_ns = int(attach.response_timeout_s * 1e9)
        worker = cls(
            *(connection, func_id, index, doorbell, peer_process(connection)[0], timeout_ns),
            model=attach.model,
            slices=attach.slices,
            batch=attach.batch,
            shares=attach.pool != 0,
        )
        with contextlib.suppress(OSError):
            worker.process = os.pidfd_open(worker.pid)  # its number may be another's one day
            weakref.finalize(worker, os.close, worker.process)
        return worker

    @property
    def has_ended(self) -> bool:
        """Whether the process is known to be over: it writes nowhere any more.

        Of one that shares its process only the end of the connection says that.
        """
        is_known = self.process >= 0 and not self.shares
        return is_known and bool(select.select([self.process], [], [], 0)[0])

    def kill(self) -> None:
        """End the process, if it can be seen from here."""
        if self.process >= 0:
            with contextlib.suppress(OSError):
                signal.pidfd_send_signal(self.process, signal.SIGKILL)

    def tell(self, content: dict[str, object], descriptors: Sequence[int] = ()) -> None:
        """Send it a message, if it is there."""
        try_send(self.connection, content, descriptors)

    @property
    def stays(self) -> bool:
        """Whether it takes more batches."""
        return not self.leaving and not self.killed


@dataclass
class Function:
    """One version of a model."""

    id: int
    attach: Attach
    queue: TensorQueue
    workers: dict[int, Worker] = field(default_factory=dict)
    alone_since: float = 0.0
    """When its last worker went, 0: it has one."""
    slot: int = -1
    """Of its model on the server's control page, as its newest worker says."""
    regions: Regions = field(default_factory=Regions)

    def add_worker(self, worker: Worker) -> None:
        """It has attached."""
        self.workers[worker.index] = worker
        self.regions.tell(worker)

    def remove_worker(self, worker: Worker) -> None:
        """It is gone."""
        del self.workers[worker.index]
        self.regions.left(worker.index)

    def unmapped(self, worker: Worker, region: object) -> None:
        """It does not have that region any more."""
        self.regions.unmapped(region, worker.index)

    def close(self) -> None:
        """Unmap its memory, when the data path does not use it any more."""
        self.queue.close()
        self.regions.close()

    @property
    def model(self) -> str:
        """Name of its model."""
        return self.attach.model

    @property
    def version(self) -> str:
        """Version of its model."""
        return self.attach.version

    @property
    def slices(self) -> SliceSet:
        """Where strict requests run: those of all workers that could run them."""
        found = 0
        for worker in self.workers.values():
            found |= worker.slices
        return found

    @property
    def most_rows(self) -> int:
        """Of a request: what any worker takes that stays, or, where none does, that is there."""
        packing = self.attach.packing
        if packing is None or not packing.batched:
            return 1
        found = self.workers.values()
        staying = [worker.batch for worker in found if worker.stays]
        return max(staying or [worker.batch for worker in found], default=1)

    @property
    def has_staying_worker(self) -> bool:
        """Whether a worker of it takes more batches."""
        return any(worker.stays for worker in self.workers.values())

    def alone_for(self, now: float) -> float:
        """Seconds since it was first seen without a worker; -1: it has one."""
        if self.workers:
            self.alone_since = 0.0
            return -1.0
        self.alone_since = self.alone_since or now
        return now - self.alone_since

    def is_version_of(self, attach: Attach) -> bool:
        """Whether it is the model version of a worker."""
        return (self.model, self.version) == (attach.model, attach.version)

    def has_tensors_of(self, attach: Attach) -> bool:
        """Whether a worker takes and gives the same tensors."""
        mine, theirs = (
            (each.inputs, each.outputs, each.packing) for each in (self.attach, attach)
        )
        return mine == theirs


def queue_of(
    attach: Attach, func_id: int, most_bytes: int, free_bytes: Callable[[], float]
) -> TensorQueue:
    """A new queue for the tensors of a worker. Raises QueueError, OSError."""
    inputs, outputs = attach.carried_inputs, attach.carried_outputs
    streamed = attach.packing is not None and attach.packing.streamed
    batch = max(attach.batch, 2 if streamed else 1)  # a request, and a place for its parts
    wanted = entries_within((*inputs, *outputs), batch, most_bytes)
    pieces = min(MAX_SEGMENTS, sum(-(-spec.bytes // _LEAST) for spec in inputs)) or 1
    packed = attach.packing is not None
    return TensorQueue.create(
        func_id, inputs, outputs, wanted, pieces, free_bytes, packed=packed
    )


def burst_of(attach: Attach, queue: TensorQueue, receive_bytes: int) -> int:
    """Requests that fit into a socket's buffer of so many bytes at once."""
    most = _USUAL_RUN if attach.packing else math.inf
    sizes = [min(most, spec.bytes) for spec in attach.carried_inputs]
    asked = sum(max(_SMALL, _TRUESIZE * size) for size in sizes)
    return max(1, min(queue.entries, int(receive_bytes / asked)))


def runs_of(function: Function) -> Runs:
    """How long its requests and answers are at least, and how many rows a request has at most."""
    attach = function.attach
    batched = attach.packing is not None and attach.packing.batched
    sides = attach.inputs, attach.outputs
    least = (Packing(side, batched).least for side in sides)
    streamed = attach.packing is not None and attach.packing.streamed
    idle_ns = int(attach.response_timeout_s * 1e9 / 2) or IDLE_NS
    return Runs(function.most_rows, *least, streamed, idle_ns)


def tell(path: Loops, function: Function) -> None:
    """Strict requests hold the slices of all workers that could run them; and a request has at most
    as many rows as one of them takes."""
    if function.attach.packing and function.workers:
        path.set_runs(function.id, runs_of(function))
    path.set_hold(function.id, function.slot, function.slices)


def end_stuck(path: Loops, workers: Iterable[Worker], now_ns: int) -> list[Worker]:
    """Kill workers that do not answer: their server starts others.

    They are gone when their connections end or, which is told, when their processes have; not
    before, however long that takes: what a worker holds it may still write to.
    """
    gone = []
    for worker in workers:
        busy_ns = path.busy_ns(worker.func_id, worker.index, now_ns)
        if not worker.timeout_ns or busy_ns <= worker.timeout_ns:
            continue
        if not worker.killed:
            worker.killed = True
            LOGGER.warning(
                "worker %d (pid %d) of %s is killed: no answer within responseTimeout of %g s",
                *(worker.index, worker.pid, worker.model, worker.timeout_ns / 1e9),
            )
            path.drain_worker(worker.func_id, worker.index)
            worker.kill()
        elif worker.has_ended:
            gone.append(worker)
        elif busy_ns > worker.timeout_ns + KILL_NS and not worker.told:
            worker.told = True
            LOGGER.error(
                "worker %d (pid %d) of %s was killed and does not end: its requests wait for it",
                *(worker.index, worker.pid, worker.model),
            )
    return gone


def defaults_of(attach: Attach) -> Defaults:
    """What requests take from their model: as its newest worker says."""
    priority = CLASSES.index(attach.request_class)
    return Defaults(priority, attach.slo_ns, attach.client_timeout_ns)


def check_together(side: Sequence[TensorSpec]) -> None:
    """Raises AttachError for tensors that no session could carry in one request."""
    count = sum(-(-spec.bytes // _PAYLOAD) for spec in side)
    if count > MAX_SEGMENTS:
        total = sum(spec.bytes for spec in side)
        raise AttachError(f"{total} bytes are {count} segments, at most {MAX_SEGMENTS}")


def try_send(
    connection: socket.socket, content: dict[str, object], descriptors: Sequence[int] = ()
) -> None:
    try:
        send(connection, content, descriptors)
    except OSError:
        return  # it is gone, or will be
