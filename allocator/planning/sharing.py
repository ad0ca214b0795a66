"""Sharing the cores among models, which Packrat, with one model at a time, leaves open.

Exact over the models' curves of best latency by number of cores.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shunter.allocator.planning.latency_table import LatencyTable
from shunter.allocator.planning.optimizer import NoConfiguration
from shunter.allocator.planning.packing import Packing, convolve


@dataclass(frozen=True)
class Demand:
    """What one model asks for."""

    table: LatencyTable
    batch: int
    """Requests at once."""
    weight: float
    """Of its latency: the average number of requests that suffer it."""


def share_cores(nodes: Sequence[int], demands: Mapping[int, Demand]) -> dict[int, list[int]]:
    """Cores of each NUMA node for each model, so that the weighted sum of latencies is least.

    How many a model gets is decided as if all were one node; then each gets them on as few nodes
    as possible. Every model gets at least one, even if that is one too many. Where the cores do not
    hold all batches at once, these run in rounds, of half the requests each.
    """
    if len(demands) == 1:
        return {model: list(nodes) for model in demands}
    total = max(sum(nodes), len(demands))
    batches = [each.batch for each in demands.values()]
    while (shares := _shares(list(demands.values()), batches, total)) is None:
        batches = [max(1, batch // 2) for batch in batches]
    left = list(nodes)
    return {model: _take(left, share) for model, share in zip(demands, shares, strict=True)}


def _shares(demands: Sequence[Demand], batches: Sequence[int], total: int) -> list[int] | None:
    """Cores of each model, None when so many cores do not hold the batches."""
    curves = [
        latency_curve(each.table, total, batch)
        for each, batch in zip(demands, batches, strict=True)
    ]
    try:
        return share_threads(curves, [each.weight for each in demands])
    except NoConfiguration:
        # Not even single requests: somebody's model runs on no number of threads that there is.
        return [max(1, total // len(demands))] * len(demands) if max(batches) == 1 else None


def _take(nodes: list[int], share: int) -> list[int]:
    """``share`` cores out of ``nodes``, which lose them."""
    taken = [0] * len(nodes)
    # The fullest node that is large enough, else the emptiest first.
    for i in sorted(
        range(len(nodes)),
        key=lambda i: (nodes[i] < share, nodes[i] if nodes[i] >= share else -nodes[i]),
    ):
        taken[i] = min(nodes[i], share)
        nodes[i] -= taken[i]
        share -= taken[i]
    if not any(taken):
        taken[0] = 1  # nothing is left: it shares one with the others
    return taken


def latency_curve(table: LatencyTable, threads: int, batch: int) -> NDArray[np.float64]:
    """Best latency on 0..threads cores of one node, in ms; inf where nothing fits."""
    curve = np.full(threads + 1, np.inf)

    def holds(level: float) -> NDArray[np.bool_]:
        return Packing(table.largest(level, threads, batch)).unlimited() >= batch

    def solve(first: int, last: int, low: int, high: int) -> None:
        """Capacities first..last, whose answers are among the levels low..high."""
        if first > last:
            return
        if low == high:
            curve[first : last + 1] = table.levels[low]
            return
        middle = (low + high) // 2
        fits = holds(table.levels[middle])
        enough = int(np.argmax(fits)) if fits.any() else threads + 1
        solve(max(first, enough), last, low, middle)
        solve(first, min(last, enough - 1), middle + 1, high)

    if len(table.levels) and (fits := holds(table.levels[-1])).any():
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
