"""Configurations of one model as sets of worker processes, side by side, measured in turns."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack

from profiled_models import REQUEST

from shunter.allocator.cpus.cores import place_all
from shunter.allocator.cpus.discovery import Topology
from shunter.allocator.planning.configuration import Configuration
from shunter.plugins.profiling.concurrent_workers import ConcurrentWorkers, Run
from shunter.plugins.torchserve.archives import UnpackedModel
from shunter.plugins.torchserve.worker_client import ModelWorker

WARM_UP = 3
"""Runs of a batch size that is new to a worker; graph mode optimises during the first two."""

Share = tuple[int, int]
"""Threads and requests of one instance."""


def shares(configuration: Configuration, batch: int) -> tuple[Share, ...]:
    """Threads and requests of each instance, which together run ``batch``."""
    found = []
    for group in sorted(configuration, key=lambda group: (-group.threads, -group.batch)):
        for _ in range(group.instances):
            mine = min(group.batch, batch)
            batch -= mine
            if mine:
                found.append((group.threads, mine))
    return tuple(found)


class Workers:
    """Worker processes by threads and cores, kept from one batch size to the next."""

    def __init__(self, model: UnpackedModel, topology: Topology) -> None:
        """None is started yet."""
        self._model, self._topology = model, topology
        self._open: dict[tuple[int, tuple[int, ...]], ModelWorker] = {}

    def sets(self, sides: Sequence[tuple[Share, ...]]) -> list[ConcurrentWorkers]:
        """The instances of each side, started where needed; those of no side are ended."""
        places = [self._places([threads for threads, _ in side]) for side in sides]
        needed = {place for side in places for place in side}
        for place in self._open.keys() - needed:
            self._open.pop(place).close()
        for place in sorted(needed - self._open.keys()):
            threads, cores = place
            self._open[place] = ModelWorker(self._model, threads=threads, cores=cores).start()
        return [
            ConcurrentWorkers(
                [self._open[place] for place in mine], [[REQUEST] * size for _, size in side]
            )
            for mine, side in zip(places, sides, strict=True)
        ]

    def _places(self, threads: list[int]) -> list[tuple[int, tuple[int, ...]]]:
        cores = place_all(self._topology, threads)
        if cores is None:
            raise SystemExit(f"instances with {threads} threads do not fit on this host")
        return list(zip(threads, cores, strict=True))

    def close(self) -> None:
        """End all processes."""
        with ExitStack() as closing:
            for worker in self._open.values():
                closing.callback(worker.close)
        self._open.clear()


def settled(workers: ConcurrentWorkers, seconds: float) -> Run:
    """The median batch of ``seconds``, at least one, after one that does not count."""
    first = workers.run()
    # The one before brings data and threads back that others displaced; for a batch that takes as
    # long as the whole measurement that is nothing.
    runs = [first] if first.ms > seconds * 1e3 else []
    end = time.monotonic() + seconds
    while not runs or time.monotonic() < end:
        runs.append(workers.run())
    return sorted(runs, key=lambda run: run.ms)[len(runs) // 2]


def interleaved(sets: Sequence[ConcurrentWorkers], rounds: int, seconds: float) -> list[list[Run]]:
    """Runs of each set by round; each round begins with another one."""
    for workers in sets:
        for _ in range(WARM_UP):
            workers.run()
    found: list[list[Run]] = [[] for _ in sets]
    for number in range(rounds):
        for i in range(len(sets)):
            index = (number + i) % len(sets)
            found[index].append(settled(sets[index], seconds))
    return found
