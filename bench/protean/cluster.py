"""A cluster under one scheme and one workload, batch by batch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from protean.gpu import Gpu, Job
from protean.load import Second, seconds, sizes
from protean.managers import Scaler, manager
from protean.schemes import Scheme, Sweeps, begin_planned
from protean.workloads import Workload, World, batches_of
from shunter.allocator.placement.autoscaling import KeepAlive
from shunter.allocator.placement.forecast import Needs
from shunter.allocator.placement.reconfigurator import Waiting, decide, may_begin

LONGEST_END_S = 1000
"""So long after the last request every one is answered."""


@dataclass
class Run:
    """What happened."""

    world: World
    jobs: list[Job] = field(default_factory=list)
    """Every batch, ended."""
    came: int = 0
    """Requests."""
    changes: int = 0
    starts: int = 0
    """Of instances, after the beginning."""


class Cluster:
    """GPUs, a dispatcher before them, and whoever decides on their layouts."""

    def __init__(self, workload: Workload, scheme: Scheme, world: World) -> None:
        """Warm, with the scheme's first layout everywhere."""
        self._workload, self._scheme, self._world = workload, scheme, world
        self.gpus = [
            Gpu(world, scheme.layout, scheme.place, scheme.parted, workload.seed * 1000 + at)
            for at in range(world.gpus)
        ]
        self._manager = manager(scheme.decides, world, workload)
        self._states = [self._manager.first() if self._manager else None for _ in self.gpus]
        self._waits = [Waiting() for _ in self.gpus]
        self._needs: list[Needs | None] = [None] * world.gpus
        self._sweeps = Sweeps(world) if scheme.decides == "oracle" else None
        for gpu in self.gpus if self._sweeps else ():
            gpu.stalled = self._plan_again
        self._scaler = self._warm()
        self._next = 0
        self._choose = np.random.default_rng(workload.seed + 1000)
        self._open: list[list[float]] = []
        self._given: list[list[int]] = []
        self.run = Run(world)

    def simulate(self) -> Run:
        """The whole workload, until every request is answered."""
        for second in seconds(self._workload, self._world):
            self.step(second)
        self._finish()
        for gpu in self.gpus:
            if not gpu.is_idle:
                raise RuntimeError(f"{self._scheme.name}: batches fit on no slice of {gpu.layout}")
            self.run.jobs.extend(gpu.ended)
        self.run.starts = self._scaler.starts
        return self.run

    def _finish(self) -> None:
        """Nothing comes any more; layouts still change for what waits."""
        for _ in range(LONGEST_END_S):
            if all(gpu.is_idle for gpu in self.gpus):
                break
            for gpu in self.gpus:
                gpu.advance(gpu.now + 1.0)
            if self._manager:
                self._decide()

    def step(self, second: Second) -> None:
        """What comes in one second, after decisions on what came before."""
        now = float(second.at)
        for gpu in self.gpus:
            gpu.advance(now)
        if self._manager:
            self._decide()
        self._scale(now, second)
        self._dispatch(now, second)

    # ---- layouts

    def _decide(self) -> None:
        assert self._manager
        changing = sum(gpu.is_changing for gpu in self.gpus)
        self._manager.saw([needs for needs in self._needs if needs is not None])
        for at, gpu in enumerate(self.gpus):
            needs = self._needs[at]
            if gpu.is_changing or needs is None:
                continue
            self._states[at] = state = self._manager.after(self._states[at], needs)
            wanted = self._manager.wanted(state, gpu.layout)
            decision = decide(gpu.layout, wanted, self._waits[at])
            if decision.change and may_begin(len(self.gpus), changing) > 0:
                gpu.change(decision.wanted, whole=self._manager.whole_gpu)
                changing += 1
                self.run.changes += 1
                self._waits[at] = decision.waiting
            elif not decision.change:
                self._waits[at] = decision.waiting

    # ---- instances

    def _warm(self) -> Scaler:
        scaler = Scaler(self._world.start_s, lambda: KeepAlive(self._world.keep_s))
        rate = self._workload.mean_rate() * self._world.gpus / 8
        share = self._workload.share if self._workload.strict is not None else 0.0
        if share > 0 and self._workload.strict is not None:
            scaler.begin_with(
                self._workload.strict, batches_of(round(rate * share), self._workload.batch)
            )
        for model in self._workload.best_effort() if share < 1 else ():
            scaler.begin_with(model, batches_of(round(rate * (1 - share)), self._workload.batch))
        return scaler

    def _scale(self, now: float, second: Second) -> None:
        batch = self._workload.batch
        if self._workload.strict is not None and second.strict:
            self._scaler.after(now, self._workload.strict, batches_of(second.strict, batch))
        if second.best_effort:
            self._scaler.after(now, second.model, batches_of(second.best_effort, batch))
        whole = sum(self._takes(gpu, is_strict=True) > 0 for gpu in self.gpus)
        limits = self._scaler.limits(max(1, whole))
        for gpu in self.gpus:
            gpu.limits = limits
            gpu.begin()

    # ---- dispatch

    def _dispatch(self, now: float, second: Second) -> None:
        """Batches go to the GPUs in turn."""
        given: list[list[Job]] = [[] for _ in self.gpus]
        self._given = [[0] * len(self.gpus), [0] * len(self.gpus)]
        self._open = [[self._takes(gpu, strict) for gpu in self.gpus] for strict in (False, True)]
        for job in self._jobs(now, second):
            at = self._turn(job.is_strict)
            given[at].append(job)
        for at, (gpu, jobs) in enumerate(zip(self.gpus, given, strict=True)):
            strict = sum(job.is_strict for job in jobs)
            self._needs[at] = None if gpu.is_changing else self._needed(second, strict, len(jobs))
            self._give(gpu, jobs)

    def _needed(self, second: Second, strict: int, count: int) -> Needs:
        found = []
        if self._workload.strict is not None:
            found.append((self._workload.strict, True, strict))
        if second.model:
            found.append((second.model, False, count - strict))
        return tuple(found)

    def _give(self, gpu: Gpu, jobs: Sequence[Job]) -> None:
        begin = 0
        while begin < len(jobs):
            end = begin + 1
            while end < len(jobs) and jobs[end].arrived == jobs[begin].arrived:
                end += 1
            together = jobs[begin:end]
            gpu.advance(together[0].arrived)
            planned = self._sweeps is not None and gpu.is_idle
            if not (planned and begin_planned(gpu, together, self._sweeps)):
                gpu.arrive(together[0].arrived, together)
            begin = end

    def _plan_again(self, gpu: Gpu) -> None:
        """Nothing runs, and what waits fits on no slice: the layout was for a smaller batch."""
        assert self._sweeps
        waiting, gpu.waiting = gpu.waiting, []
        if not begin_planned(gpu, waiting, self._sweeps):
            begin_planned(gpu, waiting[:1], self._sweeps)
            gpu.waiting.extend(waiting[1:])

    def _turn(self, is_strict: bool) -> int:
        """The GPU with the fewest of this class in this second, then of all; in turn among equals.

        While a GPU changes it counts for what of it is open.
        """
        weights, given = self._open[is_strict], self._given
        count = len(weights)

        def rank(at: int) -> tuple[float, int, int]:
            if not weights[at]:
                return math.inf, 0, (at - self._next) % count
            of_class = (given[is_strict][at] + 1) / weights[at]
            return of_class, given[0][at] + given[1][at], (at - self._next) % count

        chosen = min(range(count), key=rank)
        given[is_strict][chosen] += 1
        self._next = (chosen + 1) % count
        return chosen

    def _takes(self, gpu: Gpu, is_strict: bool) -> float:
        """Share of a GPU that is given batches: while it changes, strict ones where slices stay."""
        if not gpu.is_changing:
            return 1.0
        return sum(each.compute for each in gpu.open_slices) if is_strict else 0.0

    def _jobs(self, now: float, second: Second) -> list[Job]:
        """The batches of a second, in the order in which they are complete."""
        found = []
        for model, is_strict, requests in (
            (self._workload.strict, True, second.strict),
            (second.model, False, second.best_effort),
        ):
            every = sizes(requests, self._workload.batch)
            for at, size in enumerate(every):
                # The classes come mixed: whose batch is complete first is left to chance.
                part = (at + self._choose.random()) / len(every)
                when = now + part * self._world.spread_s
                assert model is not None
                memory = self._world.memory_bytes(model)
                scatter = math.exp(self._world.scatter * self._choose.standard_normal())
                found.append((part, Job(model, is_strict, size, when, memory, scatter)))
        return [job for _, job in sorted(found, key=lambda each: each[0])]


def simulate(workload: Workload, scheme: Scheme, world: World) -> Run:
    """One run."""
    cluster = Cluster(workload, scheme, world)
    run = cluster.simulate()
    run.came = sum(each.strict + each.best_effort for each in seconds(workload, world))
    return run
