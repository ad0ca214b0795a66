"""Who works on what: the rule, and the C dispatcher does the same."""

import random
import subprocess
from pathlib import Path

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from oracle.core import Ready
from oracle.dispatch import Dispatch, Hand, Policy
from oracle.telemetry import Telemetry
from shunter.nic_frontend import build

HERE = Path(__file__).parent
ENTRIES = 64
MS = 1_000_000
SECOND = 1000 * MS


class Place:
    """A dispatcher, and what it gave."""

    def __init__(self, caps=(), **policy):
        self.dispatch = Dispatch(Policy(**{"threshold": 1.0, **policy}))
        self.late, self.unserved, self.next_ns = [], [], None
        for worker, cap in enumerate(caps):
            self.dispatch.hands[worker] = Hand(cap)

    def wait(self, *entries, priority=0, now=0, deadline=0, again=False, rows=1):
        for entry in entries:
            ready = Ready(1, entry, priority, deadline, again, rows=rows)
            self.dispatch.enqueue(ready, now)

    def go(self, now=0):
        """Batches that leave now: worker and entries."""
        given, self.late = [], []
        self.next_ns = self.dispatch.dispatch(
            now,
            lambda w, _, run: given.append((w, *run.entries)),
            self.late.append,
            unserved=self.unserved.append,
        )
        return given

    def answered(self, worker, now=0):
        self.dispatch.answered(worker, True, now)


@pytest.mark.parametrize(
    ("caps", "waiting", "expected"),
    [
        ((4,), (0,), [(0, 0)]),
        ((4,), (0, 1, 2), [(0, 0, 1, 2)]),
        ((2,), (0, 1, 2), [(0, 0, 1)]),
        ((4,), (0, 2, 3), [(0, 0, 2, 3)]),
        ((4,), (7, 0, 1, 6), [(0, 7, 0, 1, 6)]),
        ((4,), (5, 3, 60, 1, 9), [(0, 5, 3, 60, 1)]),
        ((4, 4), (0, 1, 2, 3), [(0, 0, 1), (1, 2, 3)]),
        ((2, 4), (0, 1, 2), [(0, 0), (1, 1, 2)]),
        ((4, 4), (0, 2), [(0, 0), (1, 2)]),
        ((), (0,), []),
        ((4,), (), []),
    ],
    ids=str,
)
def test_batches_are_of_whatever_waits(caps, waiting, expected):
    place = Place(caps=caps)
    place.wait(*waiting)
    assert place.go() == expected


@pytest.mark.parametrize(
    ("fixed_ms", "other", "since_ms", "waiting", "expected"),
    [
        (0, 10, 0, 20, 15),
        (0, 10, 6, 20, 12),
        (0, 30, 0, 2, 2),
        (10, 10, 0, 20, 20),  # another batch would end later than the whole
        (10, 10, 10, 20, 15),
        (10, 10, 25, 20, 20),  # which is late: it may hang
    ],
)
def test_what_waits_is_left_to_a_worker_that_is_soon_free(
    fixed_ms, other, since_ms, waiting, expected
):
    place = Place(caps=(64, 64), threshold=0, ahead=0, fixed_ns=fixed_ms * MS, per_request_ns=MS)
    place.wait(60, 61)
    place.go()
    now = 30 * MS  # both are late: nothing is left to them
    place.wait(*range(other), now=now)
    place.answered(1, now)
    [first] = place.go(now)
    assert first[0] == 1 and len(first) == 1 + other
    place.wait(*range(30, 30 + waiting), now=now)
    now += max(since_ms * MS, 1)
    place.answered(0, now)
    [second] = place.go(now)
    assert second[0] == 0 and len(second) == 1 + expected


def test_a_strict_batch_is_filled_with_no_more_best_effort_than_runs_by_itself():
    place = Place(caps=(16,), ahead=0, mixes=True, fixed_ns=4 * MS, per_request_ns=MS)
    place.wait(0)
    place.go()
    place.wait(1, now=MS)
    place.wait(*range(2, 14), priority=1, now=MS)
    place.answered(0, MS)
    [given] = place.go(MS)
    assert given == (0, 1, 2, 3, 4, 5)


def test_a_full_batch_that_was_waited_for_is_not_shared():
    place = Place(caps=(8, 8), threshold=8, ahead=0, fixed_ns=10 * MS, per_request_ns=MS)
    place.wait(60, 61)
    place.go()
    place.wait(0, 1, 2, now=30 * MS)
    place.answered(1, 30 * MS)
    [first] = place.go(30 * MS)
    assert first[0] == 1 and len(first) == 4
    place.wait(*range(30, 38), now=42 * MS)
    place.answered(0, 42 * MS)
    [second] = place.go(42 * MS)
    assert second[0] == 0 and len(second) == 9


@pytest.mark.parametrize(("now_ms", "sent"), [(1, 1), (500, 1), (1500, 0)])
def test_nothing_is_sent_ahead_to_a_worker_that_may_hang(now_ms, sent):
    place = Place(caps=(1, 1), fixed_ns=2 * MS, per_request_ns=0, margin_ns=MS)
    place.wait(0, 1)
    assert len(place.go()) == 2
    place.wait(2, now=now_ms * MS)
    assert len(place.go(now_ms * MS)) == sent


def test_a_batch_is_of_at_most_so_many_rows():
    place = Place(caps=(8,), ahead=0)
    for entry, rows in enumerate((3, 5, 2, 8, 1)):
        place.wait(entry, rows=rows)
    batches = []
    while given := place.go():
        batches += given
        place.answered(0)
    assert batches == [(0, 0, 1), (0, 2), (0, 3), (0, 4)]  # 2 and 8 rows do not fit, 1 waits


