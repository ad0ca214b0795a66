"""What is expected of a device with a layout of slices, by where batches would run there. Pure.

Every layout is tried in thought: the batches that are expected are placed on its slices by the rule
that will place them (``distribution``), and the slowdowns that follow are the outlook, which
:mod:`scoring` compares. What a change takes is in the comparison, so that a layout has to be better
by more than the change costs. A layout is a number of slices of named kinds.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from shunter.allocator.placement.distribution import Batch, SliceState, distribute
from shunter.allocator.placement.scoring import Outlook, Weights
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
class Limit:
    """From which slowdown on a strict batch is late."""

    slowdown: float = 3.0
    spread: float = 0.1
    """Predictions are that far off, as a share: nearer to the limit than this is a risk."""

    def risk(self, eta: float) -> float:
        """How likely a batch is late that is expected to be slowed down so.

        >>> [Limit(3.0, 0.1).risk(eta) for eta in (2.0, 3.0, 4.0)]
        [0.0, 0.5, 1.0]
        """
        if self.spread <= 0:
            return float(eta > self.slowdown)
        return min(1.0, max(0.0, 0.5 + (eta / self.slowdown - 1) / (2 * self.spread)))


def weights(limit: Limit, change_s: float, horizon_s: float) -> Weights:
    """Of batches on the slices of a device.

    A slowdown that reaches the limit without being late costs a twentieth of being late. Slices
    that a change takes away for ``change_s`` cost their part of the ``horizon_s`` for which a
    layout is expected to be the right one.
    """
    base = Weights()
    slow = base.missed / 20 / limit.slowdown
    moved = base.missed * change_s / horizon_s
    return replace(base, eta=slow, best_effort_eta=slow, moved=moved)


def maximal(every: Sequence[Layout]) -> tuple[Layout, ...]:
    """Those that no other one has all the slices of, and more."""
    counts = [Counter(each) for each in every]
    return tuple(
        layout
        for layout, mine in zip(every, counts, strict=True)
        if not any(mine < other for other in counts)
    )


def slices_of(layout: Layout, kinds: Mapping[str, Kind]) -> list[SliceState]:
    """The slices of a layout, with nothing on them."""
    return [
        SliceState(f"{at}:{kind}", kind, kinds[kind].compute, kinds[kind].memory_bytes)
        for at, kind in enumerate(layout)
    ]


def predict(
    layout: Layout,
    batches: Sequence[Batch],
    kinds: Mapping[str, Kind],
    known: SlowdownModel,
    limit: Limit,
) -> Outlook:
    """Of these batches at the same time: placed as they will be, and slowed down by each other.

    One for which there is no memory has to wait, and is late if it is strict.
    """
    strict, best_effort = _slowdowns(layout, batches, kinds, known)
    largest = max((kinds[kind].memory_bytes for kind in layout), default=0)
    starved = sum(batch.memory_bytes > largest for batch in batches)
    return Outlook(
        missed=_mean([limit.risk(each) for each in strict]),
        unserved=_mean([float(math.isinf(each)) for each in best_effort]),
        starved=starved / max(1, len(batches)),
        eta=_mean([each for each in strict if math.isfinite(each)]),
        best_effort_eta=_mean([each for each in best_effort if math.isfinite(each)]),
    )


def _slowdowns(
    layout: Layout, batches: Sequence[Batch], kinds: Mapping[str, Kind], known: SlowdownModel
) -> tuple[list[float], list[float]]:
    """Of strict batches and of best effort; infinite for one that has to wait for memory."""
    slices = slices_of(layout, kinds)
    placed = distribute(slices, batches, known)
    kind_of = {each.name: each.kind for each in slices}
    here: dict[str, list[str]] = {}
    for batch, name in zip(batches, placed, strict=True):
        if name is not None:
            here.setdefault(name, []).append(batch.model)
    strict: list[float] = []
    best_effort: list[float] = []
    for batch, name in zip(batches, placed, strict=True):
        eta = math.inf
        if name is not None:
            kind = kind_of[name]
            wanted = [known.fbr_on(model, kind) for model in here[name]]
            eta = slowdown(known.rdf(batch.model, kind), wanted)
        (strict if batch.is_strict else best_effort).append(eta)
    return strict, best_effort


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def moved(current: Layout, wanted: Layout, kinds: Mapping[str, Kind]) -> float:
    """Share of the device's compute that a change takes away: unchanged slices keep running."""
    gone = Counter(current) - Counter(wanted)
    return sum(kinds[kind].compute * count for kind, count in gone.items())
