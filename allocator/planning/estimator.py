"""Which batch size the load asks for (Packrat section 3.8), without flip-flop.

The paper smooths twice: an exponentially weighted average of the queue depth, rounded down to a
power of two, and of the last n of these the most frequent. After each reconfiguration time-out
that is compared with the current batch size B. Two things differ:

- A depth somewhat below a power of two counts as that: N clients that send their next request when
  they have an answer are never quite N at once, and 1.9 rounded down would be 1.
- A depth that hovers about a bound would alternate, so there is a dead band: B is kept until the
  average leaves ``[B * (1 - margin) * (1 - band), 2 * B * (1 - margin))``.

The depth counts the requests in the system, waiting and running. The queue alone, as in the paper,
reads 0 on a server that never lets a request wait while a worker is free.
"""

from __future__ import annotations

import math
from collections import Counter, deque

ALPHA = 0.03
"""Of samples every 100 ms: an average over some three seconds. With 0.1 a load that comes and goes,
or rises slowly, was followed worse (``bench/estimator.py``)."""
WINDOW = 30
MARGIN = 0.15
BAND = 0.3


def floor_power_of_two(depth: float) -> int:
    """The largest power of two that is not above ``depth``, at least 1."""
    return 1 << max(0, math.frexp(depth)[1] - 1) if depth >= 1 else 1


class BatchSizeEstimator:
    """Follows the load and says when another batch size is wanted."""

    def __init__(
        self,
        current: int,
        timeout_ns: int,
        *,
        largest: int = 1 << 16,
        alpha: float = ALPHA,
        window: int = WINDOW,
        margin: float = MARGIN,
        band: float = BAND,
    ) -> None:
        """Start at batch size ``current``, or at ``largest`` if that is less.

        ``margin`` is the share that may be missing to a power of two, ``band`` the dead band below
        a bound; both 0 is the paper's. The others are those of :meth:`tune`.
        """
        if not (0 <= margin < 1 and 0 <= band < 1 and current >= 1):
            raise ValueError("margin and band in [0, 1), current at least 1")
        self.current = current
        self.decided = False
        """Whether a time-out has passed, so that ``current`` is what the load asks for."""
        self.largest = largest
        self._timeout_ns = timeout_ns
        self._reached = 1 - margin
        self._left = (1 - margin) * (1 - band)
        self._average, self._count = math.nan, 0
        self._rounded: deque[int] = deque()
        self._next_ns: int | None = None
        self.tune(timeout_ns, largest=largest, alpha=alpha, window=window)

    def tune(
        self,
        timeout_ns: int,
        *,
        largest: int = 1 << 16,
        alpha: float = ALPHA,
        window: int = WINDOW,
    ) -> None:
        """Take other numbers; what is known of the load stays, cut to ``largest``.

        It compares every ``timeout_ns`` from the first sample on. ``alpha`` is the weight of a new
        sample, ``window`` the number of rounded averages whose mode counts.
        """
        if not 0 < alpha <= 1 or window < 1 or largest < 1:
            raise ValueError("alpha in (0, 1], window and largest at least 1")
        if self._next_ns is not None:
            self._next_ns += timeout_ns - self._timeout_ns
        if window != self._rounded.maxlen or largest < self.largest:
            self._rounded = deque((min(size, largest) for size in self._rounded), maxlen=window)
        self._timeout_ns, self._alpha, self.largest = timeout_ns, alpha, largest
        self.current = min(self.current, largest)

    @property
    def depth(self) -> float:
        """Average number of requests in the system; NaN before the first sample."""
        return self._average

    @property
    def smoothed(self) -> int:
        """Most frequent of the last rounded averages; of equally frequent ones the latest."""
        if not self._rounded:
            return self.current
        counts = Counter(self._rounded)
        most = max(counts.values())
        return next(size for size in reversed(self._rounded) if counts[size] == most)

    def sample(self, depth: float, now_ns: int) -> int | None:
        """Take the number of requests in the system.

        Returns the batch size wanted when a time-out has passed, changed or not, else None.
        """
        if not (math.isfinite(depth) and depth >= 0):
            raise ValueError(f"depth {depth}; allowed: 0 or more")
        self._count += 1
        # Of the first samples the plain mean: a burst at the start does not weigh longer.
        weight = max(self._alpha, 1 / self._count)
        before = 0.0 if self._count == 1 else self._average
        self._average = before + weight * (depth - before)
        self._rounded.append(self._round(self._average))
        if self._next_ns is None:
            self._next_ns = now_ns + self._timeout_ns
        if now_ns < self._next_ns or len(self._rounded) < self._rounded.maxlen:
            return None
        self._next_ns = now_ns + self._timeout_ns
        self.current, self.decided = self.smoothed, True
        return self.current

    def _round(self, depth: float) -> int:
        """The next lower power of two; the current batch size within its dead band."""
        lowest, highest = self.current * self._left, 2 * self.current * self._reached
        if lowest <= depth < highest or (self.current == 1 and depth < highest):
            return self.current
        return min(floor_power_of_two(depth / self._reached), self.largest)
