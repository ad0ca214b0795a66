"""Which best-effort work may run beside which strict work: padding (REEF section 5).

The paper fills the compute units that a real-time kernel leaves free with blocks of best-effort
kernels, chosen by two rules from profiles made before (section 5.2). Here the unit is a segment of
a best-effort pass beside the batches of a strict model, and the rules are :func:`may_pad`. They
know nothing of caches and memory channels, which the paper leaves as future work and which cost
most on CPUs. So :class:`PairJudge` measures: now and then it parts a pair for a few strict batches
and compares.

Pure: numbers and the time in, decisions out.
"""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median, stdev

SLOW_DOWN = 0.02
"""Share by which strict work may be slower beside best effort."""
MARGIN = 0.1
"""Share of each resource that is left alone, since profiles are not exact."""
_ROUNDING = 1e-9
"""A sum of shares that is whole but for this must not cost a core."""


# ---- before: by profiles


@dataclass(frozen=True)
class Pass:
    """One pass of a model, measured alone. Zeros are not known."""

    solo_ns: int
    cpu_ns: int
    """Time of processors; of a GPU, time of its multiprocessors, all together."""
    bytes: int
    """Read and written."""
    segment_ns: int = 0
    """The longest part between two places where it can stand still; 0: the whole pass."""

    def core_share(self, cores: float) -> float:
        """Share of so many cores or multiprocessors that it keeps busy while it runs."""
        return self.cpu_ns / (self.solo_ns * cores)

    def bandwidth_share(self, bytes_per_s: float) -> float:
        """Share of a memory's peak bandwidth that it uses while it runs."""
        return self.bytes / (self.solo_ns / 1e9) / bytes_per_s


@dataclass(frozen=True)
class Capacity:
    """What two passes share."""

    cores: float
    """Or multiprocessors."""
    bytes_per_s: float = math.inf
    """Peak bandwidth of the memory; inf when it is not known, and then it limits nothing."""
    takes_back: bool = False
    """Cores go back to strict work within microseconds, whoever has them: SCHED_IDLE, or gates."""


def may_pad(
    strict: Pass,
    best_effort: Pass,
    capacity: Capacity,
    slow_down: float = SLOW_DOWN,
    margin: float = MARGIN,
) -> bool:
    """Whether both rules of REEF section 5.2 hold for this pair.

    Rule 1, time: a padded kernel ends with its slowest block, so the paper takes only best-effort
    kernels that are shorter than the real-time one. Here nothing waits for best effort to end, but
    where cores are only given back at the end of a segment strict work waits for that long at
    worst; a segment may then be ``slow_down`` of the strict pass. Where cores are taken back at
    once the rule always holds.

    Rule 2, resources: the paper gives best effort the compute units that are left, and wants its
    occupancy not to be the lower one. Here the shares of both must fit beside each other: of the
    memory's bandwidth with ``margin`` to spare, of cores too unless they are taken back. That
    cores are taken back is no reason to want more of them than there are: strict work that needs
    all of them is faster beside best effort that stands still, and nothing is gained, since there
    is no core to run on.
    """
    segment_ns = best_effort.segment_ns or best_effort.solo_ns
    if not capacity.takes_back and segment_ns > slow_down * strict.solo_ns:
        return False
    passes = (strict, best_effort)
    cores = sum(each.core_share(capacity.cores) for each in passes)
    bandwidth = sum(each.bandwidth_share(capacity.bytes_per_s) for each in passes)
    room = 1 if capacity.takes_back else 1 - margin
    return cores <= room + _ROUNDING and bandwidth <= 1 - margin


# ---- while serving: by measurement

Pair = tuple[int, int]
"""Strict slot, best-effort slot."""

