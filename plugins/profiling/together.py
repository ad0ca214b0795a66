"""What models cost each other: their workers run beside each other on one slice, and are timed.

Which of them run together is :mod:`shunter.allocator.placement.experiments`, what follows from it
:mod:`shunter.allocator.placement.slowdown`. Here their workers run batch after batch, all at the
same time, each with a client thread that only waits for it.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from shunter.allocator.placement.experiments import next_experiment
from shunter.allocator.placement.slowdown import Fit, Observation, fit
from shunter.handlers.sample import Sample
from shunter.plugins.host import ModelWorker
from shunter.plugins.profiling.concurrent_workers import close_all

TRIM = 0.1
"""Share of the fastest and of the slowest batches that do not count."""
LEAD = 0.15
"""Share of a measurement at its begin that does not count: not everybody runs yet."""
FEWEST = 3


@dataclass(frozen=True)
class Subject:
    """A model as it takes part: its workers on the slice, and their batch."""

    start: Callable[[], ModelWorker]
    """One more worker on the slice, loaded."""
    batch: Sequence[Sample]


@dataclass
class Together:
    """Workers of several models on one slice; ``close`` ends them."""

    subjects: Mapping[str, Subject]
    seconds: float
    """Of one measurement, at least; batches that take long take longer."""
    alone_ms: dict[str, float] = field(default_factory=dict)
    """Of each model that was asked for, measured before anything else."""
    _workers: dict[tuple[str, int], ModelWorker] = field(default_factory=dict)

    def alone(self, model: str) -> float:
        """Time of a batch when nothing else runs there."""
        if model not in self.alone_ms:
            self.times((model,))  # graph mode optimises during the first ones
            self.alone_ms[model] = self.times((model,))[0]
        return self.alone_ms[model]

    def observe(self, together: Sequence[str]) -> list[Observation]:
        """Run these at the same time; how much slower each of them was than alone."""
        alone = {model: self.alone(model) for model in together}
        self.times(together)  # whoever is new warms up
        times = self.times(together)
        return [
            Observation(model, _without(together, at), max(1e-6, ms / alone[model]))
            for at, (model, ms) in enumerate(zip(together, times, strict=True))
        ]

    def times(self, together: Sequence[str]) -> list[float]:
        """Time of a batch of each, in ms, while all of them run."""
        workers = self._of(together)
        begin, stop = threading.Barrier(len(workers)), threading.Event()
        with ThreadPoolExecutor(len(workers)) as clients:
            running = [
                clients.submit(self._run, worker, self.subjects[model].batch, begin, stop)
                for model, worker in zip(together, workers, strict=True)
            ]
            stop_at = threading.Timer(self.seconds, stop.set)
            stop_at.start()
            try:
                return [each.result() for each in running]
            finally:
                stop.set()
                stop_at.cancel()

    def _run(
        self,
        worker: ModelWorker,
        batch: Sequence[Sample],
        begin: threading.Barrier,
        stop: threading.Event,
    ) -> float:
        begin.wait(timeout=60)
        first = time.perf_counter()
        times: list[float] = []
        while not stop.is_set():
            at = time.perf_counter()
            seconds = worker.run(batch)
            if at - first >= LEAD * self.seconds:
                times.append(seconds)
        # What takes longer than the measurement has run beside the others for most of it.
        return trimmed_mean(times or [worker.run(batch)]) * 1e3

    def _of(self, together: Sequence[str]) -> list[ModelWorker]:
        found, seen = [], Counter[str]()
        for model in together:
            key = model, seen[model]
            seen[model] += 1
            if key not in self._workers:
                self._workers[key] = self.subjects[model].start()
            found.append(self._workers[key])
        return found

    def close(self) -> None:
        """End all workers."""
        close_all(list(self._workers.values()))
        self._workers.clear()


def trimmed_mean(times: Sequence[float]) -> float:
    """The mean without the extremes: where processors are shared a median would see no turns.

    >>> trimmed_mean([1, 1, 2, 2, 2, 2, 2, 2, 3, 90])
    2.0
    """
    ordered = sorted(times)
    cut = int(TRIM * len(ordered)) if len(ordered) >= FEWEST else 0
    return statistics.fmean(ordered[cut : len(ordered) - cut])


def learn(
    together: Together,
    most: int,
    report: Callable[[Sequence[str]], None] = lambda names: None,
) -> tuple[list[Observation], Fit]:
    """All experiments that say something, with at most so many workers at once, and the fit."""
    observations: list[Observation] = []
    models = sorted(together.subjects)
    while (names := next_experiment(models, observations, most)) is not None:
        report(names)
        observations += together.observe(names)
    return observations, fit(observations)


def _without(names: Sequence[str], at: int) -> tuple[str, ...]:
    return (*names[:at], *names[at + 1 :])
