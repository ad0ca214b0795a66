"""What may come to a device while its layout stays: as now, as before, and more of it. Pure.

The load of this moment alone is a bad reason for a layout: a change takes seconds, and the models
change as well. So what was seen in the last minutes counts too, and that a device may get a batch
more of each model, because its neighbours are changed or the load grows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TypeAlias

Needs: TypeAlias = tuple[tuple[str, bool, int], ...]
"""Of each model on a device in an interval: its name, whether it is strict, its batches."""


@dataclass(frozen=True)
class History:
    """How often devices of one kind were seen to need what, the past ever less."""

    half_life: float = 600.0
    """Intervals after which what was seen counts half."""
    every: int = 20
    """Intervals after which ``known`` takes up what was seen, so that it can be reckoned with."""
    known: Mapping[Needs, float] = field(default_factory=dict)
    """Shares; they add up to 1, or there are none yet."""
    seen: Mapping[Needs, float] = field(default_factory=dict)
    intervals: int = 0

    @classmethod
    def of(cls, possible: Iterable[Needs], intervals: float = 60.0) -> History:
        """That of a device which has seen each of these as often as any other, for so long."""
        each = list(possible)
        weight = intervals / max(1, len(each))
        return cls(
            known=dict.fromkeys(each, 1 / max(1, len(each))), seen=dict.fromkeys(each, weight)
        )

    def after(self, needs: Iterable[Needs]) -> History:
        """With one more interval of all devices."""
        old = 0.5 ** (1 / self.half_life)
        seen = {each: weight * old for each, weight in self.seen.items() if weight > 1e-3}
        for each, count in Counter(needs).items():
            seen[each] = seen.get(each, 0.0) + count
        intervals = self.intervals + 1
        known = self.known
        if intervals % self.every == 0:
            total = sum(seen.values())
            known = {each: weight / total for each, weight in seen.items()} if total else {}
        return replace(self, known=known, seen=seen, intervals=intervals)


@dataclass(frozen=True)
class Likely:
    """How much each counts."""

    now: float = 0.5
    before: float = 0.5
    more: float = 0.15
    """Of each of both, that it comes with a batch more of one model or of all."""


@lru_cache(maxsize=4096)
def more_of(needs: Needs) -> tuple[Needs, ...]:
    """A batch more of each model in turn, then of all.

    >>> more_of((("a", True, 2), ("b", False, 0)))[0]
    (('a', True, 3), ('b', False, 0))
    """
    every = set(range(len(needs)))
    grown = dict.fromkeys(_grown(needs, which) for which in (*({at} for at in every), every))
    return tuple(grown)


def _grown(needs: Needs, which: set[int]) -> Needs:
    return tuple(
        (model, is_strict, count + (at in which))
        for at, (model, is_strict, count) in enumerate(needs)
    )


def expected(
    recent: Sequence[Needs], known: Mapping[Needs, float], likely: Likely
) -> dict[Needs, float]:
    """How likely each is to be needed; weights, which need not add up to 1."""
    found: dict[Needs, float] = {}

    def add(needs: Needs, weight: float) -> None:
        found[needs] = found.get(needs, 0.0) + weight
        surges = more_of(needs)
        for each in surges:
            found[each] = found.get(each, 0.0) + weight * likely.more / len(surges)

    for needs, count in Counter(recent).items():
        add(needs, likely.now * count / len(recent))
    for needs, share in known.items():
        add(needs, likely.before * share)
    return found
