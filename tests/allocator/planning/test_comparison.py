"""Latencies that agree best with visits and comparisons."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shunter.allocator.planning.comparison import Comparison, Fit, Visited, drift
from shunter.allocator.planning.measurement import Estimate

A, B, C = (1, 1), (1, 2), (2, 1)


def compared(one, other, ratio, share=0.01):
    return Comparison(one, other, Estimate(ratio, ratio * (1 - share), ratio * (1 + share), 6, 0))


def test_without_comparisons_visits_are_all_there_is():
    fit = Fit({A: Visited(10, 0.1), B: Visited(20, 0.05)})
    assert (fit.ms(A), fit.ms(B)) == pytest.approx((10, 20))
    assert fit.apart(A, B) == pytest.approx(math.hypot(0.1, 0.05))
    assert fit.hoped(A, B) == pytest.approx(10 * math.exp(-2 * math.hypot(0.1, 0.05)))


def test_a_comparison_settles_the_ratio_and_visits_the_rest():
    # By visits as quick as each other; in turns the other one takes twice as long.
    fit = Fit({A: Visited(10, 0.3), B: Visited(10, 0.3)}, [compared(A, B, 2)])
    assert fit.ms(B) / fit.ms(A) == pytest.approx(2, rel=0.001)
    assert fit.ms(A) * fit.ms(B) == pytest.approx(100, rel=0.001)
    assert fit.apart(A, B) == pytest.approx(0.005, rel=0.01)


def test_who_has_been_seen_well_stays_where_it_is():
    fit = Fit({A: Visited(10, 0.005), B: Visited(10, 0.3)}, [compared(A, B, 2)])
    assert (fit.ms(A), fit.ms(B)) == pytest.approx((10, 20), rel=0.01)


def test_comparisons_go_on_from_one_to_the_next():
    visited = {key: Visited(10, 0.3) for key in (A, B, C)}
    fit = Fit(visited, [compared(A, B, 2), compared(B, C, 3)])
    assert fit.ms(C) / fit.ms(A) == pytest.approx(6, rel=0.01)
    assert fit.apart(A, C) == pytest.approx(math.hypot(0.005, 0.005), rel=0.01)


def test_of_two_comparisons_the_more_exact_one_counts_more():
    fit = Fit({A: Visited(10, 1), B: Visited(10, 1)}, [compared(A, B, 1), compared(A, B, 2, 0.2)])
    assert 1 < fit.ms(B) / fit.ms(A) < 1.01


numbers = st.floats(0.01, 1e4)


@given(numbers, numbers, st.floats(0.01, 100), st.floats(0.005, 0.5))
def test_it_does_not_matter_which_of_two_is_named_first(one, other, ratio, deviation):
    visited = {A: Visited(one, deviation), B: Visited(other, deviation)}
    exact = Estimate(ratio, ratio, ratio, 6, 0)
    back = Estimate(1 / ratio, 1 / ratio, 1 / ratio, 6, 0)
    fits = [Fit(visited, [each]) for each in (Comparison(A, B, exact), Comparison(B, A, back))]
    for key in (A, B):
        assert fits[0].ms(key) == pytest.approx(fits[1].ms(key), rel=1e-6)


@pytest.mark.parametrize(
    ("visits", "expected"),
    [
        ([], 0),
        ([[10.0], [20.0]], 0),
        ([[10.0, 10.0]], 0),
        ([[10.0, 20.0], [5.0]], math.log(2) / math.sqrt(2)),
        ([[10.0, 20.0], [5.0, 5.0]], math.log(2) / 2),
    ],
)
def test_how_much_visits_differ(visits, expected):
    assert drift(visits) == pytest.approx(expected)
