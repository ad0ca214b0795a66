"""Seats models on MIG instances, and has the instances changed while they serve.

The keeper changes layouts on a thread of its own, for that takes seconds. Before an instance goes,
whoever runs there gets a seat elsewhere: on an instance that stays, else on the host's cores. When
the new ones are there everybody gets the seat that is best. A move is a new generation of workers
beside the old one, as every change of a configuration, so nothing is lost.

What is seated where is read from the page: the next controller goes on where one was killed.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from shunter.allocator.devices.advice import DeviceError
from shunter.allocator.devices.geometry import plain
from shunter.allocator.devices.instances import GpuRecord, parts_of, used_by
from shunter.allocator.devices.slices import ComputeSlice, offered
from shunter.allocator.devices.standing import Standing, texts_for
from shunter.allocator.placement.device_seats import Device, Guest, LayoutPolicy, seats
from shunter.plugins.control.observed import Observed, Seated, Wanted
from shunter.plugins.control.settings import MigSettings

LOGGER = logging.getLogger("shunter.devices")
MIB = 1 << 20


class DeviceKeeper(Protocol):
    """What changes layouts."""

    standing: Standing

    def start(self) -> None:
        """Begin."""

    def want(self, layouts: Sequence[str]) -> None:
        """Layouts that the GPUs shall have."""


class MigControl:
    """Seats of the models that ``[mig]`` names, one duty cycle at a time."""

    def __init__(self, make: Callable[[MigControl, float], DeviceKeeper]) -> None:
        """``make``: a keeper that asks this one to leave instances, with its patience in s."""
        self._make = make
        self._keeper: DeviceKeeper | None = None
        self._settings = MigSettings()
        self._models: dict[int, Seated] = {}
        self._policy, self._looked_ns = LayoutPolicy(), 0
        self._told: set[str] = set()
        self._open: frozenset[str] | None = None
        """Instances of GPUs where work may be."""
        self._changed = threading.Condition()
        self._rounds = 0
        self._occupied: frozenset[str] = frozenset()

    def use(self, settings: MigSettings) -> None:
        """From now on go by these settings."""
        if settings.is_wanted and self._keeper is None:
            self._keeper = self._make(self, settings.patience_s)
            self._keeper.start()
        self._settings = settings
        self._told.clear()
        self._open = None

    @property
    def standing(self) -> Standing | None:
        """How the GPUs stand; None as long as nothing was wanted of them."""
        return self._keeper.standing if self._keeper else None

    def seats_on(self, seen: Observed) -> bool:
        """Whether a model's place is said here, and nowhere else."""
        name, identity = seen.identity.model_name, seen.identity
        return name in self._settings.models and identity.auto == 1 and not seen.has_lists

    def wanted(self, slot: int) -> Wanted | None:
        """What the page is to say about a slot."""
        model = self._models.get(slot)
        return model.wanted if model else None

    def bytes_of(self, slot: int) -> int:
        """Memory that one instance of a model is planned to take on its device."""
        model = self._models.get(slot)
        return model.memory.planned_bytes if model else 0

    def free_bytes(self) -> float:
        """Memory of all instances of GPUs that nobody uses."""
        gpus = self._keeper.standing.gpus if self._keeper else ()
        free = (max(0, part.memory_bytes - part.used_bytes) for part in parts_of(gpus))
        return float(sum(free))

    # ---- the keeper's thread

    def leave(self, names: frozenset[str]) -> None:
        """Wait until nobody of ours is there, nor on the way there. Raises DeviceError."""
        with self._changed:
            # A round that has begun may not know yet that these are closed.
            enough = self._rounds + 2
            left = self._changed.wait_for(
                lambda: self._rounds >= enough and not self._occupied & names,
                self._settings.patience_s,
            )
            staying = ", ".join(sorted(self._occupied & names)) or "nobody knows who"
        if not left:
            raise DeviceError(
                f"models did not leave {staying} within {self._settings.patience_s:g} s: look at "
                "their last change with `shunter status`. Nothing was changed"
            )

    # ---- the controller's thread

    def do_work(
        self,
        slots: Mapping[int, Observed],
        requests: Mapping[int, int],
        instances: Mapping[int, int],
        now_ns: int,
    ) -> None:
        """One duty cycle. ``requests``: the highest request number on each slot's page;
        ``instances``: how many of them a model is to have, where somebody has said so.
        """
        if self._keeper is None:
            return
        standing = self._keeper.standing
        ours = {slot: seen for slot, seen in slots.items() if self.seats_on(seen)}
        self._complain(slots)
        there = {slot: seen.name for slot, seen in ours.items()}
        self._models = {s: each for s, each in self._models.items() if there.get(s) == each.name}
        self._keeper.want(self._layouts(standing, ours, now_ns))
        visits = Counter(n for slot, seen in slots.items() for n in set(self._names(slot, seen)))
        taken = {name for seen in ours.values() for name in seen.devices}
        places = offered(standing.gpus, standing.closing, standing.whole, taken)
        rooms = {each.name: each.memory_bytes for each in places}
        if rooms.keys() != self._open:
            self._open = frozenset(rooms)
            for model in self._models.values():
                model.begin_anew()
        self._look(standing, ours, visits)
        targets = self._targets(standing, places, ours, instances, now_ns)
        for slot, seen in ours.items():
            model = self._models[slot]
            if not standing.gpus and not standing.closing.intersection(seen.devices):
                continue  # the keeper has not looked yet which instances there are
            if not model.is_under_way(seen, now_ns, rooms):
                count = instances.get(slot) or model.instances
                model.move(seen, targets[slot], count, requests.get(slot, 0), now_ns)
        with self._changed:
            self._rounds += 1
            self._occupied = frozenset(
                name for slot, seen in ours.items() for name in self._names(slot, seen)
            )
            self._changed.notify_all()

    def _complain(self, slots: Mapping[int, Observed]) -> None:
        """Name the models once that were to be seated and may not be."""
        for seen in slots.values():
            is_meant = seen.identity.model_name in self._settings.models
            if is_meant and not self.seats_on(seen) and seen.name not in self._told:
                self._told.add(seen.name)
                LOGGER.warning(
                    "%s stays where it is: it has auto = false, a device or lists of its own",
                    seen.name,
                )

    def _names(self, slot: int, seen: Observed) -> list[str]:
        """Devices that a model has workers on, or is on the way to."""
        model = self._models.get(slot)
        coming = [name for name, _ in model.coming if name] if model else []
        return [*seen.devices, *(coming if model and model.may_come(seen) else ())]

    def _look(
        self, standing: Standing, ours: Mapping[int, Observed], visits: Mapping[str, int]
    ) -> None:
        """Learn of every model. ``visits``: models on each device, and on the way there."""
        for slot, seen in ours.items():
            model = self._models.setdefault(slot, Seated(seen.name))
            model.count(seen)
            # The driver does not tell whose memory it is: not a neighbour's, while a worker loads.
            if seen.is_loaded and all(visits[name] == 1 for name in seen.devices[:1]):
                model.memory.look(*used_by(standing.gpus, seen.devices))

    def _targets(
        self,
        standing: Standing,
        places: Sequence[ComputeSlice],
        ours: Mapping[int, Observed],
        instances: Mapping[int, int],
        now_ns: int,
    ) -> dict[int, tuple[str, ...]]:
        """Devices of every model's instances, of ``places``."""
        shut = {each.name for each in places if each.device not in standing.whole}
        stay = bool(standing.changing)
        room = (each.memory_bytes for each in places if each.name not in shut)
        largest = 0 if stay else max(room, default=0)
        guests = {}
        for slot, seen in ours.items():
            model = self._models[slot]
            needed = model.memory.plan(largest, now_ns)
            count = instances.get(slot) or model.instances
            guests[slot] = Guest(seen.name, not seen.yields, count, needed, seen.devices)
        found = seats(list(guests.values()), places, stay=stay, shut=shut)
        return {slot: found[guest.name] for slot, guest in guests.items()}

    # ---- which layouts

    def _layouts(
        self, standing: Standing, ours: Mapping[int, Observed], now_ns: int
    ) -> Sequence[str]:
        settings = self._settings
        if not settings.auto or settings.layouts:
            return settings.layouts
        if now_ns - self._looked_ns >= settings.interval_s * 1e9 and not standing.changing:
            self._looked_ns = now_ns
            devices = [_device(each) for each in standing.gpus if each.mig == "on"]
            batches = sum(
                seen.depth / max(1, seen.identity.registered_batch_size)
                for seen in ours.values()
                if seen.yields
            )
            self._policy = replace(self._policy, wait=settings.wait).after(
                devices, batches, settings.batch_mb * MIB
            )
        wanted = {uuid: ",".join(kinds) for uuid, kinds in self._policy.wanted.items()}
        return texts_for(standing, wanted) if wanted else ()


def _device(gpu: GpuRecord) -> Device:
    usual = plain(gpu.profiles)
    kinds = {profile.id: profile.kind for profile in gpu.profiles}
    layout = tuple(kinds[each.profile] for each in sorted(gpu.layout) if each.profile in kinds)
    return Device(gpu.uuid, layout, {each.kind: each.memory_mb * MIB for each in usual})
