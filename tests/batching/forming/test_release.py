import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shunter.batching.forming.release import (
    fit_deadlines,
    is_too_late,
    may_send_ahead,
    predicted_wait_ns,
    should_release,
    split,
    split_by_latency,
    staggered_size,
    too_late_at_ns,
    wake_after_us,
)

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
        ("split_by_latency", split_by_latency),
        ("staggered_size", staggered_size),
        ("predicted_wait_ns", predicted_wait_ns),
        ("is_too_late", is_too_late),
        ("too_late_at_ns", too_late_at_ns),
        ("fit_deadlines", lambda *args: list(fit_deadlines(*args))),
        ("may_send_ahead", may_send_ahead),
        ("wake_after_us", wake_after_us),
    ],
)
def test_the_golden_tables_hold(golden, table, rule):
    rows = golden("release.json")[table]["rows"]
    assert len(rows) >= 18
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


LINES = st.lists(
    st.tuples(st.integers(0, 12), st.integers(0, 50), st.integers(0, 20)), min_size=1, max_size=4
)


def last_answer(sizes, fixed, per):
    return max((f + n * p for n, f, p in zip(sizes, fixed, per, strict=True) if n), default=0)


def every_split(queued, caps):
    """All ways to give ``queued`` requests to workers."""
    if not caps:
        return [[]] if queued == 0 else []
    return [
        [first, *rest]
        for first in range(min(queued, caps[0]) + 1)
        for rest in every_split(queued - first, caps[1:])
    ]


@given(LINES, st.integers(0, 16))
def test_no_other_split_has_its_last_answer_sooner(lines, queued):
    caps, fixed, per = (list(column) for column in zip(*lines, strict=True))
    sizes = split_by_latency(queued, caps, fixed, per)
    wanted = min(queued, sum(caps))
    assert sum(sizes) == wanted
    assert all(0 <= n <= cap for n, cap in zip(sizes, caps, strict=True))
    best = min(last_answer(each, fixed, per) for each in every_split(wanted, caps))
    assert last_answer(sizes, fixed, per) == best


def test_equal_workers_share_evenly():
    assert split_by_latency(10, [8, 8], [100, 100], [10, 10]) == [5, 5]


def test_a_slow_worker_gets_nothing_that_a_fast_one_has_sooner():
    assert split_by_latency(3, [8, 8], [100, 1000], [10, 10]) == [3, 0]


FAR = 10**9


def fit(slacks, size=None, cap=8, fixed=10, per=20, next_free=FAR):
    size = size or min(len(slacks), cap)
    return fit_deadlines(slacks, len(slacks), size, cap, fixed, per, next_free)


def test_a_batch_that_is_in_time_is_left_alone():
    assert fit([70, 70, 80]) == (0, 3)


def test_a_batch_is_made_shorter_for_its_most_urgent_request():
    assert fit([35, 500, 500]) == (0, 1)
    assert fit([50, 500, 500]) == (0, 2)


def test_a_request_that_would_cost_others_their_deadline_is_given_up():
    assert fit([30, 70, 75]) == (1, 2)


def test_nothing_is_given_up_while_another_worker_is_free_or_will_be_in_time():
    assert fit([30, 70, 75], next_free=0) == (0, 1)
    assert fit([30, 70, 75], next_free=5) == (0, 1)
    # Ten wait, this worker serves seven of them in time, and the next one comes in 5.
    slacks = [22, 22, 23, 24, 25, 25, 26, 27, 27, 28]
    assert fit(slacks, size=8, fixed=7, per=2, next_free=5) == (0, 7)


def test_a_single_request_runs_even_when_it_will_be_late():
    assert fit([5]) == (0, 1)


def test_a_hopeless_request_does_not_get_a_batch_of_its_own():
    assert fit([5, 500, 500], next_free=0) == (0, 3)
    assert fit([5, 500, 500]) == (1, 2)


def test_as_many_are_never_given_up_for_no_more_answers():
    assert fit([30] * 9, cap=8) == (0, 1)


def test_when_nothing_can_be_saved_the_most_urgent_runs():
    assert fit([5, 6, 7]) == (0, 1)


