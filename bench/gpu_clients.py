"""Best-effort clients of a device in closed loop, and waiting without disturbing them."""

from __future__ import annotations

import gc
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from gpu_bed import Bed

from shunter.handlers.device.runner import Whole


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
