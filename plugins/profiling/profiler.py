"""``shunter profile``: measure a model's latency by threads and batch size (Packrat section 3.2).

Instances of t threads are measured as they will run: as many at once as a NUMA node has cores for,
each the worker that also serves, pinned to cores of its own, because they share caches and memory
then too. Which cells are measured is :mod:`shunter.allocator.planning.profile_plan`, how long each
is :mod:`shunter.allocator.planning.measurement`, which of them then run in turns
:mod:`shunter.allocator.planning.settling`; what was measured is on disk after every cell.
"""

from __future__ import annotations

import datetime
import hashlib
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

from shunter.allocator.cpus.topology import Topology
from shunter.allocator.planning.comparison import CellKey
from shunter.allocator.planning.measurement import Effort, Estimate
from shunter.allocator.planning.profile import Cell, Profile, ProfileError, Provenance, checked
from shunter.allocator.planning.survey import Survey, Visit
from shunter.handlers.sample import Sample
from shunter.plugins.errors import UserError
from shunter.plugins.host import ModelWorker, UnpackedModel, WorkerFailed, WorkerRuntime
from shunter.plugins.profiling.concurrent_workers import NotTogether, Warm, measure
from shunter.plugins.profiling.profiles import load_profile, provenance_here, write_profile
from shunter.plugins.profiling.worker_cache import WorkerCache


class Workers(Protocol):
    """What is measured: see :class:`shunter.plugins.profiling.worker_cache.WorkerCache`."""

    def of(self, *threads: int) -> Sequence[Sequence[ModelWorker]]:
        """For each number of threads those that run together; all are up.

        Raises WorkerFailed, and NotTogether where not all of them can be up at once.
        """
        ...

    def close(self) -> None:
        """End all of them."""
        ...


@dataclass(frozen=True)
class Task:
    """What is to be measured."""

    archive: Path
    samples: Sequence[Sample]
    """Requests; a batch takes them in turn. Empty: the archive's own."""
    threads: int
    batch: int
    runtime: WorkerRuntime | None
    """Whose workers are measured; None: :func:`measure_all` is given workers."""
    exhaustive: bool = False
    alone: bool = False
    """Measure one instance at a time, as Packrat does, not as many as will run together."""
    effort: Effort = field(default_factory=Effort)
    restart: bool = False
    """Forget what an earlier run measured."""
    busy: Callable[[], float] = lambda: 0.0
    """CPUs that something else uses now; asked before and after."""


@dataclass(frozen=True)
class Progress:
    """How far a run is."""

    profile: Profile
    next: CellKey | None
    left: int
    """Cells that are expected to follow."""
    seconds_left: float
    beside: CellKey | None = None
    """The next one was measured before, is in doubt, and runs in turns with this rival."""


def run(
    task: Task,
    path: Path,
    topology: Topology,
    report: Callable[[Progress], None] = lambda progress: None,
) -> Profile:
    """Measure until nothing more is worth it; ``path`` holds the result after every cell.

    Raises UserError for what a user can mend. KeyboardInterrupt leaves a profile that the next
    run continues.
    """
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="shunter-profile-")))
        try:
            assert task.runtime is not None
            model = task.runtime.unpack(task.archive, folder)
            samples = samples_of(task, model)
            here = provenance_here(task.archive, hash_of(samples), topology)
            profile = begin(task, path, here)
            cache = WorkerCache(
                task.runtime, model, topology, profile.threads, profile.batch, alone=task.alone
            )
            stack.callback(cache.close)
            return measure_all(task, path, profile, samples, cache, report)
        except (WorkerFailed, ProfileError, OSError) as error:
            raise UserError(str(error)) from error


def samples_of(task: Task, model: UnpackedModel) -> Sequence[Sample]:
    """The requests that a model is measured with. Raises UserError when there is none."""
    if task.samples:
        return task.samples
    sample = model.sample()
    if sample is None:
        raise UserError(
            f"{model.name} has no example of a request: give one with --input FILE, or name a "
            "file of the archive in its model-config.yaml as shunter: {sample: FILE}"
        )
    return [sample]


def hash_of(samples: Sequence[Sample]) -> str:
    """Of the requests that are sent."""
    digest = hashlib.sha256()
    for sample in samples:
        digest.update(sample.content_type.encode() + b"\0" + sample.body)
    return digest.hexdigest()


