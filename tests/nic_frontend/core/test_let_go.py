"""When the input of an entry is not needed any more: not before, and not later."""

import pytest

from oracle.core import Ready
from shunter.nic_frontend.wire.layout import Flags, MessageType

S = 1_000_000_000
LONG = 100 * S


def finished(status, *, sent=True):
    return lambda table: table.core.finished(table.func, 0, status, 0, sent=sent)


def died(table):
    return table.core.worker_died(table.func, 0, 0)


def leaves(table):
    return table.core.remove_session(table.session, 0)


def expires(table):
    return table.core.expired(table.func, 0, 0)


def cancels(table):
    return table.say(MessageType.CANCEL)


def is_returned(table):
    return table.core.returned(table.func, 0, 0)


def falls_silent(table):
    return table.core.tick(LONG)


COMES, WAITS, RUNS = "comes", "waits", "runs"
ONCE, TWICE = 0, Flags.IDEMPOTENT

ENDS = [
    # until when, flags, what happens, whether that is the end
    (COMES, ONCE, [leaves], True),
    (COMES, ONCE, [falls_silent], True),
    (COMES, ONCE, [cancels], True),
    (WAITS, ONCE, [expires], True),
    (WAITS, ONCE, [cancels], True),
    (WAITS, ONCE, [leaves], True),
    (RUNS, ONCE, [finished(200)], True),
    (RUNS, ONCE, [finished(200, sent=False)], True),
    (RUNS, ONCE, [finished(500)], True),
    (RUNS, ONCE, [died], True),
    (RUNS, ONCE, [is_returned], False),
    (RUNS, ONCE, [cancels], False),
    (RUNS, ONCE, [leaves], False),
    (RUNS, ONCE, [leaves, finished(200)], True),
    (RUNS, ONCE, [leaves, finished(500)], True),
    (RUNS, ONCE, [leaves, died], True),
    (RUNS, ONCE, [leaves, is_returned], True),
    (RUNS, TWICE, [died], False),
    (RUNS, TWICE, [died, leaves], True),
    (RUNS, TWICE, [died, expires], True),
    (RUNS, TWICE, [leaves, died], True),
]


def names(ends):
    found = []
    for when, flags, events, is_end in ends:
        text = "-".join(getattr(event, "__name__", "") for event in events)
        found.append(f"{when}-{text}-{'twice' if flags else 'once'}-{is_end}")
    return found


def begin(table, when, flags):
    """A request in entry 0, so far."""
    for seq in range(table.inputs.count - (when == COMES)):
        actions = table.say(seq=seq, add=flags)
    if when != COMES:
        assert [type(action) for action in actions][-1] is Ready
    if when == RUNS:
        table.core.running(table.func, 0, 0)
    assert table.core.let_gone == []


@pytest.mark.parametrize(("when", "flags", "events", "is_end"), ENDS, ids=names(ENDS))
def test_an_input_is_let_go_of_exactly_when_nobody_needs_it(
    c_table, when, flags, events, is_end
):
    begin(c_table, when, flags)
    for event in events[:-1]:
        event(c_table)
        assert c_table.core.let_gone == []
    events[-1](c_table)
    assert c_table.core.let_gone == ([(c_table.func, 0)] if is_end else [])
    leaves(c_table)
    if is_end:
        assert len(c_table.core.let_gone) == 1  # once


def test_what_kills_two_workers_is_let_go_of_with_the_second(c_table):
    begin(c_table, RUNS, TWICE)
    died(c_table)
    c_table.core.running(c_table.func, 0, 0)
    assert c_table.core.let_gone == []
    died(c_table)
    assert c_table.core.let_gone == [(c_table.func, 0)]


def test_the_answer_is_kept_without_the_input(c_table):
    begin(c_table, RUNS, ONCE)
    finished(200)(c_table)
    assert c_table.core.let_gone == [(c_table.func, 0)]
    assert c_table.core.free_entries(c_table.func) == 3
    c_table.say(MessageType.ACK, req_id=0, credit=2)
    assert c_table.core.free_entries(c_table.func) == 4
    assert len(c_table.core.let_gone) == 1


def test_a_request_that_is_refused_had_no_input(c_table):
    c_table.say_wrong(total=99)
    leaves(c_table)
    assert c_table.core.let_gone == []
