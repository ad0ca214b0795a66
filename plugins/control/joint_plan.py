"""Targets for models that share cores and memory, chosen together.

The cores are shared out by :mod:`shunter.allocator.planning.sharing`; memory goes to those first
that give cores back, because they are changed first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from shunter.allocator.planning.configuration import layout
from shunter.allocator.planning.optimizer import Choice, NoConfiguration
from shunter.allocator.planning.sharing import share_cores
from shunter.plugins.control.observed import Observed
from shunter.plugins.control.planned_model import PlannedModel
from shunter.plugins.control.settings import ConfigurationSettings


@dataclass
class JointPlan:
    """One look at all models. ``free_bytes`` gets less with every target that needs more."""

    slots: Mapping[int, Observed]
    settings: ConfigurationSettings
    everywhere: int
    """Cores of this machine that models may have."""
    free_bytes: float
    now_ns: int

    def choose(self, models: Mapping[int, PlannedModel], nodes: Sequence[int]) -> None:
        """Give models that share these cores their targets, if together they gain enough by it.

        Without such a gain, only to those that shall keep cores of their own and do not, or the
        other way round.
        """
        shares = share_cores(nodes, {slot: model.demand for slot, model in models.items()})
        free, best = self.free_bytes, self._choices(models, shares)
        worth_it = self._is_worth_it(models, best, nodes)
        self.free_bytes = self.free_bytes if worth_it else free
        for slot, choice in best.items():
            model, seen = models[slot], self.slots[slot]
            present = seen.configuration
            groups = model.capped(choice.configuration) if worth_it else present
            if layout(groups) != layout(present):
                if model.may_go_to(groups, self.settings.timeout_s, self.now_ns):
                    model.target = groups
            elif self._is_pinned_wrongly(model, seen):
                model.target = present
            model.needs = _bytes(model, sum(group.instances for group in groups), choice.batch)

    def _choices(
        self, models: Mapping[int, PlannedModel], shares: Mapping[int, Sequence[int]]
    ) -> dict[int, Choice]:
        best: dict[int, Choice] = {}
        for slot in sorted(models, key=lambda s: sum(shares[s]) - sum(self.slots[s].threads)):
            model, seen = models[slot], self.slots[slot]
            try:
                best[slot] = choice = model.best(tuple(shares[slot]), self.free_bytes)
            except NoConfiguration as error:
                model.complain(f"{seen.name}: {error}")
                continue
            if layout(choice.configuration) != layout(seen.configuration):
                # When it serves, the old instances are gone.
                old = model.memory.instance * len(seen.threads)
                self.free_bytes -= max(0.0, _bytes(model, choice.instances, choice.batch) - old)
        return best

    def _is_worth_it(
        self,
        models: Mapping[int, PlannedModel],
        best: Mapping[int, Choice],
        nodes: Sequence[int],
    ) -> bool:
        """Whether the weighted latencies together get better by more than the noise.

        Also when they cannot be told, or when the present instances want more cores than there are.
        """
        now = then = 0.0
        used = 0
        for slot, choice in best.items():
            model, threads = models[slot], self.slots[slot].threads
            batch = min(choice.batch, model.estimator.current)
            present = model.present(threads, self.everywhere, batch)
            if present is None:
                return True
            used += sum(each or self.everywhere for each in threads)
            now += model.demand.weight * present.latency_ms
            then += model.demand.weight * choice.latency_ms
        return used > sum(nodes) or then < now * (1 - self.settings.gain)

    def _is_pinned_wrongly(self, model: PlannedModel, seen: Observed) -> bool:
        if seen.yields or not all(group.threads for group in seen.configuration):
            return False
        return model.pinned != self.settings.pin


def _bytes(model: PlannedModel, instances: int, batch: int) -> float:
    return instances * model.memory.instance + batch * model.memory.request
