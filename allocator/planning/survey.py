"""What to measure, one visit after the other: what the plan wants, then what is not settled.

What is settled may change what the plan would have asked for, so it is asked again, until neither
wants more. Second visits are always made; later ones while all repeating together took no longer
than the rest, so that a host that is never quiet does not keep a profile for ever.
"""

from __future__ import annotations

from collections.abc import Iterable

from shunter.allocator.planning.measurement import VISITS
from shunter.allocator.planning.profile import Cell, Undecided
from shunter.allocator.planning.profile_plan import CellKey, ProfilePlan
from shunter.allocator.planning.settling import Settling

REPEATING = 1.0
"""Time of repeating, as a share of that of first visits, after which nobody is visited thrice."""
SECOND = 2


class Survey:
    """Says which cell to visit next; tell it each result."""

    def __init__(
        self,
        threads: int,
        batch: int,
        cells: Iterable[Cell] = (),
        *,
        seconds: float = 0.0,
        exhaustive: bool = False,
        visits: int = VISITS,
    ) -> None:
        """``cells`` of an earlier run, which took ``seconds``; ``visits``: most of one cell."""
        self._threads, self._batch, self._exhaustive = threads, batch, exhaustive
        self._visits = visits
        self._settling = Settling(threads, batch, cells)
        self._impossible: set[CellKey] = set()
        self._first_s, self._again_s = seconds, 0.0
        self._plan = self._asked_anew()
        self._changed = False

    @property
    def gap(self) -> float:
        """How much faster an unmeasured configuration might be, as a share."""
        return self._plan.gap

    def has(self, key: CellKey) -> bool:
        """Whether the cell has been visited."""
        return key in self._settling.cells

    def next(self) -> CellKey | None:
        """The next cell to visit, perhaps again; None when nothing is gained by it."""
        if (key := self._plan.next()) is not None:
            return key
        long = self._again_s > REPEATING * self._first_s
        key = self._settling.next(min(SECOND, self._visits) if long else self._visits)
        if key is None and self._changed:
            self._plan, self._changed = self._asked_anew(), False
            return self._plan.next()
        return key

    def add(self, cell: Cell, seconds: float) -> Cell:
        """One visit, which took so long; returns what is known of the cell now."""
        key = cell.threads, cell.batch
        if self.has(key):
            self._again_s += seconds
            before = self._settling.cells[key].ms
            known = self._settling.add(cell)
            self._changed |= known.ms != before
            return known
        self._first_s += seconds
        self._plan.add(*key, cell.ms)
        return self._settling.add(cell)

    def fail(self, key: CellKey) -> None:
        """The cell cannot be measured, or not again."""
        if self.has(key):
            self._settling.close(key)
        else:
            self._impossible.add(key)
            self._plan.add_impossible(*key)

    def ahead(self) -> list[CellKey]:
        """First visits that would follow if all estimates were right."""
        return self._plan.remaining()

    def estimate(self, key: CellKey) -> float:
        """Expected latency of a cell, in ms."""
        return self._plan.estimate(key)

    def undecided(self) -> tuple[Undecided, ...]:
        """What visits did not settle."""
        return self._settling.undecided()

    def _asked_anew(self) -> ProfilePlan:
        plan = ProfilePlan(self._threads, self._batch, exhaustive=self._exhaustive)
        for key in self._impossible:
            plan.add_impossible(*key)
        for (threads, batch), cell in sorted(self._settling.cells.items()):
            plan.add(threads, batch, cell.ms)
        return plan
