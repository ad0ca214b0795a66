"""Predicted latency of a batch, fitted online: ``fixed + n * per_request``.

A least-squares line over the service times of recent batches. It forgets (a batch counts half
after about 17 newer ones), it is robust (an observation counts at most as if it were four mean
errors off), and when all recent batches have one size it keeps the slope it knew. BentoML fits
such a line to its last 50 batches by plain least squares; Clipper takes mean and spread per size.

``LatencyFit.java`` is the twin of this file; ``tests/golden/latency.json`` keeps both equal bit
for bit: the order of operations is part of the definition, all in IEEE doubles.
"""

from __future__ import annotations

FORGET = 0.96
"""Factor on the weight of what was seen, per batch."""
FORGET_EARLY = 0.8
"""The same while few batches were seen: the first ones are the worst."""
EARLY = 20
"""Number of early batches."""
SKIP = 2
"""First batches that are not looked at: they pay for warming up."""
CLIP = 4.0
"""An observation is moved to at most that many mean errors from the line."""
CLIP_AFTER = 8
"""Batches before which nothing is clipped: the error is not known well."""
SURPRISES = 4
"""After so many such observations in a row on one side, what was seen before is forgotten."""
ERROR_WEIGHT = 0.125
"""Weight of the newest batch in the mean error."""
SLOPE_MEMORY = 16.0
"""Weight of the slope that was known, in units of weighted squared deviations of the size."""
CAUTION = 2.0
"""Mean errors that are added where a deadline is at stake."""
UNVARIED = 0.25
"""Weighted squared deviations of the size below which all recent batches had one size."""
TRY_OF, TRY = 32, 16
"""Of so many such batches in a row, that many are followed by a try of another size."""


class LatencyFit:
    """The line and its mean absolute error, in nanoseconds. Not thread-safe."""

    def __init__(self, fixed_ns: float = 0.0, per_request_ns: float = 0.0) -> None:
        """Start with a line that is known from elsewhere, or with nothing."""
        self.fixed_ns = fixed_ns
        self.per_request_ns = per_request_ns
        self.error_ns = 0.0
        """Mean absolute error of predictions made before the batch ran."""
        self.batches = 0
        """Batches seen."""
        self._weight = self._size = self._latency = 0.0
        self._size_size = self._size_latency = 0.0
        self._beyond = 0

    @property
    def known(self) -> bool:
        """Whether anything was observed."""
        return self.batches > SKIP

    def observe(self, size: int, latency_ns: int) -> None:
        """A batch of ``size`` >= 1 requests took ``latency_ns`` >= 0."""
        self.batches += 1
        if self.batches <= SKIP:
            return
        first = self.batches == SKIP + 1
        if first and self.fixed_ns + self.per_request_ns == 0.0:
            # Until sizes differ: all is fixed. A prediction that is too good for larger batches is
            # corrected by the first of them; one that is too bad would keep them from forming.
            self.fixed_ns = float(latency_ns)
        seen = self._clipped(size, float(latency_ns), first)
        self._add(float(size), seen)
        self._solve()

    def _clipped(self, size: int, latency: float, first: bool) -> float:
        expected = self.fixed_ns + size * self.per_request_ns
        residual = latency - expected
        # What is said of a size unlike all recent ones is no observation yet: nothing to defend.
        usual = self._size_size >= SLOPE_MEMORY or abs(size - self._size) < 0.5
        if self.batches > SKIP + CLIP_AFTER and usual:
            bound = CLIP * self.error_ns
            if self._surprised(residual, bound):
                self._forget(abs(residual))
                return latency
            residual = max(-bound, min(bound, residual))
        distance = abs(residual)
        self.error_ns = (
            latency * 0.25 if first else self.error_ns + ERROR_WEIGHT * (distance - self.error_ns)
        )
        return expected + residual

    def _surprised(self, residual: float, bound: float) -> bool:
        """Whether so many in a row were beyond the bound on one side that all has changed."""
        side = 0 if abs(residual) <= bound else 1 if residual > 0 else -1
        self._beyond = self._beyond + side if side * self._beyond > 0 else side
        return abs(self._beyond) >= SURPRISES

    def _forget(self, error: float) -> None:
        self.batches, self._beyond, self.error_ns = SKIP + 1, 0, error
        self._weight = self._size_size = self._size_latency = 0.0

    def _add(self, size: float, latency: float) -> None:
        forget = FORGET_EARLY if self.batches <= EARLY else FORGET
        self._weight = self._weight * forget + 1.0
        from_mean = size - self._size
        self._size += from_mean / self._weight
        self._latency += (latency - self._latency) / self._weight
        self._size_size = self._size_size * forget + from_mean * (size - self._size)
        self._size_latency = self._size_latency * forget + from_mean * (latency - self._latency)

    def _solve(self) -> None:
        slope = (self._size_latency + SLOPE_MEMORY * self.per_request_ns) / (
            self._size_size + SLOPE_MEMORY
        )
        slope = max(0.0, min(slope, self._latency / self._size))
        self.per_request_ns = slope
        self.fixed_ns = self._latency - slope * self._size

    def predict_ns(self, size: int) -> int:
        """Predicted latency of a batch of ``size`` requests."""
        return int(self.fixed_ns + size * self.per_request_ns)

    @property
    def worth_ns(self) -> int:
        """What one batch less may save, at most: the fixed cost, as far as sizes tell it.

        While all recent batches had one size nothing does, and the line keeps what it was told by
        sizes of long ago, perhaps no fixed cost at all. Half of the latency is taken then, now and
        again: a size that is not tried is not seen to be better.
        """
        fixed = self.fixed_ns
        if self._size_size < UNVARIED and self.batches % TRY_OF < TRY:
            fixed = max(fixed, self._latency / 2.0)
        return int(fixed)

    @property
    def caution_ns(self) -> int:
        """What is added to a prediction where a deadline is at stake: twice the mean error."""
        return int(CAUTION * self.error_ns)
