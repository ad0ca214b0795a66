"""The batch size follows the load, and noise does not move it."""

import itertools
import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shunter.allocator.planning.estimator import (
    EXPONENT,
    BatchSizeEstimator,
    floor_power_of_two,
)

SECOND = 10**9
PERIOD = SECOND // 10
"""Between two samples."""
SAMPLES = 50
"""Samples of a time-out of 5 s."""


def follow(estimator, depths, start=0):
    """Feed one depth each 100 ms; return the answers at time-outs as (number, batch size)."""
    found = []
    for i, depth in enumerate(depths, start):
        wanted = estimator.sample(depth, i * PERIOD)
        if wanted is not None:
            found.append((i, wanted))
    return found


def sizes_of(estimator, depths, start=0):
    return [size for _, size in follow(estimator, depths, start)]


def changes(sizes):
    return sum(a != b for a, b in itertools.pairwise(sizes))


@pytest.mark.parametrize(
    ("depth", "size"),
    [
        (0, 1),
        (0.5, 1),
        (1, 1),
        (1.9, 1),
        (2, 2),
        (3, 2),
        (math.nextafter(4, 0), 2),
        (4, 4),
        (7.9, 4),
        (8, 8),
        (1023.9, 512),
        (1024, 1024),
        (1e6, 1 << 19),
    ],
)
def test_the_next_lower_power_of_two(depth, size):
    assert floor_power_of_two(depth) == size


def test_the_depth_is_the_power_mean_of_this_time_out_and_the_last():
    estimator = BatchSizeEstimator(1, 4 * SECOND)
    assert math.isnan(estimator.depth)
    seen = []
    for second, depth in ((0, 8), (1, 8), (2, 0), (3, 4), (4, 4), (6, 1), (8, 1), (9, 3)):
        estimator.sample(depth, second * SECOND)
        seen.append(estimator.depth)
    # A sample counts for the time since the last one, the first one for none.
    eight, four, three = 8**EXPONENT, 4**EXPONENT, 3**EXPONENT
    all_of_it = eight + 2 * four
    means = [eight, eight, eight / 2, (eight + four) / 3, all_of_it / 4, (all_of_it + 2) / 6]
    means += [1, (4 + three) / 5]
    assert seen == pytest.approx([mean ** (1 / EXPONENT) for mean in means])


@pytest.mark.parametrize(
    ("depths", "expected"),
    [
        ([20, 20, 20], [16, 16, 16]),
        ([2, 20, 2, 2, 2], [2, 16, 16, 2, 2]),  # the larger one of two
        ([20, 2, 20, 2], [16, 16, 16, 16]),
        ([1, 2, 4, 8], [1, 2, 4, 8]),
    ],
)
def test_the_time_out_with_the_larger_load_counts(depths, expected):
    estimator = BatchSizeEstimator(1, SECOND)
    samples = [depths[0], *(depth for depth in depths for _ in range(10))]
    assert sizes_of(estimator, samples) == expected


def test_a_burst_counts_for_those_who_meet_it():
    """A mean would say 3.2 here."""
    estimator = BatchSizeEstimator(1, 5 * SECOND)
    assert sizes_of(estimator, [32, *[0] * 9] * 50)[-1] == 8


def test_samples_that_come_seldom_count_for_as_long_as_those_that_come_often():
    often, seldom = (BatchSizeEstimator(1, 20 * SECOND) for _ in range(2))
    for tenth in range(101):
        often.sample(4 if tenth <= 50 else 0, tenth * PERIOD)
    for at in [*range(51), *range(60, 101, 10)]:
        seldom.sample(4 if at <= 50 else 0, at * PERIOD)
    assert seldom.depth == pytest.approx(often.depth, rel=1e-6)


