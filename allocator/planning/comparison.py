"""Latencies of cells from visits at different times and from comparisons in turns (not in Packrat).

On a host that is shared, or whose clock varies, two visits of a cell differ by more than what is to
be told apart, however exact each of them looks. Two cells of which one batch each runs in turns see
the same host: their ratio is known far better than either latency.

In logarithms both are linear: a visit says ``x[k]``, a comparison ``x[other] - x[one]``. So the
latencies that agree best with all of them are a weighted least-squares fit, and its covariance says
how well any two cells can be told apart.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from shunter.allocator.planning.measurement import Estimate

EXACT = 0.005
"""No visit and no comparison counts as more exact than this, as a share."""
SURE = 2.0
"""So many deviations are taken for certain."""

CellKey = tuple[int, int]
"""⟨threads, batch⟩."""


@dataclass(frozen=True)
class Comparison:
    """Two cells that ran in turns."""

    one: CellKey
    other: CellKey
    ratio: Estimate
    """Latency of the other one by that of the one."""

    @property
    def deviation(self) -> float:
        """Of the logarithm of the ratio, by this comparison alone.

        The interval of up to five runs is their range, which holds the median with less than 95 %.
        """
        held = statistics.NormalDist().inv_cdf(1 - 0.5 ** min(max(2, self.ratio.runs), 6))
        return max(EXACT, math.log(self.ratio.high / self.ratio.low) / 2 / min(SURE, held))


def deviations(comparisons: Sequence[Comparison]) -> list[float]:
    """Of the logarithm of each ratio, by all of them.

    Few runs that agree by chance are no more exact than as many of others, nor than what meetings
    of the same two cells differ by.
    """
    runs = [max(2, each.ratio.runs) for each in comparisons]
    weighed = sum(each.deviation**2 * n * n for each, n in zip(comparisons, runs, strict=True))
    of_one = math.sqrt(weighed / sum(runs)) if runs else 0.0
    meetings: dict[frozenset[CellKey], list[float]] = {}
    for each in comparisons:
        ratio = each.ratio.median
        pair = frozenset((each.one, each.other))
        meetings.setdefault(pair, []).append(ratio if each.one < each.other else 1 / ratio)
    between = drift(list(meetings.values()))
    return [
        max(each.deviation, of_one / math.sqrt(n), between)
        for each, n in zip(comparisons, runs, strict=True)
    ]


@dataclass(frozen=True)
class Visited:
    """What visits of a cell say, by themselves."""

    ms: float
    deviation: float
    """Of its logarithm."""


class Fit:
    """What agrees best with everything that was measured."""

    def __init__(
        self, visited: Mapping[CellKey, Visited], comparisons: Sequence[Comparison] = ()
    ) -> None:
        """Both cells of a comparison were visited, too."""
        self._index = {key: i for i, key in enumerate(visited)}
        weights = np.array([each.deviation**-2 for each in visited.values()])
        information = np.diag(weights)
        right = weights * np.log([each.ms for each in visited.values()])
        for each, deviation in zip(comparisons, deviations(comparisons), strict=True):
            one, other = self._index[each.one], self._index[each.other]
            weight, apart = deviation**-2, math.log(each.ratio.median)
            information[one, one] += weight
            information[other, other] += weight
            information[one, other] -= weight
            information[other, one] -= weight
            right[one] -= weight * apart
            right[other] += weight * apart
        self._covariance = np.linalg.inv(information)
        self._log_ms = self._covariance @ right

    def ms(self, key: CellKey) -> float:
        """Latency of a cell."""
        return math.exp(self._log_ms[self._index[key]])

    def apart(self, one: CellKey, other: CellKey) -> float:
        """Deviation of the logarithm of the ratio of two cells."""
        i, j = self._index[one], self._index[other]
        both = self._covariance[i, i] + self._covariance[j, j] - 2 * self._covariance[i, j]
        return math.sqrt(max(0.0, both))

    def hoped(self, key: CellKey, beside: CellKey) -> float:
        """The quickest that a cell may be, were the other one as quick as expected."""
        return self.ms(key) * math.exp(-SURE * self.apart(key, beside))


def drift(visits: Sequence[Sequence[float]]) -> float:
    """How much visits of a cell differ, as the deviation of a logarithm: of most cells.

    What was disturbed once says nothing of the others.
    """
    logs = [[math.log(ms) for ms in each] for each in visits]
    found = [statistics.stdev(each) for each in logs if len(each) > 1]
    return statistics.median_low(found) if found else 0.0
