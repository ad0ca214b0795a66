"""Decides which models run on which sets of cores (PROTEAN, algorithms 1 and 2, on a host).

At every look the rates of requests are smoothed, every split of the cores is scored with everybody
in his best place, and the split changes when the same other one was better several times in a row.
How wide instances are on their set is Packrat's to say, as without a split.

While one set for all is best, or where the decision is not allowed, nothing of this is in force and
models share the cores as :class:`shunter.plugins.control.planned_model.JointPlan` says.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence

from shunter.allocator.cpus.topology import Topology
from shunter.allocator.devices.slices import ComputeSlice, core_sets
from shunter.allocator.placement.core_load import Load
from shunter.allocator.placement.core_split import decide, splits
from shunter.allocator.placement.reconfigurator import Backoff, Ewma, Waiting, is_time
from shunter.allocator.placement.scoring import Outlook, Weights
from shunter.allocator.placement.seats import Seat, Seats, aligned
from shunter.allocator.planning.configuration import Configuration
from shunter.allocator.planning.optimizer import NoConfiguration
from shunter.plugins.control.observed import GroupShare, Observed
from shunter.plugins.control.planned_model import PlannedModel
from shunter.plugins.control.seating import Target, load_of, seat, seated, shares
from shunter.plugins.control.settings import PlacementSettings

LOGGER = logging.getLogger("shunter.placement")


class Placement:
    """Places of all models, one look at a time."""

    def __init__(self, topology: Callable[[], Topology], settings: PlacementSettings) -> None:
        """``topology``: the CPUs that models of this server may have."""
        self._topology = topology
        self.settings = settings
        self.seats: Seats = ()
        """The split in force; empty: all share all cores."""
        self._slices: tuple[ComputeSlice, ...] = ()
        self._rates: dict[tuple[int, str], Ewma] = {}
        """By slot and model: a slot may get another one."""
        self._arrivals: dict[tuple[int, str], int] = {}
        self._looked_ns: int | None = None
        self._waiting, self._backoff = Waiting(), Backoff()
        self._speeds: dict[str, dict[int, float]] = {}
        """Of each model, requests per second by cores, when the split was taken."""
        self._shares: dict[int, tuple[object, tuple[GroupShare, ...]]] = {}
        """By slot, of which workers, and what they get."""

    def shares(self, slot: int) -> tuple[GroupShare, ...]:
        """What each worker group gets of each class; empty: what the operator said."""
        return self._shares[slot][1] if slot in self._shares else ()

    def share_out(self, slots: Mapping[int, Observed]) -> None:
        """Find that out for the workers that serve now, and no others: not for those that load."""
        if not self.seats:
            self._shares = {}
            return
        for gone in self._shares.keys() - slots.keys():
            del self._shares[gone]
        for slot, seen in slots.items():
            workers = seen.name, seen.identity.generation, seen.change, self.seats, self._slices
            if slot not in self._shares or self._shares[slot][0] != workers:
                rates = self._speeds.get(seen.name, {})
                found = shares(seen, self.seats, self._slices, rates)
                self._shares[slot] = workers, found

    def is_due(self, slots: Mapping[int, Observed], now_ns: int) -> bool:
        """Whether it is time for another look; then the rates are up to date."""
        if not self.settings.auto:
            return bool(self.seats)
        if self._looked_ns is None:
            self._sample(slots, now_ns, 0)
            self._adopt(slots)
            return False
        passed_s = (now_ns - self._looked_ns) / 1e9
        if passed_s < self.settings.interval_s:
            return False
        self._sample(slots, now_ns, passed_s)
        return True

    def _adopt(self, slots: Mapping[int, Observed]) -> None:
        """Go on with the split that an earlier controller left, instead of parting it first."""
        found = seated(slots.values(), self._topology()) if slots and not self.seats else None
        if found is not None:
            self.seats, self._slices = found

    def _sample(self, slots: Mapping[int, Observed], now_ns: int, passed_s: float) -> None:
        self._looked_ns = now_ns
        arrivals = {(slot, seen.name): seen.arrivals for slot, seen in slots.items()}
        for key, count in arrivals.items():
            before = self._arrivals.get(key)
            if before is not None and passed_s > 0:
                rate = max(0, count - before) / passed_s
                known = self._rates.get(key, Ewma())
                self._rates[key] = Ewma(self.settings.alpha, known.value).after(rate)
        self._arrivals = arrivals
        self._rates = {key: rate for key, rate in self._rates.items() if key in arrivals}

    def look(
        self,
        models: Mapping[int, PlannedModel],
        slots: Mapping[int, Observed],
        budget: float,
    ) -> None:
        """Score all splits; take another one when it was wanted often enough."""
        if not self._may(models, slots):
            self._drop()
            return
        if not self._rates.keys() >= {(slot, seen.name) for slot, seen in slots.items()}:
            return  # who has just come has a rate at the next look
        topology = self._topology()
        possible = self._possible(topology)
        if not possible:
            self._drop()
            return
        loads = self._loads(models, slots, possible, budget)
        if loads is None:
            # Perhaps for a while only, as when two generations of a model are loaded.
            self._waiting, change = is_time(self._waiting, self.settings.wait, ())
            if change or not self.seats:
                self._drop()
            return
        if not self._speeds and self.seats:
            self._speeds, self._shares = _speeds(loads), {}
        now = self.seats or (_everybody(loads, topology.cores),)
        found = decide(possible, loads, Weights(), now, self._waiting.wanted or ())
        wanted = () if len(found.seats) == 1 else found.seats
        self._backoff = self._backoff.looked()
        if {load.model for load in loads} != {name for each in now for name in each.names}:
            self._take(wanted, topology, found.outlook, loads)
        elif wanted != self.seats:
            limit = self._backoff.limit(self.settings.wait)
            self._waiting, change = is_time(self._waiting, limit, found.seats)
            if change:
                self._backoff = self._backoff.changed(self.settings.wait)
                self._take(wanted, topology, found.outlook, loads)
        else:
            self._waiting = Waiting()

    def place(
        self,
        models: Mapping[int, PlannedModel],
        slots: Mapping[int, Observed],
        budget: float,
        may_go: Callable[[PlannedModel, Configuration], bool],
    ) -> bool:
        """Give every model that is not where it should be its target; False: no split in force.

        ``may_go``: whether a model that stays on its sets may have another configuration there now.
        Memory goes to those first that give cores back, because they are changed first.
        """
        if not self.seats:
            return False
        for slot in sorted(models, key=lambda slot: self._more_cores(slots[slot])):
            model, seen = models[slot], slots[slot]
            target = self._target(model, seen, budget)
            if target is None:
                continue
            if not target.is_at(seen) or may_go(model, target.groups):
                model.target, model.places = target.groups, target.places
                instances = sum(group.instances for group in target.groups)
                model.needs = model.bytes_of(instances)
                # When it serves, the old instances are gone.
                budget -= max(0.0, model.needs - _present_bytes(model, seen))
        return True

    def _more_cores(self, seen: Observed) -> int:
        return sum(each.cores for each in self.seats if seen.name in each.names) - sum(seen.threads)

    def _target(self, model: PlannedModel, seen: Observed, budget: float) -> Target | None:
        """What it is to run instead of what it runs; None: it stays as it is."""
        try:
            # What it has now it may keep, however little is free beside it.
            for free in (budget + _present_bytes(model, seen), budget):
                target = seat(model, seen, self.seats, self._slices, free)
                if target is None or target.is_served(seen):
                    return None
        except NoConfiguration as error:
            model.complain(f"{seen.name}: {error}")
            return None
        return target

    def _may(self, models: Mapping[int, PlannedModel], slots: Mapping[int, Observed]) -> bool:
        """Whether it knows everybody, and there is somebody to keep apart."""
        classes = {seen.yields for seen in slots.values()}
        return self.settings.auto and models.keys() == slots.keys() and len(classes) == 2

    def _possible(self, topology: Topology) -> list[tuple[int, ...]]:
        if topology.limited:
            return []  # under a quota nobody is pinned
        found = splits(topology.cores)
        return [widths for widths in found if core_sets(topology, widths, 0) is not None]

    def _loads(
        self,
        models: Mapping[int, PlannedModel],
        slots: Mapping[int, Observed],
        possible: Sequence[Sequence[int]],
        budget: float,
    ) -> list[Load] | None:
        """What is expected of everybody; None when memory is too short for one of them.

        While a split is in force a model's own instances count as free: the next generation has
        their memory in the end. Without one nobody is promised what is not free now.
        """
        widths = {width for split in possible for width in split}
        widths |= {sum(split) for split in possible}
        found = []
        for slot, model in models.items():
            seen = slots[slot]
            rate = self._rates[slot, seen.name].value or 0.0
            own = _present_bytes(model, seen) if self.seats else 0.0
            load = load_of(model, seen, rate, sorted(widths), budget + own)
            if load is None:
                return None
            found.append(load)
        return found

    def _take(
        self, seats: Seats, topology: Topology, outlook: Outlook, loads: Sequence[Load]
    ) -> None:
        self._waiting = Waiting()
        self._speeds = _speeds(loads)
        if seats == self.seats:
            return
        widths = [each.cores for each in seats]
        slices = core_sets(topology, widths, 0, self._slices) if seats else ()
        if slices is None:
            return  # the CPUs have just been taken
        there = {where.cpus: each for each, where in zip(self.seats, self._slices, strict=True)}
        # Sets that are equally wide may have come before those that were there.
        seats = aligned(
            seats, tuple(there.get(where.cpus, Seat(len(where.cpus))) for where in slices)
        )
        self.seats, self._slices = seats, slices
        text = "; ".join(
            f"{where.name}: {', '.join(each.names)}"
            for each, where in zip(seats, slices, strict=True)
        )
        LOGGER.info(
            "%s; strict work is expected to take %.2f times as long as alone, %.1f %% of it too "
            "long, and %.0f %% of best effort to be served",
            text or "all models share all cores",
            outlook.eta,
            outlook.missed * 100,
            (1 - outlook.unserved) * 100,
        )

    def _drop(self) -> None:
        self._waiting = Waiting()
        if self.seats:
            LOGGER.info("all models share all cores")
        self.seats, self._slices = (), ()


def _speeds(loads: Sequence[Load]) -> dict[str, dict[int, float]]:
    return {load.model: {cores: on.rate for cores, on in load.by_cores.items()} for load in loads}


def _everybody(loads: Sequence[Load], cores: int) -> Seat:
    return Seat(
        cores,
        tuple(load.model for load in loads if load.is_strict),
        tuple(load.model for load in loads if not load.is_strict),
    )


def _present_bytes(model: PlannedModel, seen: Observed) -> float:
    return len(seen.threads) * model.memory.instance
