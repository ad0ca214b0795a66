"""A gateway's choice of a machine: the dispatcher over its copy of the directory. Pure but for
chance; ``now`` is an argument."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

from shunter.allocator.cluster.routing import Refusal, Request, Router
from shunter.plugins.ray.gateway.forwarding import Terms
from shunter.plugins.ray.records.directory import Directory

AVOID_S = 1.0
"""A machine that did not answer gets nothing for so long, unless the controller says it is well."""


@dataclass(frozen=True)
class Chosen:
    """Where a request goes."""

    machine: str
    inference: str
    """Base URL."""


@dataclass(frozen=True)
class Nowhere:
    """It goes nowhere."""

    reason: str
    is_unknown: bool
    """No machine has ever heard of the model."""


class Dispatch:
    """Not thread-safe: it belongs to the gateway's event loop."""

    def __init__(self, draw: random.Random | None = None) -> None:
        """``draw``: for tests."""
        self._router = Router(draw or random.Random())
        self._directory = Directory()
        self._avoided: dict[str, float] = {}

    @property
    def number(self) -> int:
        """Of the directory."""
        return self._directory.number

    @property
    def is_serving(self) -> bool:
        """Whether there is a machine that takes requests."""
        return any(each.report.state == "serving" for each in self._directory.entries.values())

    def learn(self, directory: Directory) -> set[str]:
        """Take a newer directory; the names of machines that are gone with what they held.

        A server that was started again is another one: what its predecessor held is lost.
        """
        if directory.number <= self._directory.number:
            return set()
        before, self._directory = self._directory.entries, directory
        self._avoided.clear()
        lost = set()
        for name, entry in before.items():
            now = directory.entries.get(name)
            if entry.is_usable and (now is None or now.report.pid != entry.report.pid):
                lost.add(name)
            if now is None or not now.is_usable:
                self._router.remove(name)
        for entry in directory.entries.values():
            if entry.is_usable:
                self._router.publish(entry.machine)
        return lost

    def avoid(self, machine: str, now: float) -> None:
        """It did not answer."""
        self._avoided[machine] = now
        self._router.remove(machine)

    def choose(
        self, terms: Terms, left_s: float, tried: frozenset[str], now: float
    ) -> Chosen | Nowhere:
        """A machine for a request that has ``left_s`` until its deadline."""
        self._forgive(now)
        is_strict = terms.is_strict
        if is_strict is None:
            is_strict = self._directory.is_strict(terms.model)
        request = Request(terms.model, is_strict, left_s, tried)
        found = self._router.choose(request)
        if isinstance(found, Refusal) and found.best_s < float("inf"):
            # Only who has it in its queue knows that it is late: nothing is refused on a guess.
            found = self._router.choose(replace(request, deadline_s=float("inf")))
        if isinstance(found, Refusal):
            return Nowhere(found.reason, self._is_unknown(terms.model))
        return Chosen(found.machine, self._directory.entries[found.machine].report.inference)

    def may_repeat(self, terms: Terms) -> bool:
        """Whether the request may run twice."""
        if terms.may_repeat is not None:
            return terms.may_repeat
        return self._directory.may_repeat(terms.model)

    def _forgive(self, now: float) -> None:
        for name in [each for each, at in self._avoided.items() if now - at >= AVOID_S]:
            del self._avoided[name]
            self._router.publish(self._directory.entries[name].machine)

    def _is_unknown(self, model: str) -> bool:
        name, _, version = model.partition("/")
        if not self.is_serving:
            return False
        return not any(
            work.name == name and version in ("", work.version)
            for entry in self._directory.entries.values()
            for work in entry.report.works
        )
