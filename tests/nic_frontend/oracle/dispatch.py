"""Which batch goes to which worker: the twin of ``batching/c/dispatch.h``. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from oracle.core import Ready
from oracle.entries import Waiting, WaitingEntries
from shunter.batching.forming.release import may_send_ahead, should_release, split
from shunter.batching.queue.layout import AHEAD
from shunter.nic_frontend.server.model_policy import Policy


@dataclass(frozen=True)
class Run:
    """A batch, the most urgent first."""

    entries: tuple[int, ...]
    priority: int


@dataclass
class Hand:
    """A worker, and the batches that it holds."""

    cap: int
    given: int = 0
    done: int = 0
    draining: bool = False
    began_ns: int = 0
    """Since when the oldest batch that it holds runs."""
    held: dict[int, Run] = field(default_factory=dict)

    @property
    def in_flight(self) -> int:
        """Batches."""
        return self.given - self.done


class Dispatch:
    """Requests of one function that wait, and its workers."""

    def __init__(self, policy: Policy) -> None:
        """Nobody waits, nobody works."""
        self.policy = policy
        self.lines = [WaitingEntries(), WaitingEntries()]
        self.hands: dict[int, Hand] = {}
        self.arrivals = 0
        """Requests that could run so far."""
        self._came: dict[int, Waiting] = {}
        """How the request of each entry has come last."""
        self._aged_ns = 0

    def enqueue(self, ready: Ready, now_ns: int) -> int:
        """A request can run; its number among arrivals."""
        if not ready.returned:
            self.arrivals += 1
            self._came[ready.entry] = Waiting(
                ready.entry, now_ns, ready.deadline_ns, ready.again, self.arrivals
            )
        waiting = self._came[ready.entry]
        self.lines[ready.priority].add(waiting)
        return waiting.number

    def withdraw(self, entry: int) -> None:
        """It does not wait any more."""
        for line in self.lines:
            line.remove(entry)

    def overdue(self, now_ns: int) -> list[int]:
        """Entries whose deadline has passed; they do not wait any more."""
        return [entry for line in self.lines for entry in line.overdue(now_ns)]

    def empty(self) -> list[int]:
        """Entries that waited; none does any more."""
        return [entry for line in self.lines for entry in line.empty()]

    def dispatch(self, now_ns: int, give: Callable[[int, int, Run], None]) -> None:
        """Give batches to workers: ``give(worker, number, run)``."""
        oldest = self.lines[1].oldest_ns
        ageing = self.policy.ageing_ns
        if (
            ageing
            and oldest is not None
            and min(now_ns - oldest, now_ns - self._aged_ns) >= ageing
            and self._release(1, now_ns, give)
        ):
            self._aged_ns = now_ns
        for priority in (0, 1):
            while self._release(priority, now_ns, give):
                pass
            while self._send_ahead(priority, give):
                pass

    def _release(
        self, priority: int, now_ns: int, give: Callable[[int, int, Run], None]
    ) -> bool:
        line, policy = self.lines[priority], self.policy
        free = [i for i, h in sorted(self.hands.items()) if not h.draining and not h.in_flight]
        caps = [self.hands[i].cap for i in free]
        if not line or not free:
            return False
        deadline = line.tightest_ns()
        predicted = self._predicted_ns(line, sum(caps))
        assert line.oldest_ns is not None
        if not should_release(
            len(line),
            (now_ns - line.oldest_ns) // 1000,
            None if deadline is None else int((deadline - now_ns) / 1000),
            policy.threshold,
            policy.max_wait_ns // 1000,
            sum(caps),
            predicted // 1000,
            policy.margin_ns // 1000,
        ):
            return False
        for worker, size in zip(free, split(len(line), caps), strict=True):
            if size and line:
                self._give(worker, priority, size, give)
        return True

    def _send_ahead(self, priority: int, give: Callable[[int, int, Run], None]) -> bool:
        """The next batch of a busy worker: as many requests as are worth one."""
        line = self.lines[priority]
        ready = [(i, h) for i, h in sorted(self.hands.items()) if not h.draining]
        free = sum(not hand.in_flight for _, hand in ready)
        for worker, hand in ready:
            running = hand.held.get(hand.given)
            if may_send_ahead(
                len(line),
                self.policy.threshold,
                hand.cap,
                hand.in_flight,
                min(self.policy.ahead, AHEAD - 1),
                free,
                priority == 0,
                running is not None and running.priority == 0,
                len(self.lines[0]) > 0,
            ):
                self._give(worker, priority, hand.cap, give)
                return True
        return False

    def _give(
        self, worker: int, priority: int, size: int, give: Callable[[int, int, Run], None]
    ) -> None:
        hand = self.hands[worker]
        run = Run(tuple(self.lines[priority].take(size)), priority)
        hand.given += 1
        hand.held[hand.given] = run
        give(worker, hand.given, run)

    def next_ns(self) -> int | None:
        """When time alone changes something."""
        caps = [h.cap for h in self.hands.values() if not h.draining and not h.in_flight]
        times = []
        for line in self.lines:
            deadline = line.tightest_ns()
            if deadline is not None:
                # What is held back goes when it is near.
                early = self._predicted_ns(line, sum(caps)) + self.policy.margin_ns if caps else 0
                times.append(deadline - early)
            if caps and line.oldest_ns is not None:
                times.append(line.oldest_ns + self.policy.max_wait_ns)
        return min(times, default=None)

    def _predicted_ns(self, line: WaitingEntries, capacity: int) -> int:
        return self.policy.fixed_ns + min(len(line), capacity) * self.policy.per_request_ns
