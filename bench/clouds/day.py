"""A day of the cluster: the product's sizing and procurement, a load and a market."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field

import numpy as np

from clouds.curve import Curve
from clouds.market import Market
from clouds.world import BATCH, BATCH_S, NODE_RATE, NODES, SHAPE, START_S, TICK_S
from shunter.allocator.cluster.procurement import Kind, Phase, Procurement, Rules
from shunter.allocator.cluster.sizing import Demand, Sizing, spares

WARM_UP_S = 600


@dataclass(frozen=True)
class Scheme:
    """Who procures."""

    name: str
    only: Kind | None = None
    fixed: int | None = None
    """So many machines all day, instead of as many as sizing says."""


SCHEMES = (
    Scheme("on demand, fixed", Kind.ON_DEMAND, NODES),
    Scheme("on demand only", Kind.ON_DEMAND),
    Scheme("spot only", Kind.SPOT),
    Scheme("ours"),
)


@dataclass
class Day:
    """What came of it."""

    compliance: float = 0.0
    """Share of strict requests in time."""
    hours: dict[Kind, float] = field(default_factory=dict)
    machines_mean: float = 0.0
    machines_most: int = 0
    short_share: float = 0.0
    """Of the time fewer machines served than were wanted without spares."""
    evictions: int = 0
    taken_at_work: int = 0
    acquired: int = 0
    best_effort_behind_s: float = 0.0
    """The longest that best effort was behind, in seconds of all machines' work."""

    def row(self) -> dict[str, float]:
        """Without the hours."""
        found = asdict(self)
        del found["hours"]
        return {key: round(value, 6) for key, value in found.items()}


class _Load:
    """Strict misses and best effort's backlog, second by second."""

    def __init__(self, curve: Curve, share: float) -> None:
        self.curve, self.share = curve, share
        self.strict = self.missed = self.backlog = self.behind = 0.0

    def serve(self, rates: np.ndarray, serving: int) -> None:
        strict, room = rates * self.share, serving * NODE_RATE
        missed = self.curve.missed(strict / room) if room else np.ones_like(strict)
        self.strict += float(strict.sum())
        self.missed += float((strict * missed).sum())
        left = np.maximum(0.0, room - strict).sum()
        self.backlog = max(0.0, self.backlog + float((rates - strict).sum() - left))
        self.behind = max(self.behind, self.backlog / (NODES * NODE_RATE))


def simulate(
    scheme: Scheme, rates: np.ndarray, strict: float, market: Market, curve: Curve
) -> Day:
    """``rates``: requests in each second. It begins early enough to have the machines for that."""
    tick = int(TICK_S)
    sizing, buying = Sizing(SHAPE, START_S, most=NODES), Procurement(Rules(only=scheme.only))
    load, day, spot_s, ticks = _Load(curve, strict), Day(), 0.0, 0
    for now in range(-WARM_UP_S, len(rates), tick):
        market.until(now)
        owned = list(market.machines.values())
        seen = float(rates[max(0, now - tick) : max(1, now)].mean())
        sizing = sizing.after(now, _demands(seen, strict))
        spot = market.count[Kind.SPOT]
        spot_s += spot * TICK_S
        # As if one eviction had been seen in a hundred hours before.
        per_s = (market.evictions + 1) / (spot_s + 360_000)
        spare = spares(spot, per_s, START_S + 2 * TICK_S - market.notice_s)
        wanted = scheme.fixed or sizing.wanted(spare)
        buying, actions = buying.step(now, owned, wanted, market.failed)
        market.act(now, actions)
        if now < 0:
            continue
        serving = market.count[Phase.LIVE]
        load.serve(rates[now : now + tick], serving)
        ticks += 1
        day.short_share += serving < (scheme.fixed or sizing.wanted())
        day.machines_mean += serving
        day.machines_most = max(day.machines_most, serving)
    market.close(float(len(rates)))
    day.machines_mean /= ticks
    day.short_share /= ticks
    day.compliance, day.best_effort_behind_s = 1 - load.missed / load.strict, load.behind
    day.hours, day.acquired = dict(market.hours), market.acquired
    day.evictions, day.taken_at_work = market.evictions, market.taken_at_work
    return day


def _demands(rate: float, strict: float) -> list[Demand]:
    return [
        Demand("vision", is_strict, rate * share, BATCH, BATCH_S)
        for is_strict, share in ((True, strict), (False, 1 - strict))
    ]
