"""A best-effort worker gives way: its model is cut, and every batch of it goes through a gate.

What the model says in its ``model-config.yaml``::

    shunter:
      preemptible: {segment_ms: 1.0, boundaries: modules, drop: false}

``segment_ms``: wanted time of a part between two places where a pass can stand still;
``boundaries``: before calls of modules, or before operations of the graph that ``torch.fx`` makes
of the model (``fx``); ``drop``: whether a batch that stands still may be begun anew when its memory
is wanted.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from shunter.batching.page import runners
from shunter.batching.page.control_page import ControlPage, PageError
from shunter.batching.page.layout import CLASSES
from shunter.handlers.device.check import (
    DeviceCheck,
    StreamMark,
    catch_up,
    device_of_model,
    unknown_time_ns,
)
from shunter.handlers.preemption.fx_boundaries import OperationBoundaries
from shunter.handlers.preemption.gate import Gate, Keep, Passers, WorkerPlace, close_steps
from shunter.handlers.preemption.modules import models_of
from shunter.handlers.preemption.preemptible import SEGMENT_MS, Preemptible

RUNTIME = "SHUNTER_RUNTIME"
PAGE = "control"
"""Of the server's runtime folder."""
BOUNDARIES = ("modules", "fx")

logger = logging.getLogger("shunter.yielding")
Result = TypeVar("Result")


@dataclass(frozen=True)
class PreemptionSettings:
    """How a model is to be cut."""

    segment_ms: float = SEGMENT_MS
    boundaries: str = BOUNDARIES[0]
    drop: bool = False

    @classmethod
    def read(cls, section: Mapping[str, Any]) -> PreemptionSettings:
        """Of a model's ``shunter:`` section, which the server has checked."""
        found = section.get("preemptible")
        known = found if isinstance(found, dict) else {}
        return cls(
            float(known.get("segment_ms", SEGMENT_MS)),
            str(known.get("boundaries", BOUNDARIES[0])),
            bool(known.get("drop", False)),
        )


class Yielding:
    """The gate of one worker, and what goes through it."""

    def __init__(self, gate: Gate, runner: runners.Runner, page: ControlPage) -> None:
        """Nothing is cut yet."""
        self.gate, self._runner, self._page = gate, runner, page
        self._parts: list[Preemptible | OperationBoundaries] = []

    def cut(self, handler: Any, settings: PreemptionSettings) -> None:
        """Let every model of a handler stand still inside of its passes."""
        for model in models_of(handler):
            kind = OperationBoundaries if settings.boundaries == "fx" else Preemptible
            check, times = self.gate.check, {}
            if (device := device_of_model(model)) is not None:
                check = DeviceCheck(check, partial(StreamMark, device))
                times = {"catch_up": partial(catch_up, device), "cpu_time_ns": unknown_time_ns}
            target_ns = int(settings.segment_ms * 1e6)
            self._parts.append(
                kind(model, check, target_ns=target_ns, runner=self._runner, **times)
            )

    def close(self) -> None:
        """Its model is no more, but its process goes on."""
        self._runner.release()
        self._page.close()

    def guard(self, work: Callable[..., Result], keep: Keep) -> Callable[..., Result]:
        """Batches of ``work`` stand still before they begin, and begin anew when dropped."""
        return self.gate.guard(self._timed(work), keep)

    def _timed(self, work: Callable[..., Result]) -> Callable[..., Result]:
        """Where nothing is known of the inside of a batch, the batch is the longest part; of a
        generator its longest step."""

        def timed(*args: object) -> Any:
            found: Any = self._time(lambda: work(*args))
            return self._timed_steps(found) if isinstance(found, Iterator) else found

        return timed

    def _timed_steps(self, steps: Iterator[Any]) -> Iterator[Any]:
        over = object()
        try:
            while (found := self._time(lambda: next(steps, over))) is not over:
                yield found
        finally:
            close_steps(steps)

    def _time(self, part: Callable[[], Any]) -> Any:
        runner = self._runner
        begin_ns, parked_ns = time.monotonic_ns(), runner.get("parked_ns")
        found = part()
        if not runner.get("segments"):
            parked_ns = runner.get("parked_ns") - parked_ns
            spent_ns = time.monotonic_ns() - begin_ns - parked_ns
            runner.set("segment_ns", max(runner.get("segment_ns"), spent_ns))
        return found


def yielding_of(
    handler: Any,
    section: Mapping[str, Any],
    environ: Mapping[str, str],
    passers: Passers | None = None,
) -> Yielding | None:
    """What a best-effort worker's batches go through.

    ``handler`` holds the models, as its attributes; ``section`` is what ``shunter:`` says in the
    configuration of its model; ``passers``: of a process that serves other models, too.

    None where the control page cannot be had: then only the kernel preempts, and the log says so.
    """
    try:
        place = WorkerPlace.read(environ)
        page = ControlPage.attach(Path(environ.get(RUNTIME, "")) / PAGE)
    except (OSError, PageError, ValueError) as error:
        logger.warning("This worker gives way by the kernel's scheduling alone: %s", error)
        return None
    # Models that share processes may be many, and leave some lines to the others.
    first = runners.RUNNER_COUNT // 2 if passers else 0
    runner = runners.claim(page, os.getpid(), time.monotonic_ns(), first=first)
    runner.set("runner_class", CLASSES.index("best_effort"))
    settings = PreemptionSettings.read(section)
    # Beside nobody until the controller says so. Under SCHED_IDLE the kernel takes cores back
    # within microseconds, but strict work is faster when nothing has to be taken back.
    gate = Gate(page, runner, place, beside=0, may_drop=settings.drop, passers=passers)
    found = Yielding(gate, runner, page)
    try:
        found.cut(handler, settings)
    except Exception:  # what a handler holds may do anything when it is looked at
        logger.warning("This worker stands still between batches only.", exc_info=True)
    return found
