"""When a batch leaves and how it is split: one rule for every path into the server.

Asked after each event (a request offered, a reply received, a timer) for the waiting requests of
one class and the free workers that this class may use. ``ReleaseRule.java`` is the twin of this
file; ``tests/golden/release.json`` keeps both equal.

Times are whole microseconds, counts are whole requests, and all are at least 0 unless said
otherwise. The threshold is the real number of :mod:`shunter.batching.threshold`.
"""

from __future__ import annotations

from collections.abc import Sequence


def should_release(
    queued: int,
    oldest_wait_us: int,
    slack_us: int | None,
    threshold: float,
    max_wait_us: int,
    free_capacity: int,
    predicted_us: int,
    margin_us: int,
) -> bool:
    """Whether waiting requests go to free workers now.

    ``free_capacity`` is the sum of the batch caps of the free workers. ``slack_us`` is the time
    left to the tightest deadline, negative when it has passed, None when no request has one.
    ``predicted_us`` is the predicted latency of the batch, ``margin_us`` how near to the last
    possible moment a batch may be held back.

    True exactly if there are requests and capacity, and one of three reasons: there are as many
    requests as are worth a batch or as fit; the oldest has waited ``max_wait_us``; the tightest
    deadline is near.
    """
    if queued <= 0 or free_capacity <= 0:
        return False
    if queued >= min(threshold, free_capacity) or oldest_wait_us >= max_wait_us:
        return True
    return slack_us is not None and slack_us - predicted_us <= margin_us


def split(queued: int, caps: Sequence[int]) -> list[int]:
    """Batch sizes for free workers, aligned with ``caps``; they sum to min(queued, sum(caps)).

    In proportion to the caps, the largest first and equal ones in their order, each rounded up
    and at most its cap. A worker with size 0 gets nothing.

    >>> split(10, [4, 8, 4]), split(1, [4, 8, 4]), split(99, [4, 8, 4])
    ([3, 5, 2], [0, 1, 0], [4, 8, 4])
    """
    sizes = [0] * len(caps)
    remaining_caps = sum(caps)
    remaining = min(queued, remaining_caps)
    for i in sorted(range(len(caps)), key=lambda i: -caps[i]):
        if remaining <= 0:
            break
        sizes[i] = min(caps[i], -(-remaining * caps[i] // remaining_caps))
        remaining -= sizes[i]
        remaining_caps -= caps[i]
    return sizes


def may_send_ahead(
    queued: int,
    threshold: float,
    cap: int,
    in_flight: int,
    ahead_limit: int,
    free_workers: int,
    strict: bool,
    running_strict: bool,
    strict_traffic: bool,
) -> bool:
    """Whether the next batch may be sent to a worker whose answer is not back yet.

    ``cap`` is that worker's batch cap, ``in_flight`` the batches it holds, ``ahead_limit`` 0 or 1,
    ``free_workers`` the free workers that may take this class. Sending ahead hides the hop between
    two batches, but what is sent can no longer be overtaken. So it is done only for as many
    requests as are worth a batch, never while a peer is free, and only strict behind strict or on
    a model without strict traffic.
    """
    return (
        queued > 0
        and free_workers == 0
        and 1 <= in_flight <= ahead_limit
        and ((strict and running_strict) or not strict_traffic)
        and queued >= min(threshold, cap)
    )


def wake_after_us(
    oldest_wait_us: int,
    slack_us: int | None,
    max_wait_us: int,
    predicted_us: int,
    margin_us: int,
) -> int:
    """Microseconds until :func:`should_release` turns true by the passing of time alone.

    To be asked when it was false although requests wait and workers are free. At least 0.
    """
    by_wait = max_wait_us - oldest_wait_us
    if slack_us is None:
        return max(0, by_wait)
    return max(0, min(by_wait, slack_us - predicted_us - margin_us))
