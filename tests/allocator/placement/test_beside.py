"""Who begins beside whom: by the slowdown model, from what is known of both passes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shunter.allocator.placement.beside import Pass, Start, expected, start

MS = 10**6
HALF = Pass(solo_ns=10 * MS, cores=2)
"""On four cores half of the machine."""
TOGETHER, TRIAL, APART = Start.TOGETHER, Start.TRIAL, Start.APART


@pytest.mark.parametrize(
    ("best_effort", "takes_back", "begin"),
    [
        # A segment that strict work may have to wait for; 2 % of its pass.
        (Pass(10 * MS, 1, segment_ns=200_000), False, TOGETHER),
        (Pass(10 * MS, 1, segment_ns=200_001), False, APART),
        (Pass(10 * MS, 1), False, APART),
        (Pass(100_000, 1), False, TOGETHER),
        (Pass(10 * MS, 1), True, TOGETHER),
        # Processors; nine tenths of them where they are not taken back.
        (Pass(1, 1.67), False, TOGETHER),
        (Pass(1, 1.68), False, APART),
        (Pass(1, 2.0), True, TOGETHER),
        (Pass(1, 2.07), True, TOGETHER),  # 1.75 % slower, which it may be
        (Pass(1, 2.09), True, APART),
        # How many multiprocessors a pass on a GPU keeps busy is not known, how long it is may be.
        (Pass(100_000, None), False, TRIAL),
        (Pass(10 * MS, None, segment_ns=200_001), False, APART),
    ],
)
def test_without_a_profile_it_goes_by_processors_and_segments(best_effort, takes_back, begin):
    assert start(HALF, best_effort, 4, takes_back, 0.02) is begin


@pytest.mark.parametrize(
    ("bandwidths", "begin"),
    [
        ((0.5, 0.5), TOGETHER),
        ((0.52, 0.5), TOGETHER),
        ((0.6, 0.5), TRIAL),  # apart, but the profile may be wrong
        ((1.0, 1.0), TRIAL),
        ((0.0, 0.9), TOGETHER),
        # What was never measured counts as nothing.
        ((None, 0.9), TOGETHER),
        ((1.0, None), TOGETHER),
        ((None, None), TOGETHER),
    ],
)
def test_with_profiles_it_goes_by_bandwidth_too(bandwidths, begin):
    strict, best_effort = (Pass(10 * MS, 1, each) for each in bandwidths)
    assert start(strict, best_effort, 4, True, 0.02) is begin
    # Where there are no cores for both, profiles make no difference.
    assert start(strict, best_effort, 1, True, 0.02) is APART
    # How much slower strict work may be is the operator's to say.
    assert start(strict, best_effort, 4, True, 1.0) is TOGETHER


def test_without_the_processors_of_the_strict_pass_it_has_to_be_tried():
    assert start(Pass(10 * MS, None), Pass(100_000, 1), 4, True, 0.02) is TRIAL


def test_what_is_expected_is_the_sum_of_the_shares_and_the_wait():
    strict, best_effort = Pass(10 * MS, 3, 0.8), Pass(MS, 3, 0.7, segment_ns=100_000)
    assert expected(strict, best_effort, 4, True) == pytest.approx((1.5, 1.5))
    assert expected(strict, best_effort, 4, False) == pytest.approx((6 / 3.6 + 0.01, 1.51))


PASSES = st.builds(
    Pass,
    solo_ns=st.integers(1, 10**10),
    cores=st.one_of(st.none(), st.floats(0.01, 256)),
    bandwidth=st.one_of(st.none(), st.floats(0, 1)),
    segment_ns=st.integers(0, 10**10),
)
ORDER = [APART, TRIAL, TOGETHER]


@given(PASSES, PASSES, st.integers(1, 256), st.booleans(), st.floats(0, 1), st.floats(0, 1))
def test_cores_that_are_taken_back_and_more_patience_never_allow_less(
    strict, best_effort, cores, takes_back, some, more
):
    found = ORDER.index(start(strict, best_effort, cores, takes_back, some))
    assert ORDER.index(start(strict, best_effort, cores, True, some)) >= found
    assert ORDER.index(start(strict, best_effort, cores, takes_back, some + more)) >= found
