"""Decides which models run on which sets of cores (PROTEAN, algorithms 1 and 2, on a host).

At every look the rates of requests are smoothed, every split of the cores is scored with everybody
in his best place, and the split changes when another one was better several times in a row. How
wide instances are on their set is Packrat's to say, as without a split.

While one set for all is best, or where the decision is not allowed, nothing of this is in force and
models share the cores as :mod:`shunter.plugins.control.joint_plan` says.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence

from shunter.allocator.cpus.topology import Topology
from shunter.allocator.devices.slices import ComputeSlice, core_sets
from shunter.allocator.placement.core_split import Load, Seat, Seats, decide, splits
from shunter.allocator.placement.reconfigurator import Ewma, Waiting, is_time
from shunter.allocator.placement.scoring import Outlook, Weights
from shunter.allocator.planning.configuration import Configuration
from shunter.plugins.control.observed import Observed
from shunter.plugins.control.planned_model import PlannedModel
from shunter.plugins.control.seating import load_of, seat
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
        self._rates: dict[int, Ewma] = {}
        self._arrivals: dict[int, int] = {}
        self._looked_ns: int | None = None
        self._waiting = Waiting()

    def is_due(self, slots: Mapping[int, Observed], now_ns: int) -> bool:
        """Whether it is time for another look; then the rates are up to date."""
        if not self.settings.auto:
            return bool(self.seats)
        if self._looked_ns is None:
            self._sample(slots, now_ns, 0)
            return False
        passed_s = (now_ns - self._looked_ns) / 1e9
        if passed_s < self.settings.interval_s:
            return False
        self._sample(slots, now_ns, passed_s)
        return True

    def _sample(self, slots: Mapping[int, Observed], now_ns: int, passed_s: float) -> None:
        self._looked_ns = now_ns
        for slot, seen in slots.items():
            before = self._arrivals.get(slot)
            if before is not None and passed_s > 0:
                rate = max(0, seen.arrivals - before) / passed_s
                known = self._rates.get(slot, Ewma())
                self._rates[slot] = Ewma(self.settings.alpha, known.value).after(rate)
        self._arrivals = {slot: seen.arrivals for slot, seen in slots.items()}
        self._rates = {slot: rate for slot, rate in self._rates.items() if slot in slots}

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
        if not self._rates.keys() >= slots.keys():
            return  # who has just come has a rate at the next look
        topology = self._topology()
        possible = self._possible(topology)
        loads = self._loads(models, slots, possible, budget)
        if loads is None or not possible:
            self._drop()
            return
        whole = (_everybody(loads, topology.cores),)
        now = self.seats or whole
        names = {load.model for load in loads}
        known = {name for each in now for name in (*each.strict, *each.best_effort)}
        found = decide(possible, loads, Weights(), now)
        wanted = () if len(found.seats) == 1 else found.seats
        if names != known:
            self._take(wanted, topology, found.outlook)
        elif wanted != self.seats:
            self._waiting, change = is_time(self._waiting, self.settings.wait)
            if change:
                self._take(wanted, topology, found.outlook)
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
        """
        if not self.seats:
            return False
        for slot, model in models.items():
            seen = slots[slot]
            target = seat(model, seen, self.seats, self._slices, budget)
            if target is None or target.is_served(seen):
                continue
            if not target.is_at(seen) or may_go(model, target.groups):
                model.target, model.places = target.groups, target.places
                model.preferences = target.preferences
                instances = sum(group.instances for group in target.groups)
                model.needs = model.bytes_of(instances)
        return True

    def _may(self, models: Mapping[int, PlannedModel], slots: Mapping[int, Observed]) -> bool:
        """Whether it knows everybody, and there is somebody to keep apart."""
        classes = {seen.yields for seen in slots.values()}
        return (
            self.settings.auto
            and models.keys() == slots.keys()
            and len(classes) == 2
        )

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
        widths = {width for split in possible for width in split}
        widths |= {sum(split) for split in possible}
        found = []
        for slot, model in models.items():
            rate = self._rates[slot].value or 0.0
            load = load_of(model, slots[slot], rate, sorted(widths), budget)
            if load is None:
                return None
            found.append(load)
        return found

    def _take(self, seats: Seats, topology: Topology, outlook: Outlook) -> None:
        self._waiting = Waiting()
        if seats == self.seats:
            return
        widths = [each.cores for each in seats]
        slices = core_sets(topology, widths, 0, self._slices) if seats else ()
        if slices is None:
            return  # the CPUs have just been taken
        self.seats, self._slices = seats, slices
        text = "; ".join(
            f"{where.name}: {', '.join((*each.strict, *each.best_effort))}"
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


def _everybody(loads: Sequence[Load], cores: int) -> Seat:
    return Seat(
        cores,
        tuple(load.model for load in loads if load.is_strict),
        tuple(load.model for load in loads if not load.is_strict),
    )
