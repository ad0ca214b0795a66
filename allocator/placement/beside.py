"""Whether best effort may begin to run beside strict work on what both share. Pure.

REEF fills what a real-time kernel leaves free by two rules on profiles (padding, section 5.2): what
is padded must be short enough, and its occupancy must fit. Here both are one question to the
slowdown model: by how much would strict work be slower? Processors and memory bandwidth are
resources of which each pass wants a share, as equation 1 has it; where a processor comes back only
at the end of a segment, the wait for that is added. What nobody has measured counts as nothing: it
shows while serving, where ``shunter.batching.preemption.pair_judge`` has the last word.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from shunter.allocator.placement.slowdown import contention

MARGIN = 0.1
"""Share of the processors that is left alone, since shares of them are not exact."""


class Start(Enum):
    """How a pair begins."""

    TOGETHER = "together"
    TRIAL = "trial"
    """Apart, but it is tried after a while."""
    APART = "apart"


@dataclass(frozen=True)
class Pass:
    """One pass of a model that runs alone."""

    solo_ns: int
    cores: float | None
    """Processors that it keeps busy; None: not known, as of a GPU's multiprocessors."""
    bandwidth: float | None = None
    """Share of the memory bandwidth that it wants (FBR); None: never measured."""
    segment_ns: int = 0
    """The longest part between two places where it can stand still; 0: the whole pass."""


def expected(
    strict: Pass, best_effort: Pass, cores: float, takes_back: bool
) -> tuple[float | None, float]:
    """By how much strict work is slower for want of processors, and of bandwidth; 1: by nothing.

    The first is None where shares of processors are not known. ``takes_back``: processors go back
    to strict work within microseconds, whoever has them (SCHED_IDLE, or gates); so it waits for
    nobody, and needs no margin.
    """
    both = strict, best_effort
    wait = 0.0 if takes_back else _segment_ns(best_effort) / strict.solo_ns
    room = cores * (1 if takes_back else 1 - MARGIN)
    busy = _known(each.cores for each in both)
    processors = contention(each / room for each in busy) + wait if len(busy) == 2 else None
    return processors, contention(_known(each.bandwidth for each in both)) + wait


def start(
    strict: Pass, best_effort: Pass, cores: float, takes_back: bool, slow_down: float
) -> Start:
    """How this pair begins, if strict work may be slower by the share ``slow_down``.

    * Apart, where strict work would wait too long for segments, or both want more processors than
      there are: then nothing is gained either.
    * On trial, where shares of processors are not known; or where profiles say that both want more
      bandwidth than there is, which may be wrong, and then best effort would wait for nothing.
    * Together otherwise.
    """
    limit = 1 + slow_down
    if not takes_back and _segment_ns(best_effort) > slow_down * strict.solo_ns:
        return Start.APART
    processors, bandwidth = expected(strict, best_effort, cores, takes_back)
    if processors is None:
        return Start.TRIAL
    if processors > limit:
        return Start.APART
    return Start.TOGETHER if bandwidth <= limit else Start.TRIAL


def _segment_ns(each: Pass) -> int:
    return each.segment_ns or each.solo_ns


def _known(values: Iterable[float | None]) -> list[float]:
    return [each for each in values if each is not None]
