"""How much slower strict work is beside best effort, as far as was measured. Pure.

Work is served in windows, of which some are open (both run) and some closed; a block is a few of
both kinds. What is concluded from blocks holds however often somebody looks.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from statistics import fmean, median, stdev

SLOW_DOWN = 0.02
"""Share by which strict work may be slower beside best effort."""
LEAST_BLOCKS = 8
"""Nothing is concluded from fewer: 512 strict batches."""
MOST_BLOCKS = 256
"""Older ones are forgotten."""
ERROR = 0.01
"""Chance that a pair that slows strict work by just ``slow_down`` is ever closed for it."""
TUNED_BLOCKS = 30
"""For so many blocks the interval below is at its narrowest."""
_CLIP = 4 * 1.4826
"""Times the median deviation: about four standard deviations, where it is a bell curve."""
_LEAST_CLIP = 5
"""Times the slow-down that closes a pair: what is looked for must never lie far out."""

Sums = tuple[int, int]
"""Batches of one size bucket in one window, and the sum of their service times in ns."""
Window = dict[int, Sums]
"""By size bucket."""


class Evidence:
    """How much longer strict batches of one pair take in open windows than in closed ones."""

    def __init__(self, limit: float) -> None:
        """Nothing is known yet. ``limit`` is the slow-down, as a logarithm, that is looked for."""
        self._least_bound = _LEAST_CLIP * max(limit, math.log1p(SLOW_DOWN))
        self._blocks: deque[tuple[list[float], list[float]]] = deque(maxlen=MOST_BLOCKS)
        self.count, self.mean, self.lower = 0, 0.0, -math.inf
        """Blocks, the mean slow-down, and what it is at least; as logarithms of ratios, and cut."""

    def add(self, opened: Sequence[Window], closed: Sequence[Window]) -> None:
        """One block: by window and size bucket, how many batches took how long."""
        values = _relative([*opened, *closed])
        self._blocks.append((values[: len(opened)], values[len(opened) :]))
        self.count = len(self._blocks)
        differences = self._differences()
        self.mean = fmean(differences)
        if self.count >= LEAST_BLOCKS:
            self.lower = self.mean - stdev(differences) * _radius(self.count)

    @property
    def typical(self) -> float:
        """The slow-down of the middle block, with nothing cut."""
        return median(fmean(opened) - fmean(closed) for opened, closed in self._blocks)

    def _differences(self) -> list[float]:
        """Of each block. What lies far out counts as if it lay less far, in all windows alike."""
        spread = median(abs(v) for block in self._blocks for part in block for v in part)
        bound = max(_CLIP * spread, self._least_bound)
        cut = [
            [fmean(min(max(v, -bound), bound) for v in part) for part in block]
            for block in self._blocks
        ]
        return [opened - closed for opened, closed in cut]


def _relative(windows: Sequence[Window]) -> list[float]:
    """Logarithm of each window's time over what its batches take on average, centred.

    The average is that of the block by size bucket, so neither another mix of sizes nor a slow
    change of the whole host looks like an effect.
    """
    count: dict[int, int] = {}
    total: dict[int, int] = {}
    for window in windows:
        for bucket, (batches, ns) in window.items():
            count[bucket] = count.get(bucket, 0) + batches
            total[bucket] = total.get(bucket, 0) + ns
    values = []
    for window in windows:
        expected = sum(n * total[bucket] / count[bucket] for bucket, (n, _) in window.items())
        took = sum(ns for _, ns in window.values())
        values.append(math.log(max(took, 1) / max(expected, 1)))
    centre = median(values)
    return [value - centre for value in values]


def _radius(count: int) -> float:
    """Half width, in standard deviations, of an interval that holds at all counts at once.

    Asymptotic confidence sequence (Waudby-Smith and others, Annals of Statistics 2024, one-sided):
    an interval for one count would sooner or later be wrong when it is looked at again and again.
    """
    weight = (-2 * math.log(ERROR) + math.log(1 - 2 * math.log(ERROR))) / TUNED_BLOCKS
    grown = count * weight + 1
    bound = math.log(1 + math.sqrt(grown) / (2 * ERROR))
    # The standard deviation itself is known from few blocks only: that of Student's t.
    few = (count - 1) / (count - 3)
    return math.sqrt(2 * grown / (count * count * weight) * bound * few)
