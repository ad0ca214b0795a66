"""The best ⟨instances, threads, batch⟩, exactly (Packrat section 3.3, and what a server adds).

Packrat minimises ``max L[t_j, b_j]`` subject to ``sum t_j <= T`` and ``sum b_j = B`` by dynamic
programming over both T and B, in O(T² B²). Here the search runs over the latency instead: within a
latency x an instance on t threads takes a batch of at most ``b(t, x) = max {b : L[t, b] <= x}``, so
x can be reached when the knapsack over threads alone (:mod:`shunter.allocator.planning.packing`)
holds B requests. The smallest such x among the values of L is the optimum; latency must not fall
with the batch size, which :class:`LatencyTable` checks.

Memory of an instance is ``memory.instance + b * memory.request``: as the sum of the b is B, a
budget is a bound on the number of instances, and fewer instances are less memory.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from shunter.allocator.planning.configuration import MAX_GROUPS, Configuration, InstanceGroup
from shunter.allocator.planning.latency_table import LatencyTable, Memory
from shunter.allocator.planning.packing import Packing, Vector, pack


class NoConfiguration(ValueError):
    """Nothing fits; the message says what is short."""


@dataclass(frozen=True)
class Choice:
    """A configuration and what it is expected to do."""

    configuration: Configuration
    latency_ms: float
    """Of the slowest instance of this configuration, each with its full batch."""
    rate: float
    """Requests per second with full batches."""

    @property
    def instances(self) -> int:
        """Worker processes."""
        return sum(group.instances for group in self.configuration)

    @property
    def batch(self) -> int:
        """Requests that run at once."""
        return sum(group.instances * group.batch for group in self.configuration)

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
    fast one with the fewest instances (so the least memory), then, on a single node, with the
    fewest threads. The latency is the least there is, also where the control page's number of
    groups makes the configuration hold a few requests more than ``batch``; only a table that needs
    more different numbers of threads than groups can be worse, and ``latency_ms`` then says so.
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
    """The configuration with the highest rate whose batches take at most ``slo_ms``.

    A memory budget is kept but not always used up: every instance is counted with the largest
    batch that any may have, and that bound is tried at each power of two. Raises NoConfiguration
    when nothing fits.
    """
    capacities, _ = _limits(nodes, 1, memory)
    fastest = float(table.ms[: max(capacities)].min())
    if fastest > slo_ms or math.isinf(fastest):
        raise NoConfiguration(f"no batch is done within {slo_ms:g} ms, not even one of 1 request")
    plans = [
        _highest_rate(table, capacities, slo_ms, cap, int(min(sum(capacities), copies)))
        for cap in _caps(table, memory)
        if (copies := memory.copies(cap)) >= 1
    ]
    return max(plans, key=lambda choice: choice.rate)


def _caps(table: LatencyTable, memory: Memory) -> list[int]:
    """Bounds of the batch size to try: without a budget the table's own."""
    if memory.request <= 0 or memory.budget == math.inf:
        return [table.batch]
    return sorted({1 << k for k in range(table.batch.bit_length())} | {table.batch})


def _highest_rate(
    table: LatencyTable, capacities: tuple[int, ...], slo_ms: float, cap: int, most: int
) -> Choice:
    """The highest rate of at most ``most`` instances with batches of at most ``cap``."""
    ms = table.ms[:, :cap]
    per_ms = np.where(ms <= slo_ms, np.arange(1, cap + 1) / ms, 0.0)
    sizes = per_ms.argmax(axis=1) + 1
    item = np.zeros(max(capacities) + 1)
    rows = min(max(capacities), table.threads)
    item[1 : rows + 1] = per_ms.max(axis=1)[:rows]
    best = _most(item, capacities, most)
    threads = pack(item, capacities, best * (1 - 1e-12), most)
    if threads is None:
        raise AssertionError("what is the most has a packing")
    return _choice(table, [(t, int(sizes[t - 1])) for t in threads], slo_ms)


