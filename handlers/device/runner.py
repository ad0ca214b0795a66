"""One interface for a captured best-effort model on a device: run a batch, stand still when held.

A runner takes one batch at a time, from whatever thread. While it waits nothing is called that
waits for the whole device: strict work must never depend on work that stands still.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch

from shunter.handlers.device.capture import Captured
from shunter.handlers.device.driver import DeviceError, Driver
from shunter.handlers.device.flags import LONGEST_PARK_NS, AgeingBound, FlagWord, Watcher
from shunter.handlers.device.graphs import Chain, Launches, Step, chain, gate, note
from shunter.handlers.device.ladder import TARGET_US, WINDOW

_LONGEST_PAUSE_S = 0.0005


@dataclass(frozen=True)
class Lane:
    """A stream that batches of one class run on."""

    stream: Any
    """The driver's handle."""
    current: Callable[[], AbstractContextManager[Any]] = nullcontext
    """Makes it the stream of torch's copies."""
    turn: threading.Lock = field(default_factory=threading.Lock)
    """Held while a batch runs."""


class Whole:
    """The pass as one graph: once begun it goes on to its end. The way of strict work, too.

    Also what the other runners have in common.
    """

    spin_ns = 0
    """How long a wait looks again at once: as long as its end decides about anything."""

    def __init__(self, driver: Driver, lane: Lane, captured: Captured) -> None:
        """Raises DeviceError."""
        self._driver, self._lane, self.captured = driver, lane, captured
        self._launches = self._make()
        for each in self._launches:
            each.upload(lane.stream)
        self._done = driver.event()
        self._under_way = False
        self.parks = 0
        """Times that the last batch stood still."""
        self.parked_ns = 0

    @property
    def bound_us(self) -> float:
        """Longest time from a hold to standing still."""
        return sum(self.captured.costs_us)

    def run(self, inputs: Sequence[torch.Tensor]) -> Any:
        """What the model returns for inputs of the captured shapes; valid until the next batch.

        Raises DeviceError when the device fails.
        """
        self._driver.enter()
        with self._lane.turn:
            if self._under_way:  # its caller was interrupted
                self._wait(self._done)
            with torch.no_grad(), self._lane.current():
                for there, here in zip(self.captured.inputs, inputs, strict=True):
                    there.copy_(here, non_blocking=True)
            self._finish()
        return self.captured.outputs

    def run_once(self) -> None:
        """:meth:`start`, and until it is done."""
        self._driver.enter()
        with self._lane.turn:
            self._finish()

    def _finish(self) -> None:
        self._under_way = True
        self._go()
        self._wait(self._done)
        self._under_way = False

    def start(self) -> None:
        """A pass over what its inputs hold then, behind what its lane has to do.

        The device may be at it when this returns. Raises as :meth:`run`.
        """
        self._driver.enter()
        with self._lane.turn:
            self._under_way = True
            self._go()

    def close(self) -> None:
        """Give the graphs back when what runs is done. Raises DeviceError."""
        self._driver.enter()
        if self._under_way:
            self._wait(self._done)
        for each in self._launches:
            each.close()
        self._launches = []

    def _make(self) -> list[Chain | Launches]:
        return [chain(self._driver, list(self.captured.parts))]

    def _go(self) -> None:
        self._launch(self._launches[0])

    def _launch(self, what: Chain | Launches) -> None:
        what.launch(self._lane.stream)
        self._driver.call("cuEventRecord", self._done, self._lane.stream)

    def _wait(self, event: Any) -> None:
        begin = time.monotonic_ns()
        while not self._driver.is_done(event):
            self._pause(time.monotonic_ns() - begin)

    def _pause(self, waited_ns: int) -> None:
        """Late by a twentieth at most, and by what the kernel takes to wake a thread."""
        time.sleep(0 if waited_ns < self.spin_ns else min(waited_ns / 20e9, _LONGEST_PAUSE_S))


