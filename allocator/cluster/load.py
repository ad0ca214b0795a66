"""What a machine says of itself, and how soon a request would be answered there. Pure.

Each server publishes these numbers; whoever routes adds what it sent there since. Seconds all over.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

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


@dataclass
class Live:
    """A machine with what was sent there since it published."""

    machine: Machine
    sent: dict[tuple[str, bool], float] = field(default_factory=dict)
    """Seconds of work by slice and whether it is strict."""

    def waiting(self, at: SliceLoad, *, strict: bool) -> float:
        """Seconds until a slice has no more work that goes first: strict goes before all."""
        ahead = at.strict_s + self.sent.get((at.name, True), 0.0)
        best_effort = at.best_effort_s + self.sent.get((at.name, False), 0.0)
        if strict:
            return ahead + at.gives_way_s if best_effort > 0 else ahead
        return (ahead + best_effort) / _left(at)

    def predicted(self, model: ModelState, at: SliceLoad, *, strict: bool) -> float:
        """Seconds until a request of that model would be answered by that slice."""
        runs = self._runs(model, at) / (1.0 if strict else _left(at))
        return self.waiting(at, strict=strict) + model.swap_s + runs

    @staticmethod
    def _runs(model: ModelState, at: SliceLoad) -> float:
        return slowdown(at.rdf, (model.fbr, at.fbr)) * model.fit.seconds(model.batch)

    def soonest(self, model: ModelState, *, strict: bool) -> tuple[float, SliceLoad]:
        """The slice that would answer first, and when."""
        return min(
            ((self.predicted(model, at, strict=strict), at) for at in self.machine.slices),
            key=lambda found: found[0],
            default=(math.inf, SliceLoad()),
        )

    def before_best_effort(self, model: ModelState) -> float:
        """Seconds until best effort of that model would begin on one of the slices."""
        waits = (self.waiting(at, strict=False) for at in self.machine.slices)
        return model.swap_s + min(waits, default=math.inf)

    def smallest(self, model: ModelState, room_s: float) -> SliceLoad | None:
        """The smallest slice where best effort of that model would begin within ``room_s``."""
        fitting = (
            at
            for at in self.machine.slices
            if model.swap_s + self.waiting(at, strict=False) <= room_s
        )
        return min(fitting, key=lambda at: (at.compute, at.name), default=None)

    def send(self, model: ModelState, at: SliceLoad, *, strict: bool) -> None:
        """Count one more request of that model on that slice."""
        work = self._runs(model, at) / max(1.0, model.batch)
        self.sent[at.name, strict] = self.sent.get((at.name, strict), 0.0) + work


def _left(at: SliceLoad) -> float:
    return max(LEAST_LEFT, 1.0 - at.strict_share)
