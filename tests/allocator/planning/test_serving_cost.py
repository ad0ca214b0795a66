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
    [(200.0, 220.0, 2.0), (200.0, 200.0, 0.0), (200.0, 120.0, 0.0), (200.0, 900.0, 5.0)],
    ids=["adds", "nothing", "faster than the profile", "on a busy host"],
)
def test_what_it_adds_is_found_within_a_hundred_looks(profiled, served, found):
    cost = ServingCost()
    for _ in range(100):
        cost.heed(10, profiled, served, 0.01)
    assert cost.each_ms == pytest.approx(found, abs=0.001 * profiled)
    assert cost.up_to == (10.0 if found else 1.0)


def test_noise_does_not_make_a_new_plan_again_and_again():
    cost = ServingCost()
    for _ in range(100):
        cost.heed(16, 400.0, 440.0, 0.0125)
    choose = np.random.default_rng(1)
    changes = sum(cost.heed(16, 400.0, 440.0 * n, 0.0125) for n in choose.normal(1, 0.03, 1000))
    assert changes <= 20


def test_another_load_is_followed():
    cost = ServingCost()
    for _ in range(100):
        cost.heed(1, 36.0, 41.0, 0.0125)
    assert cost.each_ms * cost.up_to == pytest.approx(5.0, abs=1.0)
    for _ in range(100):
        cost.heed(16, 385.0, 409.0, 0.0125)
    assert cost.each_ms == pytest.approx(1.5, abs=0.4)
    assert cost.up_to == pytest.approx(16.0, abs=1.0)


@given(st.lists(st.tuples(st.integers(1, 64), MS, MS), max_size=60))
def test_it_is_never_negative_and_at_most_a_part_of_the_profile(looks):
    cost, largest = ServingCost(), 0.0
    for size, profiled, served in looks:
        before = cost.each_ms, cost.up_to
        said = cost.heed(size, profiled, served, 0.01)
        largest = max(largest, profiled)
        assert said or (cost.each_ms, cost.up_to) == before
        assert 0 <= cost.each_ms <= MOST * largest * (1 + 1e-9)
        assert 1 <= cost.up_to <= 64 + 1e-9


def test_a_profile_that_ends_before_that_batch_says_nothing():
    cost = ServingCost()
    for _ in range(100):
        cost.heed(4, 100.0, 120.0, 0.01)
    known = cost.each_ms, cost.up_to
    assert not any(cost.heed(8, float("inf"), 20.0, 0.01) for _ in range(100))
    assert not cost.heed(4, 100.0, 120.0, 0.01)
    assert (cost.each_ms, cost.up_to) == known


def test_a_table_has_it_for_each_request_of_a_batch_up_to_the_size_that_was_seen():
    table = LatencyTable(np.array([[10.0, 15.0, np.inf], [8.0, 12.0, 16.0]]))
    assert table.adding(2.0, 3.0).ms.tolist() == [[12.0, 19.0, np.inf], [10.0, 16.0, 22.0]]
    assert table.adding(2.0, 1.5).ms.tolist() == [[12.0, 18.0, np.inf], [10.0, 15.0, 19.0]]
    assert ServingCost().charged(table) is table