def test_a_request_that_a_worker_does_not_take_waits_for_one_that_does():
    place = Place(caps=(4, 8), ahead=0)
    place.wait(0, rows=7)
    place.wait(1, rows=6)
    place.wait(2, rows=2)
    assert place.go() == [(0, 2), (1, 0)]  # nobody waits behind what is not for him
    place.answered(0)
    assert place.go() == []
    place.answered(1)
    assert place.go() == [(1, 1)]


@pytest.mark.parametrize("per_request_ns", [0, 1000])
@pytest.mark.parametrize("rows", [9, 16, 17, 64])
@pytest.mark.parametrize("caps", [(8, 8, 64), (8, 64, 8), (8, 8, 8, 64, 64), (1, 8, 64)], ids=str)
def test_a_request_goes_at_once_to_a_free_worker_that_takes_it(caps, rows, per_request_ns):
    place = Place(caps=caps, fixed_ns=MS, per_request_ns=per_request_ns)
    place.wait(0, rows=rows)
    assert place.go() == [(caps.index(64), 0)]


def test_one_that_killed_a_worker_goes_alone_to_one_that_takes_it():
    place = Place(caps=(4, 8))
    place.wait(0, rows=6, again=True)
    assert place.go() == [(1, 0)]


@pytest.mark.parametrize("comes", [4, 8, None])
def test_what_no_worker_takes_any_more_waits_for_another_but_not_for_ever(comes):
    place = Place(caps=(4, 8), ahead=0)
    place.wait(0, 1, rows=6)
    assert place.go() == [(1, 0)]
    place.dispatch.hands[1].draining = True
    place.wait(2, rows=3, now=SECOND)
    assert place.go(SECOND) == [(0, 2)] and place.next_ns == 11 * SECOND
    place.answered(0, SECOND)
    if comes:
        place.dispatch.hands[2] = Hand(comes)
    given = [(2, 1)] if comes == 8 else []
    assert place.go(11 * SECOND - 1) == given and not place.unserved
    assert place.go(11 * SECOND) == []
    assert place.unserved == ([] if comes == 8 else [1]) and place.next_ns is None


def test_what_is_worth_a_batch_is_rows():
    place = Place(caps=(8,), threshold=4.0, max_wait_ns=SECOND)
    place.wait(0, rows=3)
    assert place.go() == []
    place.wait(1)
    assert place.go() == [(0, 0, 1)]


def test_requests_for_several_workers_are_divided_by_their_rows():
    place = Place(caps=(8, 8), ahead=0)
    place.wait(0, rows=6)
    place.wait(1, 2, 3, rows=2)
    assert place.go() == [(0, 0), (1, 1, 2, 3)]


def test_a_large_request_is_too_late_sooner_than_a_small_one():
    place = Place(caps=(8,), ahead=0, fixed_ns=MS, per_request_ns=MS)
    place.wait(9)
    assert place.go() == [(0, 9)]  # until 2 ms
    place.wait(0, deadline=6 * MS, rows=4)
    place.wait(1, deadline=6 * MS)
    assert place.go() == [] and place.late == [0]  # that would be 7 ms


def test_a_request_that_takes_too_long_for_its_time_does_not_cost_others_theirs():
    place = Place(caps=(4,), ahead=0, fixed_ns=MS, per_request_ns=MS)
    place.wait(0, deadline=4 * MS, rows=4)  # takes 5 ms
    place.wait(1, 2, deadline=6 * MS)
    assert place.go() == [(0, 1, 2)] and place.late == [0]


def test_a_request_of_more_rows_than_a_batch_takes_as_long_as_all_of_them():
    latency = {"fixed_ns": MS, "per_request_ns": MS, "slo_ns": 8 * MS}  # 4 rows of best effort
    place = Place(caps=(64,), ahead=0, **latency)
    place.wait(9)
    assert place.go() == [(0, 9)]
    place.answered(0, MS)
    place.wait(0, priority=1, deadline=9 * MS, rows=40, now=MS)  # takes 41 ms
    place.wait(1, 2, priority=1, deadline=10 * MS, now=MS)
    assert place.go(MS) == [(0, 1, 2)] and place.late == [0]


@pytest.mark.parametrize(
    ("fixed", "each", "cap", "given"),
    [(4, 1, 64, 5), (1, 1, 64, 2), (0, 1, 64, 1), (9, 1, 4, 4), (3, 0, 64, 12), (0, 0, 64, 12)],
)
def test_without_an_slo_best_effort_adds_what_a_lone_request_takes(fixed, each, cap, given):
    place = Place(caps=(cap,), ahead=0, fixed_ns=fixed * MS, per_request_ns=each * MS)
    place.wait(20)
    place.go()
    place.answered(0)
    place.wait(*range(12), priority=1)
    assert place.go() == [(0, *range(given))]


@pytest.mark.parametrize(("deadline", "given"), [(10 * MS, 5), (0, 16)])
def test_strict_requests_that_long_batches_make_too_late_shorten_the_next_one(deadline, given):
    place = Place(caps=(16,), ahead=0, admission=1, fixed_ns=4 * MS, per_request_ns=MS)
    place.wait(*range(16), priority=1)
    assert place.go() == [(0, *range(16))]
    if deadline:
        place.wait(40, deadline=deadline)  # the batch takes 20 ms
        assert place.dispatch.refused == [40]
    place.wait(*range(20, 36), priority=1)
    place.answered(0, 20 * MS)
    assert place.go(20 * MS) == [(0, *range(20, 20 + given))]


