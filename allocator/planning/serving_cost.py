"""What serving adds to a profile, learnt while serving.

A profile is of the handler alone. In a server a worker gets its requests and sends its answers on
one thread, so that one instance with many threads leaves most of them idle meanwhile, and several
instances do not. Packrat's cost model (section 3.3) knows nothing of it.

What is seen is the latency of batches of the size that the load makes now. How much of the
difference is by the request is not known: for smaller batches all of it is taken to be, for larger
ones none of what comes on top. So one instance is never told to be worse for a load that was not
seen than it was for the one that was.
"""

from __future__ import annotations

import math

from shunter.allocator.planning.latency_table import LatencyTable

NEWEST = 1 / 16
"""Weight of the newest look in the means."""
MOST = 0.25
"""Of a profiled latency: a server that adds more is on a busy host, which slows everything."""


class ServingCost:
    """Milliseconds that each request adds, up to a size of the batch. Not thread-safe."""

    def __init__(self) -> None:
        """Nothing, as far as is known."""
        self.each_ms = 0.0
        self.up_to = 1.0
        """With the one before what plans are made with."""
        self._mean_ms, self._mean_size = 0.0, 0.0

    def heed(self, size: int, profiled_ms: float, served_ms: float, step: float) -> bool:
        """Batches of ``size`` take this by the profile, inf: nobody knows, and this as served.

        Returns whether plans are to be made with other numbers from now on: what is added to such
        a batch differs by more than ``step`` of the profile's latency.

        >>> cost = ServingCost()
        >>> [cost.heed(10, 200.0, 220.0, 0.01) for _ in range(4)], round(cost.each_ms, 3)
        ([False, True, False, True], 0.455)
        """
        if math.isinf(profiled_ms):
            return False
        added = max(0.0, min(served_ms - profiled_ms, MOST * profiled_ms)) / size
        self._mean_size += (NEWEST if self._mean_size else 1.0) * (size - self._mean_size)
        self._mean_ms += NEWEST * (added - self._mean_ms)
        planned = self.each_ms * min(self.up_to, size)
        if abs(self._mean_ms * min(self._mean_size, size) - planned) <= step * profiled_ms:
            return False
        self.each_ms, self.up_to = self._mean_ms, self._mean_size
        return True

    def charged(self, profiled: LatencyTable) -> LatencyTable:
        """The profile's table with what serving adds."""
        return profiled.adding(self.each_ms, self.up_to) if self.each_ms else profiled
