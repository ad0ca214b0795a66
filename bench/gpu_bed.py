"""A device with captured models of both classes, for the preemption benchmark on a GPU."""

from __future__ import annotations

import os
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

from shunter.batching.page.control_page import ControlPage
from shunter.batching.page.holds import claim, held
from shunter.batching.page.slices import of_device
from shunter.handlers.device.capture import Captured, CudaRecorder, Recorder, capture
from shunter.handlers.device.driver import Driver, cuda_driver
from shunter.handlers.device.executor import (
    DeviceExecutor,
    Strict,
    capabilities,
    keeps_graphs,
)
from shunter.handlers.device.ladder import Capabilities, Rung
from shunter.handlers.device.runner import Whole

NAMES = ("vgg19", "resnet152", "densenet201", "inception_v3", "distilbert")
SLICE = of_device(0)
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
        self._holder.hold(SLICE, 1, time.monotonic_ns())
        try:
            yield
        finally:
            self._holder.hold(0, 0, time.monotonic_ns())

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