class SlowPlace(Place):
    """Its workers do not take their batches at once."""

    def __init__(self, caps, **policy):
        super().__init__(caps, **{"ahead": 0, **policy})
        for hand in self.dispatch.hands.values():
            hand.is_slow = True

    def take(self, worker=0):
        hand = self.dispatch.hands[worker]
        hand.taken = hand.given


def test_what_comes_before_a_worker_has_taken_its_batch_joins_it():
    place = SlowPlace(caps=(4,), ahead=1)
    place.wait(0)
    assert place.go() == [(0, 0)]
    place.wait(2, 3, now=1)
    assert place.go(1) == [(0, 0, 2, 3)]
    place.wait(4, 5, now=2)
    assert place.go(2) == [(0, 0, 2, 3, 4), (0, 5)]  # full; the rest is sent ahead
    place.wait(6, now=3)
    assert place.go(3) == [(0, 5, 6)]  # that has not been taken either
    place.take()
    place.wait(7, now=4)
    assert place.go(4) == []


@pytest.mark.parametrize(
    ("running", "comes", "traffic", "joins"),
    [(0, 0, (), True), (1, 1, (), True), (1, 1, (9,), False), (0, 1, (), False)],
)
def test_a_batch_grows_where_that_is_to_nobodys_loss(running, comes, traffic, joins):
    place = SlowPlace(caps=(4,))
    place.wait(0, priority=running)
    place.go()
    place.wait(*traffic, now=2 * SECOND)  # strict requests are about
    place.wait(1, priority=comes, now=2 * SECOND)
    assert ((0, 0, 1) in place.go(2 * SECOND)) is joins


def test_strict_does_not_join_while_best_effort_is_due():
    place = SlowPlace(caps=(4,), ageing_ns=100 * MS)
    place.wait(0)
    place.go()
    place.wait(1, priority=1)
    place.wait(2, now=100 * MS)
    assert place.go(100 * MS) == []


@pytest.mark.parametrize(
    ("first", "others", "expected"),
    [
        ((0, 0), [0] * 6, (0, 1, 2, 3, 4)),  # no deadline: as many as fit
        ((9, 0), [0] * 6, (0, 1, 2, 3, 4)),
        ((5, 0), [0] * 6, (0, 1, 2)),  # 3 ms alone, 1 ms each
        ((3, 0), [0] * 6, (0,)),
        ((0, 0), [0, 0, 6, 0, 0], (0, 3, 1, 2)),  # theirs counts as well
        ((0, 1), [0] * 6, (0,)),  # what may have killed a worker stays alone
    ],
)
def test_a_batch_grows_as_long_as_all_of_it_is_in_time(first, others, expected):
    place = SlowPlace(caps=(5,), fixed_ns=2 * MS, per_request_ns=MS, margin_ns=0)
    place.wait(0, deadline=first[0] * MS, again=bool(first[1]))
    place.go()
    for entry, deadline in enumerate(others, 1):
        place.wait(entry, deadline=deadline * MS, now=1)
    found = place.go(1)
    assert found == ([(0, *expected)] if len(expected) > 1 else [])


def test_a_batch_grows_by_requests_that_fit():
    place = SlowPlace(caps=(4,))
    place.wait(0, rows=2)
    place.go()
    place.wait(1, rows=3, now=1)
    place.wait(2, rows=1, now=1)
    assert place.go(1) == []  # who comes later does not overtake the other
    place.dispatch.withdraw(1)
    assert place.go(2) == [(0, 0, 2)]


def test_admission_counts_the_rows_of_those_before_and_its_own():
    place = Place(caps=(4,), ahead=0, fixed_ns=MS, per_request_ns=MS, admission=1)
    place.wait(9)
    place.go()  # until 2 ms
    place.wait(0, rows=4)  # until 7 ms
    answered = [place.dispatch.predicted_answer_ns(0, 0, rows) for rows in (1, 2, 4)]
    assert answered == [9 * MS, 10 * MS, 12 * MS]


def test_a_batch_is_of_the_most_urgent_and_they_come_first():
    place = Place(caps=(4,), ahead=0)
    place.wait(9, 2)
    place.wait(5, deadline=70 * MS)
    place.wait(1, deadline=50 * MS)
    place.wait(7, deadline=70 * MS)
    assert place.go() == [(0, 1, 5, 7, 9)]
    place.answered(0)
    assert place.go() == [(0, 2)]


def test_what_is_too_late_is_told_in_the_order_of_deadlines():
    place = Place()
    for entry, deadline in ((4, 30), (3, 20), (2, 30), (1, 0), (0, 99)):
        place.wait(entry, deadline=deadline * MS)
    place.wait(7, priority=1, deadline=10 * MS)
    assert place.go(30 * MS + 1) == [] and place.late == [3, 4, 2, 7]  # class by class


def test_what_may_have_killed_a_worker_goes_first_and_alone():
    place = Place(caps=(4,))
    place.wait(0, 1)
    place.wait(2, again=True)
    assert place.go() == [(0, 2)] and place.go(1) == []  # nothing behind it
    place.answered(0, 1)
    assert place.go(1) == [(0, 0, 1)]


def test_few_requests_wait_for_more_but_not_too_long():
    place = Place(caps=(8,), threshold=3.0, max_wait_ns=5 * MS)
    place.wait(0, now=10 * MS)
    assert place.go(10 * MS) == [] and place.next_ns == 15 * MS
    place.wait(1, now=12 * MS)
    assert place.go(15 * MS - 1000) == []
    assert place.go(15 * MS) == [(0, 0, 1)] and place.next_ns is None


