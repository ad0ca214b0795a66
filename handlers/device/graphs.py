"""Graphs made of captured ones: chains of parts, with gates and notes of the device between them.

A gate is a memory operation of the stream: what comes behind it waits until the process's flag
word is 0. In a graph it is a node; where a driver takes none, a pass is launched as several graphs
with gates between them on the stream, which does the same for more work of the host.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from shunter.handlers.device.driver import DeviceError, Driver, NotSupported
from shunter.handlers.device.flags import FlagWord

MOST_AHEAD = 64
"""Steps that are put on a stream before the first of them is done. A stream takes about a thousand;
whoever puts one more on it waits in the driver, where strict work would wait, too."""
_LOOK_S = 0.00005


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


@dataclass(frozen=True)
class Stamp:
    """The device notes the time in an event; in a chain only."""

    event: Any


Step = int | MemoryOperation | Stamp
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

    def _add(self, graph: Any, before: list[Any], step: int | Stamp | list[MemoryOperation]) -> Any:
        driver = self._driver
        if isinstance(step, int):
            return driver.call("cuGraphAddChildGraphNode", graph, before, len(before), step)
        if isinstance(step, Stamp):
            number = len(before)
            return driver.call("cuGraphAddEventRecordNode", graph, before, number, step.event)
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
    """Steps on a stream one by one, what :class:`Chain` is where operations are no nodes.

    To launch them takes until all but ``MOST_AHEAD`` are done, gates included.
    """

    def __init__(self, driver: Driver, steps: Sequence[Step]) -> None:
        """Raises DeviceError."""
        self._driver = driver
        self._marks = [driver.event() for _ in range(2)]
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
        for number, step in enumerate(self._steps):
            if number % (MOST_AHEAD // 2) == 0:
                self._keep_within(number // (MOST_AHEAD // 2), stream)
            if isinstance(step, Chain):
                step.launch(stream)
            else:
                step.on_stream(self._driver, stream)

    def _keep_within(self, part: int, stream: Any) -> None:
        """Before a part of half as many steps: wait for the end of the last but one before it."""
        if part >= 2:
            while not self._driver.is_done(self._marks[(part - 1) % 2]):
                time.sleep(_LOOK_S)
        self._driver.call("cuEventRecord", self._marks[part % 2], stream)


def chain(driver: Driver, steps: Sequence[Step]) -> Chain | Launches:
    """The steps as one graph, or one by one where the driver takes no operations in graphs.

    Raises DeviceError for whatever else goes wrong.
    """
    try:
        return Chain(driver, steps)
    except NotSupported:
        if not any(isinstance(step, MemoryOperation) for step in steps):
            raise
        return Launches(driver, steps)


def costs_us(
    driver: Driver, stream: Any, parts: Sequence[int], restore: Callable[[], None], rounds: int
) -> list[float]:
    """Time of each graph on the device within a pass through all of them, the shortest of some.

    Always the whole pass, from what ``restore`` puts in its inputs: a part that finds what it
    does not follow may read what is not its. Raises DeviceError.
    """
    timing = int(driver.module.CUevent_flags.CU_EVENT_DEFAULT)
    least = [math.inf] * len(parts)
    with ExitStack() as made:
        stamps = [driver.call("cuEventCreate", timing) for _ in range(len(parts) + 1)]
        for event in stamps:
            made.callback(driver.call, "cuEventDestroy", event)
        marks = map(Stamp, stamps[1:])
        steps = [Stamp(stamps[0]), *itertools.chain(*zip(parts, marks, strict=True))]
        whole = Chain(driver, steps)
        made.callback(whole.close)
        for _ in range(rounds):
            restore()
            whole.launch(stream)
            driver.call("cuStreamSynchronize", stream)
            took = [driver.call("cuEventElapsedTime", *pair) for pair in itertools.pairwise(stamps)]
            least = [min(a, 1000 * b) for a, b in zip(least, took, strict=True)]
    return least
