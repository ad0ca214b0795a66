import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shunter.batching.page.layout import RunnerState
from shunter.batching.preemption import states as preemption
from shunter.batching.preemption.states import TABLE, Event, after, end_of_parking

R, Y, P, B = RunnerState


def test_the_documented_table_is_the_table():
    words = [line.split() for line in preemption.__doc__.splitlines() if line.count("  ") > 1]
    states, events = RunnerState.__members__, Event.__members__
    rows = [row for row in words if row[0] in states and row[1] in events]
    told = {(row[0], row[1]): row[2].rstrip(":") for row in rows}
    assert "any                   INTERRUPTED  RUNNING" in preemption.__doc__
    told |= {(state, "INTERRUPTED"): "RUNNING" for state in states}
    assert told == {(s.name, e.name): following.name for (s, e), following in TABLE.items()}


def test_the_pairs_that_are_possible_are_these():
    # A hold is looked at between segments only, so none ends while one yields, and none is seen
    # while one is restored.
    possible = {
        *((R, Event.HELD), (Y, Event.BOUNDARY), (B, Event.WENT_ON)),
        *((P, Event.RELEASED), (P, Event.WAITED), (P, Event.WANTED)),
        *((state, Event.INTERRUPTED) for state in RunnerState),
    }
    assert set(TABLE) == possible


@pytest.mark.parametrize("pair", list(itertools.product(RunnerState, Event)))
def test_what_is_not_in_the_table_is_an_error(pair):
    if pair in TABLE:
        assert after(*pair) is TABLE[pair]
    else:
        with pytest.raises(ValueError, match=f"{pair[1].name} means nothing to work that is"):
            after(*pair)


def test_running_is_reached_again_from_every_state():
    reaches = {R}
    for _ in RunnerState:
        reaches |= {state for (state, _), following in TABLE.items() if following in reaches}
    assert reaches == set(RunnerState)


@given(st.lists(st.sampled_from(Event), max_size=60))
def test_work_that_is_not_running_was_held_and_not_released_since(events):
    state, held = R, False
    for event in events:
        if (state, event) not in TABLE:
            continue
        state = after(state, event)
        held = event is Event.HELD or (held and event is Event.BOUNDARY)
        assert held == (state in (Y, P))


@pytest.mark.parametrize(
    ("is_held", "parked", "longest", "wanted", "may_drop", "ends"),
    [
        (False, 0, 10, False, False, Event.RELEASED),
        (False, 99, 10, True, True, Event.RELEASED),
        (True, 0, 10, False, False, None),
        (True, 9, 10, False, False, None),
        (True, 10, 10, False, False, Event.WAITED),
        (True, 0, 10, True, False, None),
        (True, 0, 10, True, True, Event.WANTED),
        (True, 11, 10, True, False, Event.WAITED),
        (True, 11, 10, True, True, Event.WANTED),
        (True, 0, 0, False, False, Event.WAITED),
    ],
)
def test_what_ends_the_standing_still(is_held, parked, longest, wanted, may_drop, ends):
    assert (
        end_of_parking(
            is_held=is_held,
            parked_ns=parked,
            longest_park_ns=longest,
            memory_is_wanted=wanted,
            may_drop=may_drop,
        )
        is ends
    )
