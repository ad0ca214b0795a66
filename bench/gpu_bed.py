"""A device with captured models of both classes, for the preemption benchmark on a GPU."""

from __future__ import annotations

import gc
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import disb_models
import torch

from shunter.batching.control_page import ControlPage
from shunter.batching.holds import claim, held
from shunter.handlers.device_capture import Captured, CudaRecorder, Recorder, capture
from shunter.handlers.device_driver import Driver, cuda_driver
from shunter.handlers.device_executor import (
    DeviceExecutor,
    Strict,
    capabilities,
    keeps_graphs,
)
from shunter.handlers.device_ladder import Capabilities, Rung
from shunter.handlers.device_runner import Whole

NAMES = ("vgg19", "resnet152", "densenet201", "inception_v3", "distilbert")
SLICE = 1 << 48
AGEING_PAUSE_S = 0.0005
WARM_UP = 5


@dataclass
class Bed:
    """What one process has on the device while it measures."""

    driver: Driver
    device: torch.device
    gpu: str
    recorder: Callable[[Any], Recorder]
    """Makes one that captures on a stream."""
    current: Callable[[Any], Any] | None = None
    graphs: bool = True
    sizes: Mapping[str, Any] = field(default_factory=dict)
    """Of the models, other than the published."""
    _models: dict[str, tuple[torch.nn.Module, torch.Tensor]] = field(default_factory=dict)
    _captured: dict[tuple[str, str], Captured] = field(default_factory=dict)

    @cached_property
    def found(self) -> Capabilities:
        """What it can do."""
        return capabilities(self.driver, graphs=self.graphs)

    def model(self, name: str) -> tuple[torch.nn.Module, torch.Tensor]:
        """A network on the device, and an example of its input there."""
        if name not in self._models:
            network, example = disb_models.build(name, **self.sizes)
            self._models[name] = network.to(self.device), example.to(self.device)
        return self._models[name]

    def captured(self, name: str, purpose: str, stream: Any) -> Captured:
        """A pass with activations of its own for each purpose; weights are shared."""
        key = name, purpose
        if key not in self._captured:
            model, example = self.model(name)
            self._captured[key] = capture(model, [example], self.recorder(stream))
        return self._captured[key]

    @contextmanager
    def executor(self) -> Iterator[Desk]:
        """An executor that follows a control page of its own, and a holder on that page."""
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            now = time.monotonic_ns()
            page = stack.enter_context(
                ControlPage.create(folder / "control", owner_pid=1, created_unix_ns=0, now_ns=now)
            )
            watched = threading.Event()

            def hold() -> bool:
                return watched.is_set() and held(page, SLICE, time.monotonic_ns()) != 0

            executor = stack.enter_context(
                DeviceExecutor(
                    self.driver,
                    self.found,
                    hold,
                    current=self.current,
                    environment={},
                    # Where strict work is in this process the watcher only looks after ageing.
                    pause_s=lambda: 0.0 if watched.is_set() else AGEING_PAUSE_S,
                )
            )
            yield Desk(self, executor, page, watched)


@dataclass
class Desk:
    """An executor, and who holds."""

    bed: Bed
    executor: DeviceExecutor
    page: ControlPage
    watched: threading.Event
    """Set: holders of the page are followed without a pause."""

    @contextmanager
    def hold_directly(self) -> Iterator[None]:
        """Strict work of this process: one store."""
        with self.executor.flag.strict():
            yield

    @contextmanager
    def hold_on_page(self) -> Iterator[None]:
        """Strict work of another process: a hold word, and the watcher."""
        self._holder.raise_mask(SLICE, time.monotonic_ns())
        try:
            yield
        finally:
            self._holder.lower_mask(SLICE, time.monotonic_ns())

    @cached_property
    def _holder(self) -> Any:
        return claim(self.page, os.getpid(), time.monotonic_ns())

    def best_effort(self, name: str, rung: Rung, **options: Any) -> Whole:
        """A runner, warm."""
        made = self.executor.best_effort(self.of_best_effort(name), rung=rung, **options)
        return self._warm(made, name)

    def of_best_effort(self, name: str) -> Captured:
        """A pass on the stream of best effort."""
        return self.bed.captured(name, "best_effort", self.executor.best_effort_lane.stream)

    def of_strict(self, name: str) -> Captured:
        """A pass on the stream of strict work."""
        return self.bed.captured(name, "strict", self.executor.strict_lane.stream)

    def strict(self, name: str) -> Strict:
        """A runner of strict work, warm."""
        return self._warm(self.executor.strict(self.of_strict(name)), name)

    def beside(self, name: str, sms: int) -> tuple[Whole, int]:
        """A runner on so many multiprocessors, and how many it has."""
        lane, number = self.executor.padding_lane(sms)
        made = self.executor.beside(lane, self.bed.captured(name, f"{sms} SM", lane.stream))
        return self._warm(made, name), number

    def _warm(self, made: Any, name: str) -> Any:
        for _ in range(WARM_UP):
            made.run([self.bed.model(name)[1]])
        return made


