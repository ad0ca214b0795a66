"""How many machines there are: sizing, and procurement over a provider, a step at a time."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path

from shunter.allocator.cluster.procurement import Drain, Kind, Rules
from shunter.allocator.cluster.sizing import MachineShape, Sizing
from shunter.allocator.placement.autoscaling import KeepAlive
from shunter.plugins.errors import UserError
from shunter.plugins.ray.local import LocalProvider
from shunter.plugins.ray.providers.procurer import Procurer
from shunter.plugins.ray.providers.provider import Provider, ProviderError
from shunter.plugins.ray.records.demand import Seen, demands, seen, unanswered
from shunter.plugins.ray.records.directory import Entry
from shunter.plugins.ray.records.settings import ClusterSettings, MachinesSettings

LOGGER = logging.getLogger("shunter.cluster")
STEP_S = 1.0
_THERE = ("serving", "draining", "released")


class NumberOfMachines:
    """Called by the controller's thread all the time; it acts once a second."""

    def __init__(
        self, provider: Provider, settings: MachinesSettings, drain: Callable[[str], None]
    ) -> None:
        """``drain``: tells a machine to, and does not wait."""
        self._provider, self._settings, self._drain = provider, settings, drain
        only = Kind.ON_DEMAND if settings.only_on_demand else None
        rules = Rules(
            only=only, on_demand_least=settings.on_demand_least, patience_s=settings.patience_s
        )
        self._procurer = Procurer(provider, rules)
        self._sizing: Sizing | None = None
        self._seen = Seen(0.0)
        self._next = 0.0
        self._wanted = 0

    def told(self) -> dict[str, object]:
        """Of it in the status."""
        return {"wanted": self._wanted, "problem": self._procurer.problem}

    def drain(self, name: str) -> None:
        """An operator wants it gone; it is given back when it has drained."""
        try:
            self._provider.drain(name)
        except ProviderError as error:
            LOGGER.warning("%s is not given back: %s", name, error)

    def look(self, now: float, entries: Mapping[str, Entry]) -> None:
        """``now``: monotonic. To be called when the directory is known."""
        if now < self._next:
            return
        self._next = now + STEP_S
        there = [each for each in entries.values() if each.report.state in _THERE]
        self._sizing = self._sized(now, [each for each in there if each.report.works])
        self._wanted = self._sizing.wanted()
        work = {each.name: unanswered(each) for each in there}
        staying = sum(each.is_head for each in entries.values())  # nobody gives it back
        for action in self._procurer.step(time.time(), max(0, self._wanted - staying), work):
            if isinstance(action, Drain):
                with contextlib.suppress(UserError):  # it is gone already
                    self._drain(action.name)

    def _sized(self, now: float, serving: list[Entry]) -> Sizing:
        slots = [max(work.workers for work in each.report.works) for each in serving]
        shape = MachineShape(
            max(1, min(slots, default=1)), self._settings.strict_most, self._settings.most_busy
        )
        before = self._sizing
        if before is None:
            # A controller that has just begun takes what there is for what is needed.
            kept = KeepAlive(self._settings.keep_s).after(now, len(serving))
            before = Sizing(shape, self._settings.start_s, kept=kept)
            self._seen = seen(now, serving)
        after = seen(now, serving)
        found = demands(self._seen, after, serving)
        self._seen = after
        limits = {"least": self._settings.least, "most": self._settings.most}
        return replace(before, shape=shape, **limits).after(now, found)


def provider_of(settings: ClusterSettings, folder: Path) -> Provider | None:
    """Where machines come from; None: there are those that were started. Raises UserError."""
    machines = settings.machines
    if machines.provider == "local":
        return LocalProvider(folder)
    if machines.provider == "aws":
        from shunter.plugins.ray.providers.aws import AwsProvider, AwsSettings

        return AwsProvider(AwsSettings(**asdict(settings.aws)))
    return None
