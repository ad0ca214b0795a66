"""The adaptive batching threshold: how many requests are worth a batch.

Rafiqi, section 3.3: the threshold rises by exponential averaging, so that a short spike does not
inflate it, and falls by halving, because one that is too high stops progress while one that is
too low only costs throughput: :func:`step`. Rafiqi counts the requests of a fixed quantum of 5 ms
and suggests (section 7.3) one that follows the time of a classification.

The default is another algorithm, of which only that step is Rafiqi's: :class:`AdaptiveThreshold`.
There the quantum is the batch itself and a short time after its answer, in which clients that wait
for answers send their next requests. Holding a free worker back pays exactly when those clients
come back sooner than a batch's fixed cost, which one batch less saves; so that is how long it may
last, and it is done only while at least three quarters of the answered requests are followed by a
new one in that time. Requests that arrive whatever the server does (open loop) show a smaller
share: they are never waited for. ``bench/rafiqi.py`` has the paper's own.

``Threshold.java`` and ``AdaptiveThreshold.java`` are the twins of this file;
``tests/golden/threshold.json`` keeps them equal bit for bit.
"""

from __future__ import annotations

DEFAULT_ALPHA = 0.5
"""Weight of the old value on increase; the best one found by Rafiqi, section 3.3."""
DEFAULT_CAP = 128.0
"""Upper bound in requests; Rafiqi's, section 3.3."""
IDLE = 1.0
"""The value at start, and when nobody comes back after an answer: a lone request never waits."""
SHARE_OF_FIXED_COST = 0.75
"""Longest hold, as a share of the fixed cost of a batch, which is the most that it can save."""
SHORTEST_HOLD_NS = 300_000
"""Shorter holds are not worth a timer."""
RETURNING_WEIGHT = 0.125
"""Weight of the newest batch in the share of clients that come back."""
RETURNING_ENOUGH = 0.75
"""A worker is held back only while at least this share comes back."""


def hold_ns(worth_ns: float, max_wait_ns: int) -> int:
    """How long a worker may be held back after an answer, in nanoseconds; 0 when not worth it.

    ``worth_ns`` is what one batch less may save: the fixed part of a batch's predicted latency, or
    what may be it (:attr:`~shunter.batching.forming.latency.LatencyFit.worth_ns`).

    >>> hold_ns(4e6, 5_000_000), hold_ns(4e6, 1_000_000), hold_ns(2e5, 5_000_000)
    (3000000, 1000000, 0)
    """
    hold = min(int(SHARE_OF_FIXED_COST * worth_ns), max_wait_ns)
    return hold if hold >= SHORTEST_HOLD_NS else 0


def step(t: float, c: float, alpha: float, cap: float) -> float:
    """Threshold in requests after a quantum, as in the paper.

    ``t`` is the value before, at least 1. ``c`` is the number of requests that arrived during the
    quantum; where several workers share the queue, divided by their number, for each of them gets
    only its share of these. ``alpha`` is in [0, 1), ``cap`` at least 1.

    Halving may pass below ``c``, as in the paper: what waits then leaves at once.

    The order of the operations is part of the definition, all in IEEE doubles::

        c > t:   next = (alpha * t) + ((1 - alpha) * c)
        c < t:   next = t / 2
        else:    next = t
        result = min(max(next, 1), cap)

    >>> step(1.0, 9.0, 0.5, 128.0), step(8.0, 3.0, 0.5, 128.0), step(1.5, 0.0, 0.5, 128.0)
    (5.0, 4.0, 1.0)
    """
    if c > t:
        following = alpha * t + (1.0 - alpha) * c
    elif c < t:
        following = t / 2.0
    else:
        following = t
    return min(max(following, 1.0), cap)


class AdaptiveThreshold:
    """Finds how many requests come together, from what follows the answers of batches.

    Shunter's own algorithm, not Rafiqi's, of which it has the step. With N clients that send their
    next request when they have an answer, and W workers, the value becomes N / W, as if the batch
    size had been set to just that. The value does not fall below what was seen, which a halving
    may; and it falls to 1 at once when nobody came back. Times are nanoseconds of any one clock.
    Not thread-safe.
    """

    def __init__(self, alpha: float = DEFAULT_ALPHA, cap: float = DEFAULT_CAP) -> None:
        """Start idle. ``alpha`` and ``cap`` may be changed at any time."""
        self.alpha, self.cap = alpha, cap
        self.value = IDLE
        """Requests worth a batch, per worker."""
        self.returning = 0.0
        """Share of answered requests that were followed by another within the hold."""
        self._open = False
        self._held = False
        self._start_ns = self._end_ns = 0
        self._answers = self._answered = self._waiting = self._before = 0

    def answered(self, now_ns: int, size: int, waiting: int, arrivals: int, hold: int) -> None:
        """A batch of ``size`` requests was answered; its worker may be held back ``hold`` ns.

        ``waiting`` requests are in the queue or were sent to that worker ahead, ``arrivals``
        counts all that ever came. Answers within the hold of another share its quantum.
        """
        self.settle(now_ns, arrivals)
        if not self._open:
            self._open, self._held, self._start_ns = True, False, now_ns
            self._answers = self._answered = 0
            self._waiting, self._before = waiting, arrivals
        self._answers += 1
        self._answered += size
        self._end_ns = now_ns + hold
        self.settle(now_ns, arrivals)

    def settle(self, now_ns: int, arrivals: int) -> None:
        """Close the quantum if it is over; before each arrival is counted."""
        if not self._open or now_ns < self._end_ns:
            return
        self._open = False
        came = arrivals - self._before
        count = (self._waiting + came) / self._answers
        if self._end_ns > self._start_ns:
            share = min(came / self._answered, 1.0)
            self.returning += RETURNING_WEIGHT * (share - self.returning)
        if self._held and count < self.value:
            self.returning *= 0.5
        if count == 0:
            self.returning = 0.0
            self.value = IDLE
        else:
            following = step(self.value, count, self.alpha, self.cap)
            self.value = max(following, min(count, self.value))

    def worth(self, now_ns: int, free_workers: int, free_since_ns: int) -> float:
        """Requests for which it is worth to hold ``free_workers`` back now; 1: for none.

        ``free_since_ns`` is when the first of them got free. A worker that has been free since
        before the quantum is not held back, and the others beside it neither.
        """
        holding = self._open and self._start_ns <= free_since_ns and now_ns < self._end_ns
        return self.value * free_workers if holding and self.returning >= RETURNING_ENOUGH else IDLE

    def hold_end_ns(self) -> int:
        """When the hold ends; to be asked after :meth:`worth` said that there is one."""
        return self._end_ns

    def held(self) -> None:
        """A worker is being held back: if fewer come than are worth it, this was a mistake."""
        self._held = True