def test_as_many_as_are_worth_a_batch_go_at_once():
    place = Place(caps=(8,), threshold=3.0, max_wait_ns=5 * MS)
    place.wait(0, 1, 2)
    assert place.go() == [(0, 0, 1, 2)]


def test_what_is_held_back_goes_when_its_deadline_is_near():
    numbers = {"fixed_ns": 2 * MS, "per_request_ns": MS, "margin_ns": MS}
    place = Place(caps=(8,), threshold=9.0, max_wait_ns=100 * MS, **numbers)
    place.wait(0, deadline=20 * MS)
    place.wait(1)
    # Two requests take 4 ms, and 1 ms is kept for luck.
    assert place.go(0) == [] and place.next_ns == 15 * MS
    assert place.go(15 * MS - 1000) == []
    assert place.go(15 * MS) == [(0, 0, 1)]


def test_without_a_free_worker_only_the_deadline_itself_wakes():
    place = Place(caps=(1,), ahead=0, max_wait_ns=MS)
    place.wait(0, 1, deadline=20 * MS)
    assert place.go() == [(0, 0)] and place.next_ns == 20 * MS
    assert place.go(20 * MS) == [] and not place.late
    assert place.go(20 * MS + 1) == [] and place.late == [1] and place.next_ns is None


def test_strict_goes_before_best_effort():
    place = Place(caps=(2,), ahead=0)
    place.wait(0, 1, priority=1)
    place.wait(2, 3)
    assert place.go() == [(0, 2, 3)]
    place.answered(0)
    assert place.go() == [(0, 0, 1)]


def test_best_effort_goes_first_when_it_has_waited_long_enough():
    place = Place(caps=(1,), ahead=0, ageing_ns=100 * MS)
    place.wait(0, 1, priority=1)
    place.wait(2, 3, now=100 * MS)
    order = []
    for now in (99, 100, 101):
        order += place.go(now * MS)
        for worker, hand in place.dispatch.hands.items():
            if hand.in_flight:
                place.answered(worker, now * MS)
    # Not before its time, then once, then strict again.
    assert [first for _, first in order] == [2, 0, 3]


def test_strict_does_not_starve_where_best_effort_batches_take_longer_than_the_ageing_time():
    place = Place(caps=(1,), ahead=0, ageing_ns=100 * MS)
    now, best_effort, order = 0, iter(range(100, 200)), []
    place.wait(next(best_effort), next(best_effort), priority=1)
    for number in range(12):
        ((_, first),) = place.go(now)
        order.append(first)
        now += (150 if first >= 100 else 30) * MS
        place.wait(next(best_effort), priority=1, now=now)  # more than can be served
        place.wait(number, now=now)
        place.answered(0, now)
    # Each best-effort batch is followed by all of strict that fits into the ageing time.
    assert order == [100, 0, 1, 2, 3, 101, 4, 5, 6, 7, 102, 8]


@pytest.mark.parametrize(
    ("running", "waiting", "traffic", "ahead", "sent"),
    [
        (0, 0, (), 1, True),
        (0, 1, (), 1, True),
        (1, 1, (), 1, True),
        (0, 1, (5,), 1, False),
        (0, 0, (), 0, False),
    ],
)
def test_the_next_batch_is_sent_ahead_where_it_overtakes_nobody(
    running, waiting, traffic, ahead, sent
):
    place = Place(caps=(1,), ahead=ahead)
    place.wait(0, priority=running)
    assert place.go() == [(0, 0)]
    place.wait(1, priority=waiting, now=2 * SECOND)
    place.wait(*traffic, now=2 * SECOND)
    given = place.go(2 * SECOND)
    assert ((0, 1) in given) is sent
    assert not place.go(2 * SECOND + 1)  # never two ahead


def test_nothing_is_sent_ahead_while_a_peer_is_free():
    place = Place(caps=(4, 4))
    place.wait(0)
    assert place.go() == [(0, 0)]
    place.dispatch.policy = Policy(threshold=3.0, max_wait_ns=MS)
    place.wait(4)
    assert place.go() == []
    assert place.go(MS) == [(1, 4)]


def test_who_drains_gets_nothing():
    place = Place(caps=(4, 4))
    place.dispatch.hands[0].draining = True
    place.wait(0, 1)
    assert place.go() == [(1, 0, 1)]


def test_what_a_worker_did_not_begin_has_its_place_again():
    place = Place(caps=(2,))
    place.wait(0, 1)
    place.wait(2, 4, now=MS)
    assert place.go(MS) == [(0, 0, 1)] and place.go(MS + 1) == [(0, 2, 4)]
    place.wait(6, now=2 * MS)
    arrivals = place.dispatch.arrivals
    del place.dispatch.hands[0]
    for entry in (2, 4):
        place.dispatch.enqueue(Ready(1, entry, 0, 0, returned=True), 3 * MS)
    assert place.dispatch.arrivals == arrivals
    assert place.dispatch.lines[0].oldest_ns == MS
    place.dispatch.hands[1] = Hand(1)
    assert place.go(3 * MS) == [(1, 2)] and place.go(3 * MS + 1) == [(1, 4)]


def test_what_is_withdrawn_does_not_run():
    place = Place(caps=(4,))
    place.wait(0, 1, 2)
    place.dispatch.withdraw(1)
    place.dispatch.withdraw(5)
    assert place.go() == [(0, 0, 2)]


KNOWN = {"fixed_ns": 10 * MS, "per_request_ns": MS, "admission": 1, "ahead": 0}


