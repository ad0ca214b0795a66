"""How many instances models have, where nothing else decides that (PROTEAN, section 4.2).

One for every batch of the requests that were in the server at once; an instance that is not needed
any more stays warm for a while. Memory is counted once for all models: what each of their processes
was seen to take on the host, and on the instances of GPUs that it is seated on.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from shunter.allocator.devices.journal import state_folder
from shunter.allocator.devices.keeper import Keeper
from shunter.allocator.devices.standing import Standing
from shunter.allocator.memory.processes import Footprint, footprints
from shunter.allocator.placement.autoscaling import KeepAlive, Want, instances, within
from shunter.batching.page.control_page import ControlPage
from shunter.batching.page.layout import ChangeState
from shunter.plugins.control.mig_control import MigControl
from shunter.plugins.control.observed import Observed, Wanted
from shunter.plugins.control.settings import AutoscalingSettings, Settings

LOGGER = logging.getLogger("shunter.autoscaling")
PAUSE_NS = 30 * 10**9
"""After a change that was not possible, or not taken up."""
HOST, GPU = "host", "gpu"


@dataclass
class _Scaled:
    """What is remembered of a model."""

    alive: KeepAlive
    highest: int = 0
    """Requests at once since the last look."""
    used_s: float = 0.0
    """When there was one last."""
    wanted: Wanted | None = None
    not_before_ns: int = 0


class Autoscaling:
    """Numbers of instances, one duty cycle at a time. Pure but for what it is given."""

    def __init__(self, sizes: Callable[[int], Mapping[int, Footprint]]) -> None:
        """``sizes``: memory of the workers of a server, by slot."""
        self._sizes = sizes
        self.settings = AutoscalingSettings()
        self.counts: dict[int, int] = {}
        """Of each model that it decides about."""
        self._models: dict[int, _Scaled] = {}
        self._looked_ns = 0

    def wanted(self, slot: int) -> Wanted | None:
        """What the page is to say about a slot."""
        model = self._models.get(slot)
        return model.wanted if model else None

    def do_work(
        self,
        slots: Mapping[int, Observed],
        requests: Mapping[int, int],
        gpu: Mapping[int, int],
        memory: Callable[[], Mapping[str, float]],
        owner: int,
        now_ns: int,
    ) -> None:
        """``gpu``: for each model that is seated on GPUs the bytes that one instance takes there;
        ``memory``: bytes of each kind that are free; ``owner``: the server's pid.
        """
        settings = self.settings
        ours = (
            {slot: seen for slot, seen in slots.items() if slot in gpu or _is_free(seen)}
            if settings.auto
            else {}
        )
        for gone in self._models.keys() - ours.keys():
            del self._models[gone]
            self.counts.pop(gone, None)
        for slot, seen in ours.items():
            model = self._models.setdefault(slot, _Scaled(KeepAlive()))
            model.highest = max(model.highest, seen.depth)
        if now_ns - self._looked_ns < settings.interval_s * 1e9 or not ours:
            return
        self._looked_ns = now_ns
        sizes = self._sizes(owner)
        there = {slot: _instances(seen) for slot, seen in ours.items()}
        wants = [self._want(slot, ours[slot], sizes, gpu.get(slot), now_ns) for slot in ours]
        free = dict(memory())
        for want, slot in zip(wants, ours, strict=True):  # what runs has its memory already
            for kind, count in want.each.items():
                free[kind] = free.get(kind, 0.0) + count * there[slot]
            for kind, count in want.once.items() if there[slot] else ():
                free[kind] = free.get(kind, 0.0) + count
        found = within(wants, free)
        self.counts = {slot: max(1, found[str(slot)]) for slot in ours}
        for slot, seen in ours.items():
            if slot not in gpu:
                self._ask(slot, seen, requests.get(slot, 0), now_ns)

    def _want(
        self,
        slot: int,
        seen: Observed,
        sizes: Mapping[int, Footprint],
        gpu_bytes: int | None,
        now_ns: int,
    ) -> Want:
        model, settings, now_s = self._models[slot], self.settings, now_ns / 1e9
        cap = max((group.group_cap for group in seen.groups()), default=1)
        needed = min(settings.most, max(settings.least, instances(model.highest, max(1, cap))))
        model.used_s = now_s if model.highest else model.used_s
        model.highest = seen.depth
        alive = replace(model.alive, keep_s=settings.keep_s, least=settings.least)
        model.alive = alive.after(now_s, needed)
        size = sizes.get(slot, Footprint())
        each = {HOST: float(size.own)} | ({} if gpu_bytes is None else {GPU: float(gpu_bytes)})
        return Want(
            str(slot),
            needed,
            min(settings.most, max(needed, model.alive.target)),
            {HOST: float(size.shared)},
            each,
            model.used_s,
            not seen.yields,
        )

    def _ask(self, slot: int, seen: Observed, request: int, now_ns: int) -> None:
        """Want another number of workers in place, unless a change is under way."""
        model, count = self._models[slot], self.counts[slot]
        present = seen.configuration
        if model.wanted and present and present[0].instances == model.wanted.groups[0].instances:
            model.not_before_ns = 0  # it was possible
        if seen.change.change_state == ChangeState.UNDER_WAY or now_ns < model.not_before_ns:
            return
        if not present or present[0].instances == count:
            return
        own = model.wanted.request if model.wanted else 0
        groups = (replace(present[0], instances=count),)
        model.not_before_ns = now_ns + PAUSE_NS
        model.wanted = Wanted(max(own, request, seen.change.change_request) + 1, groups, pin=False)
        LOGGER.info("%s: %d instances instead of %d", seen.name, count, present[0].instances)


def _is_free(seen: Observed) -> bool:
    """Whether nobody else decides about a model's instances."""
    movable = seen.identity.auto == 1 and seen.profile is None and not seen.has_lists
    return movable and len(seen.groups()) == 1 and not any(seen.places)


