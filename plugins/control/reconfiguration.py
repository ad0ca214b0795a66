"""Decides which models run in another configuration now (Packrat sections 3.7 and 3.8).

Every duty cycle each model's depth goes to its estimator. When that asks for another batch size,
the cores are shared out anew among all models that may be changed, and each gets the best
configuration for its share, if that is better than the present one by more than the noise of a
profile. Changes go one at a time, those that give cores back first, so that outside of a
change-over no core is promised twice.

Models whose workers give way to strict work take part in none of that sharing: strict models are
planned as if they were alone, and each of the others as if it had all cores, since it may use
those that are idle. Their workers are never pinned.

While :mod:`shunter.plugins.control.placement` has split the cores all that is different: then each
model has the best configuration for the sets that are its own.

Pure: the page's numbers, profiles and the time in, wanted configurations out.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence

from shunter.allocator.cpus.cpu_list import format_cpu_list
from shunter.allocator.planning.configuration import Configuration, format_configuration
from shunter.batching.page.layout import ChangeState
from shunter.batching.page.slices import bits
from shunter.plugins.control.observed import GroupShare, Observed, Wanted
from shunter.plugins.control.placement import Placement
from shunter.plugins.control.planned_model import JointPlan, PlannedModel
from shunter.plugins.control.settings import ConfigurationSettings

LOGGER = logging.getLogger("shunter.reconfiguration")
PATIENCE_NS = 30 * 10**9
"""What the server has not taken up by then is given up, so that others have their turn."""


class Reconfiguration:
    """Wanted configurations of all slots."""

    def __init__(
        self,
        nodes: Callable[[], Sequence[int]],
        memory: Callable[[], float],
        settings: ConfigurationSettings,
        placement: Placement | None = None,
    ) -> None:
        """``nodes``: physical cores of each NUMA node that models may have.

        ``memory``: bytes that are free; a new generation must find room beside the old one.
        ``placement``: who decides which models run where; None: nobody.
        """
        self._placement = placement
        self._nodes = nodes
        self._memory = memory
        self.settings = settings
        self._models: dict[int, PlannedModel] = {}
        self._changing: int | None = None
        self._told: dict[int, tuple[str, str]] = {}
        """By slot, the model and the obstacle that the log names."""

    def wanted(self, slot: int) -> Wanted | None:
        """What the page is to say about a slot, None when nothing was ever wanted."""
        model = self._models.get(slot)
        return model.wanted if model else None

    def shares(self, slot: int) -> tuple[GroupShare, ...]:
        """What each worker group gets of each class; none where nobody was placed."""
        return self._placement.shares(slot) if self._placement is not None else ()

    def observe(
        self, slots: Mapping[int, Observed], requests: Mapping[int, int], now_ns: int
    ) -> None:
        """One duty cycle. ``requests``: the highest request number seen on each slot's page."""
        for gone in self._models.keys() - slots.keys():
            del self._models[gone]
        eligible = {slot: seen for slot, seen in slots.items() if self._may_change(slot, seen)}
        due = False
        for slot, seen in eligible.items():
            model = self._model(slot, seen)
            model.request = max(model.request, requests.get(slot, 0), seen.change.change_request)
            due |= model.estimator.sample(seen.depth, now_ns) is not None
            due |= model.heed(seen, self.settings.gain)
        for slot in self._models.keys() - eligible.keys():
            del self._models[slot]
        due |= self._look(slots, now_ns)
        if due:
            self._plan(slots, now_ns)
        self._advance(slots, now_ns)
        if self._placement is not None:
            self._placement.share_out(slots)

    def _look(self, slots: Mapping[int, Observed], now_ns: int) -> bool:
        """Let the placement look at the load, if it is time."""
        if self._placement is None or not self._placement.is_due(slots, now_ns):
            return False
        self._placement.look(self._models, slots, self._memory())
        return True

    def _may_change(self, slot: int, seen: Observed) -> bool:
        if not (self.settings.auto and seen.identity.auto == 1):
            return False
        told = seen.name, seen.obstacle
        if seen.obstacle and self._told.get(slot) != told:
            LOGGER.info("%s keeps its configuration: %s", *told)
        self._told[slot] = told
        return not seen.obstacle

    def _model(self, slot: int, seen: Observed) -> PlannedModel:
        key = (seen.identity.model_name, seen.identity.model_version)
        model = self._models.get(slot)
        assert seen.profile is not None
        if model is None or model.key != key:
            model = self._models[slot] = PlannedModel(key)
        model.use(seen.profile, max(1, seen.identity.registered_batch_size))
        model.tune(self.settings)
        return model

    def _plan(self, slots: Mapping[int, Observed], now_ns: int) -> None:
        """A target for every model that may be changed."""
        movable = {
            slot: model
            for slot, model in self._models.items()
            # While its load is not known, a model stays as it is.
            if model.estimator.decided and now_ns >= model.not_before_ns and slot != self._changing
        }
        for model in self._models.values():
            model.forget_target()
        # What loads just now may not have taken its memory yet.
        coming = self._models.get(self._changing) if self._changing is not None else None
        free = self._memory() - (coming.needs if coming else 0.0)
        if self._placement is not None and self._placement.place(
            movable,
            slots,
            free,
            lambda model, groups: model.may_go_to(groups, self.settings.timeout_s, now_ns),
        ):
            return
        yielding = {slot for slot in movable if slots[slot].yields}
        sharing = {slot: model for slot, model in movable.items() if slot not in yielding}
        nodes = list(self._nodes()) or [1]
        plan = JointPlan(slots, self.settings, sum(nodes), free, now_ns)
        if sharing:
            plan.choose(sharing, self._free(nodes, slots, sharing))
        for slot in yielding:
            plan.choose({slot: movable[slot]}, nodes)
        for slot, model in movable.items():
            if any(slots[slot].places) and model.target is None:
                model.target = slots[slot].configuration  # on whatever cores it likes

    def _free(
        self,
        nodes: Sequence[int],
        slots: Mapping[int, Observed],
        movable: Mapping[int, PlannedModel],
    ) -> list[int]:
        """Cores of each NUMA node for all models that may be changed now; at least one."""
        nodes = list(nodes)
        fixed = sum(self._keeps(slot, seen) for slot, seen in slots.items() if slot not in movable)
        for i, node in enumerate(nodes):
            nodes[i] -= min(fixed, node)
            fixed -= min(fixed, node)
        if not any(nodes):
            nodes[0] = 1
        return nodes

    def _keeps(self, slot: int, seen: Observed) -> int:
        """Cores of a model that stays as it is."""
        model = self._models.get(slot)
        changing = slot == self._changing and not seen.yields
        coming = model.wanted.groups if changing and model and model.wanted else ()
        return max(seen.kept, _cores(coming))

    def _advance(self, slots: Mapping[int, Observed], now_ns: int) -> None:
        """Follow the change under way, or begin the next one."""
        if self._changing is not None:
            model, seen = self._models.get(self._changing), slots.get(self._changing)
            there = model is not None and seen is not None and model.wanted is not None
            if there and not self._is_over(model, seen, now_ns):
                return
            self._changing = None
        if any(seen.change.change_state == ChangeState.UNDER_WAY for seen in slots.values()):
            return  # one that an earlier controller wanted
        pending = [slot for slot, model in self._models.items() if model.target is not None]
        # Who gives cores back goes first.
        pending.sort(key=lambda slot: _cores(self._models[slot].target) - sum(slots[slot].threads))
        for slot in pending:
            if self._begin(self._models[slot], slots[slot], now_ns):
                self._changing = slot
                return

    def _begin(self, model: PlannedModel, seen: Observed, now_ns: int) -> bool:
        """Want the target, unless others have taken the memory since it was chosen."""
        assert model.target is not None
        if model.needs > self._memory():
            model.complain(
                f"{seen.name}: {format_configuration(model.target)} needs "
                f"{model.needs / 2**20:.0f} MiB, which are not free any more"
            )
            model.forget_target()
            return False
        present = seen.configuration
        wanted = model.ask(present, self.settings.pin and not seen.yields, now_ns)
        LOGGER.info(
            "%s: about %d requests at once; %s %s instead of %s",
            seen.name,
            model.estimator.current,
            format_configuration(wanted.groups),
            _where(wanted),
            format_configuration(present),
        )
        return True

    def _is_over(self, model: PlannedModel, seen: Observed, now_ns: int) -> bool:
        assert model.wanted is not None
        taken_up = seen.change.change_request == model.wanted.request
        if not taken_up and now_ns < model.asked_ns + PATIENCE_NS:
            return False
        if taken_up and seen.change.change_state == ChangeState.UNDER_WAY:
            return False
        if not taken_up or seen.change.change_state == ChangeState.UNDONE:
            # What the others were to get may have been its cores.
            for other in self._models.values():
                other.forget_target()
            LOGGER.warning(
                "%s: %s was not possible; the next attempt is in %.0f s at the earliest",
                seen.name,
                format_configuration(model.wanted.groups),
                model.fail(self.settings.timeout_s, now_ns),
            )
        else:
            model.failures, model.pinned = 0, model.wanted.pin
        return True


def _cores(groups: Configuration | None) -> int:
    return sum(group.instances * group.threads for group in groups or ())


def _where(wanted: Wanted) -> str:
    if wanted.slices:
        cpus = (format_cpu_list(bits(each.cpus)) for each in wanted.slices)
        return "on CPUs " + " and ".join(dict.fromkeys(cpus))
    return "on cores of its own" if wanted.pin else "on any cores"