class Segmented(Whole):
    """At most ``window`` segments are on the device; the host looks before it launches the next."""

    spin_ns = 2_000_000

    def __init__(
        self,
        driver: Driver,
        lane: Lane,
        captured: Captured,
        held: Callable[[], bool],
        *,
        window: int = WINDOW,
        target_us: float = TARGET_US,
        longest_park_ns: int = LONGEST_PARK_NS,
        progress: FlagWord | None = None,
        check: Callable[[], None] | None = None,
    ) -> None:
        """``held``: whether to stand still; with ``check`` that does it, and keeps count, instead.
        Raises DeviceError, ValueError for no window.

        With ``progress`` the device tells there how far it is: 2 n + 1 when segment n begins and
        2 n + 2 when it is done.
        """
        if window < 1:
            raise ValueError(f"a window of {window} segments; allowed: 1 and more")
        self._held, self._target, self._progress = held, target_us, progress
        self._stand_still = check or self._park
        self._ageing = AgeingBound(longest_park_ns)
        super().__init__(driver, lane, captured)
        self._events = [driver.event() for _ in range(window)]
        costs = dict(zip(captured.parts, captured.costs_us, strict=True))
        times = [sum(costs[part] for part in s) for s in captured.segments(target_us)]
        self._bound = max((sum(times[i : i + window]) for i in range(len(times))), default=0.0)

    @property
    def bound_us(self) -> float:
        """What ``window`` segments take at most."""
        return self._bound

    def _make(self) -> list[Chain | Launches]:
        segments = self.captured.segments(self._target)
        return [
            chain(self._driver, noted(segment, number, self._progress))
            for number, segment in enumerate(segments)
        ]

    def _go(self) -> None:
        self._ageing.begin()
        for number, segment in enumerate(self._launches):
            event = self._events[number % len(self._events)]
            if number >= len(self._events):
                self._wait(event)
            self._stand_still()
            self._launch(segment)
            self._driver.call("cuEventRecord", event, self._lane.stream)
        self.parks, self.parked_ns = self._ageing.parks, self._ageing.parked_ns

    def _park(self) -> None:
        """Until nobody holds, or for as long as a batch may stand still."""
        begin = time.monotonic_ns()
        while self._ageing.stand(self._held(), now := time.monotonic_ns()):
            self._pause(now - begin)


class Gated(Whole):
    """All segments are on the device; between them it waits for the process's flag word."""

    def __init__(
        self,
        driver: Driver,
        lane: Lane,
        captured: Captured,
        flag: FlagWord,
        watcher: Watcher,
        *,
        target_us: float = TARGET_US,
        progress: FlagWord | None = None,
    ) -> None:
        """``progress`` as for :class:`Segmented`. Raises DeviceError."""
        self._flag, self._watcher = flag, watcher
        self._target, self._progress = target_us, progress
        super().__init__(driver, lane, captured)
        costs = dict(zip(captured.parts, captured.costs_us, strict=True))
        self._bound = max(
            (sum(costs[part] for part in s) for s in captured.segments(target_us)), default=0.0
        )

    @property
    def bound_us(self) -> float:
        """What one segment takes at most."""
        return self._bound

    def _make(self) -> list[Chain | Launches]:
        steps: list[Step] = []
        for number, segment in enumerate(self.captured.segments(self._target)):
            steps += [gate(self._flag), *noted(segment, number, self._progress)]
        return [chain(self._driver, steps)]

    def _go(self) -> None:
        with self._watcher.batch() as ageing:
            self._launch(self._launches[0])
            self._wait(self._done)
        self.parks, self.parked_ns = ageing.parks, ageing.parked_ns


def noted(segment: Sequence[int], number: int, progress: FlagWord | None) -> list[Step]:
    """A segment whose begin and end the device tells, if anybody asks."""
    if progress is None:
        return list(segment)
    return [note(progress, 2 * number + 1), *segment, note(progress, 2 * number + 2)]


def works(driver: Driver) -> bool:
    """Whether a stream can wait for memory of the host and write it: by trying both."""
    try:
        flag = FlagWord(driver)
    except DeviceError:
        return False
    try:
        stream = driver.stream()
        for operation in (gate(flag), note(flag, 7)):
            operation.on_stream(driver, stream)
        deadline = time.monotonic() + 5
        done = driver.event()
        driver.call("cuEventRecord", done, stream)
        while not driver.is_done(done) and time.monotonic() < deadline:
            time.sleep(0)
        return flag.counter == 7
    except DeviceError:
        return False
    finally:
        flag.close()
