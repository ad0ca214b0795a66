"""What serving adds to a profile."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shunter.allocator.planning.latency_table import LatencyTable
from shunter.allocator.planning.serving_cost import MOST, ServingCost

MS = st.floats(0.01, 1e5)


@pytest.mark.parametrize(
    ("profiled", "served", "found"),
    [(20.0, 22.0, 2.0), (20.0, 20.0, 0.0), (20.0, 12.0, 0.0), (20.0, 90.0, 5.0)],
    ids=["adds", "nothing", "faster than the profile", "on a busy host"],
)
def test_what_it_adds_is_found_within_a_hundred_looks(profiled, served, found):
    cost = ServingCost()
    for _ in range(100):
        cost.heed(profiled, served, 0.01)
    assert cost.each_ms == pytest.approx(found, abs=0.01 * profiled)


def test_noise_does_not_make_a_new_plan_again_and_again():
    cost = ServingCost()
    for _ in range(100):
        cost.heed(20.0, 22.0, 0.0125)
    choose = np.random.default_rng(1)
    changes = sum(cost.heed(20.0, 22.0 * n, 0.0125) for n in choose.normal(1, 0.03, 1000))
    assert changes <= 20


@given(st.lists(st.tuples(MS, MS), max_size=60))
def test_it_is_never_negative_and_at_most_a_part_of_the_profile(looks):
    cost, largest = ServingCost(), 0.0
    for profiled, served in looks:
        before = cost.each_ms
        said = cost.heed(profiled, served, 0.01)
        largest = max(largest, profiled)
        assert said == (cost.each_ms != before)
        assert 0 <= cost.each_ms <= MOST * largest * (1 + 1e-9)


def test_a_profile_that_ends_before_that_batch_says_nothing():
    cost = ServingCost()
    assert not cost.heed(float("inf"), 20.0, 0.01)
    assert cost.each_ms == 0.0


def test_a_table_has_it_for_each_request_of_a_batch():
    table = LatencyTable(np.array([[10.0, 15.0, np.inf], [8.0, 12.0, 16.0]]))
    assert table.adding(2.0).ms.tolist() == [[12.0, 19.0, np.inf], [10.0, 16.0, 22.0]]
    assert table.adding(0.0) is table
