"""Who decides on the layouts of a cluster: the policies of the product, on simulated GPUs."""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import numpy as np

from protean.workloads import Workload, World
from shunter.allocator.placement.autoscaling import KeepAlive
from shunter.allocator.placement.distribution import Batch
from shunter.allocator.placement.forecast import History, Likely, Needs, expected
from shunter.allocator.placement.geometry_score import Layout, Limit, moved, predict, weights
from shunter.allocator.placement.reconfigurator import (
    FALLBACK,
    SMALL,
    Ewma,
    Kinds,
    Thresholds,
    thresholds,
    wanted_layout,
)
from shunter.allocator.placement.scoring import Outlook, choose

LASTS_S, REMAINS_S = 10.0, 60.0
"""For how long the load of this moment, and the mix of all that comes, are reckoned with."""
LIKELY = Likely(LASTS_S / (LASTS_S + REMAINS_S), REMAINS_S / (LASTS_S + REMAINS_S))
SEEN = 8
"""Seconds of which ours looks at the numbers of batches."""


@dataclass(frozen=True)
class Expected:
    """What the paper's rule knows of a GPU."""

    best_effort: Ewma = field(default_factory=Ewma)
    strict: str = ""
    other: str = ""
    """The models."""


class Paper:
    """Algorithm 2: of best effort its number, predicted, and its memory."""

    whole_gpu = True
    """A change takes the whole GPU."""

    def __init__(self, world: World) -> None:
        """Nothing has come yet."""
        self._world = world
        self._memory = {name: kind.memory_bytes for name, kind in world.kinds.items()}
        self._thresholds: dict[tuple[str, str], dict[Kinds, Thresholds]] = {}

    def first(self) -> Expected:
        """What it knows of a GPU at the start."""
        return Expected()

    def saw(self, needs: Iterable[Needs]) -> None:
        """What all GPUs were given: nothing that it looks at."""

    def after(self, state: Expected, needs: Needs) -> Expected:
        """One more second of a GPU."""
        others = [(model, count) for model, is_strict, count in needs if not is_strict]
        strict = next((model for model, is_strict, _ in needs if is_strict), state.strict)
        return Expected(
            state.best_effort.after(sum(count for _, count in others)),
            strict,
            others[0][0] if others else state.other,
        )

    def wanted(self, state: Expected, _current: Layout) -> Layout:
        """The layout for what is expected."""
        if not state.other:
            return FALLBACK
        key = state.strict, state.other
        if key not in self._thresholds:
            self._thresholds[key] = self._bounds(*key)
        return wanted_layout(
            state.best_effort.value or 0.0,
            self._world.memory_bytes(state.other),
            self._memory,
            self._thresholds[key],
        )

    def _bounds(self, strict: str, other: str) -> dict[Kinds, Thresholds]:
        if not strict:
            return {}
        found = thresholds(strict, other, self._world.known, self._world.limit)
        return {SMALL[0]: found}