def _instances(seen: Observed) -> int:
    return sum(group.group_instances for group in seen.groups())


class Capacity:
    """How many instances models have, and who is on which instance of a GPU."""

    def __init__(self, available: Callable[[], float]) -> None:
        """``available``: bytes that are free on the host."""
        self._available = available
        self._mig = MigControl(_keeper)
        self._scaling = Autoscaling(footprints)
        self._told: Standing | None = None

    def use(self, settings: Settings) -> None:
        """From now on go by these settings."""
        self._mig.use(settings.mig)
        self._scaling.settings = settings.autoscaling

    def rest(self, slots: Mapping[int, Observed]) -> dict[int, Observed]:
        """Those that are not on instances of GPUs: others decide about their configuration."""
        return {slot: seen for slot, seen in slots.items() if not self._mig.seats_on(seen)}

    def do_work(
        self,
        page: ControlPage,
        slots: Mapping[int, Observed],
        requests: Mapping[int, int],
        now_ns: int,
    ) -> None:
        """One duty cycle; the page is told how the GPUs stand."""
        seated = {slot: seen for slot, seen in slots.items() if self._mig.seats_on(seen)}
        gpu = {slot: self._mig.bytes_of(slot) for slot in seated}
        owner = page.header().owner_pid if self._scaling.settings.auto else 0
        self._scaling.do_work(slots, requests, gpu, self._free, owner, now_ns)
        self._mig.do_work(slots, requests, self._scaling.counts, now_ns)
        now = self._mig.standing
        if now is not None and now is not self._told:
            self._told = now
            page.tell_devices(
                now.changing, now.done, now.changes, now.undone, now.layouts, now.problem
            )

    def _free(self) -> dict[str, float]:
        return {HOST: self._available(), GPU: self._mig.free_bytes()}

    def wanted(self, slot: int, other: Wanted | None) -> Wanted | None:
        """The configuration that was wanted last, by this or by ``other``."""
        found = (self._mig.wanted(slot), self._scaling.wanted(slot), other)
        return max((each for each in found if each), key=lambda each: each.request, default=None)


def _keeper(leaving: MigControl, patience_s: float) -> Keeper:
    return Keeper(state_folder(), leaving, patience_s=patience_s)
