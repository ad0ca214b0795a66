"""The worker's end of a tensor queue in Python: the twin of ``c/worker/worker.c``."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import threading
import time
from collections.abc import Sequence

from shunter.batching.queue.layout import AHEAD
from shunter.batching.queue.tensor_queue import TensorQueue
from shunter.nic_frontend.wire.header import Header
from shunter.nic_frontend.wire.layout import Flags, MessageType, WireStatus
from shunter.nic_frontend.wire.segments import SegmentPlan

_FENCE = threading.Lock()
_FAMILIES = {socket.AF_INET: 16, socket.AF_INET6: 28}


def fence() -> None:
    """Order stores before loads: taking a lock is an atomic read and write."""
    with _FENCE:
        return


def address_of(peer: bytes) -> tuple[str, int] | tuple[str, int, int, int]:
    """A socket address as Python wants it, from the kernel's bytes."""
    family = int.from_bytes(peer[:2], "little")
    port = int.from_bytes(peer[2:4], "big")
    if family == socket.AF_INET:
        return socket.inet_ntop(family, peer[4:8]), port
    if family == socket.AF_INET6:
        flow = int.from_bytes(peer[4:8], "big")
        scope = int.from_bytes(peer[24:28], "little")
        return socket.inet_ntop(family, peer[8:24]), port, flow, scope
    raise ValueError(f"address family {family}")


class PythonWorkerQueue:
    """See :class:`shunter.batching.queue.native.WorkerQueue`."""

    def __init__(
        self,
        queue: TensorQueue,
        func_id: int,
        worker: int,
        doorbell: int,
        sender: socket.socket,
        front: int,
    ) -> None:
        """``sender`` sends the answers, ``front`` is the front end's doorbell."""
        self._queue, self._words, self._func_id = queue, queue.words, func_id
        self._doorbell, self._sender, self._front = doorbell, sender, front
        self._w = {
            name: queue.worker(worker, name)
            for name in (
                *("batch_number", "batch_first", "batch_count"),
                *("done_number", "worker_asleep"),
            )
        }
        self._wants = queue.front_end("front_end_wants_done")
        self._front_asleep = queue.front_end("front_end_asleep")
        self._batch = (0, 0, 0)
        self._spins = False
        _, outputs = queue.arrays()
        self._outputs = [memoryview(a).cast("B") if a.size else memoryview(b"") for a in outputs]

    def wait(
        self, other: Sequence[int], spin_us: int, timeout_ms: int
    ) -> tuple[int, int] | None:
        """First entry and length of the next batch; None when something else is up."""
        words = self._words
        end = time.monotonic_ns() + spin_us * 1000 * self._spins
        while not (found := self._look()) and time.monotonic_ns() < end:
            os.sched_yield()
        if not found:
            words[self._w["worker_asleep"]] = 1
            fence()  # one of the two sees the other
            if not (found := self._look()):
                slept_ns = time.monotonic_ns()
                self._sleep(other, timeout_ms)
                self._spins = time.monotonic_ns() - slept_ns < spin_us * 1000
            words[self._w["worker_asleep"]] = 0
            found = found or self._look()
        return self._batch[:2] if found else None

    def _sleep(self, other: Sequence[int], timeout_ms: int) -> None:
        poller = select.poll()
        for descriptor in (self._doorbell, *other):
            poller.register(descriptor, select.POLLIN)
        if any(descriptor == self._doorbell for descriptor, _ in poller.poll(timeout_ms)):
            with contextlib.suppress(BlockingIOError):
                os.eventfd_read(self._doorbell)

    def _look(self) -> bool:
        words = self._words
        done = words[self._w["done_number"]]
        if words[self._w["batch_number"]] <= done:
            return False
        place = (done + 1) % AHEAD
        first = words[self._w["batch_first"] + place]
        count = words[self._w["batch_count"] + place]
        self._batch = (first, count, done + 1)
        # The page is another process's: a view outside of the rings must not come of it.
        return 0 <= first < self._queue.entries and 1 <= count <= self._queue.entries

    def answer(self, statuses: Sequence[int]) -> None:
        """Answer the batch that :meth:`wait` gave, with a status for each entry."""
        queue, words = self._queue, self._words
        first, _, number = self._batch
        for i, status in enumerate(statuses):
            entry = (first + i) % queue.entries
            # First, so that an answer that was sent is never followed by an error.
            words[queue.entry(entry, "entry_status")] = status
            if status == WireStatus.OK and words[queue.entry(entry, "entry_direct")]:
                self._send(entry)
        words[self._w["done_number"]] = number
        fence()
        all_good = all(status == WireStatus.OK for status in statuses)
        if (words[self._wants] or not all_good) and words[self._front_asleep]:
            with contextlib.suppress(OSError):
                os.eventfd_write(self._front, 1)

    def _send(self, entry: int) -> None:
        queue, words = self._queue, self._words
        at = queue.entry(entry, "entry_req_id")
        req_id, session, flags, segment, pkt_no, credit = words[at : at + 6]
        raw = words.cast("B")
        key_at = 8 * queue.entry(entry, "entry_key")
        peer_at = 8 * queue.entry(entry, "entry_peer")
        key = bytes(raw[key_at : key_at + 16]) if flags & Flags.HDR_TAG else None
        address = address_of(bytes(raw[peer_at : peer_at + 32]))
        sizes = tuple(spec.bytes for spec in queue.outputs)
        plan = SegmentPlan(sizes, segment)
        for seq in range(plan.count):
            part = plan.place(seq)
            header = Header(
                type=MessageType.RESP,
                flags=Flags.LAST | flags & Flags.ACK_REQ if seq == plan.count - 1 else 0,
                req_id=req_id,
                func_id=self._func_id,
                seq=seq,
                count=plan.count,
                length=part.length,
                total=sizes[part.tensor],
                offset=part.offset,
                session=session,
                credit=credit,
                status=WireStatus.OK,
                tensor=part.tensor,
                pkt_no=(pkt_no + seq) & 0xFFFFFFFF,
            )
            begin = entry * sizes[part.tensor] + part.offset
            payload = self._outputs[part.tensor][begin : begin + part.length]
            # What does not leave counts as lost; the front end repeats it when it is asked for.
            with contextlib.suppress(OSError):
                self._sender.sendmsg([header.pack(key), payload], [], 0, address)

    def close(self) -> None:
        """Nothing to free."""