class Ours:
    """All maximal layouts, by predicted slowdowns and the cost of the change."""

    whole_gpu = False

    def __init__(
        self,
        world: World,
        possible: Iterable[Needs] = (),
        likely: Likely | None = None,
    ) -> None:
        """``possible``: what may come by the models that are registered and the mean load."""
        self._world = world
        self._limit = Limit(world.limit * (1 + 1.645 * world.scatter), 1.645 * world.scatter)
        self._weights = weights(self._limit, world.change_s, LASTS_S + REMAINS_S)
        # A layout of fewer slices rather than another one that is as good.
        self._candidates = sorted(world.candidates, key=lambda each: (len(each), each))
        self._likely = likely or LIKELY
        self._history = History.of(possible, intervals=60.0 * world.gpus)
        self._costs: dict[tuple[Layout, Needs], float] = {}
        self._rows: dict[Needs, np.ndarray] = {}
        self._recent: deque[list[Needs]] = deque(maxlen=SEEN)
        self._chosen: dict[Layout, Layout] = {}
        self._chosen_for: object = None

    def first(self) -> None:
        """What it knows of one GPU: batches are dealt evenly, so what all get says more."""

    def saw(self, needs: Iterable[Needs]) -> None:
        """What all GPUs were given in the last second."""
        needs = list(needs)
        self._history = self._history.after(needs)
        self._recent.append(needs)
        seen = Counter(each for second in self._recent for each in second)
        key = frozenset(seen.items()), id(self._history.known)
        if key != self._chosen_for:
            self._chosen, self._chosen_for = {}, key

    def after(self, state: None, _needs: Needs) -> None:
        """One more second of a GPU."""
        return state

    def wanted(self, _state: None, current: Layout) -> Layout:
        """The layout for what may come."""
        if current not in self._chosen:
            self._chosen[current] = self._choose(current)
        return self._chosen[current]

    def _choose(self, current: Layout) -> Layout:
        recent = [needs for second in self._recent for needs in second]
        coming = expected(recent, self._history.known, self._likely)
        total = sum(coming.values())
        costs = sum(weight * self._costs_of(needs) for needs, weight in coming.items()) / total
        kinds = self._world.kinds
        stays = sum(weight * self._cost(current, needs) for needs, weight in coming.items()) / total
        candidates = (
            (layout, cost + self._weights.cost(Outlook(moved=moved(current, layout, kinds))))
            for layout, cost in zip(self._candidates, costs.tolist(), strict=True)
        )
        return choose(candidates, [(current, stays)])

    def _costs_of(self, needs: Needs) -> np.ndarray:
        """Of all candidates."""
        if needs not in self._rows:
            self._rows[needs] = np.array([self._cost(each, needs) for each in self._candidates])
        return self._rows[needs]

    def _cost(self, layout: Layout, needs: Needs) -> float:
        key = layout, needs
        if key not in self._costs:
            world = self._world
            batches = [
                Batch(model, is_strict, world.memory_bytes(model))
                for model, is_strict, count in needs
                for _ in range(count)
            ]
            outlook = predict(layout, batches, world.kinds, world.known, self._limit)
            self._costs[key] = self._weights.cost(outlook)
        return self._costs[key]


Manager = Paper | Ours


def manager(decides: str, world: World, workload: Workload) -> Manager | None:
    """Of a scheme; None where layouts stay as they are."""
    if decides == "paper":
        return Paper(world)
    return Ours(world, possible(workload, world)) if decides == "ours" else None


def possible(workload: Workload, world: World) -> list[Needs]:
    """What a GPU may be given in a second at the mean rate, by the models that are registered."""
    share = workload.share if workload.strict is not None else 0.0
    batches = workload.mean_rate() / 8 / workload.batch
    strict = (workload.strict or "", True, math.ceil(batches * share))
    if share >= 1:
        return [(strict,)]
    others = [(model, False, math.ceil(batches * (1 - share))) for model in workload.best_effort()]
    return [(strict, other) if share > 0 else (other,) for other in others]


class Scaler:
    """How many instances of each model are warm: the product's rule, with starts that take time."""

    def __init__(self, start_s: float, keep: Callable[[], KeepAlive]) -> None:
        """``keep``: makes the memory of a model."""
        self._start_s, self._keep = start_s, keep
        self._models: dict[str, KeepAlive] = {}
        self._warm: dict[str, int] = {}
        self._starting: dict[str, deque[tuple[float, int]]] = {}
        self.starts = 0

    def begin_with(self, model: str, count: int) -> None:
        """So many are warm before anything comes."""
        self._warm[model] = count

    def after(self, now: float, model: str, needed: int) -> None:
        """So many batches of a model come now."""
        state = self._models.get(model) or self._keep()
        self._models[model] = state = state.after(now, needed)
        coming = self._starting.setdefault(model, deque())
        while coming and coming[0][0] <= now:
            self._warm[model] = self._warm.get(model, 0) + coming.popleft()[1]
        warm = self._warm.get(model, 0)
        missing = state.target - warm - sum(count for _, count in coming)
        if missing > 0:
            self.starts += missing
            coming.append((now + self._start_s, missing))
        elif warm > state.target and not coming:
            self._warm[model] = state.target

    def limits(self, gpus: int) -> dict[str, int]:
        """Of each model, on each of so many GPUs."""
        return {model: math.ceil(count / gpus) for model, count in self._warm.items()}
