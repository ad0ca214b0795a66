"""One simulated GPU: slices on which batches share the bandwidth, and a queue before them.

Batches on a slice all get on at the same rate, 1 / max(sum of their FBRs, 1); the time that each
would take alone there is known when it begins. So the next batch to end is that with the least
left, and nothing needs to be computed between two events: exact, without time steps.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from protean.workloads import World

PARTS = {True: "strict part", False: "other part"}
"""What a batch may use of a GPU whose multiprocessors are parted by MPS, by strictness."""


class Job:
    """A batch on its way."""

    __slots__ = (
        "alone",
        "arrived",
        "done",
        "is_strict",
        "left",
        "memory",
        "model",
        "requests",
        "scatter",
        "started",
        "wants",
    )

    def __init__(
        self,
        model: str,
        is_strict: bool,
        requests: int,
        arrived: float,
        memory: int,
        scatter: float = 1.0,
    ) -> None:
        """A complete batch; ``scatter``: a factor on its time."""
        self.model, self.is_strict, self.requests = model, is_strict, requests
        self.arrived, self.memory, self.scatter = arrived, memory, scatter
        self.started = self.done = math.nan
        self.alone = self.left = self.wants = 0.0
        """Its seconds alone on its slice, what is left of them, its FBR there."""


class Slice:
    """Part of a GPU."""

    __slots__ = ("at", "compute", "free", "jobs", "kind", "memory", "name", "wanted")

    def __init__(self, name: str, kind: str, compute: float, memory: int) -> None:
        """With nothing on it."""
        self.name, self.kind, self.compute = name, kind, compute
        self.memory = self.free = memory
        self.jobs: list[Job] = []
        self.at = self.wanted = 0.0

    def advance(self, now: float) -> None:
        """All get on until now."""
        if self.jobs:
            done = (now - self.at) / max(self.wanted, 1.0)
            for job in self.jobs:
                job.left -= done
        self.at = now

    def next_end(self) -> float:
        """When the first of them ends, if none comes before."""
        if not self.jobs:
            return math.inf
        return self.at + min(job.left for job in self.jobs) * max(self.wanted, 1.0)

    def add(self, job: Job, now: float) -> None:
        """One more begins."""
        self.advance(now)
        self.jobs.append(job)
        self.free -= job.memory
        self.wanted += job.wants

    def take_ended(self, now: float) -> list[Job]:
        """Those that end now."""
        self.advance(now)
        ended = [job for job in self.jobs if job.left <= 1e-9]
        self.jobs = [job for job in self.jobs if job.left > 1e-9]
        self.free += sum(job.memory for job in ended)
        self.wanted = sum(job.wants for job in self.jobs)
        return ended


Placed = tuple[Job, Slice]
Place = Callable[["Gpu", Sequence[Slice], Sequence[Job]], Iterable[Placed]]
"""Which of the waiting batches begin now, and on which of the slices that are open."""


class Gpu:
    """Slices, and batches that wait for them."""

    def __init__(
        self, world: World, layout: Sequence[str], place: Place, parted: bool = False, seed: int = 0
    ) -> None:
        """``parted``: batches are limited to parts of the multiprocessors (GPUlet)."""
        self.world, self.place, self.parted = world, place, parted
        self.now = 0.0
        self.made = 0
        self.slices = self._make(layout)
        self.waiting: list[Job] = []
        self.ended: list[Job] = []
        self.limits: dict[str, int] | None = None
        """Instances by model; None: as many as there are batches."""
        self.running: Counter[str] = Counter()
        self.closing: list[Slice] = []
        self.coming: tuple[str, ...] = ()
        self.back_at = math.inf
        self.stalled: Callable[[Gpu], None] | None = None
        """Told when nothing runs and nothing that waits can begin."""
        self.choose = random.Random(seed)
        """For schemes that leave things to chance."""

    @property
    def layout(self) -> tuple[str, ...]:
        """Kinds of its slices; while it changes, those to come."""
        kept = [each.kind for each in self.slices if each not in self.closing]
        return tuple(sorted([*kept, *self.coming], reverse=True))

    @property
    def is_changing(self) -> bool:
        """Some slices are away, or will be when they are idle."""
        return bool(self.coming)

    @property
    def open_slices(self) -> list[Slice]:
        """Where batches may begin."""
        if not self.closing:
            return self.slices
        return [each for each in self.slices if each not in self.closing]

    @property
    def is_idle(self) -> bool:
        """Nothing runs, nothing waits."""
        return not self.waiting and not any(each.jobs for each in self.slices)

    def arrive(self, now: float, jobs: Iterable[Job]) -> None:
        """Batches come."""
        self.advance(now)
        self.waiting.extend(jobs)
        self.begin()

    def change(self, layout: Sequence[str], whole: bool) -> None:
        """Get another layout: all slices at once, or only those that are not in both."""
        wanted = Counter(layout)
        self.closing = []
        for each in self.slices:
            if not whole and wanted[each.kind] > 0:
                wanted[each.kind] -= 1
            else:
                self.closing.append(each)
        self.coming = tuple(wanted.elements())
        self._look_whether_closed()

    def reset(self, layout: Sequence[str]) -> None:
        """Another layout at once, for nothing; only while it is idle."""
        self.slices = self._make(layout)

    def advance(self, until: float) -> None:
        """Everything that happens until then."""
        while True:
            ends = [(each.next_end(), at) for at, each in enumerate(self.slices)]
            at, which = min(ends, default=(math.inf, 0))
            if min(at, self.back_at) > until:
                break
            if self.back_at <= at:
                self._come_back()
            else:
                self._end(at, self.slices[which])
        self.now = until

    def begin(self) -> None:
        """Let the scheme place what may begin."""
        if not self.waiting:
            return
        # Whole GPUs finish what waits before they close.
        slices = self.open_slices or (self.slices if self.back_at == math.inf else [])
        begun = set()
        for job, where in self.place(self, slices, self._with_an_instance()):
            self.start(job, where)
            begun.add(job)
        if begun:
            self.waiting = [job for job in self.waiting if job not in begun]
        elif self.stalled and not any(each.jobs for each in self.slices):
            self.stalled(self)

    def start(self, job: Job, where: Slice) -> None:
        """A batch begins on a slice."""
        kind = PARTS[job.is_strict] if self.parted else where.kind
        known = self.world.known
        job.alone = job.left = known.alone_ms[job.model][kind] / 1e3 * job.scatter
        job.wants = known.fbr[job.model][kind]
        job.started = self.now
        self.running[job.model] += 1
        where.add(job, self.now)

    def _with_an_instance(self) -> list[Job]:
        if self.limits is None:
            return self.waiting
        left = {model: count - self.running[model] for model, count in self.limits.items()}
        found = []
        for job in self.waiting:
            if left.get(job.model, 0) > 0:
                left[job.model] -= 1
                found.append(job)
        return found

    def _end(self, at: float, where: Slice) -> None:
        self.now = at
        for job in where.take_ended(at):
            job.done = at
            self.running[job.model] -= 1
            self.ended.append(job)
        self.begin()
        if self.coming:
            self._look_whether_closed()

    def _look_whether_closed(self) -> None:
        held = len(self.closing) == len(self.slices) and self.waiting
        if self.back_at == math.inf and not held and not any(each.jobs for each in self.closing):
            self.back_at = self.now + self.world.change_s

    def _come_back(self) -> None:
        self.now = self.back_at
        kept = [each for each in self.slices if each not in self.closing]
        self.slices = kept + self._make(self.coming)
        self.closing, self.coming, self.back_at = [], (), math.inf
        self.begin()

    def _make(self, layout: Iterable[str]) -> list[Slice]:
        found = []
        for name in layout:
            kind = self.world.kinds[name]
            self.made += 1
            found.append(Slice(f"{self.made}:{name}", name, kind.compute, kind.memory_bytes))
        return found