@pytest.mark.parametrize(
    ("busy_for", "ahead", "priority", "expected_ms"),
    [
        (None, (0, 0), 0, 0),  # somebody is free, so it runs, however bad the prediction is
        (0, (0, 0), 0, 12 + 11),  # behind the batch of two that runs
        (5, (0, 0), 0, 7 + 11),
        (0, (3, 0), 0, 12 + 14),  # with the three that wait
        (0, (4, 0), 0, 12 + 14 + 11),  # they are a batch before it
        (0, (9, 0), 0, 12 + 2 * 14 + 12),
        (0, (0, 5), 0, 12 + 11),  # strict goes first
        (0, (2, 3), 1, 12 + 14 + 12),
    ],
)
def test_when_a_request_is_predicted_to_be_answered(busy_for, ahead, priority, expected_ms):
    place = Place(caps=(4,), **KNOWN)
    now = 100 * MS
    if busy_for is not None:
        place.wait(50, 51, now=now - busy_for * MS)
        assert place.go(now - busy_for * MS) == [(0, 50, 51)]
    for each, count in enumerate(ahead):
        place.wait(*range(10 * each, 10 * each + count), priority=each, now=now)
    assert place.dispatch.predicted_answer_ns(priority, now) == expected_ms * MS


@pytest.mark.parametrize(
    ("policy", "deadline", "refused"),
    [
        ({}, 23 * MS, False),
        ({}, 23 * MS - 1, True),
        ({}, 0, False),
        ({"admission": 0}, 1, False),
        ({"fixed_ns": 0, "per_request_ns": 0}, 1, False),  # nothing is known
    ],
)
def test_what_would_be_too_late_is_refused_where_admission_is_on(policy, deadline, refused):
    place = Place(caps=(4,), **{**KNOWN, **policy})
    place.wait(0, 1)
    assert place.go() == [(0, 0, 1)]
    before = place.dispatch._new
    place.wait(2, deadline=deadline)
    assert place.dispatch.refused == [2] * refused
    assert place.dispatch._new == before + (not refused)  # it does not count as load


# ---- C


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    """dispatch_events.c with the C dispatcher, under the sanitizers: what it says to events."""
    found = tmp_path_factory.mktemp("dispatch") / "dispatch_events"
    folder, _ = build.SOURCES
    parts = ("dispatch", "plan", "assign", "predict", "admission", "waiting", "batches")
    parts += ("workers", "telemetry/telemetry", "sets/sets", "sets/order", "sets/turns")
    sources = [HERE / "dispatch_events.c", *(folder / f"{part}.c" for part in parts)]
    sources += sorted((folder / "forming").glob("*.c"))
    flags = ["-std=c11", "-O1", "-g", *build.WARNINGS, *build.SANITIZERS, "-D_GNU_SOURCE"]
    flags += ["-ffp-contract=off", f"-I{folder}"]
    flags += [f"-I{folder}/{each}" for each in ("forming", "preemption", "sets", "telemetry")]
    command = [*build.compiler(), *flags, *map(str, sources), "-o", str(found)]
    subprocess.run(command, check=True)  # with no header of the front end

    def run(events, entries=ENTRIES, most_rows=1):
        text = "\n".join(" ".join(map(str, event)) for event in events)
        options = {"capture_output": True, "text": True, "timeout": 60}
        command = [str(found), str(entries), str(most_rows)]
        done = subprocess.run(command, input=text, check=False, **options)
        assert done.returncode == 0, done.stderr[-2000:]
        return done.stdout.splitlines()

    return run


class Twin:
    """The Python dispatcher with the input and the output of dispatch_events.c."""

    def __init__(self):
        self.dispatch, self.lines = Dispatch(Policy(margin_ns=0, ageing_ns=0)), []
        self.telemetry = Telemetry()
        self.outside = 0
        self.grown = 0

    def waiting(self):
        """Those that are going to be refused too."""
        waiting = {each.entry for line in self.dispatch.lines for each in line._waiting}
        return waiting | set(self.dispatch.refused)

    def event(self, kind, *numbers):
        getattr(self, f"_{kind}")(*numbers)

    def _P(self, *numbers):
        self.dispatch.policy = Policy(*numbers)

    def _W(self, worker, cap, now):
        self.dispatch.hands[worker] = Hand(cap, now)

    def _O(self, at):
        self.outside = at

    def _L(self, worker):
        self.dispatch.hands[worker].is_slow = True

    def _K(self, worker):
        hand = self.dispatch.hands[worker]
        for number in range(hand.taken + 1, hand.given + 1):
            self._took(worker, number, hand.held[number])
        hand.taken = hand.given

    def _took(self, worker, number, run):
        entries = " ".join(map(self._shown, run.entries))
        self.lines.append(f"batch {worker} {number} {entries}")

    def _D(self, worker):
        self.dispatch.hands[worker].draining = True

    def _G(self, worker, taken):
        hand = self.dispatch.hands.pop(worker)
        for index, number in enumerate(sorted(hand.held)):
            begun = index < max(1, taken)
            name = "died" if begun else "returned"
            self.lines += [f"{name} {entry}" for entry in hand.held[number].entries]
            for entry in hand.held[number].entries if begun else ():
                self.telemetry.ended(entry, "failed")

    def _A(self, worker, count, now):
        hand = self.dispatch.hands[worker]
        self._K(worker)
        for _ in range(min(count, hand.in_flight)):
            entries = hand.held[hand.done + 1].entries
            run = self.dispatch.answered(worker, bool(entries[0] % 5), now)
            self.telemetry.batch(run.rows)
            for entry in entries:
                if entry % 5:
                    self.telemetry.answered(entry, now)
                else:
                    self.telemetry.ended(entry, "failed")
                status = 200 if entry % 5 else 500
                sent = status == 200 and entry % 2 == 0
                self.lines.append(f"finished {entry} {status} {int(sent)}")

    def _E(self, entry, priority, deadline, again, now, rows=1):
        if again != 2:
            self.telemetry.came(entry, priority, deadline, now, again=again == 1)
        ready = Ready(1, entry, priority, deadline, again == 1, again == 2, rows)
        self.dispatch.enqueue(ready, now)

    def _R(self, entry):
        if entry in self.waiting():
            self.telemetry.ended(entry, "abandoned")
        self.dispatch.withdraw(entry)

    def _F(self, now):
        entries = self.dispatch.empty()
        for entry in entries:
            self.telemetry.ended(entry, "failed")
        self.lines += [f"finished {entry} 503 0" for entry in entries]
        self.lines.append(f"failed {len(entries)}")

    def _T(self, now):
        given = []

        def ended(entry, how, said):
            self.telemetry.ended(entry, how)
            self.lines.append(said)

        following = self.dispatch.dispatch(
            now,
            lambda *each: given.append(each),
            lambda entry: ended(entry, "expired", f"expired {entry}"),
            lambda entry: ended(entry, "rejected", f"finished {entry} 429 0"),
            lambda entry: ended(entry, "failed", f"finished {entry} 521 0"),
        )
        self.grown += sum(run.given_ns < now for _, _, run in given)
        for worker, number, run in sorted(given, key=lambda each: each[:2]):
            if not self.dispatch.hands[worker].is_slow:
                self._took(worker, number, run)
        held = [run for hand in self.dispatch.hands.values() for run in hand.held.values()]
        wants = self.waiting() or any(entry % 2 for run in held for entry in run.entries)
        following = -1 if following is None else following
        first = [line.oldest_ns for line in self.dispatch.lines if line]
        since = min((at for at in (*first, self.outside) if at), default=0)
        self.lines.append(f"next {following} wants {int(bool(wants))} since {since}")

    def _shown(self, entry):
        rows = self.dispatch._came[entry].rows
        return f"{entry}:{rows}" if rows > 1 else f"{entry}"

    def _C(self):
        words, counts = self.telemetry.words(), self.telemetry.counts
        self.lines.append(f"counted {' '.join(map(str, words))}")
        names = ("arrivals", "answered", "failed", "expired", "rejected")
        self.lines.append(f"counts {' '.join(str(sum(counts[name])) for name in names)}")


