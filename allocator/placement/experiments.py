"""Which models to run together next, to learn what bandwidth each wants. Pure.

Copies of one model first, ever more until they slow each other down; then pairs, with as many of
each as are expected to. What nobody can slow down on this slice stays bounded from above only.
Everybody who runs is timed, so that one experiment gives an observation of each model in it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations

from shunter.allocator.placement.slowdown import Fit, Observation, fit

CLEAR = 1.1
"""A slowdown that is no doubt one."""
AIM = 1.25
"""What a pair is expected to be slowed down by, so that it tells something."""


def next_experiment(
    models: Sequence[str], observations: Sequence[Observation], most: int
) -> tuple[str, ...] | None:
    """Instances to run together next, at most so many; None when all is known that can be."""
    if most < 2:
        return None
    done = {_key(each.together) for each in observations}
    for model in models:
        copies = _next_copies(model, observations, most)
        if copies is not None and _key((model,) * copies) not in done:
            return (model,) * copies
    known = fit(observations)
    for pair in combinations(models, 2):
        together = _pair(pair, known, most)
        # With other counts than these, once it was measured nothing new is to be learnt.
        if not any(set(each.together) == set(pair) for each in observations):
            return together
    return None


def triples(
    models: Sequence[str], known: Mapping[str, float], most: int
) -> Iterator[tuple[str, ...]]:
    """Combinations that no fit saw, to say how good it is: those first that want most."""
    if most >= 3:
        wanted = combinations(models, 3)
        yield from sorted(wanted, key=lambda each: -sum(known[model] for model in each))


def _next_copies(model: str, observations: Sequence[Observation], most: int) -> int | None:
    """How many copies are tried next; None when they have slowed each other down, or cannot."""
    alone = {
        len(each.together): each.slowdown for each in observations if set(each.together) == {model}
    }
    if any(value > CLEAR for value in alone.values()):
        return None
    tried = max(alone, default=1)
    if tried >= most:
        return None
    # A quarter more each time, at least one: the first clear slowdown is the most exact one.
    return min(most, max(tried + 1, round(tried * 1.25)))


def _pair(pair: tuple[str, str], known: Fit, most: int) -> tuple[str, ...]:
    """The fewest instances of both that are expected to be slowed down; else one of each."""
    one, other = (known.fbr.get(model, 0.0) for model in pair)
    counts = [(i, n - i) for n in range(2, most + 1) for i in range(1, n)]
    enough = [(i, j) for i, j in counts if i * one + j * other >= AIM]
    # As even as can be: who is there once among many is hardly seen.
    i, j = min(enough, key=lambda each: (sum(each), abs(each[0] - each[1])), default=(1, 1))
    return (pair[0],) * i + (pair[1],) * j


def _key(together: Sequence[str]) -> tuple[tuple[str, int], ...]:
    return tuple(sorted(Counter(together).items()))
