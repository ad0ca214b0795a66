"""Sharing the cores among models, which Packrat, with one model at a time, leaves open. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from shunter.batching.configuration import Configuration, InstanceGroup
from shunter.batching.optimizer import (
    LatencyTable,
    NoConfiguration,
    latency_curve,
    share_threads,
)


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
    as possible. Every model gets at least one, even if that is one too many.
    """
    if len(demands) == 1:
        return {model: list(nodes) for model in demands}
    total = max(sum(nodes), len(demands))
    curves = [latency_curve(each.table, total, each.batch) for each in demands.values()]
    try:
        shares = share_threads(curves, [each.weight for each in demands.values()])
    except NoConfiguration:
        shares = [max(1, total // len(demands))] * len(demands)
    left = list(nodes)
    return {model: _take(left, share) for model, share in zip(demands, shares, strict=True)}


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


def with_ceiling(groups: Configuration, ceiling: int) -> Configuration:
    """Caps in the ratio of the optimum, as large as the registration allows.

    A burst beyond the estimate is then not cut into small batches.
    """
    largest = max(group.batch for group in groups)
    return tuple(
        InstanceGroup(g.instances, g.threads, max(1, round(g.batch * ceiling / largest)))
        for g in groups
    )


def layout(groups: Configuration) -> list[tuple[int, int]]:
    """Processes and their threads; what is left of a configuration without its caps."""
    return sorted((group.threads, group.instances) for group in groups)
