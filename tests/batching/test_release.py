import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shunter.batching.release import may_send_ahead, should_release, split, wake_after_us

TIMES = st.integers(0, 10**9)
SLACKS = st.none() | st.integers(-(10**9), 10**9)
COUNTS = st.integers(0, 1000)
CAPS = st.lists(st.integers(0, 64), max_size=12)
THRESHOLDS = st.floats(1, 128)


@pytest.mark.parametrize(
    ("table", "rule"),
    [
        ("should_release", should_release),
        ("split", split),
        ("may_send_ahead", may_send_ahead),
        ("wake_after_us", wake_after_us),
    ],
)
def test_the_golden_tables_hold(golden, table, rule):
    rows = golden("release.json")[table]["rows"]
    assert len(rows) >= 100
    for *arguments, expected in rows:
        assert rule(*arguments) == expected, arguments


def release(
    queued=1, wait=0, slack=None, threshold=8.0, max_wait=1000, free=16, predicted=0, margin=0
):
    return should_release(queued, wait, slack, threshold, max_wait, free, predicted, margin)


def test_a_lone_request_on_an_idle_server_leaves_at_once():
    assert release(queued=1, threshold=1.0)


def test_nothing_leaves_without_requests():
    assert not release(queued=0, wait=10**9, slack=-1, threshold=1.0)


def test_nothing_leaves_without_a_free_worker():
    assert not release(queued=99, wait=10**9, slack=-1, threshold=1.0, free=0)


def test_a_batch_leaves_when_as_many_wait_as_are_worth_it():
    assert not release(queued=7)
    assert release(queued=8)


def test_a_fractional_threshold_is_reached_by_the_next_whole_number():
    assert not release(queued=3, threshold=3.25)
    assert release(queued=4, threshold=3.25)


def test_what_fills_the_free_workers_leaves_even_below_the_threshold():
    assert release(queued=4, threshold=100.0, free=4)


def test_the_oldest_waits_no_longer_than_the_longest_wait():
    assert not release(wait=999)
    assert release(wait=1000)


def test_a_near_deadline_releases_a_small_batch():
    assert not release(slack=501, predicted=400, margin=100)
    assert release(slack=500, predicted=400, margin=100)


@given(COUNTS, TIMES, SLACKS, THRESHOLDS, TIMES, COUNTS, TIMES)
def test_one_more_request_never_stops_a_release(
    queued, wait, slack, threshold, max_wait, free, predicted
):
    rest = (wait, slack, threshold, max_wait, free, predicted, 100)
    if should_release(queued, *rest):
        assert should_release(queued + 1, *rest)


@given(TIMES, st.integers(1, 10**9), st.none() | st.integers(1, 10**9), TIMES, TIMES)
def test_the_timer_is_set_for_exactly_the_moment_of_release(
    wait, wait_left, slack_left, predicted, margin
):
    slack = None if slack_left is None else slack_left + predicted + margin
    max_wait = wait + wait_left

    def at(later):
        left = None if slack is None else slack - later
        return should_release(3, wait + later, left, 4.0, max_wait, 8, predicted, margin)

    wake = wake_after_us(wait, slack, max_wait, predicted, margin)
    assert not at(0)
    assert not at(wake - 1)
    assert at(wake)


def test_the_timer_never_points_to_the_past():
    assert wake_after_us(2000, None, 1000, 0, 0) == 0
    assert wake_after_us(0, -50, 1000, 0, 0) == 0


@pytest.mark.parametrize(
    ("queued", "caps", "sizes"),
    [
        (10, [4, 8, 4], [3, 5, 2]),
        (1, [4, 8, 4], [0, 1, 0]),
        (8, [8, 8, 8, 8], [2, 2, 2, 2]),
        (5, [2, 2, 2], [2, 2, 1]),
        (99, [4, 8, 4], [4, 8, 4]),
        (3, [], []),
        (3, [0, 0], [0, 0]),
    ],
)
def test_what_waits_is_split_in_proportion_to_the_caps(queued, caps, sizes):
    assert split(queued, caps) == sizes


@given(COUNTS, CAPS)
def test_a_split_takes_all_that_fits_and_no_worker_more_than_its_cap(queued, caps):
    sizes = split(queued, caps)
    assert sum(sizes) == min(queued, sum(caps))
    assert all(0 <= size <= cap for size, cap in zip(sizes, caps, strict=True))


@given(COUNTS, CAPS)
def test_no_worker_gets_more_than_its_proportional_share_rounded_up(queued, caps):
    total = sum(caps)
    for size, cap in zip(split(queued, caps), caps, strict=True):
        assert size * total <= queued * cap + max(0, total - 1)


@given(COUNTS, CAPS)
def test_a_larger_cap_never_gets_less_and_equal_caps_differ_by_one_at_most(queued, caps):
    pairs = sorted(zip(caps, split(queued, caps), strict=True))
    for (cap, size), (next_cap, next_size) in itertools.pairwise(pairs):
        assert size <= next_size + (cap == next_cap)
        assert cap != next_cap or next_size - size <= 1


AHEAD = {
    "queued": 8,
    "threshold": 8.0,
    "cap": 32,
    "in_flight": 1,
    "ahead_limit": 1,
    "free_workers": 0,
    "strict": True,
    "running_strict": True,
    "strict_traffic": True,
}


def test_a_full_batch_of_strict_requests_is_sent_ahead_behind_a_strict_one():
    assert may_send_ahead(**AHEAD)


@pytest.mark.parametrize(
    "change",
    [
        {"free_workers": 1},
        {"queued": 7},
        {"queued": 0, "threshold": 0.0},
        {"in_flight": 2},
        {"in_flight": 0},
        {"ahead_limit": 0},
        {"strict": False},
        {"running_strict": False},
    ],
)
def test_nothing_is_sent_ahead(change):
    assert not may_send_ahead(**AHEAD | change)


def test_without_strict_traffic_best_effort_is_sent_ahead_of_best_effort():
    assert may_send_ahead(
        **AHEAD | {"strict": False, "running_strict": False, "strict_traffic": False}
    )


def test_a_full_batch_is_sent_ahead_below_the_threshold():
    assert may_send_ahead(**AHEAD | {"threshold": 100.0, "cap": 8})
