"""Share of the requests with a deadline that met it in the last minute. Pure.

The server's own requests are counted the same way, second by second; see ``SloWindow`` in Java.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from shunter.batching.page.records import NetworkTelemetry

WINDOW_NS = 60_000_000_000
STEP_NS = 1_000_000_000
NONE = -1
"""There were no such requests."""


class SloWindow:
    """Counters of a model as they rise; looked at a few times a second."""

    def __init__(self) -> None:
        """Nothing was counted yet."""
        self._seen: deque[tuple[int, Sequence[int], Sequence[int]]] = deque()

    def attainment_ppm(self, told: NetworkTelemetry, now_ns: int) -> tuple[int, int]:
        """By class, in millionths; :data:`NONE` where no request with a deadline has ended."""
        met, ended = told.network_slo_met, _ended(told)
        if self._seen and any(a < b for a, b in zip(ended, self._seen[-1][2], strict=True)):
            self._seen.clear()  # another function's counters
        if not self._seen:
            self._seen.append((now_ns - STEP_NS, (0, 0), (0, 0)))
        if now_ns - self._seen[-1][0] >= STEP_NS:
            self._seen.append((now_ns, met, ended))
        while len(self._seen) > 1 and now_ns - self._seen[1][0] >= WINDOW_NS:
            self._seen.popleft()
        _, met_before, ended_before = self._seen[0]
        shares = [
            (a - b) * 1_000_000 // (c - d) if c > d else NONE
            for a, b, c, d in zip(met, met_before, ended, ended_before, strict=True)
        ]
        return shares[0], shares[1]


def _ended(told: NetworkTelemetry) -> list[int]:
    """Requests with a deadline that have ended, by class: none expires without one."""
    return [
        sum(each)
        for each in zip(
            told.network_slo_met,
            told.network_slo_late,
            told.network_expired,
            told.network_slo_rejected,
            told.network_slo_failed,
            told.network_slo_abandoned,
            strict=True,
        )
    ]
