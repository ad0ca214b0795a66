"""Graphs made of captured ones: chains of parts, with gates and notes of the device between them.

A gate is a memory operation of the stream: what comes behind it waits until the process's flag
word is 0. In a graph it is a node; where a driver takes none, a pass is launched as several graphs
with gates between them on the stream, which does the same for more work of the host.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from shunter.handlers.device_driver import DeviceError, Driver
from shunter.handlers.device_flags import FlagWord


@dataclass(frozen=True)
class MemoryOperation:
    """The stream waits until a word of 32 bits is ``value``, or writes it."""

    waits: bool
    address: int
    value: int

    def on_stream(self, driver: Driver, stream: Any) -> None:
        """Behind what the stream has to do. Raises DeviceError."""
        if self.waits:
            equal = int(driver.module.CUstreamWaitValue_flags.CU_STREAM_WAIT_VALUE_EQ)
            driver.call("cuStreamWaitValue32", stream, self.address, self.value, equal)
        else:
            driver.call("cuStreamWriteValue32", stream, self.address, self.value, 0)

    def parameters(self, driver: Driver) -> Any:
        """As a graph's node has it."""
        cuda = driver.module
        made = cuda.CUstreamBatchMemOpParams()
        kinds = cuda.CUstreamBatchMemOpType
        if self.waits:
            what = made.waitValue
            made.operation = kinds.CU_STREAM_MEM_OP_WAIT_VALUE_32
            flags = cuda.CUstreamWaitValue_flags.CU_STREAM_WAIT_VALUE_EQ
        else:
            what = made.writeValue
            made.operation = kinds.CU_STREAM_MEM_OP_WRITE_VALUE_32
            flags = cuda.CUstreamWriteValue_flags.CU_STREAM_WRITE_VALUE_DEFAULT
        what.operation = made.operation
        what.address, what.value, what.flags = self.address, self.value, int(flags)
        return made


def gate(flag: FlagWord) -> MemoryOperation:
    """Wait until nobody holds. Raises DeviceError if the device does not see the word."""
    return MemoryOperation(True, _seen(flag.address), 0)


def note(flag: FlagWord, number: int) -> MemoryOperation:
    """Tell the host how far the stream is; see :attr:`FlagWord.counter`. Raises as :func:`gate`."""
    return MemoryOperation(False, _seen(flag.counter_address), number)


def _seen(address: int) -> int:
    if not address:
        raise DeviceError("the device does not see the flag word")
    return address


Step = int | MemoryOperation
"""A graph, by its handle, or an operation."""


class Chain:
    """An instantiated graph that runs steps one after the other, until :meth:`close`."""

    def __init__(self, driver: Driver, steps: Sequence[Step]) -> None:
        """Graphs among the steps are copied, but the memory they use must stay.

        Raises DeviceError, also where the driver takes no such nodes.
        """
        self._driver = driver
        with ExitStack() as made:
            graph = driver.call("cuGraphCreate", 0)
            made.callback(driver.call, "cuGraphDestroy", graph)
            before: list[Any] = []
            for step in _runs(steps, MemoryOperation):
                before = [self._add(graph, before, step)]
            self._executable = driver.call("cuGraphInstantiate", graph, 0)

    def _add(self, graph: Any, before: list[Any], step: int | list[MemoryOperation]) -> Any:
        driver = self._driver
        if isinstance(step, int):
            return driver.call("cuGraphAddChildGraphNode", graph, before, len(before), step)
        what = driver.module.CUDA_BATCH_MEM_OP_NODE_PARAMS()
        what.ctx = driver.context
        what.count, what.flags = len(step), 0
        what.paramArray = [operation.parameters(driver) for operation in step]
        return driver.call("cuGraphAddBatchMemOpNode", graph, before, len(before), what)

    def close(self) -> None:
        """Give it back; it may not be running. Raises DeviceError."""
        self._driver.call("cuGraphExecDestroy", self._executable)

    def upload(self, stream: Any) -> None:
        """Bring it to the device, so that its first launch is as fast as the others."""
        self._driver.call("cuGraphUpload", self._executable, stream)

    def launch(self, stream: Any) -> None:
        """Behind what the stream has to do. Raises DeviceError."""
        self._driver.call("cuGraphLaunch", self._executable, stream)


def _runs(steps: Sequence[Step], kind: type) -> list[Any]:
    """The steps, with neighbours of that kind as one list."""
    found: list[Any] = []
    for is_kind, group in itertools.groupby(steps, lambda step: isinstance(step, kind)):
        run = list(group)
        found += [run] if is_kind else run
    return found


class Launches:
    """Steps on a stream one by one, what :class:`Chain` is where operations are no nodes."""

    def __init__(self, driver: Driver, steps: Sequence[Step]) -> None:
        """Raises DeviceError."""
        self._driver = driver
        self._steps = [
            Chain(driver, step) if isinstance(step, list) else step for step in _runs(steps, int)
        ]

    def close(self) -> None:
        """As :meth:`Chain.close`."""
        for step in self._steps:
            if isinstance(step, Chain):
                step.close()

    def upload(self, stream: Any) -> None:
        """As :meth:`Chain.upload`."""
        for step in self._steps:
            if isinstance(step, Chain):
                step.upload(stream)

    def launch(self, stream: Any) -> None:
        """As :meth:`Chain.launch`."""
        for step in self._steps:
            if isinstance(step, Chain):
                step.launch(stream)
            else:
                step.on_stream(self._driver, stream)


def chain(driver: Driver, steps: Sequence[Step]) -> Chain | Launches:
    """The steps as one graph, or one by one where the driver takes no operations in graphs."""
    try:
        return Chain(driver, steps)
    except DeviceError:
        if not any(isinstance(step, MemoryOperation) for step in steps):
            raise
        return Launches(driver, steps)
