"""What a machine says of itself, and how soon a request would be answered there. Pure.

Each server publishes these numbers; whoever routes adds what it sent there since. Seconds all over.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from shunter.allocator.placement.slowdown import slowdown

LEAST_LEFT = 0.05
"""Share of time that is thought to be left to best effort where strict work takes all."""


@dataclass(frozen=True)
class Fit:
    """Latency of a batch: the line that a server fits to its batches."""

    base_s: float
    slope_s: float
    caution_s: float = 0.0
    """What is added where a deadline is at stake."""

    def seconds(self, size: float) -> float:
        """Of a batch of so many requests.

        >>> Fit(0.25, 0.5).seconds(2)
        1.25
        """
        return self.base_s + size * self.slope_s


@dataclass(frozen=True)
class ModelState:
    """A model that a machine has registered."""

    fit: Fit
    swap_s: float = 0.0
    """Until its weights are where it runs; 0 when they are there: it is hot."""
    batch: float = 1.0
    """Usual size of its batches there, at least 1."""
    fbr: float = 0.0
    """Share of a slice's memory bandwidth that it wants while it runs."""

    @property
    def is_hot(self) -> bool:
        """Whether it can run at once."""
        return self.swap_s <= 0


@dataclass(frozen=True)
class SliceLoad:
    """A slice of a machine, and how many seconds of work wait there."""

    name: str = ""
    compute: float = 1.0
    """Its share of the device: best effort goes to the smallest first."""
    strict_s: float = 0.0
    best_effort_s: float = 0.0
    gives_way_s: float = 0.0
    """Until running best effort stands still for strict work."""
    rdf: float = 1.0
    """Time alone there over that on a whole device."""
    fbr: float = 0.0
    """Sum of what runs there."""
    strict_share: float = 0.0
    """Share of time that strict work runs there; best effort gets what it leaves."""


@dataclass(frozen=True)
class Machine:
    """One, as it was when it published."""

    name: str
    models: Mapping[str, ModelState]
    slices: tuple[SliceLoad, ...] = (SliceLoad(),)
    order: int = 0
    """Best effort is packed onto machines of low order; those of high order can be released."""
    is_draining: bool = False
    """It gets nothing more."""


class Live:
    """A machine with what was sent there since it published."""

    def __init__(self, machine: Machine) -> None:
        """Nothing was sent yet."""
        self.machine = machine
        slices = machine.slices
        # Models run equally fast on slices of a group.
        self._groups = list(dict.fromkeys((at.rdf, at.fbr) for at in slices))
        self._group = [self._groups.index((at.rdf, at.fbr)) for at in slices]
        self._left = [max(LEAST_LEFT, 1.0 - at.strict_share) for at in slices]
        self._work = {
            True: [at.strict_s for at in slices],
            False: [at.best_effort_s for at in slices],
        }
        self._waits: dict[bool, list[float]] = {}

    def waits(self, *, strict: bool) -> list[float]:
        """Seconds until each slice has no more work that goes first: strict goes before all."""
        if strict not in self._waits:
            places = zip(*self._work.values(), self._left, self.machine.slices, strict=True)
            self._waits[strict] = [
                ahead + (at.gives_way_s if behind > 0 else 0.0)
                if strict
                else (ahead + behind) / left
                for ahead, behind, left, at in places
            ]
        return self._waits[strict]

    def ends(self, model: ModelState, *, strict: bool) -> list[float]:
        """Seconds until each slice would answer a request of that model."""
        runs, swap = self._runs(model), model.swap_s
        waits = self.waits(strict=strict)
        if strict:
            return [wait + swap + runs[at] for wait, at in zip(waits, self._group, strict=True)]
        each = zip(waits, self._group, self._left, strict=True)
        return [wait + swap + runs[at] / left for wait, at, left in each]

    def _runs(self, model: ModelState) -> list[float]:
        alone = model.fit.seconds(model.batch)
        return [slowdown(rdf, (model.fbr, fbr)) * alone for rdf, fbr in self._groups]

    def soonest(self, model: ModelState, *, strict: bool) -> tuple[float, int]:
        """When the slice would answer that answers first, and which one; -1 where there is none."""
        ends = self.ends(model, strict=strict)
        if not ends:
            return math.inf, -1
        first = min(ends)
        return first, ends.index(first)

    def before_best_effort(self, model: ModelState) -> float:
        """Seconds until best effort of that model would begin on one of the slices."""
        return model.swap_s + min(self.waits(strict=False), default=math.inf)

    def smallest(self, model: ModelState, room_s: float) -> int:
        """The smallest slice where best effort would begin within ``room_s``; -1 if none."""
        fitting = (
            (at.compute, at.name, place)
            for place, (at, wait) in enumerate(
                zip(self.machine.slices, self.waits(strict=False), strict=True)
            )
            if model.swap_s + wait <= room_s
        )
        return min(fitting, default=(0.0, "", -1))[2]

    def send(self, model: ModelState, at: int, *, strict: bool) -> None:
        """Count one more request of that model on that slice."""
        work = self._runs(model)[self._group[at]] / max(1.0, model.batch)
        self._work[strict][at] += work
        self._waits.clear()
