"""Model workers that run at the same time, for measuring."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from shunter.handlers.sample import Sample
from shunter.plugins.torchserve.archives import UnpackedModel
from shunter.plugins.torchserve.worker_client import ModelWorker


@dataclass(frozen=True)
class Run:
    """One batch of every worker."""

    ms: float
    """From the first request sent to the last answer."""
    skew_ms: float
    """Between the first and the last worker's start: the client's share of ``ms``."""


class Crew:
    """Workers with a batch each, and a client thread for each that only waits for it."""

    def __init__(
        self, workers: Sequence[ModelWorker], batches: Sequence[Sequence[Sample]]
    ) -> None:
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


def start_all(
    model: UnpackedModel, places: Sequence[Sequence[int] | None], *, threads: int, batch: int
) -> list[ModelWorker]:
    """A worker on each place, its cores or None for anywhere; they load side by side.

    Raises WorkerFailed when one does not load. Then, and after Ctrl-C, none is left.
    """
    known: list[_Recruit] = []

    def start(cores: Sequence[int] | None) -> ModelWorker:
        return _Recruit(known, model, threads=threads, cores=cores, batch=batch)

    with ThreadPoolExecutor(len(places)) as pool:
        starting: list[Future[ModelWorker]] = []
        try:
            for cores in places:
                starting.append(pool.submit(start, cores))
            return [each.result() for each in starting]
        except BaseException:
            _end_all(known, starting)
            raise


class _Recruit(ModelWorker):
    """A worker that can be ended while another thread is still starting it."""

    _process: subprocess.Popen[bytes] | None = None

    def __init__(self, known: list[_Recruit], model: UnpackedModel, **options: Any) -> None:
        known.append(self)
        super().__init__(model, **options)

    def kill(self) -> None:
        """End the process, if there is one by now; who waits for it finds out and closes it."""
        process = self._process
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def _end_all(known: Sequence[_Recruit], starting: Sequence[Future[ModelWorker]]) -> None:
    while True:
        for worker in known:
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
