"""Decides which models run in another configuration now (Packrat sections 3.7 and 3.8).

Every duty cycle each model's depth goes to its estimator. When that asks for another batch size,
the cores are shared out anew among all models that may be changed, and each gets the best
configuration for its share, if that is better than the present one by more than the noise of a
profile. Changes go one at a time, those that give cores back first, so that outside of a
change-over no core is promised twice.

Models whose workers give way to strict work take part in none of that sharing: strict models are
planned as if they were alone, and each of the others as if it had all cores, since it may use
those that are idle. Their workers are never pinned.

Pure: the page's numbers, profiles and the time in, wanted configurations out.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from shunter.batching.configuration import (
    Configuration,
    InstanceGroup,
    format_configuration,
    layout,
    with_ceiling,
)
from shunter.batching.estimator import BatchSizeEstimator
from shunter.batching.layout import ChangeState
from shunter.batching.optimizer import (
    Choice,
    LatencyTable,
    Memory,
    NoConfiguration,
    minimise_latency,
    spread_over,
)
from shunter.batching.page_records import GroupTelemetry, SlotChange, SlotIdentity
from shunter.batching.profile import Profile, latency_table, memory_of
from shunter.batching.sharing import Demand, share_cores
from shunter.batching.slices import Slice
from shunter.plugins.settings import ConfigurationSettings

LOGGER = logging.getLogger("shunter.reconfiguration")
MOST_RETURNS, LONG = 5, 4
"""After n returns in a row the next one waits for 2**n time-outs; four times as long forgives."""
PATIENCE_NS = 30 * 10**9
"""What the server has not taken up by then is given up, so that others have their turn."""


@dataclass(frozen=True)
class Wanted:
    """What the page says about a slot's configuration."""

    request: int
    groups: Configuration
    pin: bool
    slices: tuple[Slice, ...] = ()
    """Of the groups, as far as they are to have one of their own."""


@dataclass(frozen=True)
class Observed:
    """One slot in this duty cycle."""

    identity: SlotIdentity
    depth: int
    """Requests in the system."""
    groups: Callable[[], Sequence[GroupTelemetry]]
    change: SlotChange
    profile: Profile | None
    has_lists: bool = False
    """Whether the settings say something by worker group."""

    @property
    def name(self) -> str:
        """``name/version``."""
        return f"{self.identity.model_name}/{self.identity.model_version}"

    @property
    def configuration(self) -> Configuration:
        """What runs now."""
        return tuple(
            InstanceGroup(max(1, g.group_instances), g.group_threads, max(1, g.group_cap))
            for g in self.groups()
        )

    @property
    def threads(self) -> list[int]:
        """Threads of each present instance, 0 where the handler decides."""
        return [g.group_threads for g in self.groups() for _ in range(g.group_instances)]

    @property
    def kept(self) -> int:
        """Cores that its workers want for themselves; one that runs wherever it likes wants none.

        Workers that give way to strict work want none either.
        """
        return sum(g.group_threads * g.group_instances for g in self.groups() if not g.group_yields)

    @property
    def yields(self) -> bool:
        """Whether all its workers give way to strict work."""
        groups = self.groups()
        return bool(groups) and all(g.group_yields for g in groups)

    @property
    def obstacle(self) -> str:
        """Why the controller cannot change a configuration that it may change; empty: it can."""
        if self.profile is None:
            return "no profile that can be used here"
        if self.identity.registered_batch_size == 1:
            return "batch size 1"
        return "lists by worker group in shunter.toml" if self.has_lists else ""


