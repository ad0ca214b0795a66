"""Which cells of a profile are worth measuring, so that profiling takes minutes and not hours.

Packrat measures every ⟨threads, batch⟩. Most of that time goes into cells that no configuration
will ever use: one thread with the largest batch takes as long as all others together. The plan
here is to ask the optimizer. Cells that were not measured get an *optimistic* latency: estimated
from their neighbours (a straight line over the batch size, the law of Amdahl over threads), less
a margin. Whatever the optimizer would then choose for some batch size is measured next; when all
it chooses has been measured, no other cell can make a choice better by more than the tolerance,
unless an estimate was too high by more than the margin. The gap that remains is the profile's
stated error: an estimate, not a bound. The margin follows the errors that are seen.

The rows for 1, 2, 4, ..., half of T and T threads come first, each with growing batches until even
an optimistic guess for the next one is slower than the best known way to run the largest batch.
"""

from __future__ import annotations

from collections import deque

import numpy as np
from numpy.typing import NDArray

from shunter.allocator.planning.comparison import CellKey
from shunter.allocator.planning.latency_table import LatencyTable
from shunter.allocator.planning.optimizer import Choice, NoConfiguration, minimise_latency
from shunter.allocator.planning.profile import batch_sizes
from shunter.allocator.planning.profile_table import interpolate, measured_rows

TOLERANCE = 0.02
"""A choice may be this much slower than the best one of an exhaustive profile."""
LEAST_MARGIN = 0.015
"""Below the tolerance, or everything that is equally fast would be measured."""
LARGEST_MARGIN = 0.25
REMEMBERED = 8
"""Estimates whose errors set the margin; the early ones span wide gaps and are soon forgotten."""


