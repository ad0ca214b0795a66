"""How good a layout of slices is expected to be, as one number. Pure.

PROTEAN's algorithm 2 looks at two layouts: best effort has to fit into the smallest slices that
hold it, and strict work gets what is left. Here every layout that there is may be scored, by what
strict work and best effort are expected to get on it and by what the change to it costs. With the
weights :data:`PAPER` the order of the two is the paper's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from shunter.allocator.placement.distribution import Batch, SliceState, distribute
from shunter.allocator.placement.slowdown import SlowdownModel


@dataclass(frozen=True)
class Outlook:
    """What is expected of a layout."""

    missed: float = 0.0
    """Share of the strict requests that are too late."""
    unserved: float = 0.0
    """Share of the best effort for which there is no room."""
    eta: float = 1.0
    """Slowdown of strict work against a whole device that it has for itself."""
    moved: float = 0.0
    """Share of what runs that has to start anew."""


@dataclass(frozen=True)
class Weights:
    """What each part of an outlook costs."""

    missed: float = 10.0
    """A strict request that is too late costs as much as ten times its share of best effort."""
    unserved: float = 1.0
    eta: float = 0.05
    """Being faster than the SLO asks for is worth little, but not nothing."""
    moved: float = 0.02
    """That it is not worth a little is what the wait before a change is for."""

    def cost(self, outlook: Outlook) -> float:
        """The lower, the better."""
        return (
            self.missed * outlook.missed
            + self.unserved * outlook.unserved
            + self.eta * (outlook.eta - 1)
            + self.moved * outlook.moved
        )


PAPER = Weights(missed=0.0, unserved=1e6, eta=1.0, moved=0.0)
"""Best effort has to fit; then strict work gets as much as it can, whatever the change costs."""


def best(outlooks: Iterable[tuple[object, Outlook]], weights: Weights) -> int:
    """Index of the layout that costs least; the first of equals."""
    costs = [weights.cost(outlook) for _, outlook in outlooks]
    return min(range(len(costs)), key=costs.__getitem__)


def of_gpu(
    kinds: Sequence[str],
    memory: Mapping[str, int],
    strict: str,
    best_effort: Sequence[Batch],
    known: SlowdownModel,
    current: Sequence[str] = (),
) -> Outlook:
    """A GPU with slices of these kinds, for one strict batch at a time beside best effort.

    Unserved is what does not fit beside the slice on which strict work is fastest.
    """
    slices = [
        SliceState(f"{kind}/{at}", kind, known.bandwidth[kind], memory[kind])
        for at, kind in enumerate(kinds)
    ]
    batches = [Batch(strict, True, 0), *best_effort]
    places = distribute(slices, batches, known)
    mine = next(each for each in slices if each.name == places[0])
    beside = [b.model for b, at in zip(best_effort, places[1:], strict=True) if at == mine.name]
    unserved = sum(
        each.memory_bytes
        for each, at in zip(best_effort, places[1:], strict=True)
        if at is None or at == mine.name
    )
    total = sum(each.memory_bytes for each in best_effort)
    left = list(current)
    for kind in kinds:
        if kind in left:
            left.remove(kind)
    return Outlook(
        unserved=unserved / total if total else 0.0,
        eta=known.eta(strict, mine.kind, beside),
        moved=len(left) / len(current) if current else 0.0,
    )
