"""Decides which models run in another configuration now (Packrat sections 3.7 and 3.8).

Every duty cycle each model's depth goes to its estimator. When that asks for another batch size,
the cores are shared out anew among all models that may be changed, and each gets the best
configuration for its share, if that is better than the present one by more than the noise of a
profile. Changes go one at a time, those that give cores back first, so that outside of a
change-over no core is promised twice.

Pure: the page's numbers, profiles and the time in, wanted configurations out.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from shunter.batching.configuration import Configuration, InstanceGroup, format_configuration
from shunter.batching.estimator import BatchSizeEstimator
from shunter.batching.layout import ChangeState
from shunter.batching.optimizer import (
    Choice,
    LatencyTable,
    Memory,
    NoConfiguration,
    latency_curve,
    minimise_latency,
    share_threads,
    spread_over,
)
from shunter.batching.page_records import GroupTelemetry, SlotChange, SlotIdentity
from shunter.batching.profile import Profile, latency_table, memory_of
from shunter.plugins.settings import ConfigurationSettings

LOGGER = logging.getLogger("shunter.reconfiguration")


@dataclass(frozen=True)
class Wanted:
    """What the page says about a slot's configuration."""

    request: int
    groups: Configuration
    pin: bool


@dataclass(frozen=True)
class Observed:
    """One slot in this duty cycle."""

    identity: SlotIdentity
    depth: int
    """Requests in the system."""
    groups: Callable[[], Sequence[GroupTelemetry]]
    change: SlotChange
    profile: Profile | None

    @property
    def name(self) -> str:
        """``name/version``."""
        return f"{self.identity.model_name}/{self.identity.model_version}"

    @property
    def threads(self) -> list[int]:
        """Threads of each present instance, 0 where the handler decides."""
        return [g.group_threads for g in self.groups() for _ in range(g.group_instances)]


@dataclass
class _Model:
    """What is remembered about a slot."""

    key: tuple[str, str]
    estimator: BatchSizeEstimator
    profile: Profile
    table: LatencyTable
    memory: Memory
    target: Configuration | None = None
    """What it shall run, until it does."""
    request: int = 0
    failures: int = 0
    not_before_ns: int = 0
    wanted: Wanted | None = None
    choices: dict[tuple[tuple[int, ...], int], Choice] = field(default_factory=dict)
    """Optimal configurations by ⟨T, B⟩."""

    def best(self, nodes: tuple[int, ...], batch: int) -> Choice:
        """The optimal configuration on these cores."""
        if (nodes, batch) not in self.choices:
            self.choices[nodes, batch] = minimise_latency(self.table, nodes, batch, self.memory)
        return self.choices[nodes, batch]