def open_bed(ordinal: int) -> Bed:
    """The bed on a GPU. Raises DeviceError, RuntimeError, ImportError."""
    device = torch.device("cuda", ordinal)
    torch.cuda.init()
    driver = Driver(cuda_driver(), ordinal)
    return Bed(
        driver=driver,
        device=device,
        gpu=torch.cuda.get_device_name(device),
        recorder=lambda stream: CudaRecorder(driver, device, stream),
        graphs=keeps_graphs(),
    )


@dataclass
class Pass:
    """One best-effort pass."""

    model: str
    us: float
    parks: int
    parked_us: float
    right: bool


class Background:
    """Best-effort clients in closed loop: a thread that runs models in turn. A context manager."""

    def __init__(
        self, bed: Bed, runners: Mapping[str, Whole], may: Callable[[], bool] = lambda: True
    ) -> None:
        """``may``: whether another pass may begin now."""
        self._bed, self._runners, self._may = bed, runners, may
        self._wanted: dict[str, torch.Tensor] = {}
        self._over = threading.Event()
        self._failure: BaseException | None = None
        self.passes: list[Pass] = []
        self._thread = threading.Thread(target=self._main, daemon=True)

    def __enter__(self) -> Background:
        for name, runner in self._runners.items():
            # What the very same graphs give when nobody interrupts them.
            self._wanted[name] = runner.run([self._bed.model(name)[1]]).detach().clone()
        self._thread.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self._over.set()
        self._thread.join(60)
        if self._thread.is_alive():
            raise RuntimeError("best effort does not come to its end")
        if self._failure is not None:
            raise self._failure

    def _main(self) -> None:
        try:
            while not self._over.is_set():
                for name, runner in self._runners.items():
                    while not self._may() and not self._over.is_set():
                        time.sleep(0)
                    if self._over.is_set():
                        return
                    self._pass(name, runner)
        except BaseException as error:
            self._failure = error

    def _pass(self, name: str, runner: Whole) -> None:
        example = self._bed.model(name)[1]
        begin = time.perf_counter_ns()
        found = runner.run([example])
        us = (time.perf_counter_ns() - begin) / 1000
        # Nothing of it runs any more, so this waits for nobody who stands still.
        right = runner.parks == 0 or torch.equal(found, self._wanted[name])
        self.passes.append(Pass(name, us, runner.parks, runner.parked_ns / 1000, right))


def until(begin: float, seconds: float) -> None:
    """Sleep, and be there at the moment."""
    left = begin + seconds - time.perf_counter()
    if left > 0.0005:
        time.sleep(left - 0.0004)
    while time.perf_counter() < begin + seconds:
        time.sleep(0)


def solo_us(runner: Whole, example: torch.Tensor, number: int) -> float:
    """Median time of a pass that nobody disturbs."""
    spin, runner.spin_ns = runner.spin_ns, 10**9
    try:
        took = []
        for _ in range(number):
            begin = time.perf_counter_ns()
            runner.run([example])
            took.append((time.perf_counter_ns() - begin) / 1000)
        return statistics.median(took)
    finally:
        runner.spin_ns = spin


@contextmanager
def steady() -> Iterator[None]:
    """No collection of garbage meanwhile."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
