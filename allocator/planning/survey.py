"""What to measure, one after the other: the cells that the plan wants, then pairs not yet settled.

What is settled may change what the plan would have asked for, so it is asked again, until neither
wants more. Two rivals are always compared once; again while all comparing together took no longer
than the rest, so that a host that is never quiet does not keep a profile for ever.
"""

from __future__ import annotations

from collections.abc import Iterable

from shunter.allocator.planning.comparison import CellKey
from shunter.allocator.planning.measurement import VISITS, Estimate
from shunter.allocator.planning.profile import Cell, Undecided
from shunter.allocator.planning.profile_plan import ProfilePlan
from shunter.allocator.planning.settling import Settling

REPEATING = 1.0
"""Time of comparing, as a share of that of first visits, after which nobody meets again."""
SECOND = 2

Visit = tuple[CellKey] | tuple[CellKey, CellKey]
"""A cell, or two that run in turns."""


class Survey:
    """Says what to measure next; tell it each result."""

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
        """``cells`` of an earlier run, which took ``seconds``.

        ``visits``: how often two cells are measured at most, the first time included.
        """
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

    @property
    def cells(self) -> dict[CellKey, Cell]:
        """What is known of each cell that was visited."""
        return self._settling.cells

    def next(self) -> Visit | None:
        """What to measure next; None when nothing is gained by it."""
        if (key := self._plan.next()) is not None:
            return (key,)
        long = self._again_s > REPEATING * self._first_s
        pair = self._settling.next(min(SECOND, self._visits) if long else self._visits)
        if pair is None and self._changed:
            self._plan, self._changed = self._asked_anew(), False
            return None if (key := self._plan.next()) is None else (key,)
        return pair

    def add(self, cell: Cell, seconds: float) -> None:
        """The first visit of a cell, which took so long."""
        self._first_s += seconds
        self._plan.add(cell.threads, cell.batch, cell.ms)
        self._settling.add(cell)

    def compare(self, one: Cell, other: Cell, ratio: Estimate, seconds: float) -> None:
        """Two cells in turns; ``ratio`` of the other's latency by that of the one."""
        self._again_s += seconds
        before = {key: cell.ms for key, cell in self.cells.items()}
        self._settling.compare(one, other, ratio)
        self._changed |= any(self.cells[key].ms != ms for key, ms in before.items())

    def fail(self, visit: Visit) -> None:
        """The cell cannot be measured, or the pair not in turns."""
        if len(visit) == 2:
            self._settling.close(visit)
        else:
            self._impossible.add(visit[0])
            self._plan.add_impossible(*visit[0])

    def ahead(self) -> list[CellKey]:
        """First visits that would follow if all estimates were right."""
        return self._plan.remaining()

    def estimate(self, key: CellKey) -> float:
        """Expected latency of a cell, in ms."""
        return self._plan.estimate(key)

    def undecided(self) -> tuple[Undecided, ...]:
        """What comparing did not settle."""
        return self._settling.undecided()

    def _asked_anew(self) -> ProfilePlan:
        plan = ProfilePlan(self._threads, self._batch, exhaustive=self._exhaustive)
        for key in self._impossible:
            plan.add_impossible(*key)
        for (threads, batch), cell in sorted(self.cells.items()):
            plan.add(threads, batch, cell.ms)
        return plan