@dataclass
class _Model:
    """What is remembered about a slot."""

    key: tuple[str, str]
    estimator: BatchSizeEstimator
    profile: Profile = field(init=False)
    table: LatencyTable = field(init=False)
    memory: Memory = field(init=False)
    target: Configuration | None = None
    """What it shall run, until it does."""
    request: int = 0
    asked_ns: int = 0
    failures: int = 0
    not_before_ns: int = 0
    wanted: Wanted | None = None
    pinned: bool | None = None
    """Whether its workers were told to keep cores; None before the first change of ours serves."""
    left: list[tuple[int, int]] = field(default_factory=list)
    """Layout of the configuration before the present one."""
    changed_ns: int = 0
    returns: int = 0
    """How often in a row it went back to the one before."""
    choices: dict[tuple[tuple[int, ...], int, float], Choice] = field(default_factory=dict)
    """Optimal configurations by ⟨T, B⟩ and the number of instances that memory allows."""

    complaint: str = ""

    def use(self, profile: Profile) -> None:
        """Take another profile; a change that is under way goes on."""
        self.profile, self.table = profile, latency_table(profile)
        self.memory = memory_of(profile.cells.values())
        self.choices.clear()

    @property
    def demand(self) -> Demand:
        """What it asks for when the cores are shared out."""
        # A model without load still wants to be soon for the next request.
        weight = max(self.estimator.depth, 0.1)
        return Demand(self.table, self.estimator.current, weight)

    def best(self, nodes: tuple[int, ...], budget: float) -> Choice:
        """The optimal configuration on these cores with so many bytes for the new instances."""
        batch = self.estimator.current
        memory = replace(self.memory, budget=budget)
        key = nodes, batch, min(sum(nodes), memory.instances(batch))
        if key not in self.choices:
            self.choices[key] = minimise_latency(self.table, nodes, batch, memory)
        return self.choices[key]

    def capped(self, groups: Configuration, ceiling: int) -> Configuration:
        """These groups with caps as large as they are good for, at most ``ceiling``."""
        return tuple(
            replace(g, batch=self.table.efficient(g.threads, g.batch))
            for g in with_ceiling(groups, ceiling)
        )

    def present(self, threads: Sequence[int], cores: int) -> Choice | None:
        """What instances with these threads are expected to do; None when nobody can say."""
        # Who leaves the threads to torch takes all cores; several of them fight for them.
        if not threads or (0 in threads and len(threads) > 1):
            return None
        try:
            batch = self.estimator.current
            return spread_over(self.table, [t or cores for t in threads], batch)
        except NoConfiguration:
            return None

    def complain(self, text: str) -> None:
        """Log a problem once, not at every time-out."""
        if text != self.complaint:
            self.complaint = text
            LOGGER.warning("%s", text)


