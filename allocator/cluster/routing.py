"""Which machine a request goes to (PROTEAN's dispatcher, section 4). Pure.

Strict work goes where it would end first, among a few machines drawn at random: those where the
model is hot, and as many where it is not. To look at all and take the best would send all gateways
to the same one until it publishes again. Only where none of the few meets the deadline is the best
of all looked for. Best effort goes first-fit onto the machines of lowest order that have room
beside their strict work, so that the others can be released.

A decision looks at nothing but the index of its model, and takes a number of steps that grows with
the logarithm of how many machines have it. The index is made anew when a machine comes or goes.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from shunter.allocator.cluster.load import Live, Machine, ModelState
from shunter.allocator.cluster.tournament import Tournament

CHOICES = 2
"""Machines that are drawn of each kind: more are hardly better, and herd."""
ROOM_S = 0.5
"""Seconds of work on a slice up to which best effort is sent there rather than further on."""


@dataclass(frozen=True)
class Request:
    """What of a request matters here."""

    model: str
    is_strict: bool
    deadline_s: float = math.inf
    """Seconds left."""
    tried: frozenset[str] = frozenset()
    """Machines that are not to be chosen: it was lost there."""


@dataclass(frozen=True)
class Route:
    """Where it goes."""

    machine: str
    slice: str
    predicted_s: float


@dataclass(frozen=True)
class Refusal:
    """It goes nowhere."""

    reason: str
    best_s: float = math.inf
    """When it would have been answered at best; infinite where no machine can."""


class _Index:
    """The machines that have a model, by order."""

    def __init__(self, model: str, machines: Sequence[Live]) -> None:
        """The keys are lower bounds from here on: what is sent makes them rise, and is not told."""
        self.model = model
        self.machines = sorted(machines, key=lambda each: (each.machine.order, each.machine.name))
        self.position = {each.machine.name: at for at, each in enumerate(self.machines)}
        states = [each.machine.models[model] for each in self.machines]
        self.drawn = {True: _Pool(), False: _Pool()}
        """Positions by whether the model is hot there."""
        for at, state in enumerate(states):
            self.drawn[state.is_hot].add(at)
        pairs = list(zip(self.machines, states, strict=True))
        self.ends = {
            strict: Tournament([_surely(each, state, strict) for each, state in pairs])
            for strict in (True, False)
        }
        self.waits = Tournament([each.before_best_effort(state) for each, state in pairs])

    def refresh(self, live: Live) -> None:
        """A machine has published, or its bounds were found too low."""
        at, state = self.position[live.machine.name], live.machine.models[self.model]
        self.machines[at] = live
        self.drawn[not state.is_hot].discard(at)
        self.drawn[state.is_hot].add(at)
        for strict, ends in self.ends.items():
            ends[at] = _surely(live, state, strict)
        self.waits[at] = live.before_best_effort(state)


class _Pool:
    """Numbers of which one can be drawn at random."""

    def __init__(self) -> None:
        self.members: list[int] = []
        self._place: dict[int, int] = {}

    def add(self, number: int) -> None:
        if number not in self._place:
            self._place[number] = len(self.members)
            self.members.append(number)

    def discard(self, number: int) -> None:
        at = self._place.pop(number, None)
        if at is not None:
            last = self.members.pop()
            if last != number:
                self.members[at], self._place[last] = last, at


@dataclass(frozen=True)
class _Candidate:
    live: Live
    state: ModelState
    at: int
    """Which slice."""
    predicted_s: float

    @property
    def surely_s(self) -> float:
        return self.predicted_s + self.state.fit.caution_s

    def meets(self, request: Request) -> bool:
        return self.surely_s <= request.deadline_s


class Router:
    """Knows what all machines published. Not thread-safe."""

    def __init__(
        self, draw: random.Random, choices: int = CHOICES, room_s: float = ROOM_S
    ) -> None:
        """``draw`` is all that is random here."""
        self._draw = draw
        self._choices = choices
        self._room_s = room_s
        self._machines: dict[str, Live] = {}
        self._indexes: dict[str, _Index] = {}

    @property
    def machines(self) -> list[Machine]:
        """As they published last."""
        return [each.machine for each in self._machines.values()]

    def publish(self, machine: Machine) -> None:
        """What was known of it is replaced, and what was sent there is in it."""
        before = self._machines.get(machine.name)
        live = self._machines[machine.name] = Live(machine)
        if before is not None and _places(before.machine) == _places(machine):
            for model in machine.models:
                if not machine.is_draining and model in self._indexes:
                    self._indexes[model].refresh(live)
            return
        for each in (machine, before.machine if before else machine):
            self._forget(each)

    def remove(self, name: str) -> None:
        """It is gone; no error if it was not known."""
        before = self._machines.pop(name, None)
        if before is not None:
            self._forget(before.machine)

    def _forget(self, machine: Machine) -> None:
        for model in machine.models:
            self._indexes.pop(model, None)

    def choose(self, request: Request) -> Route | Refusal:
        """A machine that will answer in time, or why there is none."""
        index = self._index(request.model)
        if not index.machines:
            return Refusal(self._unserved(request.model))
        found = None if request.is_strict else self._first_fit(index, request)
        if found is None:
            found = self._drawn(index, request)
        if found is None or not found.meets(request):
            found = self._best(index, request)
        if found is None:
            return Refusal(f"every machine that has model {request.model!r} was tried")
        if not found.meets(request):
            return Refusal(_late(request, found), found.predicted_s)
        found.live.send(found.state, found.at, strict=request.is_strict)
        machine = found.live.machine
        return Route(machine.name, machine.slices[found.at].name, found.predicted_s)

    def _index(self, model: str) -> _Index:
        index = self._indexes.get(model)
        if index is None:
            having = [
                each
                for each in self._machines.values()
                if model in each.machine.models and not each.machine.is_draining
            ]
            index = _Index(model, having)
            if having:  # names of models come from outside: what nobody has is not kept
                self._indexes[model] = index
        return index

    def _unserved(self, model: str) -> str:
        draining = sum(model in each.machine.models for each in self._machines.values())
        if draining:
            return f"every machine that has model {model!r} is draining ({draining})"
        return f"none of {len(self._machines)} machines has model {model!r}"

    def _candidate(self, index: _Index, at: int, request: Request) -> _Candidate | None:
        live = index.machines[at]
        if live.machine.name in request.tried:
            return None
        state = live.machine.models[index.model]
        predicted, where = live.soonest(state, strict=request.is_strict)
        return _Candidate(live, state, where, predicted) if predicted < math.inf else None

    def _drawn(self, index: _Index, request: Request) -> _Candidate | None:
        """Power of k choices."""
        positions = [
            at
            for pool in index.drawn.values()
            for at in self._draw.sample(pool.members, min(self._choices, len(pool.members)))
        ]
        found = (self._candidate(index, at, request) for at in positions)
        return _least(each for each in found if each is not None)

    def _best(self, index: _Index, request: Request) -> _Candidate | None:
        """Of all; bounds that turn out too low are set right."""
        best, looked_at = None, []
        for bound, at in index.ends[request.is_strict].ascending():
            if best is not None and bound >= best.surely_s:
                break
            looked_at.append(at)
            found = self._candidate(index, at, request)
            best = _least(each for each in (best, found) if each is not None)
        for at in looked_at:
            index.refresh(index.machines[at])
        return best

    def _first_fit(self, index: _Index, request: Request) -> _Candidate | None:
        looked_at, chosen = [], None
        for at in index.waits.at_most(self._room_s):
            looked_at.append(at)
            live = index.machines[at]
            state = live.machine.models[index.model]
            where = live.smallest(state, self._room_s)
            if where < 0 or live.machine.name in request.tried:
                continue
            chosen = _Candidate(live, state, where, live.ends(state, strict=False)[where])
            break  # where it is late the best of all is looked for
        for at in looked_at:
            index.refresh(index.machines[at])
        return chosen


def _surely(live: Live, state: ModelState, strict: bool) -> float:
    return live.soonest(state, strict=strict)[0] + state.fit.caution_s


def _least(found: Iterator[_Candidate]) -> _Candidate | None:
    return min(found, key=lambda each: each.surely_s, default=None)


def _places(machine: Machine) -> tuple[int, bool, frozenset[str]]:
    """What decides in which indexes it stands, and where."""
    return machine.order, machine.is_draining, frozenset(machine.models)


def _late(request: Request, best: _Candidate) -> str:
    caution = best.state.fit.caution_s
    return (
        f"no machine would answer model {request.model!r} within {request.deadline_s * 1e3:.1f} ms:"
        f" the best, {best.live.machine.name!r}, in {best.predicted_s * 1e3:.1f} ms"
        + (f", and {caution * 1e3:.1f} ms to be sure" if caution else "")
    )
