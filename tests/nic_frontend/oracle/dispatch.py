"""Which batch goes to which worker: ``batching/c/{dispatch,plan,predict,admission}.c``. Pure.

It calls the rules where they are defined, in :mod:`shunter.batching.forming`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from oracle.core import Ready
from oracle.entries import Waiting, WaitingEntries
from shunter.batching.forming import release
from shunter.batching.forming.latency import LatencyFit
from shunter.batching.forming.threshold import IDLE, AdaptiveThreshold, hold_ns
from shunter.batching.queue.layout import AHEAD
from shunter.nic_frontend.server.model_policy import Policy

STRICT, BEST_EFFORT = 0, 1
LONGEST_TO_QUEUE_BEHIND_NS = 5_000_000
HANGS_NS = 1_000_000_000
LATE_NS = 1_000_000
STRICT_MEMORY_NS = 1_000_000_000
UNSERVED_NS = 10_000_000_000
FAR_NS = (1 << 63) - 1


@dataclass(frozen=True)
class Run:
    """A batch, the most urgent first."""

    entries: tuple[int, ...]
    priority: int
    given_ns: int = 0
    alone: bool = False
    rows: int = 0


@dataclass
class Hand:
    """A worker, and the batches that it holds."""

    cap: int
    free_since_ns: int = 0
    given: int = 0
    done: int = 0
    draining: bool = False
    began_ns: int = 0
    """Since when the oldest batch that it holds runs."""
    held: dict[int, Run] = field(default_factory=dict)
    taken: int = 0
    """Batches that it has taken: they do not grow any more."""
    is_slow: bool = False
    """It does not take them at once."""

    @property
    def open(self) -> Run | None:
        """Its newest batch, if it has not taken it."""
        return self.held[self.given] if self.given > max(self.taken, self.done) else None

    @property
    def in_flight(self) -> int:
        """Batches."""
        return self.given - self.done


Give = Callable[[int, int, Run], None]


class Dispatch:
    """Requests of one function that wait, and its workers."""

    def __init__(self, policy: Policy) -> None:
        """Nobody waits, nobody works."""
        self.policy = policy
        self.lines = [WaitingEntries(), WaitingEntries()]
        self.hands: dict[int, Hand] = {}
        self.arrivals = 0
        """Requests that could run so far."""
        self.fit = LatencyFit()
        self.adaptive = AdaptiveThreshold(policy.alpha, policy.threshold_cap)
        self.refused: list[int] = []
        """Entries that are going to be told so."""
        self._came: dict[int, Waiting] = {}
        """How the request of each entry has come last."""
        self._new = 0
        """Arrivals, each counted once."""
        self._strict_ns: int | None = None
        self._best_effort_ns = 0
        """When it was sent or, in a batch of its own, has ended last."""
        self._largest, self._largest_ns = 0, 0
        self._now = 0
        self._wake_ns = FAR_NS
        self._gave: Give = lambda *_: None
        self._expired: Callable[[int], None] = lambda _: None

    # ---- events

    def enqueue(self, ready: Ready, now_ns: int) -> int:
        """A request can run; its number among arrivals."""
        is_new = not ready.returned and not ready.again
        is_refused = is_new and not self._admits(ready, now_ns)
        if is_new and not is_refused:
            self.adaptive.settle(now_ns, self._new)
            self._new += ready.rows
        if is_new and ready.priority == STRICT:
            self._strict_ns = now_ns
        if not ready.returned:
            self.arrivals += 1
            self._came[ready.entry] = Waiting(
                ready.entry, now_ns, ready.deadline_ns, ready.again, self.arrivals, ready.rows
            )
        waiting = self._came[ready.entry]
        if is_refused:
            self.refused.append(ready.entry)
        else:
            self.lines[ready.priority].add(waiting)
        return waiting.number

    def withdraw(self, entry: int) -> None:
        """It does not wait any more."""
        for line in self.lines:
            line.remove(entry)
        self.refused = [each for each in self.refused if each != entry]

    def empty(self) -> list[int]:
        """Entries that waited; none does any more."""
        return [entry for line in self.lines for entry in line.empty()]

    def answered(self, worker: int, ok: bool, now_ns: int) -> Run:
        """A worker has answered its oldest batch, ``ok``: its first request too."""
        hand = self.hands[worker]
        began_ns = hand.began_ns
        hand.done += 1
        run = hand.held.pop(hand.done)
        following = hand.held.get(hand.done + 1)
        at_ns = max(now_ns, began_ns)
        hand.free_since_ns = at_ns
        hand.began_ns = max(following.given_ns, at_ns) if following else at_ns
        if run.priority == BEST_EFFORT:
            self._best_effort_ns = at_ns
        self.adaptive.settle(at_ns, self._new)
        if ok and not run.alone:
            self.fit.observe(run.rows, at_ns - began_ns)
        self.adaptive.alpha = self.policy.alpha
        self.adaptive.cap = self.policy.threshold_cap
        waiting = sum(line.rows for line in self.lines) + (following.rows if following else 0)
        worth = self.fit.worth_ns if self.fit.known else self.policy.fixed_ns
        hold = hold_ns(float(worth), self.policy.max_wait_ns)
        self.adaptive.answered(at_ns, run.rows, waiting, self._new, hold)
        return run

    def dispatch(
        self,
        now_ns: int,
        give: Give,
        expired: Callable[[int], None],
        refused: Callable[[int], None] = lambda _: None,
        unserved: Callable[[int], None] = lambda _: None,
    ) -> int | None:
        """Give batches to workers, ``give(worker, number, run)``, and end what is too late.

        When time alone changes something, None: never.
        """
        told, self.refused = self.refused, []
        for entry in told:
            refused(entry)
        self._now, self._gave, self._expired = now_ns, give, expired
        if not any(self.lines):
            return None
        soonest = self._soonest_ns()
        for line in self.lines:
            while (first := line.earliest()) and release.is_too_late(
                now_ns, first.deadline_ns, soonest and soonest + self._further_ns(first)
            ):
                line.remove(first.entry)
                expired(first.entry)
        untaken = self._fail_untaken(unserved)
        wake = min(untaken, self._plan())
        for line in self.lines:
            if first := line.earliest():
                least = sum(self._line) + self._further_ns(first)
                wake = min(wake, release.too_late_at_ns(now_ns, first.deadline_ns, least))
        return None if wake == FAR_NS else wake

    def _further_ns(self, waiting: Waiting) -> int:
        return (waiting.rows - 1) * self._line[1]

    def _fail_untaken(self, unserved: Callable[[int], None]) -> int:
        """What has more rows than any worker takes waits for one to come, but not for long."""
        largest = max((hand.cap for _, hand in self._ready()), default=0)
        if largest != self._largest:
            self._largest, self._largest_ns = largest, self._now
        until = FAR_NS
        for line in self.lines if largest else ():
            for each in [each for each in line if each.rows > largest]:
                end = max(each.arrival_ns, self._largest_ns) + UNSERVED_NS
                if self._now >= end:
                    line.remove(each.entry)
                    unserved(each.entry)
                else:
                    until = min(until, end)
        return until

    # ---- admission

    def _admits(self, ready: Ready, now_ns: int) -> bool:
        if not self.policy.admission or not ready.deadline_ns:
            return True
        predicted = self.predicted_answer_ns(ready.priority, now_ns, ready.rows)
        return now_ns + predicted <= ready.deadline_ns

    def predicted_answer_ns(self, priority: int, now_ns: int, rows: int = 1) -> int:
        """Until a request that comes now is answered; 0 when nothing is known."""
        self._now = now_ns
        self._traffic = self._strict_traffic
        hands = [hand for _, hand in self._ready()]
        caps = [self._cap(hand, priority) for hand in hands]
        busy = min((self._busy_ns(hand) for hand in hands), default=0)
        ahead = sum(line.rows for line in self.lines[: priority + 1])
        is_free = any(not hand.in_flight for hand in hands)
        if not hands or not self._knows or (is_free and ahead == 0):
            return 0
        per_ns = sum(cap / max(1, self._batch_ns(cap)) for cap in caps)
        capacity = sum(caps)
        round_ns = int(capacity / per_ns)
        wait = release.predicted_wait_ns(ahead, capacity, round_ns, busy)
        return wait + self._batch_ns(max(rows, min(ahead % capacity + rows, *caps)))

    # ---- what is predicted

    @property
    def _line(self) -> tuple[int, int]:
        if self.fit.known:
            return int(self.fit.fixed_ns), int(self.fit.per_request_ns)
        return self.policy.fixed_ns, self.policy.per_request_ns

    def _batch_ns(self, size: int) -> int:
        fixed, each = self._line
        return fixed + size * each

    @property
    def _knows(self) -> bool:
        return sum(self._line) > 0

    @property
    def _caution_ns(self) -> int:
        return self.fit.caution_ns + self.policy.margin_ns

    def _size_adding(self, limit_ns: int) -> int:
        each = self._line[1]
        if each == 0:
            return 1 << 32
        return max(1, int(limit_ns / each) if limit_ns < 0 else limit_ns // each)

    def _busy_ns(self, hand: Hand) -> int:
        if not hand.in_flight:
            return 0
        end = hand.began_ns
        for number in sorted(hand.held):
            end = max(self._now, end + self._batch_ns(hand.held[number].rows))
        return end - self._now

    def _ready(self) -> list[tuple[int, Hand]]:
        return [(i, hand) for i, hand in sorted(self.hands.items()) if not hand.draining]

    def _soonest_ns(self) -> int:
        times = [
            self._busy_ns(hand) + (self._batch_ns(1) if hand.in_flight else 0)
            for _, hand in self._ready()
        ]
        return min(times, default=0)

    @property
    def _strict_traffic(self) -> bool:
        lately = self._strict_ns is not None and self._now - self._strict_ns < STRICT_MEMORY_NS
        return len(self.lines[STRICT]) > 0 or lately

    def _cap(self, hand: Hand, priority: int) -> int:
        if priority == BEST_EFFORT and self._traffic:
            most = self.policy.slo_ns // 2 if self.policy.slo_ns else self._batch_ns(1)
            return min(hand.cap, self._size_adding(most))
        return hand.cap

    def _takes_first(self, hand: Hand, priority: int) -> bool:
        return self.lines[priority].first_rows <= hand.cap

    @property
    def _threshold(self) -> float:
        return self.policy.threshold or self.adaptive.value

    # ---- a decision

    def _plan(self) -> int:
        self._wake_ns = FAR_NS
        self._traffic = self._strict_traffic
        self.adaptive.settle(self._now, self._new)
        if self._best_effort_is_due() and (free := self._free()):
            worker, hand = free[0]
            self._assign(worker, BEST_EFFORT, self._cap(hand, BEST_EFFORT))
        self._best_effort_waits = self._best_effort_is_due()
        for priority in (STRICT, BEST_EFFORT):
            while self.lines[priority].alone and (
                able := [i for i, hand in self._free() if self._takes_first(hand, priority)]
            ):
                self._assign(able[0], priority, 1)
            self._release(priority)
        return self._wake_ns

    def _best_effort_is_due(self) -> bool:
        oldest = self.lines[BEST_EFFORT].oldest_ns
        if not self.policy.ageing_ns or oldest is None:
            return False
        since = self._now - max(oldest, self._best_effort_ns)
        return since > 0 and since >= self.policy.ageing_ns

    def _free(self) -> list[tuple[int, Hand]]:
        return [(i, hand) for i, hand in self._ready() if not hand.in_flight]

    def _release(self, priority: int) -> None:
        line = self.lines[priority]
        before, queued = 1 << 32, line.rows
        while 0 < queued < before:
            free = self._free()
            if not free:
                self._fill_up(priority)
                self._send_ahead(priority)
                return
            if not self._release_to(free, priority):
                return
            before, queued = queued, line.rows

    def _release_to(self, free: list[tuple[int, Hand]], priority: int) -> bool:
        policy, line = self.policy, self.lines[priority]
        adapts = policy.threshold <= 0
        since = min(hand.free_since_ns for _, hand in free)
        wanted = policy.threshold
        if adapts:
            others = len(self.lines[1 - priority]) > 0
            wanted = IDLE if others else self.adaptive.worth(self._now, len(free), since)
        assert line.oldest_ns is not None
        oldest = max(since, line.oldest_ns) if adapts else line.oldest_ns
        held_us = max(0, self._now - oldest) // 1000
        deadline = line.tightest_ns()
        slack_us = None if deadline is None else int((deadline - self._now) / 1000)
        cap = self._cap(free[0][1], priority)
        predicted_us = self._batch_ns(min(-(-line.rows // len(free)), cap)) // 1000
        margin_us, wait_us = self._caution_ns // 1000, policy.max_wait_ns // 1000
        capacity = sum(self._cap(hand, priority) for _, hand in free)
        if release.should_release(
            *(line.rows, held_us, slack_us, wanted, wait_us, capacity, predicted_us, margin_us)
        ):
            self._fill(free, priority)
            return True
        wake_us = release.wake_after_us(held_us, slack_us, wait_us, predicted_us, margin_us)
        self._wake_ns = min(self._wake_ns, self._now + wake_us * 1000)
        if adapts:
            self.adaptive.held()
            self._wake_ns = min(self._wake_ns, self.adaptive.hold_end_ns())
        return False

    def _fill(self, free: list[tuple[int, Hand]], priority: int) -> None:
        hands = list(free)
        next_is_long = priority == STRICT and bool(self.lines[BEST_EFFORT])
        if self._knows and (self.policy.threshold <= 0 or next_is_long):
            hands += [
                (i, hand)
                for i, hand in self._ready()
                if hand.in_flight == 1 and hand.began_ns < self._now and self._busy_ns(hand) > 0
            ]
        caps = [self._cap(hand, priority) for _, hand in hands]
        queued = self.lines[priority].rows
        busy = [self._busy_ns(hand) for _, hand in hands]
        if self._knows and len(hands) > 1:
            fixed, each = self._line
            urgent = self.lines[priority].tightest_ns() is not None
            caution = [0] * len(free) + [self._caution_ns * urgent] * (len(hands) - len(free))
            starts = [fixed + ns + more for ns, more in zip(busy, caution, strict=True)]
            sizes = release.split_by_latency(queued, caps, starts, [each] * len(hands))
        else:
            sizes = release.split(queued, caps)
        for i, ((worker, _), size) in enumerate(zip(hands, sizes, strict=True)):
            if size and i >= len(free):
                self._wake_ns = min(self._wake_ns, self._now + busy[i] + LATE_NS)
            elif size:
                spreads = priority == BEST_EFFORT and size == caps[i]
                self._assign(worker, priority, self._staggered(worker, size) if spreads else size)
        takes = [each for each in free if self.lines[priority].fit(each[1].cap)]
        if takes and self.lines[priority].rows == queued:  # none was for those who had a share
            worker, hand = takes[0]
            self._assign(worker, priority, min(queued, self._cap(hand, priority)))

    def _staggered(self, worker: int, cap: int) -> int:
        if not self._traffic or not self._knows:
            return cap
        busy = [self._busy_ns(hand) for i, hand in self._ready() if i != worker]
        return release.staggered_size(cap, *self._line, [ns for ns in busy if ns > 0])

    # ---- one batch

    def _assign(self, worker: int, priority: int, size: int) -> None:
        line, hand = self.lines[priority], self.hands[worker]
        if not line:
            return
        room, limit = self._cap(hand, priority), hand.cap
        are_all_for_it = line.fit(limit) == len(line)
        if line.tightest_ns() and self._knows and not line.alone and are_all_for_it:
            size = self._fit_deadlines(worker, priority, size)
            slack = (line.tightest_ns() or FAR_NS) - self._now
            room = min(room, self._size_adding(slack - self._line[0] - self._caution_ns))
        entries = line.take(size, limit)
        if not entries:
            return
        alone = self._came[entries[0]].alone
        own, count = self._rows(entries), len(entries)
        most = min(room, self._cap(hand, BEST_EFFORT))
        if self.policy.mixes and not alone and own < most:
            entries += self.lines[1 - priority].take(most - own, limit, shared=True)
        if priority == BEST_EFFORT or len(entries) > count:
            self._best_effort_ns = self._now
        rows = self._rows(entries)
        self._give(worker, Run(tuple(entries), priority, self._now, alone, rows))

    def _rows(self, entries: list[int]) -> int:
        return sum(self._came[entry].rows for entry in entries)

    def _fit_deadlines(self, worker: int, priority: int, size: int) -> int:
        line, hand = self.lines[priority], self.hands[worker]
        start = self._now + self._busy_ns(hand)
        fixed, each = self._line
        fixed += self._caution_ns
        first = line.earliest()
        assert first is not None
        if first.deadline_ns - start >= fixed + max(size, first.rows) * each:
            return size
        following = self._next_free_ns(worker)
        cap, waiting = self._cap(hand, priority), line.rows
        count = 1 if following == 0 else 2 * cap + 1
        urgent = line.deadlines(FAR_NS)[:count]
        slacks = [FAR_NS if deadline == FAR_NS else deadline - start for deadline, _ in urgent]
        rows = [rows for _, rows in urgent]
        skip, take = release.fit_deadlines(
            slacks, waiting, min(size, waiting), cap, fixed, each, following, rows
        )
        for entry in line.give_up(skip):
            self._expired(entry)
        return take

    def _next_free_ns(self, worker: int) -> int:
        times = [
            max(1, self._busy_ns(hand)) if hand.in_flight else 0
            for i, hand in self._ready()
            if i != worker
        ]
        return min(times, default=FAR_NS)

    def _give(self, worker: int, run: Run) -> None:
        hand = self.hands[worker]
        hand.given += 1
        if hand.in_flight == 1:
            hand.began_ns = self._now
        hand.held[hand.given] = run
        if not hand.is_slow:
            hand.taken = hand.given
        self._gave(worker, hand.given, run)

    # ---- more for a batch that its worker has not taken

    def _fill_up(self, priority: int) -> None:
        line = self.lines[priority]
        others = self._traffic if priority == BEST_EFFORT else self._best_effort_waits
        if others or line.alone:
            return
        for worker, hand in self._ready():
            run = hand.open
            if not run or run.priority != priority or run.alone or run.given_ns == self._now:
                continue
            more = line.take(self._room_in(hand, run), hand.cap, shared=True)
            entries = [*run.entries, *more]
            grown = Run(tuple(entries), priority, run.given_ns, rows=self._rows(entries))
            hand.held[hand.given] = grown
            if more:
                self._gave(worker, hand.given, grown)

    def _room_in(self, hand: Hand, run: Run) -> int:
        cap = self._cap(hand, run.priority)
        deadlines = [self._came[entry].deadline_ns for entry in run.entries]
        deadlines += [self.lines[run.priority].tightest_ns() or 0]
        room = max(0, cap - run.rows)
        if not any(deadlines) or not self._knows:
            return room
        deadline = min(each for each in deadlines if each)
        slack = deadline - self._now - self._caution_ns - self._busy_ns(hand)
        return min(room, self._size_adding(slack)) if slack >= self._line[1] else 0

    # ---- the next batch of a busy worker

    def _send_ahead(self, priority: int) -> None:
        line = self.lines[priority]
        while line:
            able = [each for each in self._ready() if self._may_take_ahead(each[1], priority)]
            if not able:
                return
            worker, hand = min(able, key=lambda each: each[1].began_ns)
            self._assign(worker, priority, min(line.rows, self._cap(hand, priority)))

    def _is_late(self, hand: Hand, rows: int) -> bool:
        longest = self._batch_ns(rows) + self._caution_ns + HANGS_NS
        return self._knows and self._now - hand.began_ns > longest

    def _may_take_ahead(self, hand: Hand, priority: int) -> bool:
        if not hand.in_flight or self._best_effort_waits:
            return False
        if hand.held[hand.given].given_ns == self._now:
            return False
        if any(line.alone for line in self.lines[: priority + 1]):
            return False
        if not self.lines[priority].fit(hand.cap):
            return False
        running = hand.held[hand.done + 1]
        return (
            not running.alone
            and self._batch_ns(running.rows) < LONGEST_TO_QUEUE_BEHIND_NS
            and not self._is_late(hand, running.rows)
            and release.may_send_ahead(
                self.lines[priority].rows,
                self._threshold,
                self._cap(hand, priority),
                hand.in_flight,
                min(self.policy.ahead, AHEAD - 1),
                0,
                priority == STRICT,
                running.priority == STRICT,
                self._traffic,
            )
        )