class Reconfiguration:
    """Wanted configurations of all slots."""

    def __init__(
        self,
        nodes: Callable[[], Sequence[int]],
        memory: Callable[[], float],
        settings: ConfigurationSettings,
    ) -> None:
        """``nodes``: physical cores of each NUMA node that models may have.

        ``memory``: bytes that are free; a new generation must find room beside the old one.
        """
        self._nodes = nodes
        self._memory = memory
        self.settings = settings
        self._models: dict[int, _Model] = {}
        self._changing: int | None = None
        self._told: dict[int, tuple[str, str]] = {}
        """By slot, the model and the obstacle that the log names."""

    def wanted(self, slot: int) -> Wanted | None:
        """What the page is to say about a slot, None when nothing was ever wanted."""
        model = self._models.get(slot)
        return model.wanted if model else None

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
        for slot in self._models.keys() - eligible.keys():
            del self._models[slot]
        if due:
            self._plan(slots, now_ns)
        self._advance(slots, now_ns)

    def _may_change(self, slot: int, seen: Observed) -> bool:
        if not (self.settings.auto and seen.identity.auto == 1):
            return False
        told = seen.name, seen.obstacle
        if seen.obstacle and self._told.get(slot) != told:
            LOGGER.info("%s keeps its configuration: %s", *told)
        self._told[slot] = told
        return not seen.obstacle

    def _model(self, slot: int, seen: Observed) -> _Model:
        key = (seen.identity.model_name, seen.identity.model_version)
        model = self._models.get(slot)
        profile = seen.profile
        assert profile is not None
        if model is None or model.key != key:
            model = self._models[slot] = _Model(key, BatchSizeEstimator(1, 0))
            model.use(profile)
        elif model.profile is not profile:
            model.use(profile)
        model.estimator.tune(
            round(self.settings.timeout_s * 1e9),
            largest=min(profile.batch, seen.identity.registered_batch_size),
            alpha=self.settings.alpha,
            window=self.settings.window,
        )
        return model

    def _plan(self, slots: Mapping[int, Observed], now_ns: int) -> None:
        """A target for every model that may be changed, if all together gain enough by it.

        Without such a gain, only for those that shall keep cores of their own and do not, or the
        other way round.
        """
        movable = {
            slot: model
            for slot, model in self._models.items()
            # While its load is not known, a model stays as it is.
            if model.estimator.decided
            and now_ns >= model.not_before_ns
            and slot != self._changing
        }
        for model in self._models.values():
            model.target = None
        yielding = {slot for slot in movable if slots[slot].yields}
        sharing = {slot: model for slot, model in movable.items() if slot not in yielding}
        if sharing:
            self._plan_together(sharing, slots, self._free(slots, sharing), now_ns)
        for slot in yielding:
            self._plan_together({slot: movable[slot]}, slots, list(self._nodes()) or [1], now_ns)

    def _plan_together(
        self,
        movable: Mapping[int, _Model],
        slots: Mapping[int, Observed],
        nodes: Sequence[int],
        now_ns: int,
    ) -> None:
        """Targets for models that share these cores."""
        shares = share_cores(nodes, {slot: model.demand for slot, model in movable.items()})
        best: dict[int, Choice] = {}
        for slot, model in movable.items():
            try:
                best[slot] = model.best(tuple(shares[slot]), self._memory())
            except NoConfiguration as error:
                model.complain(f"{slots[slot].name}: {error}")
        worth_it = self._is_worth_it(best, slots, nodes)
        for slot, choice in best.items():
            model, present = movable[slot], slots[slot].configuration
            ceiling = slots[slot].identity.registered_batch_size
            groups = model.capped(choice.configuration, ceiling) if worth_it else present
            if layout(groups) != layout(present):
                if layout(groups) != model.left or self._may_return(model, now_ns):
                    model.target = groups
            elif self._is_pinned_wrongly(model, slots[slot]):
                model.target = present

    def _is_pinned_wrongly(self, model: _Model, seen: Observed) -> bool:
        if seen.yields or not all(group.threads for group in seen.configuration):
            return False
        return model.pinned != self.settings.pin

    def _may_return(self, model: _Model, now_ns: int) -> bool:
        """Going back and forth with a load that comes and goes gets rarer and rarer."""
        stayed_ns = now_ns - model.changed_ns
        hold_ns = round(self.settings.timeout_s * 1e9) * 2**model.returns
        if stayed_ns > LONG * hold_ns:
            model.returns = 0
        return stayed_ns >= hold_ns

    def _free(self, slots: Mapping[int, Observed], movable: Mapping[int, _Model]) -> list[int]:
        """Cores of each NUMA node for all models that may be changed now; at least one."""
        nodes = list(self._nodes()) or [1]
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

    def _is_worth_it(
        self, best: Mapping[int, Choice], slots: Mapping[int, Observed], nodes: Sequence[int]
    ) -> bool:
        """Whether the weighted latencies together get better by more than the noise.

        Also when they cannot be told, or when the present instances want more cores than there are.
        """
        now = then = 0.0
        used, everywhere = 0, sum(self._nodes())
        for slot, choice in best.items():
            model = self._models[slot]
            present = model.present(slots[slot].threads, everywhere)
            if present is None:
                return True
            used += sum(threads or everywhere for threads in slots[slot].threads)
            now += model.demand.weight * present.latency_ms
            then += model.demand.weight * choice.latency_ms
        return used > sum(nodes) or then < now * (1 - self.settings.gain)

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
        for slot in pending[:1]:
            model = self._models[slot]
            assert model.target is not None
            model.request += 1
            model.asked_ns = now_ns
            present = slots[slot].configuration
            if layout(model.target) != layout(present):
                back = layout(model.target) == model.left
                model.returns = min(model.returns + 1, MOST_RETURNS) if back else 0
                model.left, model.changed_ns = layout(present), now_ns
            pin = self.settings.pin and not slots[slot].yields
            model.wanted = Wanted(model.request, model.target, pin)
            LOGGER.info(
                "%s: about %d requests at once; %s %s instead of %s",
                slots[slot].name,
                model.estimator.current,
                format_configuration(model.target),
                "on cores of its own" if model.wanted.pin else "on any cores",
                format_configuration(present),
            )
            model.target = None
            self._changing = slot

    def _is_over(self, model: _Model, seen: Observed, now_ns: int) -> bool:
        assert model.wanted is not None
        taken_up = seen.change.change_request == model.wanted.request
        if not taken_up and now_ns < model.asked_ns + PATIENCE_NS:
            return False
        if taken_up and seen.change.change_state == ChangeState.UNDER_WAY:
            return False
        if not taken_up or seen.change.change_state == ChangeState.UNDONE:
            # What the others were to get may have been its cores.
            for other in self._models.values():
                other.target = None
            model.failures = min(model.failures + 1, 6)
            pause_s = self.settings.timeout_s * 2**model.failures
            model.not_before_ns = now_ns + round(pause_s * 1e9)
            LOGGER.warning(
                "%s: %s was not possible; the next attempt is in %.0f s at the earliest",
                seen.name,
                format_configuration(model.wanted.groups),
                pause_s,
            )
        else:
            model.failures, model.pinned = 0, model.wanted.pin
        return True


def _cores(groups: Configuration | None) -> int:
    return sum(group.instances * group.threads for group in groups or ())
