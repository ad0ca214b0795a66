"""Which of all legal layouts a device should have, by what is expected to run there. Pure.

Every layout is tried in thought: the batches that are expected are placed on its slices by the rule
that will place them (``distribution``), and the slowdowns that follow are compared. What a change
takes is in the comparison, so that a layout has to be better by more than the change costs. A
layout is a number of slices of named kinds; GPU instances and sets of cores are the same here.

PROTEAN's algorithm 2 is the special case of :func:`least_memory`: two candidates, and of the best
effort nothing but its memory.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from shunter.allocator.placement.distribution import Batch, SliceState, distribute
from shunter.allocator.placement.slowdown import SlowdownModel, slowdown

Layout: TypeAlias = tuple[str, ...]
"""Kinds of the slices of a device; their order says nothing."""


@dataclass(frozen=True)
class Kind:
    """A kind of slice."""

    name: str
    compute: float
    """Its share of the device."""
    memory_bytes: int


@dataclass(frozen=True)
class Demand:
    """Batches that are expected on the device at the same time."""

    batches: tuple[Batch, ...]
    share: float = 1.0
    """How often, of all times; the shares of several demands are weights."""


@dataclass(frozen=True)
class Outcome:
    """What one demand would meet on a layout."""

    strict: tuple[float, ...]
    """Slowdown of each strict batch; infinite where it would have to wait."""
    best_effort: tuple[float, ...]
    starved: int = 0
    """Batches that need more memory than any slice has: they would wait for ever."""

    def late(self, limit: float, spread: float) -> float:
        """Share of strict batches that are expected to be late; 0 when there are none."""
        risks = [risk(each, limit, spread) for each in self.strict]
        return sum(risks) / len(risks) if risks else 0.0


@dataclass(frozen=True)
class Weights:
    """What counts how much; a strict batch that is late counts 1."""

    limit: float = 3.0
    """Slowdown from which on a strict batch is late."""
    spread: float = 0.1
    """Predictions are that far off, as a share: nearer to the limit than this is a risk."""
    strict: float = 0.05
    """Of a strict slowdown that reaches the limit, without being late."""
    best_effort: float = 0.05
    """Of a best-effort slowdown that reaches the limit."""
    waiting: float = 0.1
    """Of best effort that has to wait for memory."""
    starved: float = 10.0
    """Of a share of batches that would wait for ever: more than all the rest together."""
    change_s: float = 2.0
    """How long changed slices are away."""
    horizon_s: float = 20.0
    """How long a layout is expected to be the right one."""


def layouts(kinds: Iterable[Kind], most: float = 1.0) -> tuple[Layout, ...]:
    """All combinations of slices that have no more than ``most`` of the compute together.

    For devices without places, such as cores; those with places have lists of their own.
    """
    ordered = sorted(kinds, key=lambda kind: (kind.compute, kind.name))
    found: list[Layout] = []
    begun: list[tuple[Layout, float, int]] = [((), most, 0)]
    while begun:
        layout, left, first = begun.pop()
        for at in range(first, len(ordered)):
            if ordered[at].compute <= left + 1e-9:
                longer = (*layout, ordered[at].name)
                found.append(longer)
                begun.append((longer, left - ordered[at].compute, at))
    return tuple(sorted(found))


def maximal(every: Sequence[Layout]) -> tuple[Layout, ...]:
    """Those that no other one has all the slices of, and more."""
    counts = [Counter(each) for each in every]
    return tuple(
        layout
        for layout, mine in zip(every, counts, strict=True)
        if not any(mine < other for other in counts)
    )


def risk(eta: float, limit: float, spread: float) -> float:
    """How likely a batch is late that is expected to be slowed down so.

    >>> risk(2.0, 3.0, 0.1), risk(3.0, 3.0, 0.1), risk(4.0, 3.0, 0.1)
    (0.0, 0.5, 1.0)
    """
    if spread <= 0:
        return float(eta > limit)
    return min(1.0, max(0.0, 0.5 + (eta / limit - 1) / (2 * spread)))


def slices_of(layout: Layout, kinds: Mapping[str, Kind]) -> list[SliceState]:
    """The slices of a layout, with nothing on them."""
    return [
        SliceState(f"{at}:{kind}", kind, kinds[kind].compute, kinds[kind].memory_bytes)
        for at, kind in enumerate(layout)
    ]


def predict(
    layout: Layout, demand: Demand, kinds: Mapping[str, Kind], known: SlowdownModel
) -> Outcome:
    """Place the batches as they will be placed, and say by how much each is slowed down."""
    slices = slices_of(layout, kinds)
    placed = distribute(slices, demand.batches, known)
    kind_of = {each.name: each.kind for each in slices}
    here: dict[str, list[str]] = {}
    for batch, name in zip(demand.batches, placed, strict=True):
        if name is not None:
            here.setdefault(name, []).append(batch.model)
    strict, best_effort = [], []
    for batch, name in zip(demand.batches, placed, strict=True):
        eta = math.inf
        if name is not None:
            kind = kind_of[name]
            wanted = [known.fbr_on(model, kind) for model in here[name]]
            eta = slowdown(known.rdf(batch.model, kind), wanted)
        (strict if batch.is_strict else best_effort).append(eta)
    largest = max((kinds[kind].memory_bytes for kind in layout), default=0)
    starved = sum(batch.memory_bytes > largest for batch in demand.batches)
    return Outcome(tuple(strict), tuple(best_effort), starved)


def cost(outcome: Outcome, weights: Weights) -> float:
    """Of one demand on one layout, without the change."""
    late = outcome.late(weights.limit, weights.spread)
    waits = sum(math.isinf(each) for each in outcome.best_effort)
    batches = len(outcome.strict) + len(outcome.best_effort)
    return (
        late
        + weights.starved * outcome.starved / max(1, batches)
        + weights.strict * _mean_share(outcome.strict, weights.limit)
        + weights.best_effort * _mean_share(outcome.best_effort, weights.limit)
        + weights.waiting * waits / max(1, len(outcome.best_effort))
    )


def _mean_share(etas: Sequence[float], limit: float) -> float:
    """Mean slowdown as a share of the limit, of those that need not wait."""
    finite = [each / limit for each in etas if math.isfinite(each)]
    return sum(finite) / len(finite) if finite else 0.0


def away(current: Layout, wanted: Layout, kinds: Mapping[str, Kind]) -> float:
    """Share of the device's compute that a change takes away: unchanged slices keep running."""
    gone = Counter(current) - Counter(wanted)
    return sum(kinds[kind].compute * count for kind, count in gone.items())


