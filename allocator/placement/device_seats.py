"""Which models run on which instances of GPUs, and which instances there should be. Pure.

The seats are those of PROTEAN's algorithm 1, with one batch for each instance of a model: best
effort first-fit onto the smallest slices, strict models where they are slowed down least. The
layouts are those of its algorithm 2. Where nobody has measured a model on slices, its time is taken
to go with the compute of the slice, and its bandwidth to be a part of the whole device's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from shunter.allocator.placement.distribution import Batch, SliceState, distribute
from shunter.allocator.placement.reconfigurator import (
    Ewma,
    Kinds,
    Waiting,
    is_time,
    may_begin,
    wanted_layout,
)
from shunter.allocator.placement.slowdown import SlowdownModel

WHOLE = "whole"
BANDWIDTH = 0.3
"""Share of a whole device's that a model is taken to want while it runs."""


FIRST_PAUSE_NS, LAST_PAUSE_NS = 10**9, 600 * 10**9


def pause_ns(failures: int) -> int:
    """Before the next try, after so many others that failed: twice as long each time.

    Never for ever: nobody tells when the cause has gone, such as a full device.

    >>> [pause_ns(failures) // 10**9 for failures in (0, 1, 9, 10, 5000)]
    [1, 2, 512, 600, 600]
    """
    return min(LAST_PAUSE_NS, FIRST_PAUSE_NS << min(failures, 10))


@dataclass
class MemoryNeed:
    """Memory that one instance of a model takes on a device: as it was seen, else as it is guessed.

    Why an instance did not come to a device nobody says. Want of memory is the usual reason, so one
    of which nothing was seen is planned with more than was there: next it is tried on a larger
    slice, at last it stays on the host. Then it begins anew on the smallest, after ever longer
    pauses, for the reason may have been another one, and gone. The guess costs room, but only until
    the instance has been seen.
    """

    seen_bytes: int = 0
    """The most that one was seen to take."""
    lacked_bytes: int = 0
    """With so much one did not come, as far as nothing was seen."""
    planned_bytes: int = 0
    """What one is planned to take."""
    rounds: int = 0
    """How often not even the largest device was enough."""
    not_before_ns: int = 0
    """Then the next round begins; 0: this one is not over."""

    def look(self, used_bytes: int, room_bytes: int) -> None:
        """``used_bytes``: what an instance takes on its device of ``room_bytes``; 0: not known.

        What it took where there was more room than that was not all needed, for it runs here.
        """
        if used_bytes:
            before = self.seen_bytes if self.seen_bytes <= room_bytes else 0
            self.seen_bytes = max(before, used_bytes)

    def lacked(self, room_bytes: int) -> None:
        """It was to come to a device with so much for each instance, and did not."""
        self.lacked_bytes = max(self.lacked_bytes, room_bytes)

    def begin_anew(self) -> None:
        """What was tried says nothing any more."""
        self.lacked_bytes = self.rounds = self.not_before_ns = 0

    def plan(self, largest_bytes: int, now_ns: int) -> int:
        """Need what was seen, but no more than the largest device has: else it would get none.

        ``largest_bytes``: 0: more room may come.
        """
        if largest_bytes and self.lacked_bytes >= largest_bytes:
            self._wait(now_ns)
        if self.seen_bytes:
            self.planned_bytes = min(self.seen_bytes, largest_bytes or self.seen_bytes)
        else:
            self.planned_bytes = self.lacked_bytes + 1 if self.lacked_bytes else 0
        return self.planned_bytes

    def _wait(self, now_ns: int) -> None:
        if not self.not_before_ns:
            self.not_before_ns = now_ns + pause_ns(self.rounds)
            self.rounds += 1
        elif now_ns >= self.not_before_ns:
            self.lacked_bytes = self.not_before_ns = 0


class Place(Protocol):
    """A slice of a GPU."""

    @property
    def name(self) -> str:
        """No other slice has it."""

    @property
    def kind(self) -> str:
        """Slices of one kind are alike."""

    @property
    def compute(self) -> float:
        """Its share of the GPU."""

    @property
    def bandwidth(self) -> float:
        """Its share of the GPU's."""

    @property
    def memory_bytes(self) -> int:
        """All of it."""


@dataclass(frozen=True)
class Guest:
    """A model that is to run on slices."""

    name: str
    is_strict: bool
    instances: int
    memory_bytes: int = 0
    """Of one instance; 0: not known."""
    now: tuple[str, ...] = ()
    """Slices of its instances; those that are gone do not count."""