WINDOW_BATCHES = 8
"""Strict batches that make a window."""
BLOCK = 8
"""Windows of a block; in one of them, drawn by lot, the pair is the other way round."""
LEAST_BLOCKS = 8
"""Nothing is concluded from fewer: 512 strict batches."""
MOST_BLOCKS = 256
"""Older ones are forgotten."""
ERROR = 0.01
"""Chance that a pair that slows strict work by just ``slow_down`` is ever closed for it."""
TUNED_BLOCKS = 30
"""For so many blocks the interval below is at its narrowest."""
FIRST_PAUSE_NS = 60 * 10**9
LAST_PAUSE_NS = 3600 * 10**9
LONG = 4
"""A pair that was open for so many of its pauses is as good as new."""
PATIENCE_NS = 30 * 10**9
"""A pair that does not run together for so long lets the next one be tried."""
_CLIP = 4 * 1.4826
"""Times the median deviation: about four standard deviations, where it is a bell curve."""
_LEAST_CLIP = 5
"""Times the slow-down that closes a pair: what is looked for must never lie far out."""


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


Sums = tuple[int, int]
"""Batches of one size bucket in one window, and the sum of their service times in ns."""
Window = dict[int, Sums]
"""By size bucket."""


@dataclass(frozen=True)
class Verdict:
    """A pair was opened or closed."""

    pair: Pair
    is_open: bool
    slow_down: float
    """Share by which strict work was slower beside best effort, as far as was measured."""


class Evidence:
    """How much longer strict batches of one pair take in open windows than in closed ones."""

    def __init__(self, limit: float) -> None:
        """Nothing is known yet. ``limit`` is the slow-down, as a logarithm, that is looked for."""
        self._least_bound = _LEAST_CLIP * max(limit, math.log1p(SLOW_DOWN))
        self._blocks: deque[tuple[list[float], list[float]]] = deque(maxlen=MOST_BLOCKS)
        self.count, self.mean, self.lower = 0, 0.0, -math.inf
        """Blocks, the mean slow-down, and what it is at least; as logarithms of ratios, and cut."""

    def add(self, opened: Sequence[Window], closed: Sequence[Window]) -> None:
        """One block: by window and size bucket, how many batches took how long."""
        values = _relative([*opened, *closed])
        self._blocks.append((values[: len(opened)], values[len(opened) :]))
        self.count = len(self._blocks)
        differences = self._differences()
        self.mean = fmean(differences)
        if self.count >= LEAST_BLOCKS:
            self.lower = self.mean - stdev(differences) * _radius(self.count)

    @property
    def typical(self) -> float:
        """The slow-down of the middle block, with nothing cut."""
        return median(fmean(opened) - fmean(closed) for opened, closed in self._blocks)

    def _differences(self) -> list[float]:
        """Of each block. What lies far out counts as if it lay less far, in all windows alike."""
        spread = median(abs(v) for block in self._blocks for part in block for v in part)
        bound = max(_CLIP * spread, self._least_bound)
        cut = [
            [fmean(min(max(v, -bound), bound) for v in part) for part in block]
            for block in self._blocks
        ]
        return [opened - closed for opened, closed in cut]


def _relative(windows: Sequence[Window]) -> list[float]:
    """Logarithm of each window's time over what its batches take on average, centred.

    The average is that of the block by size bucket, so neither another mix of sizes nor a slow
    change of the whole host looks like an effect.
    """
    count: dict[int, int] = {}
    total: dict[int, int] = {}
    for window in windows:
        for bucket, (batches, ns) in window.items():
            count[bucket] = count.get(bucket, 0) + batches
            total[bucket] = total.get(bucket, 0) + ns
    values = []
    for window in windows:
        expected = sum(n * total[bucket] / count[bucket] for bucket, (n, _) in window.items())
        took = sum(ns for _, ns in window.values())
        values.append(math.log(max(took, 1) / max(expected, 1)))
    centre = median(values)
    return [value - centre for value in values]


def _radius(count: int) -> float:
    """Half width, in standard deviations, of an interval that holds at all counts at once.

    Asymptotic confidence sequence (Waudby-Smith and others, Annals of Statistics 2024, one-sided):
    an interval for one count would sooner or later be wrong when it is looked at again and again.
    """
    weight = (-2 * math.log(ERROR) + math.log(1 - 2 * math.log(ERROR))) / TUNED_BLOCKS
    grown = count * weight + 1
    bound = math.log(1 + math.sqrt(grown) / (2 * ERROR))
    # The standard deviation itself is known from few blocks only: that of Student's t.
    few = (count - 1) / (count - 3)
    return math.sqrt(2 * grown / (count * count * weight) * bound * few)


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
    """Opens and closes pairs by what they do to strict work; REEF has no such check.

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
