"""Which batch size the load asks for (Packrat section 3.8), without flip-flop.

The paper smooths twice: an exponentially weighted average of the queue depth, rounded down to a
power of two, and of the last n of these the most frequent. After each reconfiguration time-out
that is compared with the current batch size B. Four things differ:

- The depth counts the requests in the system, waiting and running. The queue alone reads 0 on a
  server that never lets a request wait while a worker is free.
- What counts is a power mean of the depth over a time-out, of the last two the larger one. A
  request meets the others that are there: a burst is met by many requests and an empty server by
  none, which a mean over time (exponent 1) forgets. A server that is mostly empty and sometimes
  flooded would get the configuration of an empty one, as it would when only the last seconds were
  looked at. A root mean square (2) lets a load that varies slowly go for a larger one than it is.
- A depth somewhat below a power of two counts as that: N clients that send their next request when
  they have an answer are never quite N at once, and 1.9 rounded down would be 1.
- A depth that hovers about a bound would alternate, so there is a dead band: B is kept until the
  depth leaves ``[B * (1 - margin) * (1 - band), 2 * B * (1 - margin))``.

How each does is measured by ``bench/estimator.py``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

EXPONENT = 5 / 3
MARGIN = 0.15
BAND = 0.3


def floor_power_of_two(depth: float) -> int:
    """The largest power of two that is not above ``depth``, at least 1."""
    return 1 << max(0, math.frexp(depth)[1] - 1) if depth >= 1 else 1


@dataclass
class _Period:
    """A time-out, or as much of it as has passed."""

    seconds: float = 0.0
    powers: float = 0.0
    """The depth to the power of ``EXPONENT``, summed over them."""

    def add(self, seconds: float, depth: float) -> None:
        self.seconds += seconds
        self.powers += seconds * depth**EXPONENT


def _mean(*periods: _Period) -> float:
    """NaN: nothing was seen."""
    seconds = sum(each.seconds for each in periods)
    powers = sum(each.powers for each in periods)
    return (powers / seconds) ** (1 / EXPONENT) if seconds else math.nan


class BatchSizeEstimator:
    """Follows the load and says when another batch size is wanted."""

    def __init__(
        self,
        current: int,
        timeout_ns: int,
        *,
        largest: int = 1 << 16,
        margin: float = MARGIN,
        band: float = BAND,
    ) -> None:
        """Start at batch size ``current``, or at ``largest`` if that is less.

        ``margin`` is the share that may be missing to a power of two, ``band`` the dead band below
        a bound. The others are those of :meth:`tune`.
        """
        if not (0 <= margin < 1 and 0 <= band < 1 and current >= 1):
            raise ValueError("margin and band in [0, 1), current at least 1")
        self.current = current
        self.decided = False
        """Whether a time-out has passed, so that ``current`` is what the load asks for."""
        self._timeout_ns = timeout_ns
        self._reached = 1 - margin
        self._left = (1 - margin) * (1 - band)
        self._before, self._now = _Period(), _Period()
        self._next_ns: int | None = None
        self._last_ns = 0
        self.tune(timeout_ns, largest=largest)

    def tune(self, timeout_ns: int, *, largest: int = 1 << 16) -> None:
        """Take other numbers; what is known of the load stays, cut to ``largest``.

        It compares every ``timeout_ns`` from the first sample on.
        """
        if largest < 1:
            raise ValueError("largest at least 1")
        if self._next_ns is not None:
            self._next_ns += timeout_ns - self._timeout_ns
        self._timeout_ns, self.largest = timeout_ns, largest
        self.current = min(self.current, largest)

    @property
    def depth(self) -> float:
        """Power mean of the requests in the system; NaN before the first sample."""
        return _mean(self._before, self._now)

    def sample(self, depth: float, now_ns: int) -> int | None:
        """Take the number of requests in the system, since the last sample.

        Returns the batch size wanted when a time-out has passed, changed or not, else None.
        """
        if not (math.isfinite(depth) and depth >= 0):
            raise ValueError(f"depth {depth}; allowed: 0 or more")
        if self._next_ns is None:
            self._next_ns, self._last_ns = now_ns + self._timeout_ns, now_ns - 1
        # What is seen now says nothing of a long time in which nobody looked.
        seconds = min(max(0, now_ns - self._last_ns), self._timeout_ns) / 1e9
        self._last_ns = now_ns
        self._now.add(seconds, depth)
        if now_ns < self._next_ns:
            return None
        self._next_ns = now_ns + self._timeout_ns
        periods = [each for each in (self._before, self._now) if each.seconds]
        self.current = self._round(max(map(_mean, periods)))
        self.decided = True
        self._before, self._now = self._now, _Period()
        return self.current

    def _round(self, depth: float) -> int:
        """The next lower power of two; the current batch size within its dead band."""
        lowest, highest = self.current * self._left, 2 * self.current * self._reached
        if lowest <= depth < highest or (self.current == 1 and depth < highest):
            return self.current
        return min(floor_power_of_two(depth / self._reached), self.largest)
