"""How many strict requests are late at a load: batch by batch, through the product's dispatcher.

Several gateways, each with a router of its own, which sees what machines publish twice a second
and what it sent itself. Best effort always has work waiting, and a batch of it that runs is not
stopped: strict work waits for its end.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Sequence
from heapq import heappop, heappush, heapreplace

import numpy as np

from clouds.world import BATCH_S, GATEWAYS, PUBLISH_S, SCATTER, SLO_S, SLOTS
from shunter.allocator.cluster.load import Fit, Machine, ModelState, SliceLoad
from shunter.allocator.cluster.routing import Refusal, Request, Router

MODEL = "vision"
STATE = ModelState(Fit(BATCH_S, 0.0, caution_s=2 * 0.8 * SCATTER * BATCH_S))
"""A request of the dispatcher is a whole batch here; the mean error of its time is 0.8 sigma."""
LOADS = (0.2, 0.4, 0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95, 1.0, 1.1, 1.3)


class Node:
    """Slots that take strict batches in the order of their coming, else best effort."""

    def __init__(self, name: str, draw: random.Random) -> None:
        self.name, self.draw = name, draw
        # When each slot is free again, and whether strict work is on it.
        self.slots = [(draw.uniform(0, BATCH_S), False) for _ in range(SLOTS)]
        self.slots.sort()
        self.queue: deque[float] = deque()
        self.strict = self.late = 0

    def _lasts(self) -> float:
        return BATCH_S * max(0.5, self.draw.gauss(1.0, SCATTER))

    def until(self, now: float) -> None:
        """Run what begins before."""
        while self.slots[0][0] <= now:
            free = self.slots[0][0]
            # What cannot be in time any more is answered so, and not run.
            while self.queue and self.queue[0] + SLO_S < free + BATCH_S:
                self.queue.popleft()
                self.late += 1
            strict = bool(self.queue) and self.queue[0] <= free
            end = free + self._lasts()
            if strict:
                self.late += end - self.queue.popleft() > SLO_S
            heapreplace(self.slots, (end, strict))

    def offer(self, now: float) -> None:
        self.until(now)
        self.strict += 1
        self.queue.append(now)

    def publish(self, now: float) -> Machine:
        self.until(now)
        waiting = len(self.queue) * BATCH_S / SLOTS
        slices = tuple(
            SliceLoad(
                str(at),
                strict_s=waiting + (free - now if strict else 0.0),
                best_effort_s=1.0,
                gives_way_s=0.0 if strict else free - now,
            )
            for at, (free, strict) in enumerate(self.slots)
        )
        return Machine(self.name, {MODEL: STATE}, slices)


def late_share(load: float, nodes: int, seconds: float, seed: int) -> float:
    """Share of strict batches that end late or are refused, at ``load`` times what slots do."""
    draw = random.Random(seed)
    every = [Node(f"m{at}", draw) for at in range(nodes)]
    routers = [Router(random.Random(seed + at)) for at in range(1, GATEWAYS + 1)]
    by_name = {each.name: each for each in every}
    due = [(draw.uniform(0, PUBLISH_S), at) for at in range(nodes)]
    due.sort()
    for each in every:
        for router in routers:
            router.publish(each.publish(0.0))
    rate, now, refused = load * nodes * SLOTS / BATCH_S, 0.0, 0
    while (now := now + draw.expovariate(rate)) < seconds:
        while due[0][0] <= now:
            when, at = heappop(due)
            for router in routers:
                router.publish(every[at].publish(when))
            heappush(due, (when + PUBLISH_S, at))
        found = draw.choice(routers).choose(Request(MODEL, True, SLO_S))
        if isinstance(found, Refusal):
            refused += 1
        else:
            by_name[found.machine].offer(now)
    for each in every:
        each.until(seconds + 100 * BATCH_S)
    late = refused + sum(each.late for each in every)
    return late / (refused + sum(each.strict for each in every))


class Curve:
    """Straight between the loads that were simulated; beyond, all that is too much is late."""

    def __init__(self, loads: Sequence[float], late: Sequence[float]) -> None:
        self.loads, self.late = np.array(loads), np.maximum.accumulate(late)

    def missed(self, load: np.ndarray) -> np.ndarray:
        """Share of strict requests that are late."""
        inside = np.interp(load, self.loads, self.late, left=self.late[0])
        served = (1 - self.late[-1]) * self.loads[-1]
        return np.where(load > self.loads[-1], 1 - served / np.maximum(load, 1e-9), inside)
