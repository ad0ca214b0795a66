"""The same cluster by the second instead of by the batch: a day of a hundred GPUs in a minute.

Nearly all GPUs do the same in a second: so many strict and so many best-effort batches come to an
idle GPU with such a layout. What follows is simulated once, batch by batch, for each such case and
remembered. What is approximated:

* every burst meets an idle GPU (``undrained`` says how often one lasted longer than its second);
* the numbers of batches of two GPUs differ by one at most, and who gets one more of one class does
  not of the other, as far as that is possible;
* of the scatter of batch times each case has ``DRAWS`` draws;
* all batches of a case count alike, also those that are not full;
* the manager knows one mean GPU; instances are counted, but nobody waits for one to start.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from protean.gpu import Gpu, Job
from protean.load import Second, seconds
from protean.managers import Scaler, manager
from protean.outcome import WARM_UP_S
from protean.schemes import Scheme
from protean.workloads import Workload, World, batches_of
from shunter.allocator.placement.autoscaling import KeepAlive
from shunter.allocator.placement.forecast import Needs
from shunter.allocator.placement.reconfigurator import Waiting, decide, may_begin

DRAWS = 16
BIN_MS, BINS = 1.0, 4000
SEEN_AS = 8
"""As of so many GPUs the manager is told what came."""
Layout = tuple[str, ...]
Case = tuple[Layout, str, int, str, int]
"""Open slices, strict model and its batches, best-effort model and its batches."""


@dataclass
class Burst:
    """What a case comes to: sums over its batches, means over the draws."""

    late: float
    best_effort: np.ndarray
    """Batches by latency."""
    lasts_s: float


class Bursts:
    """Every case, simulated when it is first met."""

    def __init__(self, world: World, scheme: Scheme) -> None:
        """None is known yet."""
        self._world, self._scheme = world, scheme
        self._known: dict[Case, Burst] = {}

    def of(self, case: Case) -> Burst:
        """Its outcome."""
        if case not in self._known:
            self._known[case] = self._simulate(case)
        return self._known[case]

    def _simulate(self, case: Case) -> Burst:
        layout, strict, n_strict, other, n_other = case
        world, late, last = self._world, 0, 0.0
        latencies: list[float] = []
        choose = np.random.default_rng(sum(map(ord, repr(case))))
        for draw in range(DRAWS):
            gpu = Gpu(world, layout, self._scheme.place, self._scheme.parted, draw)
            mixed = [
                ((at + choose.random()) / count, model, is_strict)
                for model, is_strict, count in ((strict, True, n_strict), (other, False, n_other))
                for at in range(count)
            ]
            jobs = [
                Job(model, is_strict, 1, 0.0, world.memory_bytes(model), self._scatter(choose))
                for _, model, is_strict in sorted(mixed)
            ]
            gpu.arrive(0.0, jobs)
            gpu.advance(1e6)
            for job in gpu.ended:
                last = max(last, job.done)
                if not job.is_strict:
                    latencies.append(job.done * 1e3)
                elif job.done > world.limit_s(job.model) * (1 + 1e-9):
                    late += 1
        bins = np.minimum(np.array(latencies) / BIN_MS, BINS - 1).astype(int)
        return Burst(late / DRAWS, np.bincount(bins, minlength=BINS) / DRAWS, last)

    def _scatter(self, choose: np.random.Generator) -> float:
        return math.exp(self._world.scatter * choose.standard_normal())


@dataclass
class Day:
    """What a long run comes to."""

    compliance: float
    be_p99_ms: float
    undrained: float
    """Share of the bursts that would have met the next one."""
    changes: int
    starts: int
    cases: int
    requests: int


@dataclass
class _Away:
    back_at: float
    old: Layout
    new: Layout
    count: int


@dataclass
class Groups:
    """GPUs by layout, and those that are being changed."""

    whole: dict[Layout, int]
    waits: dict[Layout, Waiting] = field(default_factory=dict)
    away: list[_Away] = field(default_factory=list)
    changes: int = 0

    def come_back(self, now: float) -> None:
        """Those whose change is over."""
        for each in [each for each in self.away if each.back_at <= now]:
            self.away.remove(each)
            self.whole[each.new] = self.whole.get(each.new, 0) + each.count

    def decide(self, now: float, gpus: int, change_s: float, wanted: dict[Layout, Layout]) -> None:
        """Begin changes, as many as may be."""
        for layout in list(self.whole):
            decision = decide(layout, wanted[layout], self.waits.get(layout, Waiting()))
            if not decision.change:
                self.waits[layout] = decision.waiting
                continue
            changing = sum(each.count for each in self.away)
            count = min(self.whole[layout], may_begin(gpus, changing))
            if count > 0:
                self.away.append(_Away(now + math.ceil(change_s), layout, decision.wanted, count))
                self.changes += count
                self.whole[layout] -= count
                if self.whole[layout] == 0:
                    del self.whole[layout]
                    self.waits.pop(layout, None)


def kept(old: Layout, new: Layout) -> Layout:
    """Slices that stay while a layout is changed."""
    return tuple((Counter(old) & Counter(new)).elements())


def pairs(strict: int, other: int, gpus: int) -> Iterator[tuple[int, int, float]]:
    """How many batches of both classes come to how many of so many GPUs.

    >>> list(pairs(3, 2, 2))
    [(2, 1, 1.0), (1, 1, 1.0)]
    """
    low_s, high_s = divmod(strict, gpus)
    low_b, high_b = divmod(other, gpus)
    both = max(0, high_s + high_b - gpus)
    counts = (
        (low_s + 1, low_b + 1, both),
        (low_s + 1, low_b, high_s - both),
        (low_s, low_b + 1, high_b - both),
        (low_s, low_b, gpus - high_s - high_b + both),
    )
    yield from ((s, b, float(count)) for s, b, count in counts if count)


class Fast:
    """A run by the second."""

    def __init__(self, workload: Workload, scheme: Scheme, world: World) -> None:
        """Before the first second."""
        self._workload, self._world = workload, world
        self._manager = manager(scheme.decides, world, workload)
        self._state = self._manager.first() if self._manager else None
        self._bursts = Bursts(world, scheme)
        self._groups = Groups({tuple(sorted(scheme.layout, reverse=True)): world.gpus})
        self._met: Counter[Case] = Counter()
        self._scaler = Scaler(world.start_s, lambda: KeepAlive(world.keep_s))

    def run(self) -> Day:
        """All of it."""
        requests, needs = 0, None
        for second in seconds(self._workload, self._world):
            requests += second.strict + second.best_effort
            self._groups.come_back(second.at)
            if self._manager and needs is not None:
                self._decide(second.at, needs)
            needs = self._dispatch(second)
        return self._day(requests)

    def _decide(self, now: float, needs: list[Needs]) -> None:
        manager = self._manager
        assert manager
        manager.saw(needs)
        self._state = manager.after(self._state, self._mean)
        wanted = {layout: manager.wanted(self._state, layout) for layout in self._groups.whole}
        self._groups.decide(now, self._world.gpus, self._world.change_s, wanted)

    def _dispatch(self, second: Second) -> list[Needs]:
        workload, groups = self._workload, self._groups
        strict = batches_of(second.strict, workload.batch)
        other = batches_of(second.best_effort, workload.batch)
        name = workload.strict or ""
        if strict:
            self._scaler.after(second.at, name, strict)
        if other:
            self._scaler.after(second.at, second.model, other)
        counts = second.at >= WARM_UP_S
        whole = sum(groups.whole.values())
        self._mean = self._needs(name, strict / whole, second.model, other / whole)
        left = strict - self._to_changing(strict, whole, name, counts)
        seen: list[Needs] = []
        for s, b, count in pairs(left, other, whole):
            share = count / whole
            seen += [self._needs(name, s, second.model, b)] * round(share * SEEN_AS)
            if counts:
                for layout, gpus in groups.whole.items():
                    self._met[layout, name, s, second.model, b] += share * gpus
        return seen

    def _to_changing(self, strict: int, whole: int, name: str, counts: bool) -> int:
        """Strict batches for the slices that stay on GPUs that are being changed."""
        if self._manager is None or self._manager.whole_gpu or not self._groups.away:
            return 0
        kinds = self._world.kinds
        stay = [(kept(each.old, each.new), each.count) for each in self._groups.away]
        shares = [sum(kinds[kind].compute for kind in layout) for layout, _ in stay]
        weight = whole + sum(share * count for share, (_, count) in zip(shares, stay, strict=True))
        taken = 0
        for share, (layout, count) in zip(shares, stay, strict=True):
            each = int(strict / weight * share)
            if each and counts:
                self._met[layout, name, each, "", 0] += count
            taken += each * count
        return taken

    def _needs(self, strict: str, s: float, other: str, b: float) -> Needs:
        found = [(strict, True, s)] if self._workload.strict is not None else []
        return tuple([*found, (other, False, b)] if other else found)

    def _day(self, requests: int) -> Day:
        strict = late = undrained = bursts = 0.0
        best_effort = np.zeros(BINS)
        for case, times in self._met.items():
            burst = self._bursts.of(case)
            strict += case[2] * times
            late += burst.late * times
            best_effort += burst.best_effort * times
            bursts += times
            undrained += times * (burst.lasts_s > 1.0)
        total = np.cumsum(best_effort)
        p99 = float(np.searchsorted(total, 0.99 * total[-1]) + 1) * BIN_MS if total[-1] else 0.0
        return Day(
            1 - late / strict if strict else math.nan,
            p99,
            undrained / bursts,
            self._groups.changes,
            self._scaler.starts,
            len(self._met),
            requests,
        )


def simulate_day(workload: Workload, scheme: Scheme, world: World) -> Day:
    """A long run of many GPUs."""
    return Fast(workload, scheme, world).run()
