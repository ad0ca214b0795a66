"""Which model's batch runs next, and which model's weights come next. Pure.

Rafiqi's daemon passes over all models, the least recently served first, and lines up those with
requests for a batch; when one of them is not on the GPU, the least recently used ones leave. This
is the same with what its authors had planned: several devices are one larger cache, swaps run
beside batches and beside each other, and what a swap costs counts.

- *Order*: strict before best effort, then the least recently served. Who waits longer than
  ``ageing_s`` counts as strict.
- *Batches* go in this order to idle workers of devices where their model is hot, so that others run
  while a swap is on its way. A worker with nothing hot to run begins behind a swap.
- *Swaps* are for models that wait, also for those without requests for a batch yet. Who runs,
  comes, or is resident never leaves for one. Who waits too leaves only for one that comes before it
  in the order, and not before it has run and has been there for ``tenure`` times what its own swap
  takes (best-effort ones leave at once for a strict one). So all are served where they do not fit
  together, and copying takes a part of the time only.
- *Copies*: a model whose device is busy comes to an idle one when nobody else wants that room.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf

from shunter.allocator.memory.cache import Heat
from shunter.allocator.memory.devices import Device, Devices, Model


@dataclass(frozen=True)
class Waiting:
    """A model with requests that no worker has."""

    name: str
    since: float
    """When the oldest of them came."""
    strict: bool = True
    """Whether one of them is."""
    batches: int = 1
    """How many are worth a batch now, by its threshold; 0: they wait for more."""


@dataclass(frozen=True)
class Run:
    """A batch of ``model`` begins on a worker of ``device``."""

    model: str
    device: str


@dataclass(frozen=True)
class Swap:
    """``model`` comes to ``device``; ``evict`` have left."""

    model: str
    device: str
    evict: tuple[str, ...] = ()


@dataclass(frozen=True)
class Rules:
    """What the order of models may cost."""

    tenure: float = 4.0
    """Times its own swap that a model which is in use stays before another takes its place."""
    ageing_s: float = 1.0
    """So long a best-effort model is behind strict ones; 0: always."""
    swaps: int = 2
    """At the same time on a device."""
    copies: bool = True
    """Whether a model may lie in several devices."""


USUAL = Rules()


class ModelScheduler:
    """The order of batches and swaps on a set of devices.

    :meth:`decide` is asked after every event: a request came, a batch or a swap has ended, or
    time has passed. What it returns has happened as far as it knows.
    """

    def __init__(self, devices: Devices, rules: Rules = USUAL) -> None:
        """Nothing is held yet."""
        self.devices, self.rules = devices, rules
        self._served: dict[str, int] = {}
        """Model -> number of its last batch among all; who has none was served before all."""
        self._batches = 0

    def forget(self, name: str) -> None:
        """A model is no more. Raises CacheError while it is at work or coming."""
        self.devices.unregister(name)
        self._served.pop(name, None)

    # ---- what has happened

    def batch_ended(self, run: Run) -> None:
        """A worker is idle again."""
        device = self.devices.by_name[run.device]
        device.cache.finish(run.model)
        device.running -= 1

    def swap_ended(
        self, swap: Swap, now: float, seconds: float = 0.0, *, failed: bool = False
    ) -> None:
        """It took ``seconds``, which later ones are predicted by; 0: not known."""
        device = self.devices.by_name[swap.device]
        device.cache.end_swap(swap.model, now, failed=failed)
        if not failed:
            device.measured(self.devices.models[swap.model].bytes, seconds)

    # ---- what happens now

    def decide(self, waiting: Sequence[Waiting], now: float) -> list[Run | Swap]:
        """Batches and swaps that begin now. ``waiting`` has each model at most once."""
        waiting = [each for each in waiting if each.name in self.devices.models]
        self._look_at_promises(waiting, now)
        left = {each.name: each.batches for each in waiting}
        found: list[Run | Swap] = [*self._runs(waiting, left, now, Heat.HOT)]
        found += self._swaps(waiting, now)
        found += self._runs(waiting, left, now, Heat.COMING)
        if self.rules.copies:
            found += self._copies([each for each in waiting if left[each.name] > 0], now)
        return found

    def _rank(self, each: Waiting, now: float) -> tuple[bool, int, float, str]:
        return not self._is_urgent(each, now), self._served.get(each.name, 0), each.since, each.name

    def _is_urgent(self, each: Waiting, now: float) -> bool:
        aged = self.rules.ageing_s > 0 and now - each.since >= self.rules.ageing_s
        return each.strict or aged

    def _look_at_promises(self, waiting: Sequence[Waiting], now: float) -> None:
        """Who has the room that it was promised, or has no right to it any more, holds nobody up.

        The right may end: the request that was urgent has gone, or one that is came to who yields.
        """
        waits = {each.name: each for each in waiting}
        takers = {each.name: each for each in (*waiting, *self._missing_residents())}
        for device in self.devices.by_name.values():
            taker = takers.get(device.yields_to or "")
            if taker is None or taker.batches == 0 or self.devices.holding(taker.name):
                device.stop_yielding()
            else:
                self._promise(taker, device, waits, now)

    def _promise(
        self, taker: Waiting, device: Device, waits: Mapping[str, Waiting], now: float
    ) -> None:
        """Let those begin nothing more that can make room for a model; nobody, if they cannot."""
        size, copied = self.devices.models[taker.name].bytes, self.devices.copied(device)
        leaving = device.cache.victims(size, self._weaker(taker, device, waits, now), copied)
        if leaving is not None:
            device.yields, device.yields_to = frozenset(leaving), taker.name
        elif device.yields_to == taker.name:
            device.stop_yielding()

    def _runs(
        self, waiting: Sequence[Waiting], left: dict[str, int], now: float, heat: Heat
    ) -> Iterator[Run]:
        """Batches of models that are held so, as long as there are workers."""
        while True:
            ready = [each for each in waiting if left[each.name] > 0]
            ready.sort(key=lambda each: self._rank(each, now))
            places = ((each.name, self._place(each.name, heat)) for each in ready)
            name, device = next((found for found in places if found[1]), ("", None))
            if device is None:
                return
            left[name] -= 1
            self._batches += 1
            self._served[name] = self._batches
            device.cache.start(name, now)
            device.running += 1
            yield Run(name, device.name)

    def _place(self, name: str, heat: Heat) -> Device | None:
        """Where a batch may begin, on the device with the most idle workers."""
        able = [each for each in self.devices.holding(name) if each.may_run(name, heat)]
        return max(able, key=lambda each: each.idle, default=None)

    def _swaps(self, waiting: Sequence[Waiting], now: float) -> Iterator[Swap]:
        """For models that are nowhere yet; those that could run now come first."""
        waits = {each.name: each for each in waiting}
        wanted = [*self._missing_residents(), *(each for each in waiting if each.batches > 0)]
        early = [each for each in waiting if each.batches == 0]
        for group in (wanted, early):
            for each in sorted(group, key=lambda each: self._rank(each, now)):
                model = self.devices.models[each.name]
                if self.devices.holding(model.name):
                    continue
                offers = [
                    (device.swap_s(model.bytes), len(evict), -device.idle, number, device, evict)
                    for number, device in enumerate(self._reachable(model))
                    if (evict := self._evicted(each, model, device, waits, now)) is not None
                ]
                if offers:
                    *_, device, evict = min(offers, key=lambda offer: offer[:4])
                    yield self._swap(model, device, evict, now)

    def _missing_residents(self) -> list[Waiting]:
        """Resident models that are not there yet, as if they had waited for ever."""
        return [
            Waiting(model.name, -inf)
            for model in self.devices.models.values()
            if model.resident and not self.devices.holding(model.name)
        ]

    def _reachable(self, model: Model) -> list[Device]:
        """Devices to which a swap may begin now."""
        home = self.devices.home(model.name)
        return [
            each
            for each in self.devices.by_name.values()
            if home in (None, each)
            and each.cache.coming < self.rules.swaps
            and each.yields_to in (None, model.name)  # else its room is promised
        ]

    def _evicted(
        self,
        each: Waiting,
        model: Model,
        device: Device,
        waits: Mapping[str, Waiting],
        now: float,
    ) -> tuple[str, ...] | None:
        """Who leaves a device for a model; None: it cannot come there now."""
        cache, copied = device.cache, self.devices.copied(device)
        idle = [name for name in cache.held if name not in waits and cache.may_leave(name)]
        found = cache.victims(model.bytes, idle, copied)
        if found is not None or each.batches == 0:
            return found
        weaker = self._weaker(each, device, waits, now)
        able = [name for name in weaker if cache.may_leave(name)]
        found = cache.victims(model.bytes, able, copied)
        if found is None:
            others = [each for each in self.devices.by_name.values() if each is not device]
            if not any(each.yields_to == model.name for each in others):
                self._promise(each, device, waits, now)
        return found

    def _weaker(
        self, taker: Waiting, device: Device, waits: Mapping[str, Waiting], now: float
    ) -> list[str]:
        """Who may be held up for a model, of all that are held: also of those at work."""
        return [
            name
            for name in device.cache.held
            if name not in device.cache.pinned
            and (name not in waits or self._gives_way(waits[name], taker, device, now))
        ]

    def _gives_way(self, held: Waiting, other: Waiting, device: Device, now: float) -> bool:
        """Whether one that is held, with requests that wait, leaves for another."""
        if self.devices.models[other.name].resident:
            return True
        if self._is_urgent(held, now) != self._is_urgent(other, now):
            return self._is_urgent(other, now)
        there = device.cache.held[held.name]
        tenure_s = self.rules.tenure * there.bytes / device.bandwidth
        return (
            not there.is_awaited
            and there.heat is Heat.HOT
            and now - there.hot_since >= tenure_s
            and self._rank(held, now) > self._rank(other, now)
        )

    def _copies(self, waiting: Sequence[Waiting], now: float) -> Iterator[Swap]:
        """For models that wait although they are hot somewhere: into room that nobody wants."""
        for each in sorted(waiting, key=lambda each: self._rank(each, now)):
            model = self.devices.models[each.name]
            holding = self.devices.holding(model.name)
            if not holding or any(d.cache.heat(model.name) is Heat.COMING for d in holding):
                continue
            able = [
                device
                for device in self._reachable(model)
                if device not in holding
                and device.idle > 0
                and device.yields_to is None
                and device.cache.free >= model.bytes
                # Behind the batches of its own device it has waited for longer than a copy takes.
                and now - each.since >= device.swap_s(model.bytes)
            ]
            if able:
                device = max(able, key=lambda device: device.idle)
                yield self._swap(model, device, (), now)

    def _swap(self, model: Model, device: Device, evict: tuple[str, ...], now: float) -> Swap:
        device.cache.begin_swap(model.name, model.bytes, now, evict)
        if device.yields_to == model.name:
            device.stop_yielding()
        return Swap(model.name, device.name, evict)
