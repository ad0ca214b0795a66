"""A worker whose model is on a GPU.

A batch is gathered into pinned memory and goes to the device in one copy for each input, to
addresses that are the same for every batch, as captured CUDA graphs need them. Results go to the
host behind the kernels.

That the worker copies, and not the front end, keeps the front end free of any device's context:
it serves models on several GPUs, and a fault of one does not reach the network.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Callable, Iterator
from functools import cache

import torch

from shunter.batching.queue.native import Batch, WorkerQueue
from shunter.batching.queue.tensor_spec import TensorSpec
from shunter.handlers.device.driver import DeviceError, Driver, cuda_driver
from shunter.handlers.device.memory import allocate, cuda_view, pin
from shunter.handlers.queue.tensor_queue import Infer, QueueWorker, StagedQueueWorker

logger = logging.getLogger("shunter.device_queue")
View = Callable[[int, tuple[int, ...], str], torch.Tensor]
"""A tensor over memory of the device, from address, shape and dtype."""
_SPIN_S = 0.001
_LONGEST_PAUSE_S = 0.0005


def queue_worker(
    end: WorkerQueue, infer: Infer, batch: int, device: torch.device | None
) -> QueueWorker:
    """A worker for batches up to ``batch`` of a model that is on ``device``, None for the host."""
    if device is None:
        return QueueWorker(end, infer, batch)
    if device.index is None:
        device = torch.device("cuda", torch.cuda.current_device())
    try:
        driver = Driver(cuda_driver(), device.index)
    except (ImportError, RuntimeError) as error:
        _tell(f"no CUDA driver for Python (pip install 'shunter[gpu]'): {error!r}")
        return StagedQueueWorker(end, infer, batch, device)
    try:
        return DeviceQueueWorker(
            end,
            infer,
            batch,
            driver,
            lambda address, shape, dtype: cuda_view(address, shape, dtype, device),
            lambda: torch.cuda.current_stream(device).cuda_stream,
        )
    except (RuntimeError, TypeError) as error:
        _tell(f"no memory on {device}: {error}")
        return StagedQueueWorker(end, infer, batch, device)


@cache
def _tell(reason: str) -> None:
    """Once for each reason, however often a front end comes."""
    logger.warning("Batches are copied to the device from pageable memory: %s", reason)


class DeviceQueueWorker(QueueWorker):
    """Runs batches of a queue on a device."""

    def __init__(
        self,
        end: WorkerQueue,
        infer: Infer,
        batch: int,
        driver: Driver,
        view: View,
        stream: Callable[[], int],
    ) -> None:
        """``stream`` tells on which one the handler's kernels run. It takes the driver.

        Raises DeviceError, and has let go of everything then.
        """
        super().__init__(end, infer, batch)
        self._driver, self._stream = driver, stream
        try:
            self._make(view)
        except BaseException:
            self.close()
            raise

    def _make(self, view: View) -> None:
        queue, driver = self._end.queue, self._driver
        self._done_event = driver.event()
        self._pin()
        self._on_device = [self._twin(spec, view) for spec in queue.inputs]
        self._results = [self._twin(spec, view) for spec in queue.outputs]

    def _twin(self, spec: TensorSpec, view: View) -> torch.Tensor:
        """Rows for the largest batch on the device."""
        size = self._batch * spec.bytes
        address = allocate(self._driver, size) if size else 0
        return view(address, (self._batch, *spec.shape), spec.dtype)

    def _pin(self) -> None:
        """What is copied from and to; one mapping of each ring."""
        try:
            for tensor in (*self._inputs, *self._scratch):
                if tensor.nbytes:
                    pin(self._driver, tensor.data_ptr(), tensor.nbytes)
            for ring in self._end.queue.rings:
                if ring is not None:
                    pin(self._driver, ring.address, ring.size)
        except DeviceError as error:
            _tell(f"the queue's memory cannot be pinned: {error}")

    def close(self) -> None:
        """Give everything back to the device. The tensors may not be used afterwards."""
        self._on_device, self._results = [], []
        with contextlib.suppress(DeviceError):  # of a device that failed nothing is to be had
            self._driver.enter()
            self._driver.made.close()
        super().close()

    def _work(self, batch: Batch, begin: int, count: int) -> None:
        self._driver.enter()
        stream, last = self._stream(), begin + count
        gathered = self._gather(batch, begin, count)
        inputs = [tensor[:count] for tensor in self._on_device]
        for tensor, host in zip(inputs, gathered, strict=True):
            self._copy("cuMemcpyHtoDAsync", tensor.data_ptr(), host.data_ptr(), host.nbytes, stream)
        outputs = [tensor[:count] for tensor in self._results]
        self._infer(inputs, outputs)
        self._driver.enter()  # the handler may have been elsewhere
        rows = self._host_rows(begin, last, batch.first)
        for tensor, (host, size) in zip(outputs, rows, strict=True):
            self._copy("cuMemcpyDtoHAsync", host, tensor.data_ptr(), size, stream)
        self._driver.call("cuEventRecord", self._done_event, stream)
        self._wait()

    def _copy(self, how: str, to: int, begin: int, size: int, stream: int) -> None:
        if size:
            self._driver.call(how, to, begin, size, stream)

    def _host_rows(self, begin: int, last: int, first: int | None) -> Iterator[tuple[int, int]]:
        """By output: where its rows go on the host, and how many bytes."""
        queue, count = self._end.queue, last - begin
        for spec, ring, scratch in zip(queue.outputs, queue.rings, self._scratch, strict=True):
            if first is None or ring is None:
                yield scratch[begin:last].data_ptr(), count * spec.bytes
            else:
                yield ring.address + (first + begin) * spec.bytes, count * spec.bytes

    def _failed(self) -> None:
        """Nothing of it runs any more."""
        self._driver.enter()
        self._driver.call("cuStreamSynchronize", self._stream())

    def _wait(self) -> None:
        begin = time.monotonic()
        while not self._driver.is_done(self._done_event):
            waited = time.monotonic() - begin
            if waited < _SPIN_S:
                os.sched_yield()
            else:  # late by a twentieth at most
                time.sleep(min(waited / 20, _LONGEST_PAUSE_S))
