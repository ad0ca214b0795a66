"""What is expected of a model, and what it does on so many cores. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class OnCores:
    """What a model does on so many cores, at its best.

    It must not depend on where the model is now, as the requests that wait for it do: else a place
    is left because of what it is like there, taken again because of what it is like elsewhere, and
    so on.
    """

    latency_ms: float
    """Of a request that is alone."""
    rate: float
    """Requests per second with batches as large as its SLO allows."""
    fbr: float = 0.0
    """Share of the host's memory bandwidth that it wants while it runs there."""
    full_ms: float = 0.0
    """Of such a batch; 0: as of one request."""

    def expected_ms(self, rho: float) -> float:
        """Of a batch while this share of the time is taken: the more, the larger they get."""
        return self.latency_ms + min(1.0, rho) * max(0.0, self.full_ms - self.latency_ms)


@dataclass(frozen=True)
class Load:
    """What is expected of a model."""

    model: str
    is_strict: bool
    rate: float
    """Requests per second."""
    by_cores: Mapping[int, OnCores]
    """For every number of cores that a set may have, and for all of them."""
    slo_ms: float = math.inf

    def share(self, cores: int) -> float:
        """Of the time of so many cores that it needs."""
        return self.rate / self.by_cores[cores].rate
