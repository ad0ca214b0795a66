"""The workers of a model: started together, watched, dismissed together."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from shunter.allocator.planning.configuration import Configuration
from shunter.plugins.host import HostError, ModelWorker, WorkerFailed, WorkerRuntime
from shunter.plugins.triton.backend import Backend, BackendGone

ATTACH_S = 60.0
"""So long after it has loaded a worker may take to attach."""
LEAVE_S = 60.0
"""So long a worker may take over what it holds."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 60.0
"""Before a worker that was lost is started again; doubled each time until one has held."""


@dataclass
class Place:
    """Where a worker belongs: how it is started, and which one is there now."""

    threads: int
    batch: int
    cores: Sequence[int] | None
    worker: ModelWorker | None = None
    pause_s: float = FIRST_PAUSE_S
    due: float = 0.0
    """When it is started again."""
    started: float = 0.0


@dataclass
class Generation:
    """All workers of one configuration of a model version."""

    model: Any
    """As the runtime unpacked it."""
    configuration: Configuration
    variables: Mapping[str, str]
    runtime: WorkerRuntime
    places: list[Place] = field(default_factory=list)
    problem: str = ""
    refusals: Mapping[str, str] = field(default_factory=dict)
    """Why a worker of a model could not attach."""

    def start(self, cores: Sequence[int] | None = None) -> None:
        """Start all; come back when they have loaded. Raises HostError, and none is left then."""
        self.places = [
            Place(group.threads, group.batch, cores)
            for group in self.configuration
            for _ in range(group.instances)
        ]
        try:
            with ThreadPoolExecutor(max(1, len(self.places))) as pool:
                list(pool.map(self._start, self.places))
        except WorkerFailed as error:
            self.kill()
            raise HostError(
                f"workers of model {self.model.name} did not load: {error}; the log says why"
            ) from error

    def _start(self, place: Place) -> None:
        worker = self.runtime.worker(
            self.model,
            threads=place.threads,
            cores=place.cores,
            batch=place.batch,
            variables=self.variables,
        )
        place.worker = worker.start()
        place.started = time.monotonic()

    def wait_attached(self, backend_at: Path) -> None:
        """Until the backend has all of them, if there is a backend. Raises HostError."""
        end = time.monotonic() + ATTACH_S
        try:
            with Backend(backend_at) as backend:
                while missing := self.pids - attached(backend):
                    why = self.refusals.get(self.model.name, "")
                    if why or time.monotonic() > end:
                        raise HostError(
                            f"{len(missing)} workers of model {self.model.name} did not attach: "
                            + (why or f"{ATTACH_S:g} s are over")
                        )
                    time.sleep(0.02)
        except BackendGone:
            return  # they attach when it comes: that it loads says so

    @property
    def pids(self) -> set[int]:
        """Of the processes that live."""
        return {p.worker.pid for p in self.places if p.worker is not None and not p.worker.is_dead}

    def look_after(self) -> None:
        """Start again what was lost, after a pause that grows while it does not hold."""
        now = time.monotonic()
        for place in self.places:
            if place.worker is not None and place.worker.is_dead:
                place.worker.close()
                place.worker = None
                held = now - place.started > LONGEST_PAUSE_S
                place.pause_s = FIRST_PAUSE_S if held else place.pause_s
                place.due = now + place.pause_s
                place.pause_s = min(2 * place.pause_s, LONGEST_PAUSE_S)
                self.problem = "a worker was lost"
            if place.worker is None and now >= place.due:
                try:
                    self._start(place)
                    self.problem = ""
                except WorkerFailed as error:
                    self.problem = str(error)
                    place.due = time.monotonic() + place.pause_s

    def dismiss(self, backend_at: Path, name: str, version: int) -> None:
        """End them when they have answered what they hold; at last by force."""
        pids = self.pids
        try:
            with Backend(backend_at) as backend:
                for pid in pids:
                    backend.drain(name, version, pid)
                end = time.monotonic() + LEAVE_S
                while pids & attached(backend) and time.monotonic() < end:
                    time.sleep(0.02)
        except BackendGone:
            pass  # nobody gives them anything
        self.close()

    def close(self) -> None:
        """End them, as they are."""
        for place in self.places:
            if place.worker is not None:
                place.worker.close()
        self.places.clear()

    def kill(self) -> None:
        """End them now."""
        for place in self.places:
            if place.worker is not None:
                place.worker.kill()
        self.close()


def attached(backend: Backend) -> set[int]:
    """Processes of all workers that the backend has."""
    return {pid for each in backend.functions() for pid in each["pids"]}