class Story:
    """Events that can happen one after the other, told to the twin as they are made up."""

    slow = 0.3
    """Share of workers that do not take their batches at once."""
    answering, taking, arriving = 12, 3, 0
    """How often they do what they do, and requests come; 0: as often as there is room for."""

    def __init__(self, seed, entries, most_rows):
        self.random = random.Random(seed)
        self.most_rows = most_rows
        self.twin, self.events, self.now = Twin(), [], 1000 * MS
        self.entries = entries
        self.free = set(range(entries))
        kinds = [self.policy, self.comes, self.drains, self.goes, self.answers, self.arrives]
        arriving = self.arriving or (12 if entries < 20 else 60)
        for _ in range(300):
            self.random.choices(
                [*kinds, self.leaves, self.passes, self.gives_up, self.waits_outside, self.takes],
                [1, 3, 0.5, 1, self.answering, arriving, 2, 16, 0.2, 1, self.taking],
            )[0]()
        self.say("C")

    def say(self, kind, *numbers):
        self.events.append((kind, *numbers))
        self.twin.event(kind, *numbers)

    def policy(self):
        choose = self.random.choice
        threshold = choose([0.0, 0.0, 0.0, 1.0, 2.0, 2.5, 100.0])
        adapts = choose([0.5, 0.9]), choose([1e9, 4.0])
        times = choose([0, 3 * MS, 50 * MS]), choose([0, MS]), choose([0, 5 * MS])
        latency = choose([0, 2 * MS]), choose([0, MS])
        rest = choose([0, 20 * MS]), choose([0, 1]), choose([0, 0, 1]), choose([0, 1])
        self.say("P", threshold, *adapts, *times, *latency, *rest)

    def comes(self):
        if absent := sorted(set(range(3)) - set(self.twin.dispatch.hands)):
            worker = self.random.choice(absent)
            self.say("W", worker, self._cap(), self.now)
            if self.random.random() < self.slow:
                self.say("L", worker)

    def takes(self):
        hands = self.twin.dispatch.hands.items()
        for worker in [worker for worker, hand in hands if hand.open]:
            self.say("K", worker)

    def _cap(self):
        if self.most_rows == 1:
            return self.random.randrange(1, 6)
        return self.random.choice([self.random.randrange(1, 20), 4, min(40, 4 * self.most_rows)])

    def _one(self, busy=False):
        hands = self.twin.dispatch.hands.items()
        found = [worker for worker, hand in hands if hand.in_flight or not busy]
        return self.random.choice(sorted(found)) if found else None

    def _give_back(self, runs):
        self.free |= {entry for run in runs for entry in run.entries}

    def drains(self):
        if (worker := self._one()) is not None:
            self.say("D", worker)

    def goes(self):
        if (worker := self._one()) is not None:
            hand = self.twin.dispatch.hands[worker]
            held = [hand.held[number] for number in sorted(hand.held)]
            taken = self.random.randrange(3)
            self.say("G", worker, taken)
            self._give_back(held[: max(1, taken)])
            for run in held[max(1, taken) :]:
                for entry in run.entries:
                    self.say("E", entry, run.priority, 0, 2, self.now)

    def answers(self):
        if (worker := self._one(busy=True)) is not None:
            hand = self.twin.dispatch.hands[worker]
            count = self.random.randrange(1, hand.in_flight + 1)
            self._give_back([hand.held[n] for n in sorted(hand.held)[:count]])
            self.say("A", worker, count, self.now)

    def arrives(self):
        few = self.random.randrange(1, 5)
        priority = self._priority()
        for entry in self.random.sample(sorted(self.free), min(few, len(self.free))):
            self.free.remove(entry)
            times = [0, 0, self.now + MS, self.now + 10 * MS, self.now + self.random.randrange(MS)]
            again = int(self.random.random() < 0.15)
            rows = self.random.choice([1, 1, self.random.randrange(1, self.most_rows + 1)])
            self.say("E", entry, priority, self.random.choice(times), again, self.now, rows)

    def _priority(self):
        return self.random.choice([0, 1, 1])

    def _keeps_someone_waiting(self):
        """Whether a worker has nothing to do that takes a request that waits."""
        dispatch = self.twin.dispatch
        free = [hand for _, hand in dispatch._free()]
        return any(line.fit(hand.cap) for line in dispatch.lines for hand in free)

    def leaves(self):
        if waits := sorted(self.twin.waiting()):
            entry = self.random.choice(waits)
            self.free.add(entry)
            self.say("R", entry)

    def gives_up(self):
        self.free |= self.twin.waiting() - set(self.twin.dispatch.refused)
        self.say("F", self.now)

    def waits_outside(self):
        self.say("O", self.random.choice([0, 0, self.now, self.now - MS]))

    def passes(self):
        self.now += self.random.choice([0, 0, 1000, MS, 4 * MS, 20 * MS, 20 * MS, 5 * SECOND])
        before = len(self.twin.lines)
        self.say("T", self.now)
        assert self.twin.lines[-1].split()[1] != "-1" or not self._keeps_someone_waiting()
        ended = ("expired", "finished")
        late = [line for line in self.twin.lines[before:] if line.startswith(ended)]
        self.free |= {int(line.split()[1]) for line in late}