def test_a_sample_says_nothing_of_a_long_time_in_which_nobody_looked():
    estimator = BatchSizeEstimator(1, 10 * SECOND)
    follow(estimator, [0] * 100)
    assert estimator.sample(16, 1000 * SECOND) == 8  # for ten seconds of twenty
    assert estimator.depth == pytest.approx(16 * (10 / 19.9) ** (1 / EXPONENT))


def test_time_that_goes_back_does_no_harm():
    estimator = BatchSizeEstimator(1, SECOND)
    found = [estimator.sample(4, at) for at in (SECOND, 0, SECOND, 2 * SECOND)]
    assert (found, estimator.depth) == ([None, None, None, 4], 4)


def test_before_the_first_sample_the_batch_size_is_the_first_one():
    assert BatchSizeEstimator(8, SECOND).current == 8


def test_an_answer_comes_with_every_time_out_whether_it_changes_or_not():
    estimator = BatchSizeEstimator(1, 5 * SECOND)
    found = follow(estimator, [20] * (3 * SAMPLES + 1))
    assert found == [(SAMPLES, 16), (2 * SAMPLES, 16), (3 * SAMPLES, 16)]
    assert estimator.current == 16


def test_a_late_sample_starts_the_next_time_out():
    estimator = BatchSizeEstimator(1, 5 * SECOND)
    times = [0, 4.9, 7, 11.9, 12, 16]
    found = [estimator.sample(3, round(at * SECOND)) for at in times]
    assert found == [None, None, 2, None, 2, None]


@pytest.mark.parametrize(
    ("current", "depth", "expected"),
    [
        (8, 4.77, 8),  # 0.85 * 0.7 of it
        (8, 4.75, 4),
        (8, 13.59, 8),  # 0.85 of twice the size
        (8, 13.61, 16),
        (1, 0, 1),
        (1, 1.69, 1),
        (1, 1.71, 2),  # two clients that send their next request with an answer
        (2, 1.2, 2),
        (2, 1.18, 1),
        (8, 100, 64),
        (8, 110, 128),
        (64, 0, 1),
        (8, 10**9, 256),  # the largest
        (256, 10**9, 256),
    ],
)
def test_the_batch_size_is_kept_within_its_dead_band(current, depth, expected):
    estimator = BatchSizeEstimator(current, SECOND, largest=256)
    assert sizes_of(estimator, [depth] * 100)[-1] == expected


def test_without_a_band_the_bounds_are_the_papers():
    for depth, expected in ((7.99, 4), (8, 8), (15.99, 8), (16, 16)):
        estimator = BatchSizeEstimator(8, SECOND, margin=0, band=0)
        assert sizes_of(estimator, [depth] * 100)[-1] == expected


def test_it_is_decided_from_the_first_answer_on():
    estimator = BatchSizeEstimator(1, 2 * SECOND)
    seen = []
    for i in range(40):
        answer = estimator.sample(20, i * PERIOD)
        seen.append((answer is not None, estimator.decided))
    first = seen.index((True, True))
    assert first == 20
    assert not any(decided for _, decided in seen[:first])
    assert all(decided for _, decided in seen[first:])


def test_a_smaller_largest_size_cuts_what_is_known():
    assert BatchSizeEstimator(64, SECOND, largest=8).current == 8
    estimator = BatchSizeEstimator(1, SECOND, largest=64)
    assert sizes_of(estimator, [100] * 50)[-1] == 64
    estimator.tune(SECOND, largest=12)
    assert estimator.current == 12
    assert set(sizes_of(estimator, [100] * 50, start=50)) == {12}
    estimator.tune(SECOND, largest=64)
    assert sizes_of(estimator, [100] * 50, start=100)[-1] == 64


@pytest.mark.parametrize(("before", "after"), [(5, 2), (2, 5), (5, 5)])
def test_another_time_out_counts_from_when_the_last_one_began(before, after):
    estimator = BatchSizeEstimator(1, before * SECOND)
    estimator.sample(3, 0)
    estimator.tune(after * SECOND)
    assert estimator.sample(3, after * SECOND - 1) is None
    assert estimator.sample(3, after * SECOND) == 2


