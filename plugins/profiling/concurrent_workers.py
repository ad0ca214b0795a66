"""Model workers that run at the same time, for measuring."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from shunter.handlers.sample import Sample
from shunter.plugins.host import ModelWorker


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
