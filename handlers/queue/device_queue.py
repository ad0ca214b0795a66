"""A worker whose model is on a GPU.

A batch is gathered into pinned memory and goes to the device in one copy for each input, to
addresses that are the same for every batch, as captured CUDA graphs need them. Results go to the
host behind the kernels.

While a batch runs the next one is brought: it is gathered into memory of its own, copied on
another stream to where the first one's kernels do not look, and its kernels are behind those of
the first before these are done. From there to the fixed addresses, and from these away, is a copy
inside of the device. A batch that finds the device idle needs no such copies.

That the worker copies, and not the front end, keeps the front end free of any device's context:
it serves models on several GPUs, and a fault of one does not reach the network.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from shunter.batching.queue.layout import AHEAD, EntryStatus
from shunter.batching.queue.native import Batch, FrontEndError, WorkerQueue
from shunter.handlers.device.driver import DeviceError
from shunter.handlers.queue.device_model import DeviceModel, tell_pageable
from shunter.handlers.queue.device_slots import Slot, Transfers
from shunter.handlers.queue.tensor_queue import Infer, QueueWorker, StagedQueueWorker

logger = logging.getLogger("shunter.device_queue")
_SPIN_NS = 1_000_000
_LONGEST_PAUSE_NS = 500_000


def queue_worker(
    end: WorkerQueue,
    infer: Infer,
    batch: int,
    device: torch.device | None,
    model: DeviceModel | None = None,
) -> QueueWorker:
    """A worker for batches up to ``batch`` of a model that is on ``device``, None for the host.

    ``model``: what :func:`device_model` made of it.
    """
    if device is None:
        return QueueWorker(end, infer, batch)
    if model is not None:
        try:
            return DeviceQueueWorker(end, model)
        except (RuntimeError, TypeError) as error:
            tell_pageable(f"no memory on {device}: {error}")
    return StagedQueueWorker(end, infer, batch, device)


@dataclass
class Flight:
    """A batch that has begun."""

    batch: Batch
    slot: Slot
    since_ns: int
    """When it began, or when it became the oldest."""
    failed: bool = False
    """Its handler failed."""


class DeviceQueueWorker(QueueWorker):
    """Runs batches of a queue on a device; the next one is brought while one runs."""

    def __init__(self, end: WorkerQueue, model: DeviceModel) -> None:
        """The model stays the caller's.

        Raises DeviceError, and has let go of everything then.
        """
        super().__init__(end, model.infer, model.batch)
        self._model, self._driver = model, model.driver.part()
        self._flights: deque[Flight] = deque()
        try:
            self._driver.enter()
            fixed = model.inputs, model.outputs
            self._transfers = Transfers(self._driver, end, fixed, self._batch)
            self._free = [self._transfers.slot(*rows) for rows in self._host_rows()]
            self._pin()
        except BaseException:
            self.close()
            raise

    def _host_rows(self) -> Iterator[tuple[list[torch.Tensor], list[torch.Tensor]]]:
        queue = self._end.queue
        yield self._inputs, self._scratch
        for _ in range(AHEAD - 1):
            yield self._rows(queue.inputs), self._rows(queue.outputs)

    def _pin(self) -> None:
        try:
            self._transfers.pin(self._free)
        except DeviceError as error:
            tell_pageable(f"the queue's memory cannot be pinned: {error}")

    def close(self) -> None:
        """Give everything back to the device, of batches that nobody waits for any more."""
        with contextlib.suppress(DeviceError):  # of a device that failed nothing is to be had
            if self._flights:
                self._transfers.wait(self._model.stream())
            self._driver.enter()
            self._driver.made.close()
        self._flights.clear()
        super().close()

    def begin(self, batch: Batch) -> None:
        """Let it follow those that have begun, and return without waiting for the device."""
        self._check(batch)
        flight = Flight(batch, self._free.pop(), time.monotonic_ns())
        self._flights.append(flight)
        is_apart = batch.first is None
        for i, rows in enumerate(flight.slot.results):
            batch.results[i] = (rows.data_ptr() or None) if is_apart else None
        flight.failed = not self._launch(flight, 0, batch.count)

    def finished(self) -> tuple[Batch, list[int]] | None:
        """See :meth:`QueueWorker.finished`; requests of a batch that failed run again here."""
        if not self._flights:
            return None
        flight = self._flights[0]
        if flight.failed:
            statuses = self._apart(flight)
        elif self._driver.is_done(flight.slot.done):
            statuses = [EntryStatus.OK] * flight.batch.count
        else:
            return None
        self._flights.popleft()
        self._free.append(flight.slot)
        if self._flights:  # it runs since now
            self._flights[0].since_ns = time.monotonic_ns()
        return flight.batch, statuses

    def pause_ns(self) -> int | None:
        """Late by a twentieth at most."""
        if not self._flights:
            return None
        waited = time.monotonic_ns() - self._flights[0].since_ns
        return 0 if waited < _SPIN_NS else min(waited // 20, _LONGEST_PAUSE_NS)

    def _launch(self, flight: Flight, begin: int, count: int) -> bool:
        """Put these rows of a batch on the device; whether the handler did not fail."""
        self._driver.enter()
        what = flight.batch, flight.slot, begin, count
        compute, alone = self._model.stream(), len(self._flights) == 1
        inputs = self._transfers.bring(*what, compute, alone)
        try:
            self._infer(inputs, self._transfers.outputs(count))
        except (DeviceError, FrontEndError):
            raise
        except Exception:
            logger.exception("The handler failed on a batch of %d.", count)
            return False
        finally:
            self._driver.enter()  # the handler may have been elsewhere
        self._transfers.fetch(*what, compute, alone)
        return True

    def _apart(self, flight: Flight) -> list[int]:
        """A batch failed: each of its requests that may run twice once more, alone.

        It is the oldest one now: nobody's answer waits for this.
        """
        batch, failed = flight.batch, EntryStatus.HANDLER_FAILED
        compute = self._model.stream()
        self._transfers.wait(compute)
        if batch.count == 1:
            return [failed]
        found = []
        for row in range(batch.count):
            is_right = self._may_run_twice(batch, row) and self._launch(flight, row, 1)
            self._transfers.wait(compute)  # nothing runs any more of what failed
            found.append(EntryStatus.OK if is_right else failed)
        return found