class ProfilePlan:
    """Says which cell to measure next; tell it each result."""

    def __init__(
        self,
        threads: int,
        batch: int,
        tolerance: float = TOLERANCE,
        *,
        exhaustive: bool = False,
    ) -> None:
        """For instances of up to ``threads`` threads and batches of up to ``batch``.

        ``exhaustive``: every cell, as Packrat does, in rows of equal threads.
        """
        self.exhaustive = exhaustive
        self.threads, self.batch, self.tolerance = threads, batch, tolerance
        self.sizes = batch_sizes(batch)
        self.measured: dict[CellKey, float] = {}
        self._given: dict[CellKey, float] = {}
        self.margin = LEAST_MARGIN
        self._too_high: deque[float] = deque(maxlen=REMEMBERED)
        self.gap = float("inf")
        """How much faster an unmeasured configuration might be, as a share; after the last cell."""
        self._impossible: set[CellKey] = set()
        powers = {1 << k for k in range(threads.bit_length())}
        smaller = sorted(t for t in powers | {threads // 2} if 0 < t < threads)
        self._rows = [threads, *smaller]

    def add(self, threads: int, batch: int, ms: float) -> None:
        """A measured latency; in any order, as it counts when the plan comes to its cell."""
        self._given[threads, batch] = ms

    def add_impossible(self, threads: int, batch: int) -> None:
        """The cell cannot be measured; larger batches are not tried."""
        self._impossible |= {(threads, b) for b in self.sizes if b >= batch}

    def next(self) -> CellKey | None:
        """The next cell to measure, None when the rest does not matter."""
        while (cell := self._wanted()) is not None and cell in self._given:
            self._count(cell, self._given[cell])
        return cell

    def _wanted(self) -> CellKey | None:
        if self.exhaustive:
            cells = exhaustive_cells(self.threads, self.batch)
            left = (c for c in cells if c not in self.measured and c not in self._impossible)
            return next(left, None)
        return self._next_seed() or self._next_useful()

    def _count(self, cell: CellKey, ms: float) -> None:
        """Where latencies are below their estimates, estimates get a wider margin."""
        estimate = self._estimate()[cell[0] - 1, cell[1] - 1]
        if np.isfinite(estimate) and len(self._row(cell[0])) != 1:
            self._too_high.append(1 - ms / float(estimate))
            self.margin = min(LARGEST_MARGIN, max(LEAST_MARGIN, 1.2 * max(self._too_high)))
        self.measured[cell] = ms

    def remaining(self) -> list[CellKey]:
        """Cells that would be measured next if all estimates were right; for the time left."""
        ahead = ProfilePlan(self.threads, self.batch, self.tolerance, exhaustive=self.exhaustive)
        ahead.margin, ahead._impossible = self.margin, set(self._impossible)
        ahead._too_high = self._too_high.copy()
        ahead.measured, ahead._given = dict(self.measured), self._given
        cells: list[CellKey] = []
        while (cell := ahead.next()) is not None and len(cells) < self.threads * len(self.sizes):
            cells.append(cell)
            ahead.measured[cell] = ahead._guess(cell)
        return cells

    def estimate(self, cell: CellKey) -> float:
        """Expected latency of a cell, in ms; inf when nothing is known."""
        return self.measured.get(cell) or float(self._estimate()[cell[0] - 1, cell[1] - 1])

    def _guess(self, cell: CellKey) -> float:
        value = self.estimate(cell)
        return value if np.isfinite(value) else 1.0

    def _row(self, threads: int) -> list[int]:
        return sorted(b for t, b in self.measured if t == threads)

    def _next_seed(self) -> CellKey | None:
        for threads in self._rows:
            known = self._row(threads)
            later = [b for b in self.sizes if not known or b > known[-1]]
            if not later or (threads, later[0]) in self._impossible:
                continue
            if len(known) < 2:
                return threads, later[0]
            guess = self._estimate()[threads - 1, later[0] - 1] * (1 - self.margin)
            if threads == self.threads or guess <= self._bound():
                return threads, later[0]
        return None

    def _bound(self) -> float:
        """Best known latency of the largest batch."""
        expected = measured_rows(self.measured, self.threads, self.batch)
        found = self._choose(expected, self.batch)
        return found.latency_ms if found else float("inf")

    def _next_useful(self) -> CellKey | None:
        """The unmeasured cell whose measurement may help most, None below the tolerance."""
        self.gap = 0.0
        best: tuple[float, CellKey] | None = None
        expected = measured_rows(self.measured, self.threads, self.batch)
        optimistic = self._optimistic(expected)
        for size in self.sizes:
            sure, hoped = self._choose(expected, size), self._choose(optimistic, size)
            if sure is None or hoped is None:
                continue
            gain = 1 - hoped.latency_ms / sure.latency_ms
            self.gap = max(self.gap, gain)
            missing = self._missing(hoped)
            if gain > self.tolerance and missing and (best is None or gain > best[0]):
                best = gain, missing[0]
        return best[1] if best else None

    def _missing(self, choice: Choice) -> list[CellKey]:
        """Cells that a choice rests on and that were not measured, cheapest first."""
        cells = {
            (group.threads, size)
            for group in choice.configuration
            for size in _bracket(self.sizes, group.batch)
        }
        return sorted(cells - self.measured.keys() - self._impossible, key=lambda c: c[1])

    def _choose(self, rows: NDArray[np.float64], batch: int) -> Choice | None:
        try:
            return minimise_latency(LatencyTable(rows), (self.threads,), batch)
        except NoConfiguration:
            return None

    def _optimistic(self, expected: NDArray[np.float64]) -> NDArray[np.float64]:
        """Measured latencies where there are some, else estimates less the margin."""
        rows = self._estimate() * (1 - self.margin)
        for t in {t for t, _ in self.measured}:
            known = self._row(t)
            inside = slice(known[0] - 1, known[-1])
            rows[t - 1, inside] = expected[t - 1, inside]
        for t, b in self._impossible:
            # Nothing between the last size that was possible and this one can be known either.
            rows[t - 1, max((size for size in self.sizes if size < b), default=0) :] = np.inf
        return np.maximum.accumulate(rows, axis=1)

    def _estimate(self) -> NDArray[np.float64]:
        """Estimated latency of every cell: rows continued by their last slope, then Amdahl."""
        points = dict(self.measured)
        for t in {t for t, _ in self.measured}:
            known = self._row(t)
            if len(known) < 2:
                continue
            before, last = known[-2:]
            slope = (points[t, last] - points[t, before]) / (last - before)
            slope = max(slope, 0.0)
            for b in (b for b in self.sizes if b > last):
                points[t, b] = points[t, last] + slope * (b - last)
        return interpolate(points, self.threads, self.batch)


def exhaustive_cells(threads: int, batch: int) -> list[CellKey]:
    """Every ⟨t, b⟩ that Packrat measures."""
    return [(t, b) for t in range(1, threads + 1) for b in batch_sizes(batch)]


def _bracket(sizes: list[int], batch: int) -> set[int]:
    """Measured batch sizes between which ``batch`` lies."""
    above = next(size for size in sizes if size >= batch)
    below = max((size for size in sizes if size <= batch), default=above)
    return {below, above}
