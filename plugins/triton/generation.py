"""The workers of a model: started together, watched, dismissed together."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from shunter.allocator.cpus.cpu_list import parse_cpu_list
from shunter.allocator.planning.configuration import Configuration
from shunter.plugins.errors import UserError
from shunter.plugins.host import TAIL, HostError, ModelWorker, WorkerFailed, WorkerRuntime
from shunter.plugins.record import LivingProcess
from shunter.plugins.triton.archive_keys import LOAD_S
from shunter.plugins.triton.backend import Backend, BackendGone, NoBackend
from shunter.plugins.triton.published import AUTO, slices_of

LOGGER = logging.getLogger("shunter.triton")
ATTACH_S = 60.0
"""So long after it has loaded a worker may take to attach."""
LEAVE_S = 60.0
"""So long a worker may take over what it holds."""
AGAIN_S = 0.1  # a process that began while they were ended is ended then
FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 60.0
"""Before a worker that was lost is started again; doubled each time until one has held."""


@dataclass
class Place:
    """Where a worker belongs: how it is started, and which one is there now."""

    group: int
    threads: int
    batch: int
    cores: str
    """A CPU list; :data:`AUTO`: it chooses and keeps some; empty: wherever it likes."""
    number: int = 0
    """Among all of its model."""
    worker: ModelWorker | None = None
    coming: ModelWorker | None = None
    """Is being started."""
    restart: Future[None] | None = None
    pause_s: float = FIRST_PAUSE_S
    due: float = 0.0
    """When it is started again."""
    started: float = 0.0


@dataclass(eq=False)
class Generation:
    """All workers of one configuration of a model version."""

    model: Any
    """As the runtime unpacked it."""
    configuration: Configuration
    cores: Sequence[str]
    """Of each group."""
    variables: Mapping[str, str]
    runtime: WorkerRuntime
    places: list[Place] = field(default_factory=list)
    problem: str = ""
    refusals: Mapping[int, tuple[str, str]] = field(default_factory=dict)
    """Of a process that could not attach: its model and why."""
    load_s: float = LOAD_S
    pool: Callable[[int], Mapping[str, str]] = lambda number: {}
    """Variables that a worker gets by its number."""
    is_over: bool = False
    _told: str = ""
    """Why a worker failed whose lines were logged last."""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def start(self, more: Mapping[str, str] = MappingProxyType({})) -> None:
        """Start all, with more variables; come back when they have loaded.

        Raises HostError, and none is left then.
        """
        self.places = [
            Place(number, group.threads, group.batch, cores)
            for number, (group, cores) in enumerate(
                zip(self.configuration, self.cores, strict=True)
            )
            for _ in range(group.instances)
        ]
        for index, place in enumerate(self.places):
            place.number = index
        try:
            with ThreadPoolExecutor(max(1, len(self.places))) as pool:
                list(pool.map(lambda place: self._start(place, more), self.places))
        except WorkerFailed as error:
            self._log(error)
            self.kill()
            tail = "\n  ".join(["", *error.lines[-TAIL:]])
            raise HostError(
                f"workers of model {self.model.name} did not load: {error.why}; the log says why"
                f"{tail.rstrip()}"
            ) from error

    def _start(self, place: Place, more: Mapping[str, str]) -> None:
        variables = {**self.variables, **more, **self.pool(place.number)}
        pools = variables.get("SHUNTER_POOL_CORES", "")
        variables["SHUNTER_SLICES"] = hex(slices_of(place.cores or pools))
        if place.cores == AUTO and place.threads and "SHUNTER_PREEMPTIBLE" not in variables:
            variables["SHUNTER_CORES"] = AUTO
        if not place.threads:
            variables["SHUNTER_THREADS"] = ""
        worker = self.runtime.worker(
            self.model,
            threads=place.threads,
            cores=parse_cpu_list(place.cores) if place.cores not in ("", AUTO) else None,
            batch=place.batch,
            variables=variables,
            load_s=self.load_s,
        )
        with self._lock:
            if self.is_over:
                raise WorkerFailed("it is not wanted any more")
            place.coming = worker
        try:
            worker.start()
            with self._lock:
                if not self.is_over:
                    place.worker, place.started = worker, time.monotonic()
                    return
            worker.close()  # there was no process yet when all were ended
            raise WorkerFailed("it is not wanted any more")
        finally:
            place.coming = None

    def wait_attached(self, backend_at: Path) -> None:
        """Until the backend has all of them, if there is a backend. Raises HostError."""
        end = time.monotonic() + ATTACH_S
        while True:
            try:
                with Backend(backend_at) as backend:
                    while missing := self.pids - attached(backend):
                        self._check_hope(missing, end)
                        time.sleep(0.02)
                self._check_hope((), end)
                return
            except NoBackend:
                return  # they attach when it comes: that it loads says so
            except BackendGone:  # slow; or it has just ended, and there is none next time
                self._check_hope(self.pids, end)
                time.sleep(0.02)

    def _check_hope(self, missing: Collection[int], end: float) -> None:
        why = next((self.refusals[pid][1] for pid in missing if pid in self.refusals), "")
        if missing and time.monotonic() > end:
            why = why or f"{ATTACH_S:g} s are over"
        if self.is_over:
            why = "they are not wanted any more"
        if why:
            raise HostError(
                f"{len(missing)} workers of model {self.model.name} did not attach: {why}"
            )

    @property
    def members(self) -> dict[int, int]:
        """The group of each process that lives."""
        found = ((place, place.worker) for place in self.places)
        return {w.pid: p.group for p, w in found if w is not None and not w.is_dead}

    @property
    def pids(self) -> set[int]:
        """Of the processes that live."""
        return set(self.members)

    def look_after(self) -> None:
        """Start again what was lost, after a pause that grows while it does not hold."""
        now = time.monotonic()
        for place in self.places:
            if place.restart is not None:
                if place.restart.done():
                    self._restarted(place)
                continue
            if place.worker is not None and place.worker.is_dead:
                self._lost(place, now)
            if place.worker is None and now >= place.due:
                # By a thread of its own, so that nobody waits for one that hangs in its load.
                with_it = ThreadPoolExecutor(1, "starting")
                place.restart = with_it.submit(self._start, place, {})  # it hurries: it is missed
                with_it.shutdown(wait=False)

    @property
    def is_coming(self) -> bool:
        """Whether a worker is being started again."""
        return any(place.restart is not None for place in self.places)

    def _lost(self, place: Place, now: float) -> None:
        assert place.worker is not None
        failure = place.worker.failure()
        self._log(failure)
        place.worker.close()
        place.worker = None
        held = now - place.started > LONGEST_PAUSE_S
        place.pause_s = FIRST_PAUSE_S if held else place.pause_s
        place.due = now + place.pause_s
        place.pause_s = min(2 * place.pause_s, LONGEST_PAUSE_S)
        self.problem = failure.why

    def _log(self, failure: WorkerFailed) -> None:
        if self.is_over:
            return
        is_new, self._told = failure.why != self._told, failure.why
        lines = "\n  ".join(["", *failure.lines]) if is_new else ""
        LOGGER.error("model %s: %s%s", self.model.name, failure.why, lines.rstrip())

    def _restarted(self, place: Place) -> None:
        assert place.restart is not None
        error, place.restart = place.restart.exception(), None
        self.problem = error.why if isinstance(error, WorkerFailed) else str(error or "")
        if isinstance(error, WorkerFailed):
            self._log(error)
        if error:
            place.due = time.monotonic() + place.pause_s
            place.pause_s = min(2 * place.pause_s, LONGEST_PAUSE_S)

    def dismiss(self, backend_at: Path, name: str, version: int) -> None:
        """End them when they have answered what they hold; at last by force."""
        drain(backend_at, name, version, self.pids)
        self.close()

    def abandon(self) -> None:
        """Those that are being started are not wanted any more, and there are no others."""
        with self._lock:
            self.is_over = True
        for place in self.places:
            if (coming := place.coming) is not None:
                coming.kill()

    def close(self) -> None:
        """End them, as they are."""
        self.abandon()
        while wait([p.restart for p in self.places if p.restart is not None], AGAIN_S).not_done:
            self.abandon()  # there may have been no process yet
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


def drain(backend_at: Path, name: str, version: int, pids: Collection[int]) -> None:
    """Come back when these workers have answered what they hold, and have left; or not in time."""
    end = time.monotonic() + LEAVE_S
    while pids and time.monotonic() < end:
        try:
            with Backend(backend_at) as backend:
                _drain(backend, name, version, pids, end)
            return
        except (NoBackend, UserError):
            return  # nobody gives them anything
        except BackendGone:
            time.sleep(0.02)  # it is slow, and they may hold requests


def _drain(backend: Backend, name: str, version: int, pids: Collection[int], end: float) -> None:
    busy = {pid: ns for each in backend.functions() for pid, ns in each["pids"].items()}
    # What comes meanwhile goes to an idle one, and not behind what may last.
    for pid in sorted(pids, key=lambda pid: -busy.get(pid, 0)):
        backend.drain(name, version, pid)
    while set(pids) & attached(backend) and time.monotonic() < end:
        time.sleep(0.02)


class Strangers:
    """Workers that another host started, of the same model version."""

    def __init__(self, pids: Collection[int]) -> None:
        """They live."""
        self._processes = []
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                self._processes.append(LivingProcess(pid))

    def dismiss(self, backend_at: Path, name: str, version: int) -> None:
        """End them when they have answered what they hold; at last by force."""
        drain(backend_at, name, version, [each.pid for each in self._processes])
        for each in self._processes:
            each.kill()  # one that has left ends by itself; one that stands still does not
            each.close()
        self._processes.clear()


def attached(backend: Backend) -> set[int]:
    """Processes of all workers that the backend has."""
    return {pid for each in backend.functions() for pid in each["pids"]}