def served(slacks, cap, fixed, per):
    """Answers in time of one worker that is given what ``fit_deadlines`` says, until all ran."""
    left, now, good = list(slacks), 0, 0
    while left:
        slack = [each - now for each in left]
        size = min(len(left), cap)
        skip, take = fit_deadlines(slack[: 2 * cap + 1], len(left), size, cap, fixed, per, FAR)
        batch, left = left[skip : skip + take], left[skip + take :]
        now += fixed + take * per
        good += sum(each >= now for each in batch)
    return good


def served_plainly(slacks, cap, fixed, per):
    """The same with full batches of those that are not late yet."""
    left, now, good = list(slacks), 0, 0
    while left:
        left = [each for each in left if each >= now + fixed + per]
        batch, left = left[:cap], left[cap:]
        now += fixed + len(batch) * per
        good += sum(each >= now for each in batch)
    return good


def test_more_answers_are_in_time_than_with_full_batches_when_there_is_too_much_work():
    choose = random.Random(5)
    ours = plain = 0
    for _ in range(300):
        slacks = sorted(choose.randrange(20, 200) for _ in range(choose.randrange(5, 60)))
        ours += served(slacks, 8, 10, 4)
        plain += served_plainly(slacks, 8, 10, 4)
    assert ours > 1.2 * plain


@given(
    st.lists(st.integers(-50, 300), min_size=1, max_size=17).map(sorted),
    st.integers(1, 8),
    st.integers(0, 60),
    st.integers(0, 40),
    st.sampled_from([0, 7, 50, FAR]),
)
def test_a_cut_gives_up_only_what_it_may_and_runs_at_least_one(slacks, cap, fixed, per, next_free):
    slacks = slacks[: 2 * cap + 1]
    size = min(len(slacks), cap)
    skip, take = fit_deadlines(slacks, len(slacks), size, cap, fixed, per, next_free)
    assert 1 <= take <= cap
    assert 0 <= skip <= len(slacks) - take
    if skip:
        assert next_free > 0
        assert slacks[skip] >= fixed + take * per
        assert slacks[0] < fixed + size * per
    elif slacks[0] >= fixed + per:
        assert slacks[0] >= fixed + take * per


@given(TIMES, st.integers(1, 10**9), TIMES)
def test_a_request_is_too_late_from_the_moment_that_was_told_on(now, left, needed):
    deadline = now + left
    at = too_late_at_ns(now, deadline, needed)
    assert now < at <= deadline
    if needed < left:  # a worker that takes as long as it did is all that it waits for
        assert not is_too_late(at, deadline, needed)
        assert is_too_late(at + 1, deadline, needed)


def test_a_request_that_a_free_worker_can_take_is_too_late_only_after_its_deadline():
    assert not is_too_late(5, 5, 0)
    assert is_too_late(6, 5, 0)


@given(st.integers(0, 100), st.integers(1, 64), st.integers(0, 10**9), st.integers(0, 10**9))
def test_the_predicted_wait_grows_with_what_is_ahead(ahead, capacity, batch, busy):
    wait = predicted_wait_ns(ahead, capacity, batch, busy)
    assert wait >= busy
    assert predicted_wait_ns(ahead + capacity, capacity, batch, busy) == wait + batch


def test_two_workers_end_their_long_batches_in_turns():
    now, ends, sizes = 0, [0, 0], []
    for _ in range(20):
        worker = ends.index(min(ends))
        now = ends[worker]
        others = [end - now for i, end in enumerate(ends) if i != worker and end > now]
        sizes.append(staggered_size(16, 5, 5, others))
        ends[worker] = now + 5 + 5 * sizes[-1]
    assert abs(ends[0] - ends[1]) >= 30
    assert sizes.count(16) >= 17


@given(st.integers(1, 64), st.integers(0, 50), st.integers(0, 20), st.lists(st.integers(0, 900)))
def test_a_staggered_batch_is_at_least_half_of_the_cap(cap, fixed, per, busy):
    assert (cap + 1) // 2 <= staggered_size(cap, fixed, per, busy) <= cap
    assert staggered_size(cap, fixed, per, []) == cap
