"""What a split of the cores means for a model: its worker groups, their CPUs and order. Pure."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from shunter.allocator.cpus.topology import Topology
from shunter.allocator.devices.slices import ComputeSlice, core_set
from shunter.allocator.placement.core_load import Load, OnCores
from shunter.allocator.placement.seats import Seat, Seats
from shunter.allocator.planning.configuration import MAX_GROUPS, Configuration, InstanceGroup
from shunter.allocator.planning.optimizer import Choice, NoConfiguration, maximise_rate
from shunter.batching.page.slices import Slice, bits, of_cpus
from shunter.plugins.control.observed import GroupShare, Observed
from shunter.plugins.control.planned_model import PlannedModel

LEAST = 1
"""Weight, in 1/1000, of a group that is the last resort of a class: it takes one request at a time.
None would mean never, and a class that no group takes is refused."""
HEADROOM = 0.5
"""Share of its SLO that a strict batch may take: a request may just have missed one."""


@dataclass(frozen=True)
class Target:
    """What a model is to run, and where."""

    groups: Configuration
    places: tuple[Slice, ...]

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
    alone = model.best((cores,), budget, batch=1)
    full = alone
    with contextlib.suppress(NoConfiguration):  # not even one request is that fast
        memory = replace(model.memory, budget=budget)
        full = maximise_rate(model.table, [cores], slo_ms * HEADROOM, memory)
    full = max(alone, full, key=lambda each: each.rate)
    return OnCores(alone.latency_ms, full.rate, model.fbr(cores), full.latency_ms)


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
    mine.sort(key=lambda pair: _rank(pair[0], seen.yields))
    total = sum(each.cores for each, _ in mine)
    groups: list[InstanceGroup] = []
    places: list[Slice] = []
    for each, where in mine:
        batch = max(1, round(model.estimator.current * each.cores / total))
        choice: Choice = model.best((each.cores,), budget / len(mine), batch)
        for group in model.capped(choice.configuration):
            groups.append(group)
            places.append(Slice(cpus=of_cpus(where.cpus)))
    return Target(tuple(groups[:MAX_GROUPS]), tuple(places[:MAX_GROUPS]))


def seated(
    slots: Iterable[Observed], topology: Topology
) -> tuple[Seats, tuple[ComputeSlice, ...]] | None:
    """The split that the present workers are on, as an earlier controller left it.

    None where there is none: a group may run everywhere, or sets overlap or are not to be had.
    """
    names: dict[tuple[int, ...], tuple[set[str], set[str]]] = {}
    for seen in slots:
        for place in seen.places:
            cpus = tuple(bits(place))
            names.setdefault(cpus, (set(), set()))[seen.yields].add(seen.name)
    every = [cpu for cpus in names for cpu in cpus]
    free = {cpu.id for cpu in topology.cpus}
    if len(names) < 2 or () in names or len(every) > len({*every} & free):
        return None
    order = sorted(names, key=lambda cpus: (-len(cpus), cpus))
    seats = (Seat(len(cpus), *(tuple(sorted(each)) for each in names[cpus])) for cpus in order)
    return tuple(seats), tuple(core_set(topology, cpus, 0) for cpus in order)


def _rank(seat: Seat, yields: bool) -> tuple[bool, int]:
    """Where a model runs first.

    Best effort where no strict work is, and then where it disturbs least; strict work where no best
    effort is, and then where it has most cores.
    """
    return (bool(seat.strict), seat.cores) if yields else (bool(seat.best_effort), -seat.cores)


def shares(
    seen: Observed, seats: Seats, slices: Sequence[ComputeSlice], rates: Mapping[int, float]
) -> tuple[GroupShare, ...]:
    """What each of a model's present groups gets; nothing is said unless all are on its sets.

    ``rates``: requests per second that it can do on so many cores. Its strict requests are spread
    over all its sets without best effort by these rates, and over those with best effort when
    the others are busy: so a full batch takes as long on each. Its best effort goes the other way
    round. A model that gives way goes first-fit, the smallest sets first.
    """
    homes = {
        of_cpus(where.cpus): each
        for each, where in zip(seats, slices, strict=True)
        if seen.name in each.names
    }
    groups = seen.groups()
    found = [homes.get(place) for place in seen.places]
    mine = [each for each in found if each is not None]
    if not groups or len(mine) < len(found):
        return ()
    if seen.yields:
        ranks = sorted({_rank(each, True) for each in mine})
        order = [ranks.index(_rank(each, True)) for each in mine]
        return tuple(GroupShare((rank, rank)) for rank in order)
    shared = any(each.best_effort for each in mine)
    room: dict[int, int] = {}
    for place, group in zip(seen.places, groups, strict=True):
        full = max(1, group.group_instances) * max(1, group.group_cap)
        room[place] = room.get(place, 0) + full
    speed = [
        rates.get(each.cores, 0.0) / room[place]
        for place, each in zip(seen.places, mine, strict=True)
    ]
    return tuple(
        GroupShare(
            (int(bool(each.best_effort)), int(not each.best_effort)),
            (_milli(of, max(speed)), 1000 if each.best_effort or not shared else LEAST),
        )
        for each, of in zip(mine, speed, strict=True)
    )


def _milli(speed: float, fastest: float) -> int:
    """1000 where nothing is known of the speeds."""
    return max(LEAST, round(1000 * speed / fastest)) if fastest > 0 else 1000
