import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shunter.allocator.planning.measurement import Effort, Estimate, estimate, is_enough

SAMPLES = st.lists(st.floats(0.1, 1e6), min_size=1, max_size=120)


@pytest.mark.parametrize(
    ("samples", "expected"),
    [
        ([5], Estimate(5, 5, 5, 1, 0)),
        ([3, 1, 2], Estimate(2, 1, 3, 3, 0)),
        ([1, 2, 3, 100], Estimate(2.5, 1, 100, 4, 0)),  # too few to call any an outlier
        ([1, 2, 3, 4, 5, 6], Estimate(3.5, 1, 6, 6, 0)),
        # From 9 samples on the extreme ones lie outside the interval, as in printed tables.
        ([1, 2, 3, 4, 5, 6, 7, 8, 9], Estimate(5, 2, 8, 9, 0)),
        (list(range(1, 21)), Estimate(10.5, 6, 15, 20, 0)),
        # The upper quartile is 6, the range between the quartiles 4: up to 18 is inside.
        ([1, 2, 3, 4, 5, 6, 18], Estimate(4, 1, 18, 7, 0)),
        ([1, 2, 3, 4, 5, 6, 18.1], Estimate(3.5, 1, 6, 6, 1)),
        # Equal samples leave 3 % of room.
        ([10, 10, 10, 10, 10, 10, 10, 10.3], Estimate(10, 10, 10.3, 8, 0)),
        ([10] * 10 + [10.4], Estimate(10, 10, 10, 10, 1)),
        # Fast ones are never left out.
        ([0.01] + [10] * 9, Estimate(10, 10, 10, 10, 0)),
    ],
)
def test_the_median_with_its_interval_and_what_was_left_out(samples, expected):
    assert estimate(samples) == expected


@given(SAMPLES)
def test_the_order_of_the_samples_does_not_matter(samples):
    assert estimate(samples) == estimate(sorted(samples))


@given(SAMPLES)
def test_the_median_lies_in_its_interval_and_every_sample_is_counted(samples):
    found = estimate(samples)
    assert min(samples) <= found.low <= found.median <= found.high <= max(samples)
    assert found.runs + found.outliers == len(samples)


@pytest.mark.parametrize("count", range(6, 101))
def test_the_interval_holds_the_median_with_95_percent_and_no_tighter_one_does(count):
    """Whole numbers are their own ranks; the k-th from either end is missed by a binomial tail."""
    found = estimate([1000 + k for k in range(count)])
    rank = int(found.low) - 1000
    assert found.high == 1000 + count - 1 - rank

    def missed(rank):
        return 2 * sum(math.comb(count, k) for k in range(rank + 1)) / 2**count

    assert missed(rank) <= 0.05 < missed(rank + 1)


def test_nothing_has_no_median():
    with pytest.raises(ValueError, match="no sample"):
        estimate([])


def test_half_the_interval_is_given_as_a_share_of_the_median():
    assert Estimate(median=10, low=9, high=12, runs=9, outliers=0).relative == 0.15
    assert Estimate(median=0, low=0, high=0, runs=9, outliers=0).relative == math.inf


EFFORT = Effort(precision=0.02, fewest=6, most=20, seconds=10)
WIDE = [1.0, 2.0, 3.0, 4.0]


@pytest.mark.parametrize(
    ("samples", "seconds", "enough"),
    [
        ([10.0] * 5, 1, False),
        ([10.0] * 6, 1, True),  # the interval is tight
        ([9.8, 9.9, 10.0, 10.0, 10.1, 10.2], 1, True),  # exactly 2 %
        ([9.7, 9.9, 10.0, 10.0, 10.1, 10.2], 1, False),
        ([*WIDE, *WIDE], 10, False),
        ([*WIDE, *WIDE], 10.1, True),  # the time is over
        (WIDE * 5, 1, True),  # no more than 20
        ([10.0] * 2, 1000, False),
        ([10.0] * 3, 30, False),
        ([10.0] * 3, 31, True),  # a run takes minutes
        ([], 1000, False),
    ],
)
def test_measuring_ends_with_a_tight_interval_or_when_it_takes_too_long(samples, seconds, enough):
    assert is_enough(samples, seconds, EFFORT) is enough
