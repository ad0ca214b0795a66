"""What is counted of a function's requests: twin of ``batching/c/telemetry/telemetry.h``. Pure."""

from __future__ import annotations

from typing import NamedTuple

from shunter.batching.page.layout import SIZE_BUCKETS, TIME_BUCKET_SHIFT, TIME_BUCKETS, size_bucket

BY_CLASS = (
    *("arrivals", "answered", "expired", "rejected", "failed", "abandoned"),
    *("slo_met", "slo_late", "slo_rejected", "slo_failed", "slo_abandoned", "latency_ns"),
)


def time_bucket(ns: int) -> int:
    """Bucket k holds what is at most 2 ** (TIME_BUCKET_SHIFT + k)."""
    bounds = [1 << TIME_BUCKET_SHIFT + k for k in range(TIME_BUCKETS - 1)]
    return sum(ns > bound for bound in bounds)


class Request(NamedTuple):
    """One that is under way."""

    priority: int = 0
    came_ns: int = 0
    deadline_ns: int = 0


class Telemetry:
    """Counters, and the requests that have not ended."""

    def __init__(self) -> None:
        """Nothing has come."""
        self.counts = {name: [0, 0] for name in BY_CLASS}
        self.times = [[0] * TIME_BUCKETS for _ in range(2)]
        self.sizes, self.batch_requests = [0] * SIZE_BUCKETS, 0
        self._of: dict[int, Request] = {}

    def words(self) -> list[int]:
        """As they follow one another in memory."""
        counts = [n for name in BY_CLASS for n in self.counts[name]]
        return [*counts, *self.times[0], *self.times[1], *self.sizes, self.batch_requests]

    def came(
        self, entry: int, priority: int, deadline_ns: int, now_ns: int, *, again: bool
    ) -> None:
        """A request can run; ``again``: its worker died."""
        came_ns = self._of.get(entry, Request()).came_ns if again else now_ns
        self._of[entry] = Request(priority, came_ns, deadline_ns)
        self.counts["arrivals"][priority] += not again

    def ended(self, entry: int, how: str) -> None:
        """Without an answer."""
        priority, _, deadline_ns = self._of[entry]
        self.counts[how][priority] += 1
        if how != "expired" and deadline_ns:
            self.counts[f"slo_{how}"][priority] += 1

    def answered(self, entry: int, now_ns: int) -> None:
        """With one."""
        priority, came_ns, deadline_ns = self._of[entry]
        self.counts["answered"][priority] += 1
        self.counts["latency_ns"][priority] += now_ns - came_ns
        self.times[priority][time_bucket(now_ns - came_ns)] += 1
        if deadline_ns:
            self.counts["slo_late" if now_ns > deadline_ns else "slo_met"][priority] += 1

    def batch(self, rows: int) -> None:
        """Its worker has done it."""
        self.sizes[size_bucket(rows)] += 1
        self.batch_requests += rows
