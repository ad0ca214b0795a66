"""Latencies of cells from visits at different times and from comparisons in turns (not in Packrat).

On a host that is shared, or whose clock varies, two visits of a cell differ by more than what is to
be told apart, however exact each of them looks. Two cells of which one batch each runs in turns see
the same host: their ratio is known far better than either latency. On a virtual machine on which
visits differ by 10 % the ratio of two cells was off by 9.6 % (deviation) from the two quickest of
five visits each, and by 3.3 % from five comparisons.

In logarithms both are linear: a visit says ``x[k]``, a comparison ``x[other] - x[one]``. So the
latencies that agree best with all of them are a weighted least-squares fit, and its covariance says
how well any two cells can be told apart.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist

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
        """Of the logarithm of the ratio.

        The interval of few runs is their range, which holds the median with less than 95 %.
        """
        held = NormalDist().inv_cdf(1 - 0.5 ** max(2, self.ratio.runs))
        return max(EXACT, math.log(self.ratio.high / self.ratio.low) / 2 / min(SURE, held))


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
        for each in comparisons:
            one, other = self._index[each.one], self._index[each.other]
            weight, apart = each.deviation**-2, math.log(each.ratio.median)
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
    """How much visits of one cell differ, as the deviation of a logarithm, over all cells."""
    squares, free = 0.0, 0
    for each in visits:
        logs = [math.log(ms) for ms in each]
        squares += statistics.pvariance(logs) * len(logs)
        free += len(logs) - 1
    return math.sqrt(squares / free) if free else 0.0
