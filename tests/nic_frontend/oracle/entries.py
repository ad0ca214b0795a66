"""Entries of a tensor queue: which is free, which wait, and which run together. Pure.

A batch is any set of entries of one class, the most urgent first: where they lie does not matter.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

ANY_ROWS = 1 << 32


class EntryRing:
    """Free entries of a ring, given out one behind the other."""

    def __init__(self, entries: int) -> None:
        """All are free."""
        self.entries = entries
        self.free = entries
        self._used = bytearray(entries)
        self._next = 0

    def peek(self) -> int | None:
        """The entry that :meth:`take` would give."""
        if self.free == 0:
            return None
        at = self._next
        while self._used[at]:
            at = (at + 1) % self.entries
        return at

    def take(self) -> int | None:
        """The next free entry in ring order, None when there is none."""
        at = self.peek()
        if at is not None:
            self._used[at] = 1
            self.free -= 1
            self._next = (at + 1) % self.entries
        return at

    def give_back(self, entry: int) -> None:
        """The entry is free again."""
        assert self._used[entry], entry
        self._used[entry] = 0
        self.free += 1


@dataclass(frozen=True)
class Waiting:
    """An entry that can run."""

    entry: int
    arrival_ns: int
    deadline_ns: int
    """0: none."""
    alone: bool = False
    """It may be what a worker died of."""
    number: int = 0
    """Among arrivals."""
    rows: int = 1


class WaitingEntries:
    """Entries of one class that can run, in the order in which they became complete."""

    def __init__(self) -> None:
        """None waits."""
        self._waiting: deque[Waiting] = deque()

    def __len__(self) -> int:
        """How many wait."""
        return len(self._waiting)

    def __iter__(self) -> Iterator[Waiting]:
        """In order."""
        return iter(self._waiting)

    @property
    def rows(self) -> int:
        """Of all that wait."""
        return sum(each.rows for each in self._waiting)

    def add(self, waiting: Waiting) -> None:
        """In the order of arrivals; but what has been tried once is the first in the row."""
        if waiting.alone:
            self._waiting.appendleft(waiting)
            return
        at = len(self._waiting)
        while at and not (it := self._waiting[at - 1]).alone and it.number > waiting.number:
            at -= 1
        self._waiting.insert(at, waiting)

    def remove(self, entry: int) -> bool:
        """It does not wait any more; whether it did."""
        kept = [each for each in self._waiting if each.entry != entry]
        removed = len(kept) < len(self._waiting)
        self._waiting = deque(kept)
        return removed

    @property
    def oldest_ns(self) -> int | None:
        """Arrival of the first in the row."""
        return self._waiting[0].arrival_ns if self._waiting else None

    def tightest_ns(self) -> int | None:
        """The earliest deadline of all that wait."""
        return min((each.deadline_ns for each in self._waiting if each.deadline_ns), default=None)

    def earliest(self) -> Waiting | None:
        """The one with the earliest deadline."""
        return min((each for each in self._waiting if each.deadline_ns), key=_urgency, default=None)

    def give_up(self, count: int) -> list[int]:
        """The most urgent entries; they wait no more."""
        urgent = []
        for _ in range(min(count, len(self._waiting))):
            urgent.append(self._most_urgent(ANY_ROWS))
            self._waiting.remove(urgent[-1])
        return [each.entry for each in urgent]

    def empty(self) -> list[int]:
        """All entries, in order; none waits any more."""
        entries = [each.entry for each in self._waiting]
        self._waiting.clear()
        return entries

    @property
    def alone(self) -> bool:
        """Whether the next one runs alone."""
        return bool(self._waiting) and self._waiting[0].alone

    def deadlines(self, none: int) -> list[tuple[int, int]]:
        """Of all, ascending, with their rows; ``none`` of those that have none."""
        ordered = sorted(self._waiting, key=lambda each: (each.deadline_ns or none, each.number))
        return [(each.deadline_ns or none, each.rows) for each in ordered]

    @property
    def first_rows(self) -> int:
        """Of the first in the row."""
        return self._waiting[0].rows

    def fit(self, limit: int) -> int:
        """How many have no more rows than that."""
        return sum(each.rows <= limit for each in self._waiting)

    def take(self, most: int, limit: int = ANY_ROWS, *, shared: bool = False) -> list[int]:
        """The most urgent entries, of at most so many rows, or one that has more, or one that runs
        alone; they wait no more.

        What has been tried once, then the earliest deadline, then the oldest. ``shared``: others
        are in the batch; none that runs alone, and none that has more rows. Only of those that have
        at most ``limit``.
        """
        batch: list[int] = []
        while most > 0 and (urgent := self._most_urgent(limit)):
            if (urgent.alone or urgent.rows > most) and (shared or batch):
                break
            self._waiting.remove(urgent)
            batch.append(urgent.entry)
            most -= urgent.rows
            if urgent.alone:
                break
        return batch

    def _most_urgent(self, limit: int) -> Waiting | None:
        fitting = [each for each in self._waiting if each.rows <= limit]
        if not fitting:
            return None
        oldest = fitting[0]
        with_deadline = [each for each in fitting if each.deadline_ns]
        if oldest.alone or not with_deadline:
            return oldest
        return min(with_deadline, key=_urgency)


def _urgency(waiting: Waiting) -> tuple[int, int]:
    return waiting.deadline_ns, waiting.number