def begin(task: Task, path: Path, here: Provenance) -> Profile:
    """The profile to continue: an earlier run's if it is of the same thing, else an empty one."""
    mode = "exhaustive" if task.exhaustive else "adaptive"
    date = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    what = {"provenance": replace(here, date=date), "mode": mode, "alone": task.alone}
    fresh: Profile = checked(Profile, what | {"threads": task.threads, "batch": task.batch})
    if task.restart or not path.exists():
        return fresh
    try:
        earlier = load_profile(path)
        earlier.check_usable(here)
    except ProfileError as error:
        raise UserError(f"{error}, or begin anew with --restart") from error
    if earlier.provenance.sample_hash != here.sample_hash:
        raise UserError(f"{path} was measured with another request; begin anew with --restart")
    if earlier.alone != task.alone:
        how, advice = ("one", "give") if earlier.alone else ("several", "leave out")
        raise UserError(
            f"{path} was measured with {how} at a time: {advice} --alone, or begin anew "
            "with --restart"
        )
    # A smaller range than before would throw away what took hours.
    threads, batch = max(task.threads, earlier.threads), max(task.batch, earlier.batch)
    same = (earlier.threads, earlier.batch, earlier.mode) == (threads, batch, mode)
    return replace(
        fresh,
        threads=threads,
        batch=batch,
        complete=earlier.complete and same,
        cells=earlier.cells,
        seconds=earlier.seconds,
        busy=earlier.busy,
        provenance=earlier.provenance,
        undecided=earlier.undecided,
    )


def measure_all(
    task: Task,
    path: Path,
    profile: Profile,
    samples: Sequence[Sample],
    cache: Workers,
    report: Callable[[Progress], None],
) -> Profile:
    """Measure until nothing more is worth it, then again what is in doubt. Raises WorkerFailed."""
    survey = Survey(
        profile.threads,
        profile.batch,
        [cell for _, cell in sorted(profile.cells.items())],
        seconds=profile.seconds,
        exhaustive=task.exhaustive,
        visits=task.effort.visits,
    )
    was_complete = profile.complete  # what is only visited again may be used meanwhile
    busy = task.busy() if survey.next() is not None else 0.0
    begin, weight = time.monotonic(), 0.0
    warm: Warm = Warm()
    while (visit := survey.next()) is not None:
        again = len(visit) == 2
        if not again:
            profile = replace(profile, complete=False, busy=max(profile.busy, busy))
        report(_progress(profile, visit, survey, time.monotonic() - begin, weight))
        started = time.monotonic()
        try:
            effort = task.effort.again if again else task.effort
            cells, ratio = _measure(cache, visit, samples, effort, warm)
        except WorkerFailed as error:
            if not again and visit[0][1] == 1:
                raise
            survey.fail(visit)
            if not again:
                reason = str(error).split("\n")[0]
                profile = replace(profile, failed={**profile.failed, visit[0]: reason})
            continue
        weight += sum(cell.ms for cell in cells)
        seconds = time.monotonic() - started
        if again:
            survey.compare(*cells, ratio, seconds)
        else:
            survey.add(*cells, seconds)
        profile = profile.with_cells(survey.cells.values(), seconds)
        write_profile(path, profile)
    if weight:
        cache.close()  # what still uses the CPUs is something else
        if not was_complete:
            profile = replace(profile, busy=max(profile.busy, task.busy()))
    undecided = survey.undecided() if weight else profile.undecided
    profile = profile.finished(None if task.exhaustive else survey.gap, undecided)
    write_profile(path, profile)
    report(Progress(profile, None, 0, 0.0))
    return profile


def _progress(
    profile: Profile, visit: Visit, survey: Survey, spent: float, weight: float
) -> Progress:
    """``weight``: latencies of what was measured in the time that was spent."""
    if len(visit) == 2:
        return Progress(profile, visit[1], 0, float("nan"), beside=visit[0])
    ahead = survey.ahead()
    ahead_ms = sum(ms for each in ahead if (ms := survey.estimate(each)) < 1e9)
    left = spent / weight * ahead_ms if weight else float("nan")
    return Progress(profile, visit[0], len(ahead), left)


def _measure(
    cache: Workers,
    visit: Visit,
    samples: Sequence[Sample],
    effort: Effort,
    warm: Warm,
) -> tuple[list[Cell], Estimate | None]:
    """A cell, or two and their ratio; without a ratio where they cannot run in turns."""
    try:
        workers = cache.of(*(threads for threads, _ in visit))
        return measure(workers, visit, samples, effort, warm)
    except NotTogether:
        alone = [measure(cache.of(key[0]), (key,), samples, effort, warm) for key in visit]
        return [cell for [cell], _ in alone], None


def busy_cores(topology: Topology, seconds: float = 0.5) -> float:
    """How many of the CPUs something else uses now; a profile measured beside that is wrong."""

    def used() -> float:
        ids = {f"cpu{cpu.id}" for cpu in topology.cpus}
        total = 0.0
        for line in Path("/proc/stat").read_text(encoding="ascii").splitlines():
            name, *fields = line.split()
            if name in ids:
                numbers = [int(field) for field in fields]
                # user, nice, system, irq, softirq, steal; idle and iowait are not use
                total += sum(numbers[:3]) + sum(numbers[5:8])
        return total / os.sysconf("SC_CLK_TCK")

    before = used()
    time.sleep(seconds)
    return (used() - before) / seconds
