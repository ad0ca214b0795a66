"""What an instance does and needs: latency by threads and batch size, and memory."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from shunter.allocator.planning.packing import Vector

NEARLY = 0.95
"""Of the best rate: a smaller difference is noise, and larger batches take bursts better."""


@dataclass(frozen=True)
class LatencyTable:
    """``ms[t - 1, b - 1]``: latency of one instance on t threads with a batch of b.

    inf where it cannot run. Raises ValueError when a row falls with b: see
    :func:`shunter.allocator.planning.profile_table.latency_table`, which makes rows that do not.
    """

    ms: NDArray[np.float64]
    levels: NDArray[np.float64] = field(init=False, repr=False, compare=False)
    """All finite latencies, ascending."""

    def __post_init__(self) -> None:
        """Check the table."""
        if self.ms.ndim != 2 or not self.ms.size or not (self.ms > 0).all():
            raise ValueError("a latency table is threads x batch sizes of latencies above 0")
        if (self.ms[:, 1:] < self.ms[:, :-1]).any():
            raise ValueError("latency falls with the batch size")
        object.__setattr__(self, "levels", np.unique(self.ms[np.isfinite(self.ms)]))

    @property
    def threads(self) -> int:
        """Most threads of one instance."""
        return self.ms.shape[0]

    @property
    def batch(self) -> int:
        """Largest batch of one instance."""
        return self.ms.shape[1]

    def capped(self, batch: int) -> LatencyTable:
        """The same instances with batches of at most ``batch``; their sum may be larger."""
        return self if batch >= self.batch else LatencyTable(self.ms[:, :batch])

    def adding(self, ms: float, up_to: float) -> LatencyTable:
        """The same instances where each of the first ``up_to`` requests of a batch adds ``ms``."""
        return LatencyTable(self.ms + ms * np.minimum(np.arange(1, self.batch + 1), up_to))

    def largest(self, ms: float, capacity: int, batch: int) -> Vector:
        """Largest batch, at most ``batch``, within ``ms``, by threads 0..capacity."""
        item = np.zeros(capacity + 1)
        rows = min(capacity, self.threads)
        item[1 : rows + 1] = (self.ms[:rows, :batch] <= ms).sum(axis=1)
        return item

    def rows(self, threads: Sequence[int], batch: int) -> NDArray[np.float64]:
        """A row of latencies for each instance; more threads than were tried are of no use."""
        return self.ms[np.minimum(threads, self.threads) - 1, :batch]

    def of(self, threads: int, batch: int) -> float:
        """Latency of one instance, in ms."""
        return float(self.rows([threads], batch)[0, batch - 1])

    def efficient(self, threads: int, batch: int) -> int:
        """The largest batch, at most ``batch``, that serves nearly as many per second as any such.

        Where latency grows faster than the batch, as when it leaves a cache, two batches one after
        the other end sooner than one. What is beyond the table is taken to be like its end.
        """
        row = self.rows([threads], batch)[0]
        rates = np.arange(1, len(row) + 1) / row
        largest = int(np.flatnonzero(rates >= NEARLY * rates.max())[-1]) + 1
        return batch if largest == self.batch else largest


@dataclass(frozen=True)
class Memory:
    """What instances need and may have, in bytes."""

    instance: float = 0.0
    request: float = 0.0
    budget: float = math.inf

    def instances(self, batch: int) -> float:
        """Most instances that fit when their batches sum to ``batch``."""
        return self._copies(self.budget - batch * self.request, self.instance)

    def copies(self, batch: int) -> float:
        """Most instances that fit when each has a batch of ``batch``."""
        return self._copies(self.budget, self.instance + batch * self.request)

    @staticmethod
    def _copies(free: float, each: float) -> float:
        if free < each:
            return 0
        return free // each if each > 0 and math.isfinite(free) else math.inf
