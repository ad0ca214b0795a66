"""What a split of the cores means for a model: its worker groups, their CPUs and order. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from shunter.allocator.devices.slices import ComputeSlice
from shunter.allocator.placement.core_split import Load, OnCores
from shunter.allocator.placement.seats import Seats
from shunter.allocator.planning.configuration import MAX_GROUPS, Configuration, InstanceGroup
from shunter.allocator.planning.optimizer import Choice, NoConfiguration, maximise_rate
from shunter.batching.page.slices import Slice, of_cpus
from shunter.plugins.control.observed import Observed
from shunter.plugins.control.planned_model import PlannedModel

HEADROOM = 0.5
"""Share of its SLO that a strict batch may take: a request may just have missed one."""


@dataclass(frozen=True)
class Target:
    """What a model is to run, and where."""

    groups: Configuration
    places: tuple[Slice, ...]
    preferences: tuple[tuple[int, int], ...]

    def is_served(self, seen: Observed) -> bool:
        """Whether that is what it runs already; caps may differ."""
        mine = [(g.instances, g.threads) for g in self.groups]
        theirs = [(g.instances, g.threads) for g in seen.configuration]
        return (mine, [place.cpus for place in self.places]) == (theirs, seen.places)

    def is_at(self, seen: Observed) -> bool:
        """Whether it is on these sets already, in whatever configuration."""
        return {place.cpus for place in self.places} == set(seen.places)


def load_of(
    model: PlannedModel, seen: Observed, rate: float, widths: Sequence[int], budget: float
) -> Load | None:
    """What is expected of a model on sets of these widths; None when it runs on one of them not."""
    slo_ms = seen.identity.slo_us / 1e3 if seen.identity.slo_us and not seen.yields else math.inf
    try:
        by_cores = {cores: _on_cores(model, cores, slo_ms, budget) for cores in sorted(set(widths))}
    except NoConfiguration:
        return None
    return Load(seen.name, not seen.yields, rate, by_cores, slo_ms)


def _on_cores(model: PlannedModel, cores: int, slo_ms: float, budget: float) -> OnCores:
    choice = model.best((cores,), budget)
    rate = choice.rate
    try:
        memory = replace(model.memory, budget=budget)
        rate = max(rate, maximise_rate(model.table, [cores], slo_ms * HEADROOM, memory).rate)
    except NoConfiguration:
        pass  # not even one request is that fast
    return OnCores(choice.latency_ms, rate, model.fbr(cores))


def seat(
    model: PlannedModel,
    seen: Observed,
    seats: Seats,
    slices: Sequence[ComputeSlice],
    budget: float,
) -> Target | None:
    """Its groups on its sets, those where it is to run first in front; None when it has no set.

    Raises NoConfiguration where no instance of it fits into its part of the budget.
    """
    name = seen.name
    mine = [
        (each, where)
        for each, where in zip(seats, slices, strict=True)
        if name in each.strict or name in each.best_effort
    ]
    if not mine:
        return None
    if seen.yields:  # where no strict work is, and then where it disturbs least
        mine.sort(key=lambda pair: (bool(pair[0].strict), pair[0].cores))
    else:
        mine.sort(key=lambda pair: (-pair[0].cores, bool(pair[0].best_effort)))
    total = sum(each.cores for each, _ in mine)
    groups: list[InstanceGroup] = []
    places: list[Slice] = []
    ranks: list[int] = []
    for rank, (each, where) in enumerate(mine):
        batch = max(1, round(model.estimator.current * each.cores / total))
        choice: Choice = model.best((each.cores,), budget / len(mine), batch)
        for group in model.capped(choice.configuration):
            groups.append(group)
            places.append(Slice(cpus=of_cpus(where.cpus)))
            ranks.append(rank)
    last = max(ranks)
    # Best-effort requests of a model that serves both classes go where its strict ones go last.
    order = tuple((rank, rank if seen.yields else last - rank) for rank in ranks)
    return Target(tuple(groups[:MAX_GROUPS]), tuple(places[:MAX_GROUPS]), order[:MAX_GROUPS])
