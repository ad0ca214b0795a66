"""Which cells to compare, because a noisy host may have made the choice (not in Packrat).

A host that is disturbed for a while makes what is measured meanwhile slower, never quicker, and the
interval of one visit does not show it. So a cell that was visited once may be quicker by half. Of
two visits the quicker one counts, of more the median, and where comparisons say more, those do
(:mod:`shunter.allocator.planning.comparison`).

For each batch size the choice is held against the best that all other cells allow, were they as
quick as they may be beside it. While such a rival might win by more than ``SETTLED``, the slowest
cell of the choice and the most doubtful one of the rival run in turns: those first that have met
least, and of these the pair that waits longest, so that the meetings of two cells are far apart. So
do two batch sizes of which the larger one takes less time. What is still open in the end is told as
:class:`Undecided`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from shunter.allocator.planning.comparison import (
    EXACT,
    SURE,
    CellKey,
    Comparison,
    Fit,
    Visited,
    drift,
)
from shunter.allocator.planning.configuration import (
    Configuration,
    InstanceGroup,
    format_configuration,
)
from shunter.allocator.planning.latency_table import LatencyTable
from shunter.allocator.planning.measurement import VISITS, Estimate
from shunter.allocator.planning.optimizer import Choice, NoConfiguration, minimise_latency
from shunter.allocator.planning.profile import Cell, Undecided, batch_sizes
from shunter.allocator.planning.profile_table import cautious, measured_rows

SETTLED = 0.05
"""A rival that may be quicker by no more than this share is let be."""
DISTURBED = 0.5
"""By this share a cell that was visited once may really be quicker: another held its cores. That
what it is held against was disturbed, too, is no reason to hope for more."""
AGREE = 0.05
"""A larger batch that seems quicker by no more than this share is let be."""

Pair = tuple[CellKey, CellKey]
"""Two cells that are to run in turns."""


@dataclass(frozen=True)
class _Contest:
    """For a batch size the choice, and a rival that may be quicker."""

    batch: int
    chosen: Choice
    rival: Choice
    expected_ms: float
    """Of the rival; its ``latency_ms`` is what it may be."""
    pair: Pair


class Settling:
    """Says which cells to compare; tell it every visit and every comparison."""

    def __init__(self, threads: int, batch: int, cells: Iterable[Cell] = ()) -> None:
        """For instances of up to ``threads`` threads; ``cells`` of an earlier run."""
        self._threads, self._batch = threads, batch
        self._visits: dict[CellKey, list[Cell]] = {}
        self._comparisons: list[Comparison] = []
        self._meetings: Counter[Pair] = Counter()
        """How often two cells met; who met last comes last."""
        self._closed: set[Pair] = set()
        self.cells: dict[CellKey, Cell] = {}
        """What is known of each."""
        self._earlier = {self._take(cell): cell.visits - 1 for cell in cells}
        """How often each was compared in an earlier run, nobody knows with whom."""
        self._fit_again()

    def add(self, cell: Cell) -> None:
        """A visit of a cell."""
        self._take(cell)
        self._fit_again()

    def compare(self, one: Cell, other: Cell, ratio: Estimate | None) -> None:
        """Both in turns; ``ratio`` of the other's latency by that of the one.

        None: one after the other.
        """
        keys = self._take(one), self._take(other)
        if ratio is not None:
            self._comparisons.append(Comparison(*keys, ratio))
        pair = _ordered(*keys)
        self._meetings[pair] = self._meetings.pop(pair, 0) + 1
        self._fit_again()

    def close(self, pair: Pair) -> None:
        """These cannot be compared."""
        self._closed.add(_ordered(*pair))

    def next(self, most: int = VISITS) -> Pair | None:
        """Who is to be compared now, nobody ``most`` times; None when nothing is gained."""
        fit = self._fit(DISTURBED)
        wanted = [*self._falling(fit), *(contest.pair for contest in self._contests(fit))]
        free = [
            pair
            for pair in wanted
            if self._met(pair) < most - 1 and _ordered(*pair) not in self._closed
        ]
        order = {pair: i for i, pair in enumerate(self._meetings)}

        def waits(pair: Pair) -> tuple[int, int]:
            met = _ordered(*pair)
            return self._meetings[met], order.get(met, -1)

        return min(free, key=waits, default=None)

    def _met(self, pair: Pair) -> int:
        """At most so often."""
        return self._meetings[_ordered(*pair)] + min(self._earlier.get(key, 0) for key in pair)

    def undecided(self) -> tuple[Undecided, ...]:
        """Choices that may as well have been others, one for a batch size."""
        return tuple(map(self._told, self._contests(self._fit(None)))) if self.cells else ()

    def _told(self, contest: _Contest) -> Undecided:
        return Undecided(
            contest.batch,
            format_configuration(contest.chosen.configuration),
            format_configuration(contest.rival.configuration),
            round(max(0.0, contest.expected_ms / contest.chosen.latency_ms - 1), 4),
            round(contest.expected_ms / contest.rival.latency_ms - 1, 4),
        )

    def _take(self, cell: Cell) -> CellKey:
        key = cell.threads, cell.batch
        self._visits.setdefault(key, []).append(cell)
        return key

    def _fit_again(self) -> None:
        self.cells = {key: merged(visits) for key, visits in sorted(self._visits.items())}
        if not self._comparisons:
            return
        fit, compared = self._fit(DISTURBED), set()
        for each in self._comparisons:
            compared |= {each.one, each.other}
        for key in compared:
            cell, ms = self.cells[key], round(fit.ms(key), 4)
            low, high = min(cell.low_ms, ms), max(cell.high_ms, ms)
            self.cells[key] = replace(cell, ms=ms, low_ms=low, high_ms=high)

    def _fit(self, disturbed: float | None) -> Fit:
        """``disturbed``: how much quicker a cell with one visit may be; None: as that one says."""
        times = [[cell.ms for cell in visits] for visits in self._visits.values()]
        varies = drift(times)
        visited = {}
        for key, visits in sorted(self._visits.items()):
            cell = merged(visits)
            doubt = math.log(cell.ms / floor(cell, disturbed)) / SURE
            if len(visits) > 1:
                doubt = math.hypot(doubt, varies / math.sqrt(len(visits) - 1))
            visited[key] = Visited(cell.ms, max(EXACT, doubt))
        return Fit(visited, self._comparisons)

    def _contests(self, fit: Fit) -> list[_Contest]:
        """The open ones."""
        if not self._visits:
            return []
        ms = {key: fit.ms(key) for key in self._visits}
        expected = LatencyTable(cautious(ms, self._threads, self._batch))
        found = (self._contest(size, expected, ms, fit) for size in batch_sizes(self._batch))
        return [contest for contest in found if contest is not None]

    def _contest(
        self, size: int, expected: LatencyTable, ms: Mapping[CellKey, float], fit: Fit
    ) -> _Contest | None:
        try:
            chosen = minimise_latency(expected, (self._threads,), size)
            own = self._rests_on(chosen.configuration)
            slowest = self._slowest(chosen.configuration, expected)
            if slowest is None:
                return None  # between numbers of threads that were measured
            hoped = {
                key: each if key in own else max(each * (1 - DISTURBED), fit.hoped(key, slowest))
                for key, each in ms.items()
            }
            rows = LatencyTable(measured_rows(hoped, self._threads, self._batch))
            rival = minimise_latency(rows, (self._threads,), size)
        except NoConfiguration:
            return None
        against = self._rests_on(rival.configuration) - own
        if rival.latency_ms >= chosen.latency_ms * (1 - SETTLED) or not against:
            return None
        doubtful = max(sorted(against), key=lambda key: fit.apart(key, slowest))
        would_be = _latency(expected, rival.configuration)
        return _Contest(size, chosen, rival, would_be, (slowest, doubtful))

    def _rests_on(self, configuration: Configuration) -> set[CellKey]:
        """Measured cells that the latencies of its groups are made of."""
        return {key for group in configuration for key in self._bracket(group)}

    def _bracket(self, group: InstanceGroup) -> list[CellKey]:
        """The measured cells below and above a group's batch, the same where it was measured."""
        sizes = [b for t, b in self._visits if t == group.threads]
        below = [b for b in sizes if b <= group.batch]
        above = [b for b in sizes if b >= group.batch]
        return [(group.threads, pick(of)) for pick, of in ((max, below), (min, above)) if of]

    def _slowest(self, configuration: Configuration, table: LatencyTable) -> CellKey | None:
        """The measured cell next to the slowest group."""
        group = max(configuration, key=lambda group: table.of(group.threads, group.batch))
        found = self._bracket(group)
        return min(found, key=lambda key: abs(key[1] - group.batch), default=None)

    def _falling(self, fit: Fit) -> list[Pair]:
        """Neighbours of which the larger batch is quicker, unless that was seen well enough."""
        found = []
        for small, large in pairwise(sorted(self._visits)):
            falls = small[0] == large[0] and fit.ms(small) > fit.ms(large) * (1 + AGREE)
            if falls and SURE * fit.apart(small, large) > AGREE:
                found.append((small, large))
        return found


def merged(visits: Sequence[Cell]) -> Cell:
    """One cell of all its visits: of their lower median, of two so the quicker one."""
    ordered = sorted(visits, key=lambda cell: cell.ms)
    lower, upper = ordered[(len(ordered) - 1) // 2], ordered[len(ordered) // 2]
    return replace(
        lower,
        low_ms=min(lower.low_ms, upper.low_ms),
        high_ms=max(lower.high_ms, upper.high_ms),
        outliers=sum(each.runs + each.outliers for each in visits) - lower.runs,
        peak_bytes=max(each.peak_bytes for each in visits),
        visits=sum(each.visits for each in visits),
    )


def floor(cell: Cell, disturbed: float | None = DISTURBED) -> float:
    """The quickest that a cell may really be, in ms; ``disturbed`` where it was visited once."""
    if cell.visits == 1:
        return cell.low_ms if disturbed is None else cell.ms * (1 - disturbed)
    return min(cell.low_ms, cell.ms**2 / cell.high_ms)


def _ordered(one: CellKey, other: CellKey) -> Pair:
    return min(one, other), max(one, other)


def _latency(table: LatencyTable, configuration: Configuration) -> float:
    return max(table.of(group.threads, group.batch) for group in configuration)
