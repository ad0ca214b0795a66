"""A process that owns a device: strict work on an urgent stream, best effort that gets out of it.

Where both classes run in one process, strict work stores the flag word itself when it comes, and
no other process or thread takes part. Where strict workers are processes of their own (MPS), what
they want is in the hold words of the control page, which ``held`` reads.

Every thread that runs work must keep from what waits for the whole device: ``synchronize``,
``cudaMalloc`` (so: captured passes only), the legacy default stream. A model is captured on the
stream of its lane: torch has one workspace for matrix products per stream, and what shares it may
not run at the same time. The environment of
:func:`shunter.handlers.device.ladder.worker_environment` must be set before CUDA begins.
"""

from __future__ import annotations

import contextlib
import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from shunter.handlers.device.capture import Captured
from shunter.handlers.device.driver import DeviceError, Driver
from shunter.handlers.device.flags import LONGEST_PARK_NS, PAUSE_S, FlagWord, Watcher
from shunter.handlers.device.ladder import (
    TARGET_US,
    WANTED,
    WINDOW,
    Capabilities,
    Measured,
    Rung,
    choose,
)
from shunter.handlers.device.padding import green_stream
from shunter.handlers.device.runner import Gated, Lane, Segmented, Whole, works


def keeps_graphs() -> bool:
    """Whether torch gives captured graphs away, to make others of them."""
    return "keep_graph" in inspect.signature(torch.cuda.CUDAGraph.__new__).parameters


def capabilities(driver: Driver, *, graphs: bool) -> Capabilities:
    """What the driver and the device can do; what cannot be asked for is tried."""
    usable = works(driver)
    try:
        kind = driver.module.CUdevResourceType.CU_DEV_RESOURCE_TYPE_SM
        driver.call("cuDeviceGetDevResource", driver.device, kind)
        green = True
    except (DeviceError, AttributeError):
        green = False
    return Capabilities(
        priorities=driver.can("STREAM_PRIORITIES_SUPPORTED"),
        graphs=graphs,
        wait_value=usable,
        host_memory=usable,
        green_contexts=green,
    )


class DeviceExecutor:
    """Runs captured models of both classes on one device. Use as a context manager."""

    def __init__(
        self,
        driver: Driver,
        found: Capabilities,
        held: Callable[[], bool],
        *,
        measured: Mapping[Rung, Measured] | None = None,
        environment: Mapping[str, str] = os.environ,
        longest_park_ns: int = LONGEST_PARK_NS,
        current: Callable[[Any], contextlib.AbstractContextManager[Any]] | None = None,
        pause_s: Callable[[], float] = lambda: PAUSE_S,
    ) -> None:
        """``held``: whether others' strict work holds this device; strict work here need not say.

        ``current`` makes a stream, by its handle, that of torch's copies; ``pause_s``: see
        :class:`Watcher`.
        Raises DeviceError, RungError for a rung in the environment that cannot be had.
        """
        self.rung = choose(found, measured, environment.get(WANTED))
        self._driver, self._held, self._longest = driver, held, longest_park_ns
        self._current = current or (lambda stream: _torch_stream(stream, int(driver.device)))
        self._streams: list[Any] = []
        self._runners: list[Whole] = []
        self.strict_lane, self.best_effort_lane = self._lane(True), self._lane(False)
        self.flag = FlagWord(driver if found.host_memory else None)
        self.watcher = Watcher(self.flag, held, longest_park_ns=longest_park_ns, pause_s=pause_s)

    def _lane(self, urgent: bool) -> Lane:
        stream = self._driver.stream(urgent=urgent)
        self._streams.append(stream)
        return Lane(stream, lambda: self._current(stream))

    def holding(self) -> bool:
        """Whether strict work waits or runs, here or elsewhere."""
        return self.flag.strict_count > 0 or self._held()

    def best_effort(
        self,
        captured: Captured,
        *,
        rung: Rung | None = None,
        window: int = WINDOW,
        target_us: float = TARGET_US,
        progress: bool = False,
        check: Callable[[], None] | None = None,
    ) -> Whole:
        """A runner of best-effort batches; one batch of all of them at a time with gates.

        ``check`` stands still between segments, in place of what asks ``held``.
        ``rung`` other than the executor's is for measurements, as ``progress`` is (the device
        writes the counter of :attr:`flag`). Raises DeviceError.
        """
        told = self.flag if progress else None
        lane, driver = self.best_effort_lane, self._driver
        made: Whole
        match rung or self.rung:
            case Rung.GATES:
                made = Gated(
                    *(driver, lane, captured, self.flag, self.watcher),
                    target_us=target_us,
                    progress=told,
                )
            case Rung.SEGMENTS:
                made = Segmented(
                    *(driver, lane, captured, self.holding),
                    window=window,
                    target_us=target_us,
                    longest_park_ns=self._longest,
                    progress=told,
                    check=check,
                )
            case _:
                made = Whole(driver, lane, captured)
        self._runners.append(made)
        return made

    def strict(self, captured: Captured) -> Strict:
        """A runner of strict batches. Raises DeviceError."""
        made = Strict(self._driver, self.strict_lane, captured, self.flag)
        self._runners.append(made)
        return made

    def alone(self, captured: Captured) -> Whole:
        """A runner of strict batches in whose process nothing else runs. Raises DeviceError."""
        made = Whole(self._driver, self.strict_lane, captured)
        self._runners.append(made)
        return made

    def padding_lane(self, sms: int) -> tuple[Lane, int]:
        """A lane on so many multiprocessors, and how many it has. Raises DeviceError.

        A model that is captured on its stream runs beside strict work: its caller asks
        :meth:`holding` before each batch.
        """
        stream, number = green_stream(self._driver, sms)
        self._streams.append(stream)
        return Lane(stream, lambda: self._current(stream)), number

    def beside(self, lane: Lane, captured: Captured) -> Whole:
        """A runner of best-effort batches on a padding lane. Raises DeviceError."""
        made = Whole(self._driver, lane, captured)
        self._runners.append(made)
        return made

    def drop(self, runner: Whole) -> None:
        """Give a runner back. Raises DeviceError."""
        self._runners.remove(runner)
        runner.close()

    def __enter__(self) -> DeviceExecutor:
        self.watcher.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self.watcher.__exit__()  # opens the gates for good
        with contextlib.suppress(DeviceError):  # of a device that failed nothing is to be had
            self._driver.enter()
            for stream in self._streams:
                self._driver.call("cuStreamSynchronize", stream)
            for runner in self._runners:
                runner.close()
            self.flag.close()


class Strict(Whole):
    """A strict model of this process: best effort is held from before its inputs are brought."""

    spin_ns = 20_000_000

    def __init__(self, driver: Driver, lane: Lane, captured: Captured, flag: FlagWord) -> None:
        """Raises DeviceError."""
        self._flag = flag
        super().__init__(driver, lane, captured)

    def run(self, inputs: Sequence[torch.Tensor]) -> Any:
        """See :meth:`Whole.run`."""
        with self._flag.strict():
            return super().run(inputs)


def _torch_stream(stream: Any, device: int) -> contextlib.AbstractContextManager[Any]:
    return torch.cuda.stream(torch.cuda.ExternalStream(int(stream), device=device))
