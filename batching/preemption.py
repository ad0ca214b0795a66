"""When best-effort work stands still and when it goes on, as a table. Pure.

REEF preempts a best-effort task by killing its kernels and restores it a few kernels earlier
(section 4.3). Here work is cut in segments and stands still between two of them with all that it
has computed, so nothing is done twice; it is only begun anew where its memory is wanted.

====================  =========  =====================================================
state                 event      next
====================  =========  =====================================================
RUNNING               HELD       YIELDING: strict work has come, the segment is going on
YIELDING              BOUNDARY   PARKED: the segment has ended
YIELDING              RELEASED   RUNNING: the strict work was over before the segment was
PARKED                RELEASED   RESTORING: it may go on
PARKED                WAITED     RESTORING: it has stood still for as long as it may
PARKED                WANTED     RESTORING: its memory is wanted; it will begin anew
RESTORING             HELD       PARKED: strict work came again before it went on
RESTORING             WENT_ON    RUNNING
====================  =========  =====================================================
"""

from __future__ import annotations

from enum import Enum

from shunter.batching.layout import RunnerState

LONGEST_PARK_NS = 1_000_000_000
"""Ageing: a batch that was parked for as long goes on, where the controller says nothing else."""


class Event(Enum):
    """What moves a runner from one state to the next."""

    HELD = "held"
    BOUNDARY = "boundary"
    RELEASED = "released"
    WAITED = "waited"
    WANTED = "wanted"
    WENT_ON = "went on"


TABLE = {
    (RunnerState.RUNNING, Event.HELD): RunnerState.YIELDING,
    (RunnerState.YIELDING, Event.BOUNDARY): RunnerState.PARKED,
    (RunnerState.YIELDING, Event.RELEASED): RunnerState.RUNNING,
    (RunnerState.PARKED, Event.RELEASED): RunnerState.RESTORING,
    (RunnerState.PARKED, Event.WAITED): RunnerState.RESTORING,
    (RunnerState.PARKED, Event.WANTED): RunnerState.RESTORING,
    (RunnerState.RESTORING, Event.HELD): RunnerState.PARKED,
    (RunnerState.RESTORING, Event.WENT_ON): RunnerState.RUNNING,
}


def after(state: RunnerState, event: Event) -> RunnerState:
    """The state that follows. Raises ValueError for an event that means nothing in ``state``."""
    try:
        return TABLE[state, event]
    except KeyError:
        raise ValueError(f"{event.name} means nothing to work that is {state.name}") from None


def end_of_parking(
    *,
    is_held: bool,
    parked_ns: int,
    longest_park_ns: int = LONGEST_PARK_NS,
    memory_is_wanted: bool = False,
    may_drop: bool = False,
) -> Event | None:
    """What ends the standing still of parked work now, None when it goes on.

    ``parked_ns``: for how long this batch has been parked so far, in all.
    """
    if not is_held:
        return Event.RELEASED
    if memory_is_wanted and may_drop:
        return Event.WANTED
    return Event.WAITED if parked_ns >= longest_park_ns else None
