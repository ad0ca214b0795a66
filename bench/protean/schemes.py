"""The schemes that are compared: where a batch begins, and who decides on layouts."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from protean.gpu import Gpu, Job, Place, Placed, Slice
from protean.workloads import World
from shunter.allocator.placement.distribution import Batch, SliceState, distribute

WHOLE = ("7g",)
FIRST = ("4g", "2g", "1g")


def one_at_a_time(_gpu: Gpu, slices: Sequence[Slice], jobs: Sequence[Job]) -> Iterator[Placed]:
    """Time sharing, in the order of arrival."""
    if jobs and not slices[0].jobs:
        yield jobs[0], slices[0]


def all_together(_gpu: Gpu, slices: Sequence[Slice], jobs: Sequence[Job]) -> Iterator[Placed]:
    """MPS: everything at once, as far as the memory goes, in the order of arrival."""
    for job in jobs:
        if job.memory > slices[0].free:
            return
        yield job, slices[0]


def strict_first(gpu: Gpu, slices: Sequence[Slice], jobs: Sequence[Job]) -> Iterator[Placed]:
    """As all_together, strict batches first."""
    yield from all_together(gpu, slices, sorted(jobs, key=lambda job: not job.is_strict))


def by_memory(gpu: Gpu, slices: Sequence[Slice], jobs: Sequence[Job]) -> Iterator[Placed]:
    """Any slice where there is room, by chance, in proportion to its memory."""
    for job in jobs:
        fitting = [each for each in slices if each.free >= job.memory]
        if not fitting:
            return
        yield job, gpu.choose.choices(fitting, [each.memory for each in fitting])[0]


def by_slowdown(gpu: Gpu, slices: Sequence[Slice], jobs: Sequence[Job]) -> Iterator[Placed]:
    """Algorithm 1: the same code that places real batches."""
    states = [
        SliceState(
            each.name, each.kind, each.compute, each.free, tuple(job.model for job in each.jobs)
        )
        for each in slices
    ]
    batches = [Batch(job.model, job.is_strict, job.memory) for job in jobs]
    named = {each.name: each for each in slices}
    for job, name in zip(jobs, distribute(states, batches, gpu.world.known), strict=True):
        if name is not None:
            yield job, named[name]


def not_beside_strict(gpu: Gpu, slices: Sequence[Slice], jobs: Sequence[Job]) -> Iterator[Placed]:
    """As by_slowdown, but best effort that waits begins only where nothing strict runs."""
    strict = [job for job in jobs if job.is_strict]
    if strict:
        yield from by_slowdown(gpu, slices, strict)
    free = [each for each in slices if not any(job.is_strict for job in each.jobs)]
    yield from by_slowdown(gpu, free, [job for job in jobs if not job.is_strict])


Decides = Literal["nobody", "paper", "ours", "oracle"]


@dataclass(frozen=True)
class Scheme:
    """How a cluster is run."""

    name: str
    layout: tuple[str, ...]
    place: Place
    decides: Decides = "nobody"
    parted: bool = False


def schemes(world: World) -> dict[str, Scheme]:
    """All of them, by name."""
    every = (
        Scheme("Molecule", WHOLE, one_at_a_time),
        Scheme("INFless/Llama", WHOLE, all_together),
        Scheme("Naive", world.naive, by_memory),
        Scheme("GPUlet", WHOLE, strict_first, parted=True),
        Scheme("PROTEAN", FIRST, by_slowdown, "paper"),
        Scheme("ours", FIRST, by_slowdown, "ours"),
        Scheme("Oracle", FIRST, not_beside_strict, "oracle"),
    )
    return {each.name: each for each in every}


# ---- what the Oracle knows

MOST_SLICES = 4
Plan = tuple[tuple[str, ...], tuple[int, ...], tuple[int, ...]]
"""A layout, and how many strict and best-effort batches go to each slice."""


def splits(count: int, places: int) -> Iterator[tuple[int, ...]]:
    """All ways to put so many into so many places.

    >>> list(splits(1, 2))
    [(0, 1), (1, 0)]
    """
    for bars in itertools.combinations(range(count + places - 1), places - 1):
        edges = (-1, *bars, count + places - 1)
        yield tuple(b - a - 1 for a, b in itertools.pairwise(edges))


class Sweeps:
    """The best layout and placement of each number of batches, found by trying all."""

    def __init__(self, world: World) -> None:
        """Nothing is known yet."""
        self._world = world
        self._found: dict[tuple[str, int, str, int], Plan | None] = {}

    def plan(self, strict: str, n_strict: int, other: str, n_other: int) -> Plan | None:
        """None where nothing holds all of them at once."""
        key = strict, n_strict, other, n_other
        if key not in self._found:
            self._found[key] = self._search(*key)
        return self._found[key]

    def _search(self, strict: str, n_strict: int, other: str, n_other: int) -> Plan | None:
        best: tuple[tuple[float, ...], Plan] | None = None
        for layout in self._world.candidates:
            if len(layout) > MOST_SLICES:
                continue
            places = len(layout)
            # Best effort may wait as well, as far as that helps strict batches.
            some = itertools.chain.from_iterable(
                splits(count, places) for count in range(n_other, -1, -1)
            )
            for a, b in itertools.product(splits(n_strict, places), list(some)):
                rank = self._rank(layout, strict, a, other, b)
                if rank is None:
                    continue
                rank = (rank[0], float(n_other - sum(b)), *rank[1:])
                if best is None or rank < best[0]:
                    best = rank, (layout, a, b)
        return None if best is None else best[1]

    def _rank(
        self,
        layout: Sequence[str],
        strict: str,
        a: Sequence[int],
        other: str,
        b: Sequence[int],
    ) -> tuple[float, ...] | None:
        """Strict batches that are expected to be late, their slowdowns, best effort's."""
        world, known = self._world, self._world.known
        memory = [world.memory_bytes(model) if model else 0 for model in (strict, other)]
        late, worst, total, others = 0.0, 0.0, 0.0, 0.0
        for kind, x, y in zip(layout, a, b, strict=True):
            if x * memory[0] + y * memory[1] > world.kinds[kind].memory_bytes:
                return None
            wants = x * known.fbr_on(strict, kind) if x else 0.0
            wants += y * known.fbr_on(other, kind) if y else 0.0
            if x:
                eta = known.rdf(strict, kind) * max(wants, 1.0)
                late += x * world.late_chance(eta)
                worst, total = max(worst, eta), total + x * eta
            if y:
                others += y * known.rdf(other, kind) * max(wants, 1.0)
        return round(late, 2), round(worst, 9), round(total, 9), others


def begin_planned(gpu: Gpu, jobs: Sequence[Job], sweeps: Sweeps) -> bool:
    """Lay an idle GPU out for these batches and begin them; False: left to distribution."""
    strict = [job for job in jobs if job.is_strict]
    other = [job for job in jobs if not job.is_strict]
    plan = sweeps.plan(
        strict[0].model if strict else "", len(strict), other[0].model if other else "", len(other)
    )
    if plan is None:
        return False
    layout, a, b = plan
    gpu.reset(layout)
    left_strict, left_other = iter(strict), iter(other)
    for where, x, y in zip(gpu.slices, a, b, strict=True):
        for job in (*itertools.islice(left_strict, x), *itertools.islice(left_other, y)):
            gpu.start(job, where)
    gpu.waiting.extend((*left_strict, *left_other))
    return True