def spread_over(table: LatencyTable, threads: Sequence[int], batch: int) -> Choice:
    """The best batch sizes for instances that are there already, given their threads.

    Raises NoConfiguration when they cannot hold ``batch``.
    """
    rows = table.rows(threads, batch)
    if np.isfinite(rows).sum() < batch:
        raise NoConfiguration(f"{len(threads)} instances do not hold a batch of {batch}")
    # The next request always goes where it is done first: the batch-th smallest of all latencies.
    level = float(np.partition(rows, batch - 1, axis=None)[batch - 1])
    sizes = _spread(table, threads, batch, level)
    return _choice(table, [(t, b) for t, b in sizes if b > 0])


def spread_within(table: LatencyTable, threads: Sequence[int], slo_ms: float) -> Choice:
    """These instances, each with the batch of the highest rate within ``slo_ms``.

    Raises NoConfiguration when one of them does no batch in that time.
    """
    instances = []
    for t in threads:
        row = table.rows([t], table.batch)[0]
        sizes = np.flatnonzero(row <= slo_ms) + 1
        if not sizes.size:
            raise NoConfiguration(f"one request on {t} threads takes {row[0]:.2f} ms")
        instances.append((t, int(sizes[np.argmax(sizes / row[sizes - 1])])))
    return _choice(table, instances, slo_ms)


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
    packing = Packing(item)
    if most >= sum(capacities):
        best = packing.unlimited()
        return float(sum(best[c] for c in capacities))
    return packing.worth(most, capacities)


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
        if item[densest] * sum(capacities) < batch * densest:  # whole numbers, so exact
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
    table: LatencyTable, threads: Sequence[int], batch: int, level: float
) -> list[tuple[int, int]]:
    """Batch sizes of the instances that sum to ``batch``, as few as possible at ``level``.

    Below the level they hold less than ``batch``, or the level would not be the smallest.
    """
    rows = table.rows(threads, batch)
    below = (rows < level).sum(axis=1)
    room = (rows <= level).sum(axis=1) - below
    missing = batch - int(below.sum())
    for i in np.argsort(-room, kind="stable"):
        more = min(int(room[i]), missing)
        below[i] += more
        missing -= more
    return list(zip(threads, (int(b) for b in below), strict=True))


def _choice(
    table: LatencyTable, instances: list[tuple[int, int]], limit_ms: float = math.inf
) -> Choice:
    """The instances as groups, as many as the control page holds."""
    kinds = Counter(instances)
    while len(kinds) > MAX_GROUPS:
        kinds = _merge(table, kinds, limit_ms)
    groups = tuple(InstanceGroup(kinds[kind], *kind) for kind in sorted(kinds, reverse=True))
    latency = max(table.of(*kind) for kind in kinds)
    rate = sum(n * kind[1] / table.of(*kind) for kind, n in kinds.items()) * 1e3
    return Choice(groups, latency, rate)


def _merge(
    table: LatencyTable, kinds: Counter[tuple[int, int]], limit_ms: float
) -> Counter[tuple[int, int]]:
    """One kind fewer: the two that make the fastest one together.

    They get the fewer threads and the mean batch, rounded up, so that they hold as much as
    before; only a limit on the latency comes first. Two with equal threads are never slower than
    the slower of them was.
    """

    def merged(left: tuple[int, int], right: tuple[int, int]) -> tuple[int, int]:
        held = kinds[left] * left[1] + kinds[right] * right[1]
        threads = min(left[0], right[0])
        mean = -(-held // (kinds[left] + kinds[right]))
        within = int((table.rows([threads], mean) <= limit_ms).sum())
        return threads, max(1, within)

    pairs = combinations(sorted(kinds), 2)
    left, right = min(pairs, key=lambda pair: table.of(*merged(*pair)))
    kind, count = merged(left, right), kinds[left] + kinds[right]
    result = Counter({each: n for each, n in kinds.items() if each not in (left, right)})
    result[kind] += count
    return result
