"""When best-effort work stands still and when it goes on, as a table. Pure.

REEF preempts a best-effort task by killing its kernels and restores it a few kernels earlier
(section 4.3). Here work is cut in segments and stands still between two of them with all that it
has computed, so nothing is done twice; it is only begun anew where its memory is wanted.

====================  ===========  =====================================================
state                 event        next
====================  ===========  =====================================================
RUNNING               HELD         YIELDING: strict work holds its slices
YIELDING              BOUNDARY     PARKED: the segment has ended
PARKED                RELEASED     RESTORING: it may go on
PARKED                WAITED       RESTORING: it has stood still for as long as it may
PARKED                WANTED       RESTORING: its memory is wanted; it will begin anew
RESTORING             WENT_ON      RUNNING
any                   INTERRUPTED  RUNNING: an exception, such as a handler's alarm
====================  ===========  =====================================================

Holds are looked at between segments only: nothing is released while it yields, and what is held
again while it is restored is seen at the next boundary.
"""

from __future__ import annotations

from enum import Enum

from shunter.batching.page.layout import RunnerState

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
    INTERRUPTED = "interrupted"


TABLE = {
    (RunnerState.RUNNING, Event.HELD): RunnerState.YIELDING,
    (RunnerState.YIELDING, Event.BOUNDARY): RunnerState.PARKED,
    (RunnerState.PARKED, Event.RELEASED): RunnerState.RESTORING,
    (RunnerState.PARKED, Event.WAITED): RunnerState.RESTORING,
    (RunnerState.PARKED, Event.WANTED): RunnerState.RESTORING,
    (RunnerState.RESTORING, Event.WENT_ON): RunnerState.RUNNING,
    **{(state, Event.INTERRUPTED): RunnerState.RUNNING for state in RunnerState},
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
