"""Which best-effort work may run beside which strict work: padding (REEF section 5).

The paper fills the compute units that a real-time kernel leaves free with blocks of best-effort
kernels, chosen by two rules from profiles made before (section 5.2). Here the unit is a segment of
a best-effort pass beside the batches of a strict model, and the rules are :func:`may_pad`. They
know nothing of caches and memory channels, which the paper leaves as future work and which cost
most on CPUs, so :mod:`shunter.batching.preemption.pair_judge` measures while serving.

Pure: numbers in, a decision out.
"""

from __future__ import annotations

from dataclasses import dataclass

SLOW_DOWN = 0.02
"""Share by which strict work may be slower beside best effort."""
MARGIN = 0.1
"""Share of the cores that is left alone, since profiles are not exact."""
_ROUNDING = 1e-9
"""A sum of shares that is whole but for this must not cost a core."""


@dataclass(frozen=True)
class Pass:
    """One pass of a model, measured alone."""

    solo_ns: int
    cpu_ns: int
    """Time of processors, all together; 0: not known, as of a GPU's multiprocessors."""
    segment_ns: int = 0
    """The longest part between two places where it can stand still; 0: the whole pass."""

    def core_share(self, cores: float) -> float:
        """Share of so many cores that it keeps busy while it runs."""
        return self.cpu_ns / (self.solo_ns * cores)


@dataclass(frozen=True)
class Capacity:
    """What two passes share."""

    cores: float
    takes_back: bool = False
    """Cores go back to strict work within microseconds, whoever has them: SCHED_IDLE, or gates."""


def may_pad(
    strict: Pass,
    best_effort: Pass,
    capacity: Capacity,
    slow_down: float = SLOW_DOWN,
    margin: float = MARGIN,
) -> bool | None:
    """Whether both rules of REEF section 5.2 hold for this pair; None when that is not known.

    Rule 1, time: a padded kernel ends with its slowest block, so the paper takes only best-effort
    kernels that are shorter than the real-time one. Here nothing waits for best effort to end, but
    where cores are only given back at the end of a segment strict work waits for that long at
    worst; a segment may then be ``slow_down`` of the strict pass. Where cores are taken back at
    once the rule always holds.

    Rule 2, resources: the paper gives best effort the compute units that are left, and wants its
    occupancy not to be the lower one. Here the shares of cores of both must fit beside each other,
    with ``margin`` to spare unless they are taken back. That cores are taken back is no reason to
    want more of them than there are: strict work that needs all of them is faster beside best
    effort that stands still, and nothing is gained, since there is no core to run on. The memory's
    bandwidth, which the paper's rule counts among the resources, is in no profile here; what
    sharing it costs is measured while serving.
    """
    segment_ns = best_effort.segment_ns or best_effort.solo_ns
    if not capacity.takes_back and segment_ns > slow_down * strict.solo_ns:
        return False
    if not strict.cpu_ns or not best_effort.cpu_ns:
        return None
    cores = strict.core_share(capacity.cores) + best_effort.core_share(capacity.cores)
    return cores <= (1 if capacity.takes_back else 1 - margin) + _ROUNDING
