"""When a batch leaves and how it is split: one rule for every path into the server.

Asked after each event (a request offered, a reply received, a timer) for the waiting requests of
one class and the free workers that this class may use. ``ReleaseRule.java`` and ``Deadlines.java``
are the twins of this file; ``tests/golden/release.json`` keeps them equal.

Times are whole microseconds or nanoseconds, as their names say; counts are whole requests, and all
are at least 0 unless said otherwise. The threshold is the real number of
:mod:`shunter.batching.forming.threshold`; predicted latencies are lines ``fixed + n * per_request``
of :mod:`shunter.batching.forming.latency`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate


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
    ``oldest_wait_us`` is the time in which the oldest could have run and was held back.
    ``predicted_us`` is the predicted latency of the batch, ``margin_us`` how near to the last
    possible moment a batch may be held back.

    True exactly if there are requests and capacity, and one of three reasons: there are as many
    requests as are worth a batch or as fit; the oldest was held back ``max_wait_us``; the tightest
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


def split_by_latency(
    queued: int, caps: Sequence[int], fixed_ns: Sequence[int], per_request_ns: Sequence[int]
) -> list[int]:
    """Batch sizes for free workers of different speed, so that the last answer comes soonest.

    Aligned with ``caps``; they sum to min(queued, sum(caps)). Worker ``i`` needs ``fixed_ns[i] +
    n * per_request_ns[i]`` for ``n`` requests. Among equal choices earlier workers get more.

    >>> split_by_latency(9, [8, 8], [1000, 1000], [100, 200])
    [6, 3]
    """
    wanted = min(queued, sum(caps))

    def size(i: int, limit_ns: int) -> int:
        left = limit_ns - fixed_ns[i]
        if left < 0:
            return 0
        return min(caps[i], left // per_request_ns[i]) if per_request_ns[i] > 0 else caps[i]

    places = range(len(caps))
    low, high = 0, max((fixed_ns[i] + caps[i] * per_request_ns[i] for i in places), default=0)
    while low < high:  # the shortest time in which all that is wanted can be done
        middle = (low + high) // 2
        if sum(size(i, middle) for i in places) >= wanted:
            high = middle
        else:
            low = middle + 1
    sizes = [size(i, low) for i in places]
    surplus = sum(sizes) - wanted
    for i in reversed(places):
        less = min(surplus, sizes[i])
        sizes[i] -= less
        surplus -= less
    return sizes


def fit_deadlines(
    slacks_ns: Sequence[int],
    waiting: int,
    size: int,
    cap: int,
    fixed_ns: int,
    per_request_ns: int,
    next_free_ns: int,
    rows: Sequence[int] = (),
) -> tuple[int, int]:
    """How many of the most urgent requests to give up, and how many to run now.

    A batch takes its line's latency as a whole, so the most urgent request limits its size.
    ``slacks_ns`` are the times left to the deadlines of the first ``min(waiting, 2 * cap + 1)``
    requests, ascending; ``size`` >= 1 is the size without deadlines, ``cap`` the largest.

    If the batch is too long for its most urgent request it is made shorter, so that the others
    run in the next one. If one of these would be late by that, there is more work than time:
    then serving a request that takes the place of a whole batch costs more answers than it gives,
    and the most urgent ones are given up until the rest fits (Nexus' early drop; Clipper and
    BentoML only drop what is late already). ``next_free_ns`` is the time until another worker is
    free; while one is free now (0), nothing is given up.

    A request that is a batch itself has that many of ``rows``, which are of the same requests as
    ``slacks_ns``; ``waiting``, ``size``, ``cap`` and what is to run now count rows then.

    >>> fit_deadlines([60, 90, 95], 3, 3, 8, 10, 20, 10**9)  # two now, one after them
    (0, 2)
    >>> fit_deadlines([30, 70, 75], 3, 3, 8, 10, 20, 10**9)  # the first would cost the others
    (1, 2)
    >>> fit_deadlines([30, 70, 75], 3, 3, 8, 10, 20, 5)  # but another worker takes these
    (0, 1)
    >>> fit_deadlines([60, 70, 75], 5, 5, 8, 10, 20, 10**9, [3, 1, 1])  # too long for its time
    (1, 2)
    """
    each = rows or [1] * len(slacks_ns)
    ends = list(accumulate(each))

    def latency(n: int) -> int:
        return fixed_ns + n * per_request_ns

    if slacks_ns[0] >= latency(max(size, each[0])):
        return 0, size
    hopeless = slacks_ns[0] < latency(each[0])
    if next_free_ns == 0 and hopeless:
        return 0, size
    short = (slacks_ns[0] - fixed_ns) // per_request_ns if per_request_ns > 0 else 1
    take = max(each[0], min(size, short))
    taken = bisect_right(ends, take)
    used = ends[taken - 1]
    if next_free_ns == 0 or waiting <= used or taken >= len(slacks_ns):
        return 0, take
    rest = max(each[taken], min(waiting - used, cap))
    if not hopeless and slacks_ns[taken] >= min(latency(used), next_free_ns) + latency(rest):
        return 0, take
    for skip in range(1, len(slacks_ns)):
        left = max(each[skip], min(cap, waiting - ends[skip - 1]))
        if slacks_ns[skip] >= latency(left):
            return (skip, left) if hopeless or left > used else (0, take)
    return 0, take


def is_too_late(now_ns: int, deadline_ns: int, soonest_ns: int) -> bool:
    """Whether a waiting request cannot be answered in time any more, and is ended unanswered.

    ``soonest_ns`` is the shortest predicted time until it can be answered: until a worker is free
    and has run it alone. While a worker is free it is 0: then a request runs, however bad the
    prediction is, so that a wrong one is noticed.

    >>> is_too_late(100, 150, 50), is_too_late(100, 150, 51)
    (False, True)
    """
    return deadline_ns < now_ns + soonest_ns


def too_late_at_ns(now_ns: int, deadline_ns: int, least_ns: int) -> int:
    """When to ask :func:`is_too_late` again for the tightest deadline, if nothing else happens.

    ``least_ns`` is the shortest predicted latency of a request that runs alone. When that moment
    has passed and the request still waits, its worker was predicted to be free in time.

    >>> too_late_at_ns(100, 150, 20), too_late_at_ns(140, 150, 20)
    (130, 150)
    """
    hopeless_ns = deadline_ns - least_ns
    return hopeless_ns if hopeless_ns > now_ns else deadline_ns


def staggered_size(cap: int, fixed_ns: int, per_request_ns: int, busy_ns: Sequence[int]) -> int:
    """Size of a best-effort batch that does not end together with those of the other workers.

    ``busy_ns`` is the time until each of them is free. A strict request waits for the first worker
    that gets free: when their batches end one after the other that is soon, when they end at the
    same time it may be a whole batch. A batch of ``cap`` that would end within 0.8 / workers of
    its length of another is made shorter, but not below half of the cap.

    >>> staggered_size(16, 5, 5, [85]), staggered_size(16, 5, 5, [40]), staggered_size(16, 5, 5, [])
    (9, 16, 16)
    """
    whole = fixed_ns + cap * per_request_ns
    gap = 4 * whole // (5 * (len(busy_ns) + 1))
    end = min([whole, *(busy - gap for busy in busy_ns if abs(whole - busy) < gap)])
    if end >= whole or per_request_ns == 0:
        return cap
    return max((cap + 1) // 2, min(cap, (end - fixed_ns) // per_request_ns))


def predicted_wait_ns(ahead: int, capacity: int, batch_ns: int, busy_ns: int) -> int:
    """Predicted wait of a request behind ``ahead`` others, for admission.

    ``capacity`` >= 1 is the sum of the workers' caps, ``batch_ns`` the latency of a full batch,
    ``busy_ns`` the time until a worker is free.

    >>> predicted_wait_ns(70, 32, 50_000_000, 20_000_000)
    120000000
    """
    return busy_ns + ahead // capacity * batch_ns
