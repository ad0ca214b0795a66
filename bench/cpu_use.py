"""How much processor this process and others use."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping, Sequence

import psutil


class CpuUse:
    """Processor seconds of this process and of others, between two moments."""

    def __init__(self, pids: Mapping[str, Sequence[int]]) -> None:
        self._processes = {name: _processes(group) for name, group in pids.items()}
        self._first: dict[psutil.Process, float] = {}
        self._last: dict[psutil.Process, float] = {}
        self._began = self._ended = 0.0
        self._own = 0.0

    def begin(self) -> None:
        """The counted time begins."""
        self._began, self._own = time.monotonic(), time.process_time()
        self.look()
        self._first = dict(self._last)

    def end(self) -> None:
        """The counted time ends."""
        if self._began and not self._ended:
            self.look()
            self._ended, self._own = time.monotonic(), time.process_time() - self._own

    def look(self) -> None:
        """Note how much they used so far: of a process that ends, the last look counts."""
        for process in (each for group in self._processes.values() for each in group):
            with contextlib.suppress(psutil.Error):
                times = process.cpu_times()
                self._last[process] = times.user + times.system

    def cores(self) -> dict[str, float]:
        """Mean number of cores in use, by name."""
        wall = self._ended - self._began
        return {
            name: round(sum(self._used(process) for process in group) / wall, 4)
            for name, group in self._processes.items()
        }

    def own_cores(self) -> float:
        """Of this process."""
        return round(self._own / (self._ended - self._began), 4)

    def _used(self, process: psutil.Process) -> float:
        return self._last.get(process, 0.0) - self._first.get(process, 0.0)


def _processes(pids: Sequence[int]) -> list[psutil.Process]:
    found = []
    for pid in pids:
        with contextlib.suppress(psutil.NoSuchProcess):
            found.append(psutil.Process(pid))
    return found
