"""Which best-effort work stays beside which strict work, by measurement while serving.

How a pair begins is expected from profiles, by the slowdown model (``allocator/placement``), which
knows nothing of caches and only what was measured of memory; REEF has no check after that. Pure:
what was served and the time in, decisions out.
"""

from __future__ import annotations

import math
import random
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from shunter.batching.preemption.evidence import LEAST_BLOCKS, SLOW_DOWN, Evidence, Window

Pair = tuple[int, int]
"""Strict slot, best-effort slot."""

WINDOW_BATCHES = 8
"""Strict batches that make a window."""
BLOCK = 8
"""Windows of a block; in one of them, drawn by lot, the pair is the other way round."""
FIRST_PAUSE_NS = 60 * 10**9
LAST_PAUSE_NS = 3600 * 10**9
LONG = 4
"""A pair that was open for so many of its pauses is as good as new."""
PATIENCE_NS = 30 * 10**9
"""A pair that does not run together for so long lets the next one be tried."""


@dataclass(frozen=True)
class Served:
    """What a pair did in one duty cycle."""

    batches: Sequence[int]
    """Strict batches answered, by size bucket."""
    ns: Sequence[int]
    """The sum of their service times."""
    busy: bool
    """Whether the best-effort model had work, running or parked."""

    @property
    def mean_ns(self) -> float:
        """Mean service time of a batch, 0 when there was none."""
        return sum(self.ns) / max(1, sum(self.batches))


@dataclass(frozen=True)
class Verdict:
    """A pair was opened or closed."""

    pair: Pair
    is_open: bool
    slow_down: float
    """Share by which strict work was slower beside best effort, as far as was measured."""


@dataclass
class _State:
    """One pair."""

    is_open: bool
    evidence: Evidence
    since_ns: int
    pause_ns: int

    def may_be_tried(self, now_ns: int) -> bool:
        """A closed pair has a rest first, because each trial costs strict work."""
        return self.is_open or now_ns >= self.since_ns + self.pause_ns

    def turn(self, is_open: bool, limit: float, now_ns: int) -> None:
        """Open or close, or stay closed for longer."""
        if not is_open:
            was_long = self.is_open and now_ns - self.since_ns >= LONG * self.pause_ns
            pause_ns = FIRST_PAUSE_NS if was_long else 2 * self.pause_ns
            self.pause_ns = min(max(pause_ns, FIRST_PAUSE_NS), LAST_PAUSE_NS)
        self.is_open, self.since_ns, self.evidence = is_open, now_ns, Evidence(limit)