def assumed(guests: Sequence[Guest], places: Sequence[Place]) -> SlowdownModel:
    """What is taken to be so of models that were not measured."""
    kinds = {each.kind: each for each in places}
    times = {kind: 1 / max(place.compute, 0.01) for kind, place in kinds.items()}
    return SlowdownModel(
        WHOLE,
        {guest.name: {WHOLE: 1.0, **times} for guest in guests},
        {guest.name: {WHOLE: BANDWIDTH} for guest in guests},
        {WHOLE: 1.0, **{kind: max(place.bandwidth, 0.01) for kind, place in kinds.items()}},
    )


def seats(
    guests: Sequence[Guest],
    places: Sequence[Place],
    *,
    stay: bool = False,
    shut: Collection[str] = (),
) -> dict[str, tuple[str, ...]]:
    """The slices of every model's instances, in order; fewer where there is no room.

    ``stay``: whoever has a seat that is still there keeps it, as while others are made.
    ``shut``: names of places where everybody stays, and nobody comes.
    """
    known = assumed(guests, places)
    names = {each.name for each in places if stay or each.name in shut}
    kept = {
        guest.name: tuple(each for each in guest.now if each in names)[: guest.instances]
        for guest in guests
    }
    used: Counter[str] = Counter()
    running: dict[str, list[str]] = {}
    for guest in guests:
        for each in kept[guest.name]:
            used[each] += guest.memory_bytes
            running.setdefault(each, []).append(guest.name)
    there = [
        SliceState(
            each.name,
            each.kind,
            each.compute,
            max(0, each.memory_bytes - used[each.name]),
            tuple(running.get(each.name, ())),
        )
        for each in places
        if each.name not in shut
    ]
    coming = [
        Batch(guest.name, guest.is_strict, guest.memory_bytes)
        for guest in sorted(guests, key=lambda each: (not each.is_strict, each.name))
        for _ in range(guest.instances - len(kept[guest.name]))
    ]
    found = dict(kept)
    for batch, name in zip(coming, distribute(there, coming, known), strict=True):
        if name is not None:
            found[batch.model] = (*found[batch.model], name)
    return {name: tuple(sorted(each)) for name, each in found.items()}


@dataclass(frozen=True)
class Device:
    """A GPU whose layout may follow the load."""

    uuid: str
    layout: tuple[str, ...]
    """Kinds of its instances: 4g, 3g."""
    memory: Mapping[str, int]
    """Bytes of each kind of slice that it can have."""


@dataclass(frozen=True)
class LayoutPolicy:
    """Algorithm 2 over all GPUs of a machine; replaced as a whole at each look."""

    wait: int = 3
    expected: Ewma = field(default_factory=Ewma)
    """Best-effort batches of all GPUs together."""
    waiting: Mapping[str, Waiting] = field(default_factory=dict)
    wanted: Mapping[str, Kinds] = field(default_factory=dict)
    """Layouts of the GPUs that are to change. What could not be made stays wanted until the load
    wants something else, or the layout that is there."""

    def after(self, devices: Sequence[Device], batches: float, batch_bytes: int) -> LayoutPolicy:
        """With one more look at the best-effort batches."""
        expected = self.expected.after(batches)
        each = (expected.value or 0.0) / max(1, len(devices))
        waiting: dict[str, Waiting] = {}
        found: dict[str, Kinds] = {}
        left = may_begin(len(devices), 0)
        for device in devices:
            before = self.waiting.get(device.uuid, Waiting())
            if not device.memory.keys() >= {"1g", "2g", "3g", "4g"}:
                continue  # a GPU that is parted otherwise than in the paper
            wanted = wanted_layout(each, batch_bytes, device.memory, {})
            if Counter(wanted) == Counter(device.layout):
                continue
            after, change = is_time(before, self.wait)
            if device.uuid in self.wanted:
                found[device.uuid] = self.wanted[device.uuid]
            again = self.wanted.get(device.uuid) == wanted
            begins = change and (again or left > 0)
            if begins:
                left -= not again  # one that cannot be changed lets the next one begin
                found[device.uuid] = wanted
            waiting[device.uuid] = before if change and not begins else after
        return LayoutPolicy(self.wait, expected, waiting, found)