class SlowStory(Story):
    """Batches grow, for workers take long to take them; mostly of one class."""

    slow, answering, taking, arriving = 0.8, 6, 1, 10

    def policy(self):
        if self.random.random() < 0.3:
            super().policy()

    def _priority(self):
        return (self.now // (5 * SECOND)) % 2 if self.random.random() < 0.95 else 0

    def _cap(self):
        return min(super()._cap() + 5, self.entries)

    def passes(self):
        self.now += 1
        super().passes()


@settings(max_examples=80, phases=[Phase.generate])  # a smaller seed is no smaller story
@given(
    st.sampled_from([Story, Story, SlowStory]),
    *(st.integers(0, 2**32), st.sampled_from([8, 64]), st.sampled_from([1, 1, 4, 30])),
)
def test_both_dispatchers_give_the_same_batches(program, kind, seed, entries, most_rows):
    story = kind(seed, entries, most_rows)
    assert program(story.events, entries, most_rows) == story.twin.lines


def test_stories_have_batches_that_grow():
    grown = [SlowStory(seed, 64, 4).twin.grown for seed in range(20)]
    assert sum(map(bool, grown)) > 10


def test_what_was_about_to_join_a_batch_that_was_taken_just_then_waits_again(program):
    events = [("P", 1.0, 0.5, 1e9, *[0] * 6, 0, 0, 0), ("W", 0, 4, 1), ("L", 0)]
    events += [("E", 2, 0, 0, 0, 10), ("T", 10), ("E", 4, 0, 0, 0, 20), ("E", 6, 0, 0, 0, 20)]
    events += [("B", 0), ("T", 30), ("K", 0)]
    events += [("E", 4, 0, 0, 2, 30), ("E", 6, 0, 0, 2, 30), ("A", 0, 1, 40), ("T", 40), ("K", 0)]
    said = [line for line in program(events) if not line.startswith("next")]
    assert said == ["returned 4", "returned 6", "batch 0 1 2", "finished 2 200 1", "batch 0 2 4 6"]


class UnequalStory(Story):
    """Small workers come before a large one, and all batches take equally long."""

    def policy(self):
        self.say("P", 1.0, 0.5, 1e9, 0, 0, 0, 2 * MS, 0, 0, 0, 0, 0)

    def comes(self):
        if absent := sorted(set(range(3)) - set(self.twin.dispatch.hands)):
            self.say("W", absent[0], (8, 8, 64)[absent[0]], self.now)

    def _nothing(self):
        pass

    drains = goes = gives_up = _nothing


@settings(max_examples=10, phases=[Phase.generate])
@given(st.integers(0, 2**32))
def test_no_worker_that_takes_a_request_is_idle_while_it_waits(program, seed):
    story = UnequalStory(seed, 8, 20)
    assert program(story.events, 8, 20) == story.twin.lines


GREEDY = ("P", 1, 0.5, 1e9, 0, 0, 0, 0, 0, 0)
"""Who is free takes what waits; what follows is ahead and mixes."""
DEADLINES = st.lists(st.sampled_from([0, 1, 2, 3, 7, 8, 9]), min_size=1, max_size=ENTRIES)


@given(DEADLINES, st.data())
def test_the_heap_gives_the_earliest_deadline_and_of_equal_ones_the_first(program, waits, data):
    """All that a queue holds; some are withdrawn from wherever they are in it."""
    order = data.draw(st.permutations(range(len(waits))))
    gone = data.draw(st.sets(st.sampled_from(order)))
    events = [(*GREEDY, 0, 0, 0)]
    events += [("E", entry, 0, 50 * MS * waits[entry], 0, 1) for entry in order]
    events += [("R", entry) for entry in gone]
    events += [("W", 0, ENTRIES, 1), ("T", 2)]
    expected = sorted(
        (entry for entry in order if entry not in gone),
        key=lambda entry: (waits[entry] == 0, waits[entry], order.index(entry)),
    )
    said = program(events)
    batches = [list(map(int, line.split()[3:])) for line in said if line.startswith("batch")]
    assert batches == ([expected] if expected else [])


@given(
    st.lists(st.tuples(st.integers(0, 1), st.sampled_from([0, 5, 6, 70])), max_size=ENTRIES),
    st.integers(1, 20),
    st.integers(0, 1),
)
def test_requests_that_wait_together_are_as_few_batches_as_can_be(program, requests, cap, ahead):
    events = [(*GREEDY, ahead, 0, 0)]
    for entry, (priority, deadline) in enumerate(requests):
        events.append(("E", entry, priority, deadline * 1000 * MS, 0, 1))
    events.append(("W", 0, cap, 1))
    for now in range(len(requests)):
        events += [("T", now + 2), ("A", 0, 1, now + 2)]
    said = [line.split() for line in program(events)]
    of_class = [0, 0]
    for line in said:
        if line[0] == "batch":
            classes = {requests[int(entry)][0] for entry in line[3:]}
            assert len(classes) == 1 and len(line) - 3 <= cap
            of_class[classes.pop()] += 1
    count = [sum(priority == each for priority, _ in requests) for each in (0, 1)]
    assert of_class == [-(-n // cap) for n in count]
    ran = [int(entry) for line in said if line[0] == "batch" for entry in line[3:]]
    assert sorted(ran) == list(range(len(requests)))


def test_workers_that_cannot_be_are_refused(program):
    come = [("W", n, cap, 0) for n, cap in ((64, 1), (0, 0), (63, 1), (63, 1))]
    said = program([*come, ("G", 5), ("D", 5)])
    assert said == [f"worker {n} is refused" for n in (64, 0, 63)]


FOUR = [(*GREEDY, 1, 0, 0), ("W", 0, 4, 1), *(("E", n, 0, 0, 0, 1) for n in (1, 2, 3, 4)), ("T", 2)]
"""Run together."""


def early(entry, status=200, direct=None):
    direct = int(entry % 2 == 0) if direct is None else direct
    return [f"finished {entry} {status} {direct}", "early 1"]


@pytest.mark.parametrize("order", [(1, 2), (4, 1), (2, 3), (4, 3), (1, 2, 3, 4), (3, 4, 2, 1)])
def test_what_is_answered_early_is_finished_once_while_its_batch_goes_on(program, order):
    events = [*FOUR, *(("Y", 0, entry, 3) for entry in order), ("E", 6, 0, 0, 4, 1), ("T", 5)]
    said = program([*events, ("A", 0, 1, 9), ("T", 9), ("A", 0, 1, 10), ("C",)])
    rest = [n for n in (1, 2, 3, 4) if n not in order]
    assert [line for line in said if line.startswith(("finished", "early", "batch"))] == [
        "batch 0 1 1 2 3 4",
        *(line for entry in order for line in early(entry)),
        "batch 0 2 6",  # behind the one that goes on
        *(f"finished {entry} 200 {int(entry % 2 == 0)}" for entry in rest),
        "finished 6 200 1",
    ]
    assert said[-1] == "counts 5 5 0 0 0"


def test_an_entry_that_was_answered_early_serves_again_before_its_batch_is_done(program):
    again = [("E", 2, 0, 0, 4, 1), ("T", 5), ("A", 0, 1, 6), ("A", 0, 1, 7)]
    said = program([*FOUR, ("Y", 0, 2, 3), *again])
    assert [line for line in said if not line.startswith("next")] == [
        *("batch 0 1 1 2 3 4", "finished 2 200 1", "early 1", "batch 0 2 2"),
        *(f"finished {n} 200 {int(n % 2 == 0)}" for n in (1, 3, 4)),
        "finished 2 200 1",
    ]


def test_what_was_answered_early_does_not_run_again_when_its_worker_dies(program):
    said = program([*FOUR, ("Y", 0, 3, 3), ("G", 0, 1), ("W", 0, 4, 4), ("T", 5)])
    assert [line for line in said if not line.startswith("next")] == [
        *("batch 0 1 1 2 3 4", "finished 3 200 0", "early 1"),
        *("died 1", "died 2", "died 4"),
    ]


def test_an_entry_without_a_status_is_not_answered_early(program):
    said = program([*FOUR, ("Y", 0, 3, 3, 0), ("Y", 0, 2, 4), ("A", 0, 1, 5)])
    assert [line for line in said if not line.startswith("next")] == [
        *("batch 0 1 1 2 3 4", "early 0", "finished 2 200 1", "early 1"),
        *(f"finished {n} 200 {int(n % 2 == 0)}" for n in (1, 3, 4)),
    ]


def test_nothing_is_answered_before_its_batch_began(program):
    begun = [("W", 0, 4, 1), ("E", 2, 0, 8, 0, 5), ("T", 8), ("Y", 0, 2, 6, 1, 12), ("C",)]
    later = [("Y", 0, 2, 8, 1, 12) if each[0] == "Y" else each for each in begun]
    early = [(*GREEDY, 1, 0, 0), *begun], [(*GREEDY, 1, 0, 0), *later]
    assert program(early[0]) == program(early[1])


def test_what_is_answered_early_of_no_batch_is_nothing(program):
    said = program([("W", 0, 4, 1), ("Y", 0, 3, 3), *FOUR[2:], ("Y", 0, 7, 3)])
    assert [line for line in said if not line.startswith("next")] == [
        *("early 0", "batch 0 1 1 2 3 4", "early 0"),
    ]