def change_cost(
    current: Layout, wanted: Layout, kinds: Mapping[str, Kind], weights: Weights
) -> float:
    """Of the way to a layout, spread over the time for which it is expected to last."""
    return away(current, wanted, kinds) * weights.change_s / weights.horizon_s


def expected_cost(
    layout: Layout,
    demands: Sequence[Demand],
    kinds: Mapping[str, Kind],
    known: SlowdownModel,
    weights: Weights,
) -> float:
    """Mean over the demands."""
    total = sum(each.share for each in demands)
    return sum(
        each.share * cost(predict(layout, each, kinds, known), weights) for each in demands
    ) / (total or 1.0)


def best(
    candidates: Iterable[Layout],
    current: Layout,
    staying: Callable[[Layout], float],
    changing: Callable[[Layout], float] = lambda _: 0.0,
) -> Layout:
    """The cheapest; on a tie the current one, then that with the fewest slices."""
    now = Counter(current)

    def rank(layout: Layout) -> tuple[float, bool, int, Layout]:
        same = Counter(layout) == now
        price = staying(layout) + (0.0 if same else changing(layout))
        return (round(price, 12), not same, len(layout), layout)

    return min(candidates, key=rank)


def least_memory(
    needed_bytes: float, memory: Mapping[str, int], large: str
) -> Callable[[Layout], float]:
    """The cost by which PROTEAN chooses: memory beside the large slice, which best effort must fit.

    Infinite where it does not fit, or where there is no such large slice.
    """

    def of(layout: Layout) -> float:
        if large not in layout:
            return math.inf
        small = sum((Counter(layout) - Counter([large])).values())
        beside = sum(memory[kind] for kind in layout) - memory[large]
        return float(beside) if small and beside >= needed_bytes else math.inf

    return of
