"""When a latency has been measured well enough, and what it is.

The median and its interval come from order statistics, which assume nothing of the distribution:
of n samples the k-th smallest and k-th largest bound the median with a probability that the
binomial distribution gives. Runs during which something else held the processor are far outliers
(Tukey's outer fence) on the slow side; they are left out and counted.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

CONFIDENCE = 0.95
VISITS = 5
"""Most times that two rivals are measured, each by itself the first time, then in turns."""


@dataclass(frozen=True)
class Effort:
    """How long to measure."""

    precision: float = 0.02
    """Half the interval, as a share of the median, that is good enough."""
    fewest: int = 6
    """The smallest number whose range holds the median with 95 %."""
    most: int = 100
    seconds: float = 10.0
    """After so long the interval is taken as it is, if ``fewest`` samples are there; after three
    times as long three samples do."""
    visits: int = VISITS
    """Most times that two cells are measured; after the first only what the choice rests on."""

    @property
    def again(self) -> Effort:
        """Of two cells in turns, which is shorter."""
        return replace(self, fewest=2, most=max(2, self.most // 4), seconds=self.seconds / 4)


@dataclass(frozen=True)
class Estimate:
    """Median and interval in the samples' unit."""

    median: float
    low: float
    high: float
    runs: int
    outliers: int

    @property
    def relative(self) -> float:
        """Half the interval as a share of the median."""
        return (self.high - self.low) / 2 / self.median if self.median > 0 else math.inf


def estimate(samples: Sequence[float]) -> Estimate:
    """Median of ``samples`` without far outliers. Raises ValueError when there is none."""
    if not samples:
        raise ValueError("no sample")
    kept = _without_outliers(sorted(samples))
    low, high = _bounds(len(kept))
    return Estimate(
        statistics.median(kept), kept[low], kept[high], len(kept), len(samples) - len(kept)
    )


def is_enough(samples: Sequence[float], seconds: float, effort: Effort) -> bool:
    """Whether measuring may end after these samples, which took ``seconds``."""
    if len(samples) < effort.fewest:
        # A batch that takes minutes is not run six times.
        return len(samples) >= 3 and seconds > 3 * effort.seconds
    if len(samples) >= effort.most or seconds > effort.seconds:
        return True
    return estimate(samples).relative <= effort.precision


def _without_outliers(ordered: Sequence[float]) -> Sequence[float]:
    if len(ordered) < 5:
        return ordered
    lower, _, upper = statistics.quantiles(ordered, n=4)
    fence = upper + 3 * max(upper - lower, 0.01 * upper)
    return [value for value in ordered if value <= fence]


def _bounds(count: int) -> tuple[int, int]:
    """Indexes of the order statistics that bound the median; the whole range for few samples."""
    k, below = 0, 0.5**count
    while k + 1 <= (count - 1) // 2:
        below += math.comb(count, k + 1) * 0.5**count
        if below > (1 - CONFIDENCE) / 2:
            break
        k += 1
    return k, count - 1 - k
