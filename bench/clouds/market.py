"""A cloud that sells machines: which requests fail, how long machines start, which are taken."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from heapq import heappop, heappush

from clouds.world import START_S, ZONES
from shunter.allocator.cluster.procurement import (
    Acquire,
    Action,
    Drain,
    Kind,
    Owned,
    Phase,
    Release,
)

HOUR = 3600.0


class Market:
    """Machines by name, and the hours that they have been paid for."""

    def __init__(self, chance: float, notice_s: float, seed: int, *, in_zones: bool) -> None:
        """``chance``: that a spot machine is taken within an hour."""
        self.machines: dict[str, Owned] = {}
        self.count: Counter[Kind | Phase] = Counter()
        self.failed: Counter[Kind] = Counter()
        self.hours = dict.fromkeys(Kind, 0.0)
        self.evictions = self.taken_at_work = self.acquired = 0
        self.chance, self.notice_s = chance, notice_s
        self._draw = random.Random(seed)
        self._events: list[tuple[float, int, str, str]] = []
        self._number = 0
        self._zone: dict[str, int] = {}
        self._short = [False] * ZONES
        self._paid_from: dict[str, float] = {}
        self._in_zones = in_zones
        for zone in range(ZONES if in_zones else 0):
            self._at(self._draw.uniform(0, HOUR), "hour of a zone", str(zone))

    def _at(self, when: float, what: str, name: str) -> None:
        self._number += 1
        heappush(self._events, (when, self._number, what, name))

    def _put(self, machine: Owned) -> None:
        before = self.machines.get(machine.name)
        if before is not None:
            self.count.subtract((before.kind, before.phase))
        self.machines[machine.name] = machine
        self.count.update((machine.kind, machine.phase))

    def until(self, now: float) -> None:
        """Let happen what happens by itself."""
        while self._events and self._events[0][0] <= now:
            when, _, what, name = heappop(self._events)
            if what == "hour of a zone":
                self._hour_of_zone(when, int(name))
            elif name in self.machines:
                self._happen(when, what, self.machines[name])

    def _happen(self, when: float, what: str, machine: Owned) -> None:
        name = machine.name
        if what == "started":
            self._put(replace(machine, phase=Phase.LIVE, since=when))
        elif what == "hour" and self._draw.random() < self.chance:
            self._warn(when, machine)
        elif what == "hour":
            self._at(when + HOUR, "hour", name)
        elif what == "taken":
            self.taken_at_work += machine.phase == Phase.LIVE
            self._end(when, name)

    def _hour_of_zone(self, when: float, zone: int) -> None:
        self._short[zone] = self._draw.random() < self.chance
        self._at(when + HOUR, "hour of a zone", str(zone))
        if self._short[zone]:
            for machine in list(self.machines.values()):
                if self._zone.get(machine.name) == zone and machine.ends_at is None:
                    self._warn(when, machine)

    def _warn(self, when: float, machine: Owned) -> None:
        self.evictions += 1
        end = when + self.notice_s
        self._put(replace(machine, ends_at=end))
        self._at(end, "taken", machine.name)

    def _end(self, now: float, name: str) -> None:
        machine = self.machines.pop(name)
        self.count.subtract((machine.kind, machine.phase))
        self.hours[machine.kind] += (now - self._paid_from.pop(name)) / HOUR
        self._zone.pop(name, None)

    def act(self, now: float, actions: Sequence[Action]) -> None:
        """Do what procurement says. Batches are short: what is drained is idle a tick later."""
        self.failed = Counter()
        for each in actions:
            match each:
                case Acquire(kind, count):
                    for _ in range(count):
                        self._acquire(now, kind)
                case Drain(name):
                    self._put(replace(self.machines[name], phase=Phase.DRAINING, since=now))
                case Release(name):
                    self._end(now, name)

    def _acquire(self, now: float, kind: Kind) -> None:
        zone = self._draw.randrange(ZONES)
        short = self._short[zone] if self._in_zones else self._draw.random() < self.chance
        if kind == Kind.SPOT and short:
            self.failed[kind] += 1
            return
        self.acquired += 1
        name = f"m{self.acquired}"
        self._put(Owned(name, kind, Phase.STARTING, now))
        self._paid_from[name] = now
        self._at(now + START_S, "started", name)
        if kind == Kind.SPOT and self._in_zones:
            self._zone[name] = zone
        elif kind == Kind.SPOT:
            self._at(now + self._draw.uniform(0, HOUR), "hour", name)

    def close(self, now: float) -> None:
        """Pay what is left."""
        for name in list(self.machines):
            self._end(now, name)
