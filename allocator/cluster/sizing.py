"""How many machines there should be (PROTEAN, section 4.2, for machines). Pure.

So many that a batch finds a free slot when it comes, for as long ahead as a machine takes to start.
One that is not needed any more is kept for a while (delayed termination), and some are added for
those that may be taken away faster than others can be had.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from shunter.allocator.placement.autoscaling import KEEP_S, KeepAlive, total


@dataclass(frozen=True)
class Trend:
    """A rate, and how it changes: Holt's double exponential smoothing, for uneven steps."""

    level: float = 0.0
    per_s: float = 0.0
    error: float = 0.0
    """Mean of how far the forecasts were off."""
    at: float | None = None
    """When the last rate came."""
    level_s: float = 30.0
    """Time after which what was seen of the level counts 1/e."""
    slope_s: float = 300.0

    def after(self, now: float, rate: float) -> Trend:
        """With one more rate; one of the same moment or before is left out."""
        if self.at is None:
            return replace(self, level=rate, at=now)
        step = now - self.at
        if step <= 0:
            return self
        expected = self.level + self.per_s * step
        new_level = 1 - math.exp(-step / self.level_s)
        new_slope = 1 - math.exp(-step / self.slope_s)
        level = expected + new_level * (rate - expected)
        per_s = self.per_s + new_slope * ((level - self.level) / step - self.per_s)
        error = self.error + new_slope * (abs(rate - expected) - self.error)
        return replace(self, level=level, per_s=per_s, error=error, at=now)

    def ahead(self, seconds: float, sure: float = 0.0) -> float:
        """The most that is expected until then, with ``sure`` mean errors on top."""
        return max(0.0, self.level + max(0.0, self.per_s * seconds) + sure * self.error)


@dataclass(frozen=True)
class Demand:
    """Of a model in a class: what comes, and how it is served."""

    model: str
    is_strict: bool
    rate: float
    """Requests a second."""
    batch_size: int
    batch_s: float
    """Time of one batch on one slot."""


@dataclass(frozen=True)
class MachineShape:
    """What one machine can do, and how much of it is to be used."""

    slots: int
    """Batches that run at a time."""
    strict_most: float = 0.6
    """Share of the slots that strict work may take on average: beyond, batches queue."""
    most: float = 0.9
    """Share of the slots that all work may take."""


def machines(demands: Sequence[Demand], shape: MachineShape) -> int:
    """How many serve that: n_c batches at a time, of strict work and of all.

    >>> machines([Demand("a", True, 1000, 100, 0.5)], MachineShape(4, strict_most=0.5))
    3
    """
    strict, best_effort = _at_a_time(demands, True), _at_a_time(demands, False)
    return max(
        math.ceil(strict / (shape.slots * shape.strict_most)),
        math.ceil((strict + best_effort) / (shape.slots * shape.most)),
    )


def _at_a_time(demands: Sequence[Demand], strict: bool) -> int:
    """n_c of the requests that come while a batch runs."""
    chosen = [each for each in demands if each.is_strict is strict]
    came = {each.model: each.rate * each.batch_s for each in chosen}
    return total(came, {each.model: each.batch_size for each in chosen})


def spares(evictable: int, per_s: float, absent_s: float, risk: float = 1e-3) -> int:
    """Machines for those that are away: taken, and not replaced yet.

    Each of ``evictable`` is taken away ``per_s`` times a second, and its place is empty for
    ``absent_s``: the time that a machine takes to start, less the notice. More than that are away
    for no more than ``risk`` of the time, if they are taken independently (Poisson).

    >>> spares(1000, 1e-4, 60), spares(1000, 1e-4, 0), spares(0, 1, 60)
    (15, 0, 0)
    """
    mean = evictable * per_s * max(0.0, absent_s)
    chance, below, count = math.exp(-mean), 0.0, 0
    if chance == 0.0:  # so many that the distribution is normal
        return math.ceil(mean + math.sqrt(2 * mean * math.log(1 / risk)))
    while below + chance < 1 - risk:
        below += chance
        count += 1
        chance *= mean / count
    return count


@dataclass(frozen=True)
class Sizing:
    """What has to be kept from one step to the next."""

    shape: MachineShape
    start_s: float
    """From asking for a machine until it serves."""
    least: int = 1
    most: int = 1000
    sure: float = 2.0
    """Mean errors of the forecast that are added."""
    trends: Mapping[tuple[str, bool], Trend] = field(default_factory=dict)
    kept: KeepAlive = field(default_factory=lambda: KeepAlive(KEEP_S))

    def after(self, now: float, demands: Iterable[Demand]) -> Sizing:
        """With what comes now; a model that is not named has gone."""
        demands = list(demands)
        trends = {
            (each.model, each.is_strict): self.trends.get(
                (each.model, each.is_strict), Trend()
            ).after(now, each.rate)
            for each in demands
        }
        expected = [
            replace(
                each,
                rate=trends[each.model, each.is_strict].ahead(
                    self.start_s, self.sure if each.is_strict else 0.0
                ),
            )
            for each in demands
        ]
        return replace(
            self, trends=trends, kept=self.kept.after(now, machines(expected, self.shape))
        )

    def wanted(self, spare: int = 0) -> int:
        """How many there should be, with ``spare`` more."""
        return max(self.least, min(self.most, self.kept.target + spare))
