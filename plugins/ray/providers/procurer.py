"""Keeps as many machines as are wanted: procurement's policy, and a provider that does it."""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Mapping, Sequence

from shunter.allocator.cluster.procurement import (
    Acquire,
    Action,
    Drain,
    Kind,
    Owned,
    Phase,
    Procurement,
    Release,
    Rules,
)
from shunter.plugins.ray.providers.provider import Listed, Provider, ProviderError

LOGGER = logging.getLogger("shunter.procurement")
LISTED_WITHIN_S = 60.0
"""A machine that was granted and is not listed after that does not exist."""


class Procurer:
    """Of one cluster. To be called every few seconds, by one thread."""

    def __init__(self, provider: Provider, rules: Rules | None = None) -> None:
        """Nothing is asked yet."""
        self._provider = provider
        self._rules = rules or Rules()
        self._state = Procurement(self._rules)
        self._granted: dict[str, tuple[Kind, float]] = {}
        """Not listed yet, and since when."""
        self._phases: dict[str, tuple[Phase, float]] = {}
        self._unheard: dict[str, float] = {}
        """Machines that drain and of which nothing is heard, and since when."""
        self._failed: Counter[Kind] = Counter()
        self.problem = ""
        """What the provider said last that an operator has to mend; empty when all is well."""

    def step(self, now: float, wanted: int, work: Mapping[str, float]) -> Sequence[Action]:
        """Have ``wanted`` machines serve; what was done. ``now``: seconds since the epoch.

        ``work``: of each machine that the cluster hears of, what is unanswered there; a machine
        that it does not hear of does not serve. Whoever sends requests must stop sending to what is
        drained here, at once.
        """
        self.problem = ""
        try:
            owned = self._owned(now, self._provider.machines(), self._provider.notices(), work)
        except ProviderError as error:  # the next step asks again
            self._trouble(error)
            return ()
        self._state, actions = self._state.step(now, owned, wanted, self._failed)
        self._failed = Counter()
        return [each for each in actions if self._do(now, each)]

    def _owned(
        self,
        now: float,
        listed: Sequence[Listed],
        notices: Mapping[str, float],
        work: Mapping[str, float],
    ) -> list[Owned]:
        names = {each.name for each in listed}
        self._granted = {
            name: (kind, since)
            for name, (kind, since) in self._granted.items()
            if name not in names and now - since < LISTED_WITHIN_S
        }
        self._phases = {name: told for name, told in self._phases.items() if name in names}
        found = [
            Owned(name, kind, Phase.STARTING, since)
            for name, (kind, since) in self._granted.items()
        ]
        for each in listed:
            phase = (
                Phase.DRAINING
                if each.is_draining
                else Phase.LIVE
                if each.name in work
                else Phase.STARTING
            )
            # One that is seen first, or that has fallen silent, has all its patience before it:
            # a controller that has just begun has heard of nobody yet.
            if self._phases.get(each.name, (None, now))[0] != phase:
                self._phases[each.name] = phase, now
            left = self._left(now, each.name, work)
            ends = notices.get(each.name)
            since = self._phases[each.name][1]
            found.append(Owned(each.name, each.kind, phase, since, left, ends))
        return found

    def _left(self, now: float, name: str, work: Mapping[str, float]) -> float:
        """What is unanswered; of a machine that is silent nobody knows, until it is given up."""
        if name in work:
            self._unheard.pop(name, None)
            return work[name]
        since = self._unheard.setdefault(name, now)
        return math.inf if now - since < self._rules.patience_s else 0.0

    def _do(self, now: float, action: Action) -> bool:
        try:
            match action:
                case Acquire(kind, count):
                    return self._acquire(now, kind, count)
                case Drain(name, reason):
                    self._provider.drain(name)
                    LOGGER.info("machine %s gets nothing more: %s", name, reason)
                case Release(name, reason):
                    self._provider.release([name])
                    self._granted.pop(name, None)
                    LOGGER.info("machine %s is given back: %s", name, reason)
        except ProviderError as error:
            self._trouble(error)
            return False
        return True

    def _acquire(self, now: float, kind: Kind, count: int) -> bool:
        names: Sequence[str] = ()
        try:
            names = self._provider.acquire(kind, count)
        finally:
            self._failed[kind] += count - len(names)
            self._granted.update(dict.fromkeys(names, (kind, now)))
        LOGGER.info("%d of %d %s machines were granted", len(names), count, kind)
        return bool(names)

    def _trouble(self, error: ProviderError) -> None:
        self.problem = str(error)
        LOGGER.warning("%s", error)