@given(
    st.integers(0, 10).map(lambda k: 1 << k),
    st.floats(0, 2000),
    st.floats(0, 2000),
)
def test_a_true_step_is_followed_within_three_time_outs(current, before, after):
    estimator = BatchSizeEstimator(current, 5 * SECOND)
    follow(estimator, [before] * 101)
    last = sizes_of(estimator, [after] * 3 * SAMPLES, start=101)[-1]
    assert last == 1 or after >= 0.59 * last
    assert after <= 1.7 * last


@pytest.mark.parametrize(("before", "after", "expected"), [(3, 50, 32), (50, 2.3, 2), (50, 0, 1)])
def test_a_step_either_way_takes_at_most_two_time_outs(before, after, expected):
    estimator = BatchSizeEstimator(1, 30 * SECOND)
    follow(estimator, [before] * 601)
    found = follow(estimator, [after] * 600, start=601)
    assert found[1][1] == expected


def poisson(choose, mean):
    """A Poisson number, by counting exponential gaps."""
    count, at = 0, choose.expovariate(1)
    while at < mean:
        count, at = count + 1, at + choose.expovariate(1)
    return count


def after_noise(seed, mean):
    """Sizes at 100 time-outs of independent Poisson depths, after those that find the size."""
    choose = random.Random(seed)
    estimator = BatchSizeEstimator(floor_power_of_two(mean), 5 * SECOND)
    return sizes_of(estimator, (poisson(choose, mean) for _ in range(100 * SAMPLES)))[2:]


@settings(max_examples=20, derandomize=True)
@given(st.integers(0, 10**6), st.floats(4, 60))
def test_poisson_noise_almost_never_changes_the_size(seed, mean):
    assert changes(after_noise(seed, mean)) <= 3


@pytest.mark.parametrize("mean", [2, 4, 8, 16])
def test_at_a_power_of_two_poisson_noise_stays_inside_the_dead_band(mean):
    assert changes(after_noise(1, mean)) <= 1


@settings(max_examples=30)
@given(st.integers(0, 10**6), st.floats(1, 60), st.integers(1, 5))
def test_bursts_that_are_shorter_than_the_window_do_not_flip_the_size(seed, height, length):
    """On for ``length`` samples, off for as long, over and over from some phase on."""
    phase = random.Random(seed).randrange(2 * length)
    depths = [height * ((i + phase) // length % 2) for i in range(60 * SAMPLES)]
    sizes = sizes_of(BatchSizeEstimator(1, 5 * SECOND), depths)
    assert changes(sizes[2:]) <= 1


def test_a_depth_that_hovers_about_a_power_of_two_does_not_flip_the_size():
    choose = random.Random(1)
    depths = [8 + choose.uniform(-3, 3) for _ in range(400 * SAMPLES)]
    found = [
        changes(sizes_of(BatchSizeEstimator(8, 5 * SECOND, **bounds), depths))
        for bounds in ({}, {"margin": 0, "band": 0})
    ]
    assert found[0] == 0
    assert found[1] >= 20  # without the dead band it does


@pytest.mark.parametrize("depth", [-1, math.nan, math.inf])
def test_a_depth_that_is_none_is_refused(depth):
    estimator = BatchSizeEstimator(1, SECOND)
    with pytest.raises(ValueError, match="allowed: 0 or more"):
        estimator.sample(depth, 0)
    assert math.isnan(estimator.depth)


@pytest.mark.parametrize(
    "bad",
    [
        *({"current": 0}, {"largest": 0}),
        *({"band": -0.1}, {"band": 1}, {"margin": -0.1}, {"margin": 1}),
    ],
)
def test_settings_that_make_no_sense_are_refused(bad):
    with pytest.raises(ValueError, match=r"largest at|margin and band in"):
        BatchSizeEstimator(**{"current": 1, "timeout_ns": SECOND} | bad)
