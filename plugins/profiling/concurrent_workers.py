"""Model workers that run at the same time, for measuring."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from shunter.allocator.planning.comparison import CellKey
from shunter.allocator.planning.measurement import Effort, Estimate, estimate, is_enough
from shunter.allocator.planning.profile import Cell
from shunter.allocator.planning.survey import Visit
from shunter.handlers.sample import Sample
from shunter.plugins.host import ModelWorker

WARM_UP = (2, 6)
"""Fewest and most runs before those that count; graph mode optimises during the first ones."""


@dataclass(frozen=True)
class Run:
    """One batch of every worker."""

    ms: float
    """From the first request sent to the last answer."""
    skew_ms: float
    """Between the first and the last worker's start: the client's share of ``ms``."""


class ConcurrentWorkers:
    """Workers with a batch each, and a client thread for each that only waits for it."""

    def __init__(self, workers: Sequence[ModelWorker], batches: Sequence[Sequence[Sample]]) -> None:
        """The workers stay the caller's."""
        self._workers, self._batches = workers, batches
        self._clients = ThreadPoolExecutor(len(workers))

    def run(self) -> Run:
        """Let all run their batches, begun at the same moment. Raises WorkerFailed."""
        each = self._clients.map if len(self._workers) > 1 else map
        found = list(each(_timed, self._workers, self._batches))
        begins = [begin for begin, _ in found]
        last = max(end for _, end in found)
        return Run((last - min(begins)) * 1e3, (max(begins) - min(begins)) * 1e3)

    def close(self) -> None:
        """End the client threads."""
        self._clients.shutdown()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._clients.shutdown(wait=error is None)


def measure(
    workers: Sequence[Sequence[ModelWorker]],
    visit: Visit,
    samples: Sequence[Sample],
    effort: Effort,
) -> tuple[list[Cell], Estimate | None]:
    """Warm up, then repeat until the interval is tight: of a cell, or of the ratio of two.

    ``workers``: those of each cell that run together. Two cells take turns, a batch of each, so
    that what the host does meanwhile is done to both. Raises WorkerFailed.
    """
    with contextlib.ExitStack() as stack:
        sides = []
        for (_, batch), each in zip(visit, workers, strict=True):
            requests = [samples[i % len(samples)] for i in range(batch)]
            together = ConcurrentWorkers(each, [requests] * len(each))
            sides.append(stack.enter_context(together))
            if len(visit) == 1:
                _warm_up(together, effort)
            else:
                together.run()  # it was warm once; what is not yet shows in the ratios
        times: list[list[float]] = [[] for _ in sides]
        found: list[float] = []
        begin = time.monotonic()
        while not is_enough(found, time.monotonic() - begin, effort):
            for side, its in zip(sides, times, strict=True):
                its.append(side.run().ms)
            found.append(times[-1][-1] / times[0][-1] if len(sides) == 2 else times[0][-1])
        cells = [
            _cell(key, its, max(worker.peak_bytes for worker in each))
            for key, its, each in zip(visit, times, workers, strict=True)
        ]
    return cells, estimate(found) if len(sides) == 2 else None


def _warm_up(together: ConcurrentWorkers, effort: Effort) -> None:
    before = together.run().ms
    for _ in range(WARM_UP[1] - 1):
        now = together.run().ms
        settled = abs(now - before) <= 0.1 * before
        before = now
        if settled or now > effort.seconds * 1e3 / 4:
            break


def _cell(key: CellKey, times: Sequence[float], peak_bytes: int) -> Cell:
    found = estimate(times)
    return Cell(
        threads=key[0],
        batch=key[1],
        ms=round(found.median, 4),
        low_ms=round(found.low, 4),
        high_ms=round(found.high, 4),
        runs=found.runs,
        outliers=found.outliers,
        peak_bytes=peak_bytes,
    )


def start_all(workers: Sequence[ModelWorker]) -> list[ModelWorker]:
    """Start all of them; they load side by side.

    Raises WorkerFailed when one does not load. Then, and after Ctrl-C, none is left.
    """
    with ThreadPoolExecutor(len(workers)) as pool:
        starting: list[Future[ModelWorker]] = []
        try:
            for each in workers:
                starting.append(pool.submit(each.start))
            return [each.result() for each in starting]
        except BaseException:
            _end_all(workers, starting)
            raise


def _end_all(workers: Sequence[ModelWorker], starting: Sequence[Future[ModelWorker]]) -> None:
    while True:
        for worker in workers:
            worker.kill()
        # A thread comes back when its worker is gone; some may only be about to start theirs.
        if not wait(starting, timeout=0.05).not_done:
            break
    close_all([each.result() for each in starting if each.exception() is None])


def close_all(workers: Sequence[ModelWorker]) -> None:
    """End all of them, also when Ctrl-C comes meanwhile."""
    with contextlib.ExitStack() as closing:
        for each in workers:
            closing.callback(each.close)


def _timed(worker: ModelWorker, batch: Sequence[Sample]) -> tuple[float, float]:
    """Begin and end of a batch on one worker."""
    seconds = worker.run(batch)
    end = time.perf_counter()
    return end - seconds, end
