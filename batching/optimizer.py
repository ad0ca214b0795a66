"""The best ⟨instances, threads, batch⟩, exactly (Packrat section 3.3, and what a server adds).

Packrat minimises ``max L[t_j, b_j]`` subject to ``sum t_j <= T`` and ``sum b_j = B`` by dynamic
programming over both T and B, in O(T² B²). Here the search runs over the latency instead: within a
latency x an instance on t threads takes a batch of at most ``b(t, x) = max {b : L[t, b] <= x}``,
so x can be reached when the knapsack over threads alone (:mod:`shunter.batching.packing`) holds B
requests. The smallest such x among the values of L is the optimum; latency must not fall with the
batch size, which :class:`LatencyTable` checks.

Memory of an instance is ``memory.instance + b * memory.request``: as the sum of the b is B, a
budget is a bound on the number of instances, and fewer instances are less memory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from shunter.batching.configuration import Configuration, InstanceGroup
from shunter.batching.layout import GROUP_COUNT
from shunter.batching.packing import Vector, any_number, at_most, convolve, pack


class NoConfiguration(ValueError):
    """Nothing fits; the message says what is short."""


@dataclass(frozen=True)
class LatencyTable:
    """``ms[t - 1, b - 1]``: latency of one instance on t threads with a batch of b.

    inf where it cannot run. Raises ValueError when a row falls with b: see
    :func:`shunter.batching.profile.latency_table`, which makes rows that do not.
    """

    ms: NDArray[np.float64]
    levels: NDArray[np.float64] = field(init=False, repr=False, compare=False)
    """All finite latencies, ascending."""

    def __post_init__(self) -> None:
        """Check the table."""
        if self.ms.ndim != 2 or not self.ms.size or np.isnan(self.ms).any() or (self.ms < 0).any():
            raise ValueError("a latency table is threads x batch sizes of latencies, none negative")
        if (np.diff(np.nan_to_num(self.ms, posinf=1e300), axis=1) < 0).any():
            raise ValueError("latency falls with the batch size")
        object.__setattr__(self, "levels", np.unique(self.ms[np.isfinite(self.ms)]))

    @property
    def threads(self) -> int:
        """Most threads of one instance."""
        return self.ms.shape[0]

    @property
    def batch(self) -> int:
        """Largest batch of one instance."""
        return self.ms.shape[1]

    def largest(self, ms: float, capacity: int, batch: int) -> Vector:
        """Largest batch, at most ``batch``, within ``ms``, by threads 0..capacity."""
        item = np.zeros(capacity + 1)
        rows = min(capacity, self.threads)
        item[1 : rows + 1] = (self.ms[:rows, :batch] <= ms).sum(axis=1)
        return item

    def of(self, threads: int, batch: int) -> float:
        """Latency of one instance, in ms."""
        return float(self.ms[threads - 1, batch - 1])


@dataclass(frozen=True)
class Memory:
    """What instances need and may have, in bytes."""

    instance: float = 0.0
    request: float = 0.0
    budget: float = float("inf")

    def instances(self, batch: int) -> float:
        """Most instances that fit when their batches sum to ``batch``."""
        free = self.budget - batch * self.request
        if free < self.instance:
            return 0
        return free // self.instance if self.instance > 0 else float("inf")


@dataclass(frozen=True)
class Choice:
    """A configuration and what it is expected to do."""

    configuration: Configuration
    latency_ms: float
    """Of the slowest instance, each with its full batch."""
    rate: float
    """Requests per second with full batches."""

    @property
    def instances(self) -> int:
        """Worker processes."""
        return sum(group.instances for group in self.configuration)

    @property
    def threads(self) -> int:
        """Cores in use."""
        return sum(group.instances * group.threads for group in self.configuration)


NO_LIMIT = Memory()


def minimise_latency(
    table: LatencyTable, nodes: Sequence[int], batch: int, memory: Memory = NO_LIMIT
) -> Choice:
    """The configuration that runs ``batch`` requests at once soonest.

    ``nodes``: free cores of each NUMA node; no instance spans two. Of several that are equally
    fast the one with the fewest instances (so the least memory), then with the fewest threads.
    Raises NoConfiguration when nothing fits.
    """
    capacities, most = _limits(nodes, batch, memory)
    level = _smallest_level(table, capacities, batch, most)
    item = table.largest(level, max(capacities), batch)
    threads = pack(item, capacities, batch, most)
    if threads is None:
        raise AssertionError("a level that is feasible has a packing")
    return _choice(table, _spread(table, threads, batch, level))


def maximise_rate(
    table: LatencyTable, nodes: Sequence[int], slo_ms: float, memory: Memory = NO_LIMIT
) -> Choice:
    """The configuration with the highest rate whose batches take at most ``slo_ms``."""
    capacities, most = _limits(nodes, 1, memory)
    per_ms = np.where(table.ms <= slo_ms, np.arange(1, table.batch + 1) / table.ms, 0.0)
    sizes = per_ms.argmax(axis=1) + 1
    item = np.zeros(max(capacities) + 1)
    rows = min(max(capacities), table.threads)
    item[1 : rows + 1] = per_ms.max(axis=1)[:rows]
    if not item.any():
        raise NoConfiguration(f"no batch is done within {slo_ms:g} ms, not even one of 1 request")
    best = _most(item, capacities, most)
    threads = pack(item, capacities, best * (1 - 1e-12), most)
    if threads is None:
        raise AssertionError("what is the most has a packing")
    return _choice(table, [(t, int(sizes[t - 1])) for t in threads])


def latency_curve(table: LatencyTable, threads: int, batch: int) -> NDArray[np.float64]:
    """Best latency on 0..threads cores of one node, in ms; inf where nothing fits."""
    curve = np.full(threads + 1, np.inf)

    def solve(first: int, last: int, low: int, high: int) -> None:
        """Capacities first..last, whose answers are among the levels low..high."""
        if first > last:
            return
        if low == high:
            curve[first : last + 1] = table.levels[low]
            return
        middle = (low + high) // 2
        fits = any_number(table.largest(table.levels[middle], threads, batch)) >= batch
        enough = int(np.argmax(fits)) if fits.any() else threads + 1
        solve(max(first, enough), last, low, middle)
        solve(first, min(last, enough - 1), middle + 1, high)

    fits = any_number(table.largest(table.levels[-1], threads, batch)) >= batch
    if fits.any():
        solve(int(np.argmax(fits)), threads, 0, len(table.levels) - 1)
    return curve


def share_threads(curves: Sequence[NDArray[np.float64]], weights: Sequence[float]) -> list[int]:
    """Cores of each model so that the weighted sum of latencies is least.

    ``curves``: by model, latency in ms over 0..T cores, as :func:`latency_curve` gives them (put 0
    at 0 for a model that may have none). Raises NoConfiguration when the cores are too few.
    """
    worth = [-np.minimum.accumulate(c) * w for c, w in zip(curves, weights, strict=True)]
    partial = [worth[0]]
    for curve in worth[1:]:
        partial.append(convolve(partial[-1], curve))
    remaining = len(worth[0]) - 1
    if not np.isfinite(partial[-1][remaining]):
        raise NoConfiguration(f"{remaining} cores are too few for {len(curves)} models")
    split = []
    for before, curve in zip(partial[-2::-1], worth[:0:-1], strict=True):
        split.append(int(np.argmax(before[remaining::-1] + curve[: remaining + 1])))
        remaining -= split[-1]
    first = int(np.argmax(worth[0][: remaining + 1]))
    return [first, *reversed(split)]


def spread_over(table: LatencyTable, threads: Sequence[int], batch: int) -> Choice:
    """The best batch sizes for instances that are there already, given their threads.

    Raises NoConfiguration when they cannot hold ``batch``.
    """
    rows = table.ms[np.array([min(t, table.threads) for t in threads]) - 1, :batch]
    low, high = 0, len(table.levels) - 1
    if (rows <= table.levels[high]).sum() < batch:
        raise NoConfiguration(f"{len(threads)} instances do not hold a batch of {batch}")
    while low < high:
        middle = (low + high) // 2
        enough = (rows <= table.levels[middle]).sum() >= batch
        low, high = (low, middle) if enough else (middle + 1, high)
    sizes = _spread(table, list(threads), batch, float(table.levels[low]))
    return _choice(table, [(t, b) for t, b in sizes if b > 0])


def predicted_latency(table: LatencyTable, groups: Configuration) -> float:
    """Latency in ms of the slowest instance of a configuration with full batches."""
    return max(table.of(group.threads, group.batch) for group in groups)


def _limits(nodes: Sequence[int], batch: int, memory: Memory) -> tuple[tuple[int, ...], int]:
    """Usable nodes, and the most instances."""
    capacities = tuple(node for node in nodes if node > 0)
    if not capacities:
        raise NoConfiguration("no core is free")
    if batch < 1:
        raise ValueError(f"batch {batch}; allowed: at least 1")
    most = int(min(sum(capacities), memory.instances(batch)))
    if most < 1:
        raise NoConfiguration(
            f"one instance with a batch of {batch} needs "
            f"{(memory.instance + batch * memory.request) / 2**20:.0f} MiB, "
            f"{memory.budget / 2**20:.0f} MiB are free"
        )
    return capacities, most


def _most(item: Vector, capacities: tuple[int, ...], most: int) -> float:
    """Most that at most ``most`` instances are worth on these nodes."""
    if most >= sum(capacities):
        best = any_number(item)
        return float(sum(best[c] for c in capacities))
    if len(capacities) == 1:
        return float(at_most(item, most)[capacities[0]])
    rows = [np.zeros_like(item)]
    step = np.maximum.accumulate(item)
    for _ in range(most):
        rows.append(convolve(rows[-1], step))
    total = np.zeros(most + 1)
    for capacity in capacities:
        total = convolve(total, np.array([row[capacity] for row in rows]))
    return float(total[most])


def _smallest_level(
    table: LatencyTable, capacities: tuple[int, ...], batch: int, most: int
) -> float:
    """Smallest latency within which instances take ``batch`` requests together."""
    widest = max(capacities)
    levels = table.levels

    def fits(index: int) -> bool:
        item = table.largest(levels[index], widest, batch)
        # Two cheap answers before the knapsack: no packing is better than its densest item
        # without rounding, and copies of that item are a packing.
        density = item[1:] / np.arange(1, widest + 1)
        densest = int(np.argmax(density)) + 1
        if density[densest - 1] * sum(capacities) < batch:
            return False
        copies = min(sum(c // densest for c in capacities), most)
        if copies * item[densest] >= batch:
            return True
        return _most(item, capacities, most) >= batch

    low, high = 0, len(levels) - 1
    if high < 0 or not fits(high):
        raise NoConfiguration(
            f"{sum(capacities)} cores and at most {most} instances, each with a batch of at most "
            f"{table.batch}, do not hold a batch of {batch}"
        )
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if fits(middle) else (middle + 1, high)
    return float(levels[low])


def _spread(
    table: LatencyTable, threads: list[int], batch: int, level: float
) -> list[tuple[int, int]]:
    """Batch sizes of the instances that sum to ``batch``, as few as possible at ``level``.

    Below the level they hold less than ``batch``, or the level would not be the smallest.
    """
    rows = table.ms[np.array(threads) - 1, :batch]
    below = (rows < level).sum(axis=1)
    room = (rows <= level).sum(axis=1) - below
    missing = batch - int(below.sum())
    for i in np.argsort(-room, kind="stable"):
        more = min(int(room[i]), missing)
        below[i] += more
        missing -= more
    return list(zip(threads, (int(b) for b in below), strict=True))


def _choice(table: LatencyTable, instances: list[tuple[int, int]]) -> Choice:
    """The instances as groups, as many as the control page holds."""
    kinds = Counter(instances)
    while len(kinds) > GROUP_COUNT:
        kinds = _merge(kinds)
    groups = tuple(InstanceGroup(kinds[kind], *kind) for kind in sorted(kinds, reverse=True))
    latency = max(table.of(*kind) for kind in kinds)
    rate = sum(n * kind[1] / table.of(*kind) for kind, n in kinds.items()) * 1e3
    return Choice(groups, latency, rate)


def _merge(kinds: Counter[tuple[int, int]]) -> Counter[tuple[int, int]]:
    """One kind fewer: two neighbours with the fewer threads and the larger batch of both."""
    order = sorted(kinds)
    left, right = min(pairwise(order), key=lambda pair: (pair[1][0] - pair[0][0], pair[0]))
    merged = Counter(kinds)
    count = merged.pop(left) + merged.pop(right)
    merged[left[0], max(left[1], right[1])] += count
    return merged
