"""Which cells to measure again, because a noisy host may have made the choice (not in Packrat).

A host that is disturbed for a while makes what is measured meanwhile slower, never quicker, and the
interval of one visit does not show it. So a cell that was visited once may be quicker by half. Of
several visits the two quickest count: where they agree they are the latency, and where they do not
it may be as far below the quickest as the other is above.

For each batch size the choice, at the slow end of its cells, is held against the best that all
other cells allow at their quick ends. What they rest on is visited again while that rival might win
by more than ``SETTLED``, the cells with the fewest visits first and of these the one that waits
longest: so rivals take turns, and the visits of one cell are far apart. So is a row in which a
larger batch takes less time. What is still open in the end is told as :class:`Undecided`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from shunter.allocator.planning.configuration import Configuration, format_configuration
from shunter.allocator.planning.latency_table import LatencyTable
from shunter.allocator.planning.measurement import VISITS
from shunter.allocator.planning.optimizer import Choice, NoConfiguration, minimise_latency
from shunter.allocator.planning.profile import Cell, Undecided, batch_sizes
from shunter.allocator.planning.profile_table import cautious, measured_rows

SETTLED = 0.05
"""A rival that may be quicker by no more than this share is let be."""
DISTURBED = 0.5
"""By this share a cell that was visited once may really be quicker: another held its cores."""
AGREE = 0.05
"""Visits that differ by no more than this share say the same."""

CellKey = tuple[int, int]


@dataclass(frozen=True)
class _Contest:
    """For a batch size the choice, and a rival that may be quicker."""

    batch: int
    chosen: Choice
    rival: Choice
    sure_ms: float
    """Of the choice, at the slow end."""
    cells: frozenset[CellKey]
    """What both rest on."""


class Settling:
    """Says which cell to visit again; tell it every visit."""

    def __init__(self, threads: int, batch: int, cells: Iterable[Cell] = ()) -> None:
        """For instances of up to ``threads`` threads; ``cells`` of an earlier run."""
        self._threads, self._batch = threads, batch
        self._visits: dict[CellKey, list[Cell]] = {}
        self.cells: dict[CellKey, Cell] = {}
        """What is known of each; the one that waits longest for its next visit first."""
        self._closed: set[CellKey] = set()
        for cell in cells:
            self.add(cell)

    def add(self, cell: Cell) -> Cell:
        """One more visit; the cell with all of them."""
        key = cell.threads, cell.batch
        visits = self._visits.setdefault(key, [])
        visits.append(cell)
        self.cells.pop(key, None)
        self.cells[key] = merged(visits)
        return self.cells[key]

    def close(self, key: CellKey) -> None:
        """It cannot be visited again."""
        self._closed.add(key)

    def next(self, most: int = VISITS) -> CellKey | None:
        """The next cell to visit, none more than ``most`` times; None when nothing is gained."""
        free = {key for key, cell in self.cells.items() if cell.visits < most} - self._closed
        wanted = self._falling() & free
        if free:
            floors = {key: floor(self.cells[key]) for key in free}
            for contest in self._contests(floors):
                wanted |= contest.cells & free
        order = {key: i for i, key in enumerate(self.cells)}
        return min(wanted, key=lambda key: (self.cells[key].visits, order[key]), default=None)

    def undecided(self) -> tuple[Undecided, ...]:
        """Choices that may as well have been others, one for a batch size."""
        if not self.cells:
            return ()
        floors = {
            key: cell.low_ms if cell.visits == 1 else floor(cell)
            for key, cell in self.cells.items()
        }
        return tuple(map(self._told, self._contests(floors)))

    def _told(self, contest: _Contest) -> Undecided:
        chosen, rival = contest.chosen, contest.rival
        expected = self._table({key: cell.ms for key, cell in self.cells.items()})
        apart = max(1.0, _latency(expected, rival.configuration) / chosen.latency_ms)
        # So much the slow end of the one and the quick end of the other are further apart.
        noise = apart * contest.sure_ms / rival.latency_ms
        return Undecided(
            contest.batch,
            format_configuration(chosen.configuration),
            format_configuration(rival.configuration),
            round(apart - 1, 4),
            round(noise - 1, 4),
        )

    def _contests(self, floors: Mapping[CellKey, float]) -> list[_Contest]:
        """The open ones, if the cells in ``floors`` are as quick as that."""
        expected = self._table({key: cell.ms for key, cell in self.cells.items()})
        highs = {key: cell.high_ms for key, cell in self.cells.items()}
        slow = self._table(highs)
        found = (
            self._contest(size, expected, slow, highs, floors) for size in batch_sizes(self._batch)
        )
        return [contest for contest in found if contest is not None]

    def _contest(
        self,
        size: int,
        expected: LatencyTable,
        slow: LatencyTable,
        highs: Mapping[CellKey, float],
        floors: Mapping[CellKey, float],
    ) -> _Contest | None:
        try:
            chosen = minimise_latency(expected, (self._threads,), size)
            own = self._rests_on(chosen.configuration)
            hoped = {
                key: highs[key] if key in own else floors.get(key, highs[key]) for key in highs
            }
            rows = LatencyTable(measured_rows(hoped, self._threads, self._batch))
            rival = minimise_latency(rows, (self._threads,), size)
        except NoConfiguration:
            return None
        sure = _latency(slow, chosen.configuration)
        if rival.latency_ms >= sure * (1 - SETTLED):
            return None
        cells = own | self._rests_on(rival.configuration)
        return _Contest(size, chosen, rival, sure, frozenset(cells))

    def _table(self, ms: Mapping[CellKey, float]) -> LatencyTable:
        return LatencyTable(cautious(ms, self._threads, self._batch))

    def _rests_on(self, configuration: Configuration) -> set[CellKey]:
        """Measured cells that the latencies of its groups are made of."""
        found = set()
        for group in configuration:
            sizes = [b for t, b in self.cells if t == group.threads]
            below = [b for b in sizes if b <= group.batch]
            above = [b for b in sizes if b >= group.batch]
            found |= {(group.threads, pick(of)) for pick, of in ((max, below), (min, above)) if of}
        return found

    def _falling(self) -> set[CellKey]:
        """Neighbours of which the larger batch is quicker, unless that was seen well enough."""
        found = set()
        keys = sorted(self.cells)
        for small, large in pairwise(keys):
            one, other = self.cells[small], self.cells[large]
            if small[0] == large[0] and one.ms > other.ms * (1 + AGREE):
                found |= {key for key in (small, large) if not _agreed(self.cells[key])}
        return found


def merged(visits: Sequence[Cell]) -> Cell:
    """One cell of all its visits: of the two quickest, or the quickest where they disagree."""
    if len(visits) == 1:
        return visits[0]
    first, second, *others = sorted(visits, key=lambda cell: cell.ms)
    ms, runs = first.ms, first.runs + second.runs
    if second.ms <= first.ms * (1 + AGREE):
        ms = (first.ms * first.runs + second.ms * second.runs) / runs
    return Cell(
        threads=first.threads,
        batch=first.batch,
        ms=round(ms, 4),
        low_ms=round(min(first.low_ms, second.low_ms), 4),
        high_ms=round(max(first.high_ms, second.high_ms), 4),
        runs=runs,
        outliers=first.outliers + second.outliers + sum(c.runs + c.outliers for c in others),
        peak_bytes=max(cell.peak_bytes for cell in visits),
        visits=sum(cell.visits for cell in visits),
    )


def floor(cell: Cell) -> float:
    """The quickest that a cell may really be, in ms."""
    if cell.visits == 1:
        return cell.ms * (1 - DISTURBED)
    return min(cell.low_ms, cell.ms**2 / cell.high_ms)


def _agreed(cell: Cell) -> bool:
    return cell.visits > 1 and cell.high_ms <= cell.ms * (1 + AGREE)


def _latency(table: LatencyTable, configuration: Configuration) -> float:
    return max(table.of(group.threads, group.batch) for group in configuration)