class Reconfiguration:
    """Wanted configurations of all slots."""

    def __init__(
        self, nodes: Callable[[], Sequence[int]], settings: ConfigurationSettings
    ) -> None:
        """``nodes``: physical cores of each NUMA node that models may have."""
        self._nodes = nodes
        self.settings = settings
        self._models: dict[int, _Model] = {}
        self._changing: int | None = None

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
        eligible = {slot: seen for slot, seen in slots.items() if self._may_change(seen)}
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

    def _may_change(self, seen: Observed) -> bool:
        return (
            self.settings.auto
            and seen.identity.auto == 1
            and seen.profile is not None
            and seen.identity.registered_batch_size > 1
        )

    def _model(self, slot: int, seen: Observed) -> _Model:
        key = (seen.identity.model_name, seen.identity.model_version)
        model = self._models.get(slot)
        profile = seen.profile
        assert profile is not None
        if model is None or model.key != key or model.profile is not profile:
            s = self.settings
            estimator = BatchSizeEstimator(
                1,
                round(s.timeout_s * 1e9),
                largest=min(profile.batch, seen.identity.registered_batch_size),
                alpha=s.alpha,
                window=s.window,
            )
            memory = memory_of(profile.cells.values())
            model = _Model(key, estimator, profile, latency_table(profile), memory)
            self._models[slot] = model
        return model

    def _plan(self, slots: Mapping[int, Observed], now_ns: int) -> None:
        """A target for every model that may be changed."""
        nodes = self._share(slots)
        for slot, model in self._models.items():
            model.target = None
            if now_ns < model.not_before_ns or slot == self._changing:
                continue
            try:
                model.target = self._target(model, slots[slot], nodes[slot])
            except NoConfiguration as error:
                LOGGER.warning("%s: %s", slots[slot].name, error)

    def _share(self, slots: Mapping[int, Observed]) -> dict[int, Sequence[int]]:
        """Cores of each NUMA node that a model may have."""
        nodes = list(self._nodes())
        # Others keep what an operator gave them; those that run wherever they like promise nothing.
        fixed = sum(sum(seen.threads) for slot, seen in slots.items() if slot not in self._models)
        for i in range(len(nodes)):
            given = min(fixed, nodes[i] - 1 if len(nodes) == 1 else nodes[i])
            nodes[i] -= given
            fixed -= given
        if len(self._models) == 1:
            return dict.fromkeys(self._models, nodes)
        total = max(sum(nodes), len(self._models))
        order = list(self._models)
        curves = [self._curve(self._models[slot], total) for slot in order]
        weights = [max(self._models[slot].estimator.depth, 0.1) for slot in order]
        try:
            shares = share_threads(curves, weights)
        except NoConfiguration:
            shares = [max(1, total // len(order))] * len(order)
        return {slot: _take(nodes, share) for slot, share in zip(order, shares, strict=True)}

    def _curve(self, model: _Model, total: int) -> np.ndarray:
        return latency_curve(model.table, total, model.estimator.current)

    def _target(
        self, model: _Model, seen: Observed, nodes: Sequence[int]
    ) -> Configuration | None:
        """The configuration to change to; None when the present one is as good."""
        batch = model.estimator.current
        best = model.best(tuple(nodes), batch)
        now = _present(model, seen, batch, sum(nodes))
        if now is not None and best.latency_ms >= now.latency_ms * (1 - self.settings.gain):
            return None
        groups = _with_ceiling(best.configuration, seen.identity.registered_batch_size)
        if _layout(groups) == _layout(_groups_of(seen)):
            return None
        LOGGER.info(
            "%s: batch %d, %s instead of %s, %.1f ms instead of %s expected",
            seen.name,
            batch,
            format_configuration(groups),
            format_configuration(_groups_of(seen)),
            best.latency_ms,
            "unknown" if now is None else f"{now.latency_ms:.1f} ms",
        )
        return groups

    def _advance(self, slots: Mapping[int, Observed], now_ns: int) -> None:
        """Follow the change under way, or begin the next one."""
        if self._changing is not None:
            model, seen = self._models.get(self._changing), slots.get(self._changing)
            there = model is not None and seen is not None and model.wanted is not None
            if there and not self._is_over(model, seen, now_ns):
                return
            self._changing = None
        pending = [slot for slot, model in self._models.items() if model.target is not None]
        # Who gives cores back goes first.
        pending.sort(key=lambda slot: _cores(self._models[slot].target) - sum(slots[slot].threads))
        for slot in pending[:1]:
            model = self._models[slot]
            assert model.target is not None
            model.request += 1
            model.wanted = Wanted(model.request, model.target, self.settings.pin)
            model.target = None
            self._changing = slot

    def _is_over(self, model: _Model, seen: Observed, now_ns: int) -> bool:
        assert model.wanted is not None
        if seen.change.change_request != model.wanted.request:
            return False  # not taken up yet
        if seen.change.change_state == ChangeState.UNDER_WAY:
            return False
        if seen.change.change_state == ChangeState.UNDONE:
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
            model.failures = 0
        return True


def _groups_of(seen: Observed) -> Configuration:
    return tuple(
        InstanceGroup(max(1, g.group_instances), g.group_threads, max(1, g.group_cap))
        for g in seen.groups()
    )


def _present(model: _Model, seen: Observed, batch: int, cores: int) -> Choice | None:
    """What the present instances are expected to do; None when the profile cannot say."""
    threads = [t if t > 0 else cores for t in seen.threads]
    # Instances that leave the threads to torch take all cores each; several of them fight.
    if not threads or (0 in seen.threads and len(threads) > 1):
        return None
    try:
        return spread_over(model.table, threads, batch)
    except NoConfiguration:
        return None


def _with_ceiling(groups: Configuration, ceiling: int) -> Configuration:
    """Caps in the ratio of the optimum, as large as the registration allows.

    A burst beyond the estimate is then not cut into small batches.
    """
    largest = max(group.batch for group in groups)
    return tuple(
        InstanceGroup(g.instances, g.threads, max(1, round(g.batch * ceiling / largest)))
        for g in groups
    )


def _layout(groups: Configuration) -> list[tuple[int, int]]:
    return sorted((group.threads, group.instances) for group in groups)


def _cores(groups: Configuration | None) -> int:
    return sum(group.instances * group.threads for group in groups or ())


def _take(nodes: list[int], share: int) -> list[int]:
    """``share`` cores out of ``nodes``, which lose them; from as few nodes as possible."""
    taken = [0] * len(nodes)
    for i in sorted(range(len(nodes)), key=lambda i: (nodes[i] < share, -nodes[i])):
        taken[i] = min(nodes[i], share)
        nodes[i] -= taken[i]
        share -= taken[i]
    return taken
