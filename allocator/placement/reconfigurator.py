"""Which layout a GPU should have for the best effort that is to come (PROTEAN, algorithm 2). Pure.

Best effort gets the small slices that its memory needs, strict work the rest. Too little or too
much of it is best served by (4g, 3g). That is the score of all layouts in a special case: these two
alone, of best effort nothing but its memory, and a change that costs nothing.

A GPU is changed when it did not have the layout that it should have several times in a row,
whichever that was, as in the paper's listing; and never more than a part of all GPUs at once: each
is away for a while.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from shunter.allocator.placement.scoring import Outlook, Weights, choose
from shunter.allocator.placement.slowdown import SlowdownModel

Kinds: TypeAlias = tuple[str, ...]
"""Kinds of the slices of a GPU; their order says nothing."""

SMALL: tuple[Kinds, ...] = (("1g", "2g"), ("3g",))
"""Sets of slices for best effort, the smallest first; each lies beside a 4g."""
LARGE = "4g"
FALLBACK: Kinds = ("4g", "3g")
WAIT_LIMIT = 3
MOST_BACKOFF = 3
"""After n changes that came soon the next is waited for 2**n times as long, at most for this n."""
CALM = 4
"""Times the wait: after that a change does not come soon any more."""
MOST_AT_ONCE = 0.3
"""Share of the GPUs that may be changed at the same time."""
PAPER = Weights(missed=1.0, unserved=1e6, starved=0.0, eta=0.0, moved=0.0)
"""What counts for algorithm 2: that best effort fits, then that there is neither too little nor too
much of it. Of layouts that are alike in that it takes the one with the smaller slices."""


@dataclass(frozen=True)
class Ewma:
    """The best-effort batches to expect: an exponentially weighted moving average."""

    alpha: float = 0.5
    """Weight of the newest number."""
    value: float | None = None

    def after(self, count: float) -> Ewma:
        """With one more interval's number."""
        old = count if self.value is None else self.value
        return replace(self, value=self.alpha * count + (1 - self.alpha) * old)


@dataclass(frozen=True)
class Thresholds:
    """Between which numbers of best-effort batches a set of small slices is worth its while."""

    low: float = 0.0
    high: float = math.inf


@dataclass(frozen=True)
class Waiting:
    """How often in a row a GPU had another layout than it should have."""

    count: int = 0
    wanted: object = None
    """What it should have had each time; None where any other layout counts."""


@dataclass(frozen=True)
class Backoff:
    """How many changes in a row came soon after the one before: the next is waited for longer.

    Then the load comes and goes, or is about where several layouts are as good.
    """

    count: int = 0
    stayed: int = 0
    """Looks since the last change."""

    def limit(self, wait: int) -> int:
        """How often in a row another layout has to have been wanted before."""
        return wait * 2**self.count

    def looked(self) -> Backoff:
        """One look later."""
        return replace(self, stayed=self.stayed + 1)

    def changed(self, wait: int) -> Backoff:
        """After a change; one layout that stayed for long is forgiven one that did not."""
        soon = self.stayed < CALM * (self.limit(wait) + 1)
        return Backoff(min(MOST_BACKOFF, max(0, self.count + (1 if soon else -1))))


@dataclass(frozen=True)
class Decision:
    """What should be done with one GPU."""

    wanted: Kinds
    change: bool
    waiting: Waiting


def outlook(
    small: Kinds,
    expected: float,
    batch_bytes: int,
    memory: Mapping[str, int],
    known: Mapping[Kinds, Thresholds],
) -> Outlook:
    """Of so many best-effort batches of so much memory each on these slices beside a 4g.

    Outside of its thresholds strict work is expected to be too slow on a layout, but the last
    resort has none. ``memory``: of each kind of slice; ``known``: thresholds by set.
    """
    needed = expected * batch_bytes
    over = max(0.0, needed - sum(memory[kind] for kind in small))
    bounds = known.get(small, Thresholds()) if (LARGE, *small) != FALLBACK else Thresholds()
    fits = bounds.low <= expected <= bounds.high
    return Outlook(missed=float(not fits), unserved=over / needed if over else 0.0)


def wanted_layout(
    expected: float, batch_bytes: int, memory: Mapping[str, int], known: Mapping[Kinds, Thresholds]
) -> Kinds:
    """The layout for such best effort, as :func:`outlook` has it."""
    return choose(
        ((LARGE, *small), PAPER.cost(outlook(small, expected, batch_bytes, memory, known)))
        for small in SMALL
    )


def decide(current: Sequence[str], wanted: Kinds, waiting: Waiting) -> Decision:
    """Change when it was wanted often enough: a change costs, and the load may be back tomorrow."""
    if Counter(current) == Counter(wanted):
        return Decision(wanted, change=False, waiting=Waiting())
    after, change = is_time(waiting)
    return Decision(wanted, change, after)


def is_time(
    waiting: Waiting, limit: int = WAIT_LIMIT, wanted: object = None
) -> tuple[Waiting, bool]:
    """Another layout is wanted once more: how often now, and whether that is often enough.

    With ``wanted`` only the same one counts; without, as in the paper's listing, any other does.

    >>> is_time(Waiting(3))[1], is_time(Waiting(1))[0].count
    (True, 2)
    >>> is_time(Waiting(3, "a"), wanted="a")[1], is_time(Waiting(3, "a"), wanted="b")
    (True, (Waiting(count=1, wanted='b'), False))
    """
    if waiting.wanted != wanted:
        waiting = Waiting(0, wanted)
    if waiting.count >= limit:
        return Waiting(), True
    return Waiting(waiting.count + 1, wanted), False


def may_begin(gpus: int, changing: int) -> int:
    """How many more of so many GPUs may be changed now; of a few at least one at a time."""
    return max(0, max(1, math.floor(MOST_AT_ONCE * gpus)) - changing)


def thresholds(
    strict: str, best_effort: str, known: SlowdownModel, worst: float, most: int = 64
) -> Thresholds:
    """Of the set (1g, 2g), from what is known of both models; the paper gives no formula.

    low: with less than that the strict model is faster on a 3g that it shares with all of it than
    on a 2g alone, and needs no slices of its own. high: with more the strict model would be slowed
    down by more than ``worst`` on the 2g beside its part, by memory bandwidth, of the best effort.
    """
    alone = known.eta(strict, "2g")
    shared = [known.eta(strict, "3g", [best_effort] * count) for count in range(1, most + 1)]
    low = next((count for count, eta in enumerate(shared, 1) if eta > alone), most + 1)
    part = known.bandwidth["2g"] / (known.bandwidth["1g"] + known.bandwidth["2g"])
    beside = [
        known.eta(strict, "2g", [best_effort] * math.ceil(count * part))
        for count in range(1, most + 1)
    ]
    high = next((count for count, eta in enumerate(beside) if eta > worst), most)
    return Thresholds(float(low), float(high))
