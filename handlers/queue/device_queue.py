"""A worker whose model is on a GPU: entries lie on the device before the handler sees them.

The network's payloads land in the host's rings, which are pinned: the device reads and writes them
by DMA, on its own. The worker copies entries to rings of the same entries on the device, on a
stream of its own, as they arrive: while it waits for the device to finish a batch it looks at what
has become complete (``entry_arrival`` on the queue page) and sends it after. What was not copied by
then, such as a request that comes to an idle worker, is copied when its batch is given; kernels
that the handler starts wait for it on the device. Results are copied to the host's output
entries behind the kernels.

That the worker copies, and not the front end, keeps the front end free of any device's context:
it serves models on several GPUs, and a fault of one does not reach the network. A worker copies at
most one batch ahead, so that several on one queue copy little in vain.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Callable, Iterator, Sequence
from functools import cache

import numpy as np
import torch

from shunter.batching.queue.double_map import Mapping
from shunter.batching.queue.tensor_queue import TensorQueue
from shunter.batching.queue.tensor_spec import TensorSpec
from shunter.handlers.device.driver import DeviceError, Driver, cuda_driver
from shunter.handlers.device.memory import (
    DeviceRing,
    allocate,
    cuda_view,
    make_ring,
    pin,
    runs,
)
from shunter.handlers.queue.tensor_queue import Infer, QueueWorker, StagedQueueWorker

logger = logging.getLogger("shunter.device_queue")
View = Callable[[int, tuple[int, ...], str], torch.Tensor]
"""A tensor over memory of the device, from address, shape and dtype."""
_SPIN_S = 0.001
_LONGEST_PAUSE_S = 0.0005


def queue_worker(
    queue: TensorQueue, infer: Infer, batch: int, device: torch.device | None
) -> QueueWorker:
    """A worker for batches up to ``batch`` of a model that is on ``device``, None for the host."""
    if device is None:
        return QueueWorker(queue, infer)
    if device.index is None:
        device = torch.device("cuda", torch.cuda.current_device())
    try:
        driver = Driver(cuda_driver(), device.index)
    except (ImportError, RuntimeError) as error:
        _tell(f"no CUDA driver for Python (pip install 'shunter[gpu]'): {error!r}")
        return StagedQueueWorker(queue, infer, device)
    try:
        return DeviceQueueWorker(
            queue,
            infer,
            batch,
            driver,
            lambda address, shape, dtype: cuda_view(address, shape, dtype, device),
            lambda: torch.cuda.current_stream(device).cuda_stream,
        )
    except (RuntimeError, TypeError) as error:
        _tell(f"no ring on {device}: {error}")
        return StagedQueueWorker(queue, infer, device)


@cache
def _tell(reason: str) -> None:
    """Once for each reason, however often a front end comes."""
    logger.warning("Batches are copied to the device from pageable memory: %s", reason)


class DeviceQueueWorker(QueueWorker):
    """Runs batches of a queue on a device."""

    def __init__(
        self,
        queue: TensorQueue,
        infer: Infer,
        batch: int,
        driver: Driver,
        view: View,
        stream: Callable[[], int],
    ) -> None:
        """``stream`` tells on which one the handler's kernels run. It takes the driver.

        Raises DeviceError, and has let go of everything then.
        """
        super().__init__(queue, infer)
        self._driver, self._stream = driver, stream
        self._batch = min(batch, queue.entries)
        try:
            self._make(view)
        except BaseException:
            self.close()
            raise

    def _make(self, view: View) -> None:
        queue, driver = self._queue, self._driver
        self._copying = driver.stream()
        self._copied_event, self._done_event = driver.event(), driver.event()
        self._pin()
        self._rings: list[DeviceRing] = []
        self._results: list[tuple[int, int, int]] = []
        """Address on the device, address of the host's ring, and bytes of an entry."""
        hosts = iter(queue.rings)
        self._inputs = [self._input(spec, next(hosts), view) for spec in queue.inputs]
        self._outputs = [self._output(spec, next(hosts), view) for spec in queue.outputs]
        self._words, self._arrivals = queue.words, queue.arrivals()
        self._last = queue.front_end("front_end_arrivals")
        self._copied = np.zeros(queue.entries, np.int64)
        """The arrival of each entry that the device has, 0 for none."""
        self._seen = self._room = 0
        # The first to be done at the end: nothing is unmapped under a copy.
        driver.made.callback(driver.call, "cuStreamSynchronize", self._copying)

    def _input(self, spec: TensorSpec, host: Mapping | None, view: View) -> torch.Tensor:
        """All entries of a ring like the host's, of which a batch is a slice."""
        if host is None:
            return view(0, (2 * self._queue.entries, *spec.shape), spec.dtype)
        ring = make_ring(
            self._driver, host.address, self._queue.entries, spec.bytes, self._batch
        )
        self._rings.append(ring)
        return view(ring.address, (ring.rows, *spec.shape), spec.dtype)

    def _output(self, spec: TensorSpec, host: Mapping | None, view: View) -> torch.Tensor:
        """Room for the results of one batch, which go to the host's ring."""
        address = 0
        if host is not None:
            address = allocate(self._driver, self._batch * spec.bytes)
            self._results.append((address, host.address, spec.bytes))
        return view(address, (self._batch, *spec.shape), spec.dtype)

    def _pin(self) -> None:
        """One mapping of each ring; no copy goes into the second."""
        try:
            for ring in self._queue.rings:
                if ring is not None:
                    pin(self._driver, ring.address, ring.size)
        except DeviceError as error:
            _tell(f"the queue's memory cannot be pinned: {error}")

    def close(self) -> None:
        """Give everything back to the device. The tensors may not be used afterwards."""
        self._inputs, self._outputs = [], []
        with contextlib.suppress(DeviceError):  # of a device that failed nothing is to be had
            self._driver.enter()
            self._driver.made.close()

    # ---- a batch

    def _work(self, first: int, count: int) -> None:
        if count > self._batch:
            raise ValueError(f"a batch of {count}; this worker takes {self._batch}")
        self._driver.enter()
        stream = self._stream()
        self._bring(first, count, stream)
        inputs = [tensor[first : first + count] for tensor in self._inputs]
        self._infer(inputs, [tensor[:count] for tensor in self._outputs])
        self._driver.enter()  # the handler may have been elsewhere
        self._take_results(first, count, stream)
        self._driver.call("cuEventRecord", self._done_event, stream)
        self._wait()

    def _failed(self, first: int, count: int) -> None:
        """Nothing of it runs any more, and the handler may have written into its inputs."""
        self._driver.enter()
        self._driver.call("cuStreamSynchronize", self._stream())
        for entry, _ in self._entries(first, count):
            self._copied[entry] = 0

    def _entries(self, first: int, count: int) -> Iterator[tuple[int, int]]:
        """The entries of a batch, and what stands at their arrivals."""
        for at in range(first, first + count):
            entry = at % self._queue.entries
            yield entry, self._words[self._queue.entry(entry, "entry_arrival")]

    def _bring(self, first: int, count: int, stream: int) -> None:
        """Copy what is missing; the stream goes on when everything is there."""
        found = list(self._entries(first, count))
        # Of an entry that was given to this worker the number is negative.
        missing = [(e, -word) for e, word in found if word >= 0 or self._copied[e] != -word]
        self._copy([entry for entry, _ in missing])
        for entry, arrival in missing:
            self._copied[entry] = arrival
        self._driver.call("cuEventRecord", self._copied_event, self._copying)
        self._driver.call("cuStreamWaitEvent", stream, self._copied_event, 0)

    def _copy(self, entries: Sequence[int]) -> None:
        for first, count in runs(entries):
            for ring in self._rings:
                for to, begin, size in ring.copies(first, count):
                    self._driver.call("cuMemcpyHtoDAsync", to, begin, size, self._copying)

    def _take_results(self, first: int, count: int, stream: int) -> None:
        entries = [at % self._queue.entries for at in range(first, first + count)]
        row = 0
        for begin, length in runs(entries):
            for address, host, size in self._results:
                self._driver.call(
                    "cuMemcpyDtoHAsync",
                    host + begin * size,
                    address + row * size,
                    length * size,
                    stream,
                )
            row += length

    # ---- while the device works

    def _wait(self) -> None:
        """Until the batch is done, copy what arrives meanwhile."""
        self._room = self._batch
        begin = time.monotonic()
        while not self._driver.is_done(self._done_event):
            if self._copy_ahead():
                continue
            waited = time.monotonic() - begin
            if waited < _SPIN_S:
                os.sched_yield()
            else:  # late by a twentieth at most
                time.sleep(min(waited / 20, _LONGEST_PAUSE_S))

    def _copy_ahead(self) -> bool:
        """Copy what waits and is not on the device, the oldest first; whether there was any."""
        last = self._words[self._last]
        if last == self._seen or not self._room:
            return False
        # Once, before the copy: what is replaced meanwhile has another number when it is given.
        arrivals = self._arrivals.copy()
        fresh = np.flatnonzero((arrivals > 0) & (arrivals != self._copied))
        oldest = fresh[np.argsort(arrivals[fresh])][: self._room]
        self._copy(oldest.tolist())
        self._copied[oldest] = arrivals[oldest]
        self._room -= len(oldest)
        if len(oldest) == len(fresh):
            self._seen = last
        return len(oldest) > 0
