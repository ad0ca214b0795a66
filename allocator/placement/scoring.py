"""What is expected of a layout of slices, what that costs, and when it is changed. Pure.

One score for sets of cores (:mod:`core_split`) and for slices of a GPU (:mod:`geometry_score`):
each predicts an :class:`Outlook` in its own way, :class:`Weights` make a number of it, and
:func:`choose` decides. PROTEAN's algorithm 2 is the special case of two candidates, an outlook that
knows of best effort only its memory, and no cost of the change (:mod:`reconfigurator`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")
ENOUGH = 1e-9
"""Costs that are nearer to each other than this are equal."""


@dataclass(frozen=True, kw_only=True)
class Outlook:
    """What is expected of a layout."""

    missed: float = 0.0
    """Share of strict work that is too late."""
    unserved: float = 0.0
    """Share of best effort for which there is no room."""
    starved: float = 0.0
    """Share of all work that no slice can ever run."""
    eta: float = 0.0
    """Slowdown of strict work that runs, against a whole device for itself; 0: there is none."""
    best_effort_eta: float = 0.0
    """Likewise of best effort, where that is predicted."""
    moved: float = 0.0
    """Share of what runs that has to start anew."""


@dataclass(frozen=True, kw_only=True)
class Weights:
    """What each part of an outlook costs."""

    missed: float = 10.0
    """Strict work that is too late costs as much as ten times its share of best effort."""
    unserved: float = 1.0
    starved: float = 100.0
    """What would wait for ever costs more than all the rest together."""
    eta: float = 0.05
    """Being faster than the SLO asks for is worth little, but not nothing."""
    best_effort_eta: float = 0.0
    moved: float = 0.02
    """That it is not worth a little is what the wait before a change is for."""

    def cost(self, outlook: Outlook) -> float:
        """The lower, the better."""
        return (
            self.missed * outlook.missed
            + self.unserved * outlook.unserved
            + self.starved * outlook.starved
            + self.eta * outlook.eta
            + self.best_effort_eta * outlook.best_effort_eta
            + self.moved * outlook.moved
        )


def choose(
    candidates: Iterable[tuple[T, float]],
    kept: Iterable[tuple[T, float]] = (),
    margin: float = 0.0,
) -> T:
    """The cheapest, the first of equals; each with what it costs.

    One of ``kept`` instead, the later rather than the earlier, where it costs no more than that and
    ``margin``: what is waited for, then what is there. Predictions are never exact, and whoever
    moves has to start anew. Raises ValueError where there is no candidate.
    """
    found: tuple[T, float] | None = None
    for each, cost in candidates:
        if found is None or cost < found[1] - ENOUGH:
            found = each, cost
    if found is None:
        raise ValueError("no layout was given")
    for each, cost in kept:
        if cost <= found[1] + margin + ENOUGH:
            found = each, cost
    return found[0]
