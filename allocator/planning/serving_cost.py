"""What serving adds to a profile, learnt while serving.

A profile is of the handler alone. In a server a worker gets its requests and sends its answers on
one thread, so that one instance with many threads leaves most of them idle meanwhile, and several
instances do not. Packrat's cost model (section 3.3) knows nothing of it.
"""

from __future__ import annotations

NEWEST = 1 / 16
"""Weight of the newest look in the mean."""
MOST = 0.25
"""Of a profiled latency: a server that adds more is on a busy host, which slows everything."""


class ServingCost:
    """Milliseconds that each request adds to its batch. Not thread-safe."""

    def __init__(self) -> None:
        """Nothing, as far as is known."""
        self.each_ms = 0.0
        """What plans are made with."""
        self._mean_ms = 0.0

    def heed(self, profiled_ms: float, served_ms: float, step: float) -> bool:
        """A request's share of a batch is this by the profile, and this as served.

        Returns whether plans are to be made with another number from now on: one that differs by
        more than ``step`` of the profile's.

        >>> cost = ServingCost()
        >>> [cost.heed(20.0, 22.0, 0.01) for _ in range(4)], round(cost.each_ms, 3)
        ([False, True, False, True], 0.455)
        """
        added = max(0.0, min(served_ms - profiled_ms, MOST * profiled_ms))
        self._mean_ms += NEWEST * (added - self._mean_ms)
        if abs(self._mean_ms - self.each_ms) <= step * profiled_ms:
            return False
        self.each_ms = self._mean_ms
        return True
