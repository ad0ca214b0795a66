"""What is simulated, and what is assumed of it."""

from __future__ import annotations

from dataclasses import dataclass

from shunter.allocator.cluster.procurement import Kind
from shunter.allocator.cluster.sizing import MachineShape

NODES = 1000
DAY_S = 86400
TICK_S = 10.0
"""Between two steps of the policies."""


@dataclass(frozen=True)
class Cloud:
    """Prices of an instance with eight A100 (the paper's table 3), and how soon it is warned."""

    name: str
    on_demand: float
    """Dollars an hour."""
    spot: float
    notice_s: float

    def cost(self, hours: dict[Kind, float]) -> float:
        """Dollars for so many machine hours."""
        return hours[Kind.ON_DEMAND] * self.on_demand + hours[Kind.SPOT] * self.spot


CLOUDS = (
    Cloud("AWS", 32.7726, 9.8318, 120.0),
    Cloud("Azure", 32.7700, 18.0235, 30.0),
    Cloud("Google", 30.0846, 8.8147, 30.0),
)
AVAILABILITY = {"high": 0.0, "moderate": 0.354, "low": 0.708}
"""The paper's levels: chance that a spot machine is taken, in an interval."""

BATCH, BATCH_S = 128, 0.1
SLO_S = 3 * BATCH_S
SLOTS = 8
SCATTER = 0.1
SHAPE = MachineShape(SLOTS)
NODE_RATE = SLOTS * BATCH / BATCH_S
"""Requests a second that a machine serves at most."""
START_S = 120.0
STRICT = (0.5, 1.0)
"""Shares of strict requests: the paper's usual one, and its extreme."""
PEAK_TO_MEAN = 4561 / 2969


def peak_rate(strict: float) -> float:
    """Requests a second that take all machines as far as they are to be used."""
    return min(SHAPE.most, SHAPE.strict_most / strict) * NODES * NODE_RATE


ZONES = 12
GATEWAYS = 4
PUBLISH_S = 0.5

ASSUMPTIONS = (
    ("machine", "eight slots, a batch of 128 in 100 ms ± 10 %", "as the paper's vision models"),
    (
        "strict",
        "half of all requests, or all of them; in time within 300 ms",
        "three times the batch, as there",
    ),
    (
        "load",
        "a day's curve with bursts, peak:mean 4561:2969; its peak takes 1,000 machines (90 % of"
        " their slots, of strict work 60 %)",
        "the ratio of the paper's Twitter trace; the curve is bench/arrivals.py's",
    ),
    (
        "evictions",
        "each hour, at an own minute, a spot machine is taken with the level's chance",
        "the paper says fixed intervals and the chance, not the interval",
    ),
    (
        "supply",
        "a request for a spot machine fails with the same chance; on demand there is always one",
        "the paper says neither",
    ),
    (
        "zones",
        "the other market: twelve zones; each hour a zone takes all its machines, and is short",
        "harder than the paper's: many go at once",
    ),
    ("start", "120 s from the request to the first answer", "boot, image, weights"),
    ("notice", "120 s on AWS, 30 s on the others", "the paper's 30 to 120 s"),
    ("billing", "by the second, from the request to the release", ""),
    (
        "misses",
        "by the second, from a curve over the load, simulated batch by batch with the dispatcher",
        "a day of a thousand machines has 4,000 million batches",
    ),
)
