"""How much slower a batch gets on a slice that it shares (PROTEAN, equations 1 and 2). Pure.

The slowdown against running alone on a whole device is eta = RDF * max(sum of FBR, 1). RDF, the
resource deficiency factor, is the time alone on this slice over that on a whole device. FBR, the
fractional bandwidth requirement, is the share of the slice's memory bandwidth that a model wants
while it runs; the sum is over the model and all that run beside it.

One resource is all that this knows: shares of compute, of caches, and priorities are not in it. So
each fit says how far it was off what it was fitted to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

import numpy as np

from shunter.allocator.placement.least_squares import solve

NOISE = 0.03
"""A slowdown up to this much above 1 may be none: measurements are no better."""


@dataclass(frozen=True)
class Observation:
    """Batches of several models at the same time on a slice of one kind, and one of them timed."""

    model: str
    """Whose time was taken."""
    beside: tuple[str, ...]
    """What ran with it all the while; a model as often as it was there."""
    slowdown: float
    """Its time over its time alone on such a slice."""

    @property
    def together(self) -> tuple[str, ...]:
        """All that ran."""
        return (self.model, *self.beside)


@dataclass(frozen=True)
class Errors:
    """How far predictions were off, each as a share of what was measured."""

    median: float
    p90: float
    worst: float
    count: int


@dataclass(frozen=True)
class Fit:
    """What observations on slices of one kind say."""

    fbr: Mapping[str, float]
    errors: Errors
    """On what it was fitted to."""
    at_most: Mapping[str, float] = field(default_factory=dict)
    """Of models that never took part in a slowdown: only that their FBR is not above this."""


def contention(fbrs: Iterable[float]) -> float:
    """By how much everything gets slower that runs together: the bandwidth is shared.

    >>> contention([0.2, 0.3]), contention([0.9, 0.6])
    (1.0, 1.5)
    """
    return max(sum(fbrs), 1.0)


def slowdown(rdf: float, fbrs: Iterable[float]) -> float:
    """Equation 2; ``fbrs``: of the model itself and of all beside it.

    >>> slowdown(1.3, [0.5])
    1.3
    """
    return rdf * contention(fbrs)


def deficiency(alone_ms: Mapping[str, float], whole: str) -> dict[str, float]:
    """RDF of each kind of slice, from a model's time alone there and on the ``whole`` device.

    >>> deficiency({"7g": 50, "3g": 65, "1g": 200}, "7g")
    {'7g': 1.0, '3g': 1.3, '1g': 4.0}
    """
    return {kind: time / alone_ms[whole] for kind, time in alone_ms.items()}


def scaled(fbr: float, rdf: float, bandwidth: float) -> float:
    """FBR on a slice with this share of the bandwidth, from that on a whole device.

    The model asks for less there, as it gets on more slowly. To measure is better.

    >>> scaled(0.2, 2.0, 0.25)
    0.4
    """
    return fbr / rdf / bandwidth


def of_copies(copies: int, measured: float) -> float | None:
    """FBR of a model of which so many copies ran at once; None: they were too few to tell.

    >>> of_copies(4, 1.6), of_copies(2, 1.0)
    (0.4, None)
    """
    return measured / copies if measured > 1 + NOISE else None


def fit(observations: Sequence[Observation], noise: float = NOISE) -> Fit:
    """The FBRs that explain slowdowns best: least squares of the relative errors.

    Where nothing was slowed down the sum is only known not to be above 1.
    """
    models = sorted({model for each in observations for model in each.together})
    index = {model: at for at, model in enumerate(models)}
    slowed: list[np.ndarray] = []
    unslowed: list[np.ndarray] = []
    for each in observations:
        row = np.zeros(len(models))
        for model in each.together:
            row[index[model]] += 1 / max(each.slowdown, 1.0)
        (slowed if each.slowdown > 1 + noise else unslowed).append(row)
    # Rows were divided by what was measured: so errors are relative, and the sums are to be 1.
    x = solve(*_stacked(slowed, len(models)), *_stacked(unslowed, len(models)))
    fbr = {model: float(x[at]) for model, at in index.items()}
    seen = {model for each in observations if each.slowdown > 1 + noise for model in each.together}
    bounds = {
        model: _bound(model, observations, fbr, noise) for model in models if model not in seen
    }
    return Fit(fbr, errors(observations, lambda each: predicted(fbr, each)), bounds)


def _stacked(rows: Sequence[np.ndarray], width: int) -> tuple[np.ndarray, np.ndarray]:
    return np.array(rows).reshape(len(rows), width), np.ones(len(rows))


def _bound(
    model: str, observations: Iterable[Observation], fbr: Mapping[str, float], noise: float
) -> float:
    """What is left for a model beside the others in what did not slow it down."""
    left = [
        max(0.0, 1 - sum(fbr[other] for other in each.together if other != model))
        / each.together.count(model)
        for each in observations
        if model in each.together and each.slowdown <= 1 + noise
    ]
    return min(left, default=1.0)


def predicted(fbr: Mapping[str, float], each: Observation) -> float:
    """The slowdown that FBRs lead to expect."""
    return contention(fbr[model] for model in each.together)


def no_model(_each: Observation) -> float:
    """What one expects who knows nothing: no slowdown."""
    return 1.0


def errors(observations: Sequence[Observation], predict: Callable[[Observation], float]) -> Errors:
    """How far a prediction is off; of observations that no fit has seen it says most."""
    off = sorted(abs(predict(each) - each.slowdown) / each.slowdown for each in observations)
    if not off:
        return Errors(0.0, 0.0, 0.0, 0)
    p90 = off[min(len(off) - 1, int(0.9 * len(off)))]
    return Errors(median(off), p90, off[-1], len(off))


@dataclass(frozen=True)
class SlowdownModel:
    """What is known of models on all kinds of slices of a device."""

    whole: str
    """The kind of a whole device."""
    alone_ms: Mapping[str, Mapping[str, float]]
    """By model and kind of slice."""
    fbr: Mapping[str, Mapping[str, float]]
    """By model and kind of slice; of the whole device at least."""
    bandwidth: Mapping[str, float]
    """Share of the device's memory bandwidth, by kind of slice."""

    def rdf(self, model: str, kind: str) -> float:
        """Resource deficiency factor. Raises KeyError for what was never measured."""
        times = self.alone_ms[model]
        return times[kind] / times[self.whole]

    def fbr_on(self, model: str, kind: str) -> float:
        """As measured on such a slice, else scaled from a whole device."""
        known = self.fbr[model]
        if kind in known:
            return known[kind]
        return scaled(known[self.whole], self.rdf(model, kind), self.bandwidth[kind])

    def eta(self, model: str, kind: str, beside: Iterable[str] = ()) -> float:
        """The slowdown of a model on a slice where others run."""
        here = (model, *beside)
        return slowdown(self.rdf(model, kind), [self.fbr_on(each, kind) for each in here])

    def time_ms(self, model: str, kind: str, beside: Iterable[str] = ()) -> float:
        """Of a batch there."""
        return self.alone_ms[model][self.whole] * self.eta(model, kind, beside)
