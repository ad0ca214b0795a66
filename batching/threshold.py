"""The adaptive batching threshold: how many requests are worth a batch.

Rafiqi, section 3.3: the threshold rises by exponential averaging, so that a short spike does not
inflate it, and falls by halving, because one that is too high stops progress while one that is
too low only costs throughput. Rafiqi counts requests per quantum and suggests (section 7.3) a
quantum that follows the time of a classification. Here the quantum *is* the service time of the
batch that was just answered: one step per answered batch, no daemon.

``Threshold.java`` is the twin of this file; ``tests/golden/threshold.json`` keeps both equal bit
for bit.
"""

from __future__ import annotations

DEFAULT_ALPHA = 0.5
"""Weight of the old value on increase; the best one found by Rafiqi, section 3.3."""
DEFAULT_CAP = 128.0
"""Upper bound in requests; Rafiqi's, section 3.3."""
IDLE = 1.0
"""The value at start, and whenever nothing waits and nothing runs: a lone request never waits."""


def step(t: float, c: float, alpha: float, cap: float) -> float:
    """Threshold in requests after a batch was answered.

    ``t`` is the value before, at least 1. ``c`` is the number of requests that arrived during the
    batch's service time; where several workers share the queue, divided by their number, for each
    of them gets only its share of these. ``alpha`` is in [0, 1), ``cap`` at least 1.

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
