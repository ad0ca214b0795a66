"""Which models have workers on which set of cores, and what differs between two seatings. Pure.

Sets that are equally wide are alike: which of them a model is on is no difference as long as nobody
has to move.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import permutations
from typing import TypeAlias


@dataclass(frozen=True)
class Seat:
    """A set of cores, and the models that have workers there."""

    cores: int
    strict: tuple[str, ...] = ()
    best_effort: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """All of them."""
        return (*self.strict, *self.best_effort)


Seats: TypeAlias = tuple[Seat, ...]
"""Widest set first; names in alphabetical order, so that equal places compare equal."""


def aligned(seats: Seats, current: Seats) -> Seats:
    """The same, but of sets that are equally wide each where most of its models are already.

    >>> aligned((Seat(1, ("a",)), Seat(1, ("b",))), (Seat(1, ("b",)), Seat(1, ("a", "c"))))
    (Seat(cores=1, strict=('b',), best_effort=()), Seat(cores=1, strict=('a',), best_effort=()))
    """
    found: list[Seat] = []
    for cores in dict.fromkeys(seat.cores for seat in seats):
        mine = [seat for seat in seats if seat.cores == cores]
        there = [seat for seat in current if seat.cores == cores]
        # The first of equals; there are few sets.
        found += max(permutations(mine), key=lambda order, there=there: _staying(order, there))
    return tuple(found)


def _staying(seats: Sequence[Seat], current: Sequence[Seat]) -> int:
    pairs = zip(seats, current, strict=False)
    return sum(len({*new.names} & {*old.names}) for new, old in pairs)


def moved(current: Seats, seats: Seats) -> float:
    """Share of the models whose workers have to start anew; 0 where nothing runs yet."""
    before, after = _homes(current), _homes(seats)
    known = before.keys() & after.keys()
    return sum(before[model] != after[model] for model in known) / len(known) if known else 0.0


def _homes(seats: Seats) -> dict[str, set[tuple[int, int]]]:
    """Of each model its sets: how wide, and which of those that are as wide."""
    homes: dict[str, set[tuple[int, int]]] = {}
    met: Counter[int] = Counter()
    for seat in seats:
        for model in seat.names:
            homes.setdefault(model, set()).add((seat.cores, met[seat.cores]))
        met[seat.cores] += 1
    return homes
