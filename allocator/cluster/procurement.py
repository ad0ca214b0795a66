"""Which machines to get and to give back (PROTEAN, section 4.5). Pure.

Spot machines first, on-demand ones where no spot machine is to be had, and back to spot when there
is spot again. A machine whose end was announced is replaced at once; it serves until others can do
its work or its end is near, is then drained, and released when it has no work left.

What ``step`` asked for must be in the list of machines of the next one, as starting, or be reported
as failed. A machine is drained when nobody sends it anything any more; only then does having no
work mean that it can go. What all this costs is the caller's to add up.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TypeAlias


class Kind(StrEnum):
    """How a machine is paid."""

    SPOT = "spot"
    """Cheap, and taken away when its owner wants it back."""
    ON_DEMAND = "on_demand"


class Phase(StrEnum):
    """How far a machine is."""

    STARTING = "starting"
    LIVE = "live"
    DRAINING = "draining"
    """It gets nothing more."""


@dataclass(frozen=True)
class Owned:
    """A machine that was asked for and is not gone."""

    name: str
    kind: Kind
    phase: Phase
    since: float
    """When that phase began."""
    work: float = 0.0
    """Of any unit; 0 only when nothing sent there is unanswered."""
    ends_at: float | None = None
    """When it will be taken away, as far as that was announced."""


@dataclass(frozen=True)
class Acquire:
    """Ask for so many machines more."""

    kind: Kind
    count: int


@dataclass(frozen=True)
class Drain:
    """Send it nothing more."""

    name: str
    reason: str


@dataclass(frozen=True)
class Release:
    """Give it back."""

    name: str
    reason: str


Action: TypeAlias = Acquire | Drain | Release


@dataclass(frozen=True)
class Rules:
    """What an operator chooses."""

    only: Kind | None = None
    """Machines of this kind and no others."""
    on_demand_least: int = 0
    """So many that nobody takes away."""
    patience_s: float = 300.0
    """A machine that starts for longer than that is given up, and another one asked for."""
    drain_s: float = 15.0
    """So long before its end a machine gets nothing more."""
    retry_s: float = 60.0
    """When a kind that failed is asked for again; twice as long after each failure that follows."""
    retry_most_s: float = 900.0
    return_share: float = 0.1
    """Part of all machines that is moved back to spot at a time."""

    def allows(self, kind: Kind) -> bool:
        """Whether machines of that kind may be acquired."""
        return self.only in (None, kind)


@dataclass(frozen=True)
class Supply:
    """Whether there are machines of a kind."""

    failures: int = 0
    """In a row."""
    failed_at: float = -math.inf
    again_at: float = -math.inf
    """Not to be asked for before that."""

    def after(self, now: float, rules: Rules, *, failed: int, came_at: float) -> Supply:
        """With what failed since, and when the last one of that kind was granted or began."""
        failures = 0 if came_at > self.failed_at else self.failures
        if failed > 0:
            wait = min(rules.retry_most_s, rules.retry_s * 2 ** min(failures, 30))
            return Supply(failures + 1, now, now + wait)
        return replace(self, failures=failures)


@dataclass
class _View:
    """The machines, by what may be done with them."""

    steady: list[Owned] = field(default_factory=list)
    """Serving or to serve, and nobody said that they will be taken."""
    serving: list[Owned] = field(default_factory=list)
    given_up: list[Owned] = field(default_factory=list)
    idle: list[Owned] = field(default_factory=list)
    came: dict[Kind, float] = field(default_factory=lambda: dict.fromkeys(Kind, -math.inf))
    """When the last of each kind was granted or began to serve."""


@dataclass(frozen=True)
class Procurement:
    """What has to be kept from one step to the next."""

    rules: Rules = field(default_factory=Rules)
    supply: Mapping[Kind, Supply] = field(default_factory=lambda: {kind: Supply() for kind in Kind})

    def step(
        self,
        now: float,
        owned: Sequence[Owned],
        wanted: int,
        failed: Mapping[Kind, int] | None = None,
    ) -> tuple[Procurement, list[Action]]:
        """What to do now, so that ``wanted`` machines serve; ``failed``: requests since last time.

        Times must not go back.
        """
        view = self._view(now, owned)
        after = self._after(now, view, failed or {})
        return after, [
            *after._acquired(now, view.steady, wanted),
            *after._drained(now, view.serving, wanted),
            *after._released(view),
        ]

    def _view(self, now: float, owned: Iterable[Owned]) -> _View:
        view = _View()
        for each in owned:
            if each.phase == Phase.DRAINING:
                if each.work <= 0:
                    view.idle.append(each)
                continue
            view.came[each.kind] = max(view.came[each.kind], each.since)
            if each.phase == Phase.LIVE:
                view.serving.append(each)
            elif each.ends_at is not None or now - each.since > self.rules.patience_s:
                view.given_up.append(each)
                continue
            if each.ends_at is None:
                view.steady.append(each)
        return view

    def _after(self, now: float, view: _View, failed: Mapping[Kind, int]) -> Procurement:
        lost = Counter(each.kind for each in view.given_up)
        lost.update(failed)
        supply = {
            kind: self.supply[kind].after(
                now, self.rules, failed=lost[kind], came_at=view.came[kind]
            )
            for kind in Kind
        }
        return replace(self, supply=supply)

    def _can_have(self, kind: Kind, now: float) -> bool:
        return self.rules.allows(kind) and now >= self.supply[kind].again_at

    def _acquired(self, now: float, steady: Sequence[Owned], wanted: int) -> Iterable[Acquire]:
        asked = Counter[Kind]()
        order = [kind for kind in Kind if self._can_have(kind, now)]
        safe = [each for each in steady if each.kind == Kind.ON_DEMAND]
        base = max(0, min(wanted, self._least()) - len(safe))
        missing = max(0, wanted - len(steady))
        if Kind.ON_DEMAND in order:
            asked[Kind.ON_DEMAND] = base
            missing -= min(base, missing)
        if order:
            asked[order[0]] += missing
        if Kind.SPOT in order:
            asked[Kind.SPOT] += self._exchanged(safe, len(steady) - wanted, wanted)
        return (Acquire(kind, count) for kind, count in asked.items() if count > 0)

    def _exchanged(self, safe: Iterable[Owned], surplus: int, wanted: int) -> int:
        """How many to ask for in exchange for on-demand machines, which go when these have come."""
        dear = sum(each.phase == Phase.LIVE for each in safe) - self._least()
        at_once = max(1, int(self.rules.return_share * wanted)) - max(0, surplus)
        return max(0, min(dear, at_once))

    def _least(self) -> int:
        return self.rules.on_demand_least if self.rules.allows(Kind.ON_DEMAND) else 0

    def _drained(self, now: float, serving: Sequence[Owned], wanted: int) -> Iterable[Drain]:
        surplus = len(serving) - wanted
        ending = [(each.ends_at, each.name) for each in serving if each.ends_at is not None]
        for end, name in sorted(ending):
            if now >= end - self.rules.drain_s:
                yield Drain(name, "its end is near")
            elif surplus > 0:
                yield Drain(name, "its end was announced, and it is replaced")
            surplus -= 1
        if surplus > 0:
            staying = [each for each in serving if each.ends_at is None]
            yield from (Drain(each.name, "not needed") for each in self._first(staying)[:surplus])

    def _first(self, machines: Sequence[Owned]) -> list[Owned]:
        """In the order in which they go: the dear ones, spot, and on-demand ones that may stay."""
        order = sorted(machines, key=lambda each: (each.work, -each.since, each.name))
        safe = [each for each in order if each.kind == Kind.ON_DEMAND]
        dear = max(0, len(safe) - self._least())
        spot = [each for each in order if each.kind == Kind.SPOT]
        return [*safe[:dear], *spot, *safe[dear:]]

    def _released(self, view: _View) -> Iterable[Release]:
        for each in view.given_up:
            why = "it did not start in time" if each.ends_at is None else "its end was announced"
            yield Release(each.name, why)
        for each in view.idle:
            yield Release(each.name, "it has no work left")
