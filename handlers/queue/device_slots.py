"""What batches that are on their way to a device, or back, have each for themselves."""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import Array, c_void_p
from dataclasses import dataclass
from typing import Any

import torch

from shunter.batching.queue.native import Batch, WorkerQueue
from shunter.batching.queue.tensor_spec import TensorSpec
from shunter.handlers.device.driver import Driver
from shunter.handlers.device.memory import allocate, pin


@dataclass(frozen=True)
class Slot:
    """Memory of one batch, rows for the largest one, and how far it is."""

    gathered: Sequence[torch.Tensor]
    """Inputs on the host, and their addresses."""
    into: Array[c_void_p]
    results: Sequence[torch.Tensor]
    """Those that do not go to their entries at once; on the host."""
    inputs: Sequence[int]
    """Addresses on the device, as of those below."""
    outputs: Sequence[int]
    there: Any
    """Event: its inputs are on the device."""
    ran: Any
    done: Any
    """Event: its results are on the host."""


class Transfers:
    """Brings batches to the fixed tensors of a model, and results back.

    A batch that comes alone is copied there on the stream of the kernels. One that follows another
    is copied on a stream of its own to where no kernel looks, and from there, when its turn has
    come, within the device; so with results.
    """

    def __init__(
        self,
        driver: Driver,
        end: WorkerQueue,
        fixed: tuple[Sequence[torch.Tensor], Sequence[torch.Tensor]],
        batch: int,
    ) -> None:
        """``fixed``: inputs and outputs of the model; ``batch``: rows of the largest one.

        Raises DeviceError.
        """
        self._driver, self._end, self._batch = driver, end, batch
        self._inputs, self._outputs = fixed
        self._streams = [driver.stream(), driver.stream()]
        """For inputs, and for results."""

    def slot(self, gathered: Sequence[torch.Tensor], results: Sequence[torch.Tensor]) -> Slot:
        """Of a batch, with these rows on the host. Raises DeviceError."""
        queue, driver = self._end.queue, self._driver
        places = [[self._room(spec) for spec in kind] for kind in (queue.inputs, queue.outputs)]
        into = (c_void_p * len(gathered))(*[each.data_ptr() or None for each in gathered])
        return Slot(gathered, into, results, *places, *[driver.event() for _ in range(3)])

    def _room(self, spec: TensorSpec) -> int:
        size = self._batch * spec.bytes
        return allocate(self._driver, size) if size else 0

    def pin(self, slots: Sequence[Slot]) -> None:
        """What is copied from and to; one mapping of each ring. Raises DeviceError."""
        for slot in slots:
            for tensor in (*slot.gathered, *slot.results):
                if tensor.nbytes:
                    pin(self._driver, tensor.data_ptr(), tensor.nbytes)
        for ring in self._end.queue.rings:
            if ring is not None:
                pin(self._driver, ring.address, ring.size)

    def bring(
        self, batch: Batch, slot: Slot, begin: int, count: int, compute: Any, alone: bool
    ) -> list[torch.Tensor]:
        """Inputs of these rows of a batch, at the fixed addresses for what comes on ``compute``."""
        self._end.gather(batch, begin, count, slot.into)
        inputs = [tensor[:count] for tensor in self._inputs]
        stream = compute if alone else self._streams[0]
        for tensor, host, place in zip(inputs, slot.gathered, slot.inputs, strict=True):
            to = tensor.data_ptr() if alone else place
            self._copy("cuMemcpyHtoDAsync", to, host.data_ptr(), tensor.nbytes, stream)
        if not alone:
            self._follow(slot.there, stream, compute)
            for tensor, place in zip(inputs, slot.inputs, strict=True):
                self._copy("cuMemcpyDtoDAsync", tensor.data_ptr(), place, tensor.nbytes, compute)
        return inputs

    def outputs(self, count: int) -> list[torch.Tensor]:
        """So many rows of the results, at the fixed addresses."""
        return [tensor[:count] for tensor in self._outputs]

    def fetch(
        self, batch: Batch, slot: Slot, begin: int, count: int, compute: Any, alone: bool
    ) -> None:
        """Results of what is on ``compute`` to the host, as those of the rows from ``begin`` on."""
        stream = compute if alone else self._streams[1]
        outputs = self.outputs(count)
        if not alone:
            for tensor, place in zip(outputs, slot.outputs, strict=True):
                self._copy("cuMemcpyDtoDAsync", place, tensor.data_ptr(), tensor.nbytes, compute)
            self._follow(slot.ran, compute, stream)
        for i, (tensor, place) in enumerate(zip(outputs, slot.outputs, strict=True)):
            source = tensor.data_ptr() if alone else place
            to = self._on_host(batch, slot, begin, i)
            self._copy("cuMemcpyDtoHAsync", to, source, tensor.nbytes, stream)
        self._driver.call("cuEventRecord", slot.done, stream)

    def _on_host(self, batch: Batch, slot: Slot, begin: int, output: int) -> int:
        """Where rows of an output go: where they are sent from, if that is one place."""
        spec, ring = self._end.queue.outputs[output], self._end.queue.rings[output]
        first = batch.first
        if first is None or ring is None:
            return slot.results[output][begin:].data_ptr()
        return ring.address + (first + begin) * spec.bytes

    def _copy(self, how: str, to: int, begin: int, size: int, stream: Any) -> None:
        if size:
            self._driver.call(how, to, begin, size, stream)

    def _follow(self, event: Any, stream: Any, other: Any) -> None:
        """What comes on the other stream waits for what is on this one."""
        self._driver.call("cuEventRecord", event, stream)
        self._driver.call("cuStreamWaitEvent", other, event, 0)

    def wait(self, compute: Any) -> None:
        """Until nothing is under way, here and on ``compute``. Raises DeviceError."""
        self._driver.enter()
        for stream in (compute, *self._streams):
            self._driver.call("cuStreamSynchronize", stream)