class PairJudge:
    """Opens and closes pairs by what they do to strict work.

    One pair at a time is tried, in blocks of ``BLOCK`` windows. In one of them, drawn by lot, an
    open pair is closed, or a closed one open. A pair is closed when the lower bound of the
    slow-down is above ``slow_down``. After a pause, twice as long each time, it is tried again, and
    opened when the mean of ``LEAST_BLOCKS`` blocks is not above.
    """

    def __init__(self, lot: random.Random, slow_down: float = SLOW_DOWN) -> None:
        """``lot`` draws the windows; strict traffic must not be able to keep step with them."""
        self.slow_down = slow_down
        self._lot = lot
        self._pairs: dict[Pair, _State] = {}
        self._trial: _Trial | None = None

    def begin(self, pair: Pair, is_open: bool, now_ns: int) -> None:
        """Watch another pair. A closed one may be tried after the first pause."""
        pause_ns = 0 if is_open else FIRST_PAUSE_NS
        self._pairs[pair] = _State(is_open, Evidence(self._limit), now_ns, pause_ns)

    def __contains__(self, pair: Pair) -> bool:
        return pair in self._pairs

    def forget(self, pairs: Iterable[Pair]) -> None:
        """These are not together any more."""
        for pair in pairs:
            self._pairs.pop(pair, None)
            if self._trial and self._trial.pair == pair:
                self._trial = None

    @property
    def pairs(self) -> Collection[Pair]:
        """All that are watched."""
        return self._pairs.keys()

    def is_open(self, pair: Pair) -> bool:
        """Whether best effort may run beside the strict model now."""
        standing = self._pairs[pair].is_open
        flipped = self._trial is not None and self._trial.pair == pair and self._trial.flipped
        return standing != flipped

    def step(self, seen: Mapping[Pair, Served], now_ns: int) -> Verdict | None:
        """One duty cycle: what the pairs did since the last one."""
        trial, verdict = self._trial, None
        if trial is not None:
            if trial.pair in seen:
                trial.add(seen[trial.pair], now_ns)
            if trial.is_over:
                verdict = self._judge(trial, now_ns)
            if trial.is_over or now_ns - trial.moved_ns >= PATIENCE_NS:
                self._trial = None
        if self._trial is None:
            self._next(trial.pair if trial else None, seen, now_ns)
        return verdict

    def _judge(self, trial: _Trial, now_ns: int) -> Verdict | None:
        state = self._pairs[trial.pair]
        same, other = trial.parted()
        state.evidence.add(*((same, other) if state.is_open else (other, same)))
        evidence, limit, was_open = state.evidence, self._limit, state.is_open
        if evidence.lower > limit:
            state.turn(False, limit, now_ns)
        elif not state.is_open and evidence.count >= LEAST_BLOCKS:
            state.turn(evidence.mean <= limit, limit, now_ns)
        if state.is_open == was_open:
            return None
        return Verdict(trial.pair, state.is_open, math.expm1(evidence.typical))

    @property
    def _limit(self) -> float:
        return math.log1p(self.slow_down)

    def _next(self, last: Pair | None, seen: Mapping[Pair, Served], now_ns: int) -> None:
        """Try the pair that comes after the last one, of those that run together now."""
        ready = sorted(
            pair
            for pair, served in seen.items()
            if pair in self._pairs
            and served.busy
            and any(served.batches)
            and self._pairs[pair].may_be_tried(now_ns)
        )
        if ready:
            pair = next((p for p in ready if last is not None and p > last), ready[0])
            self._trial = _Trial(pair, self._lot.randrange(BLOCK), now_ns, seen[pair].mean_ns)


class _Trial:
    """A block of one pair that is under way."""

    def __init__(self, pair: Pair, odd: int, now_ns: int, mean_ns: float) -> None:
        self.pair = pair
        self._odd = odd
        self._windows: list[Window] = []
        self._window: Window = {}
        self.moved_ns = self._looked_ns = self._switched_ns = now_ns
        self._mean_ns = mean_ns

    @property
    def flipped(self) -> bool:
        """Whether the pair is the other way round in the present window."""
        return len(self._windows) == self._odd

    @property
    def is_over(self) -> bool:
        return len(self._windows) == BLOCK

    def add(self, served: Served, now_ns: int) -> None:
        """Count a duty cycle, unless some of its batches may have begun before a switch."""
        looked_ns, self._looked_ns = self._looked_ns, now_ns
        if any(served.batches) and served.busy:
            self.moved_ns = now_ns
            is_clean = looked_ns >= self._switched_ns + 2 * self._mean_ns
            self._mean_ns = served.mean_ns
            if is_clean:
                self._count(served, now_ns)

    def _count(self, served: Served, now_ns: int) -> None:
        for bucket, batches in enumerate(served.batches):
            if batches:
                had, took = self._window.get(bucket, (0, 0))
                self._window[bucket] = had + batches, took + served.ns[bucket]
        if sum(batches for batches, _ in self._window.values()) >= WINDOW_BATCHES:
            before = self.flipped
            self._windows.append(self._window)
            self._window = {}
            if self.flipped != before:
                self._switched_ns = now_ns

    def parted(self) -> tuple[list[Window], list[Window]]:
        """Windows in which the pair was as it is, and those in which it was the other way round."""
        odd = self._windows[self._odd]
        return [window for window in self._windows if window is not odd], [odd]
