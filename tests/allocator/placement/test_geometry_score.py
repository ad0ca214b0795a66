"""The layout by predicted slowdowns; the paper's choice by memory as a special case."""

import math
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shunter.allocator.placement.distribution import Batch
from shunter.allocator.placement.geometry_score import (
    Demand,
    Kind,
    Outcome,
    Weights,
    away,
    best,
    change_cost,
    cost,
    expected_cost,
    layouts,
    least_memory,
    maximal,
    predict,
    risk,
)
from shunter.allocator.placement.reconfigurator import FALLBACK, wanted_layout
from shunter.allocator.placement.slowdown import SlowdownModel

GIB = 1 << 30
MEMORY = {"7g": 40, "4g": 20, "3g": 20, "2g": 10, "1g": 5}
KINDS = {name: Kind(name, int(name[0]) / 7, memory * GIB) for name, memory in MEMORY.items()}
KNOWN = SlowdownModel(
    whole="7g",
    alone_ms={
        "strict": {"7g": 50.0, "4g": 60.0, "3g": 70.0, "2g": 100.0, "1g": 200.0},
        "be": {"7g": 50.0, "4g": 60.0, "3g": 70.0, "2g": 100.0, "1g": 200.0},
    },
    fbr={name: dict.fromkeys(MEMORY, 0.6) for name in ("strict", "be")},
    bandwidth={"7g": 1.0, "4g": 0.5, "3g": 0.5, "2g": 0.25, "1g": 0.125},
)


def demand(strict, best_effort, gib=4):
    return Demand(
        tuple(
            Batch(model, model == "strict", gib * GIB)
            for model in ["strict"] * strict + ["be"] * best_effort
        )
    )


def test_layouts_of_cores_are_all_ways_to_part_them():
    cores = [Kind("1", 0.25, GIB), Kind("2", 0.5, 2 * GIB), Kind("4", 1.0, 4 * GIB)]
    every = {tuple(sorted(each)) for each in layouts(cores)}
    assert len(every) == len(layouts(cores)) == 9
    assert {tuple(sorted(each)) for each in maximal(layouts(cores))} == {
        ("1", "1", "1", "1"),
        ("1", "1", "2"),
        ("2", "2"),
        ("4",),
    }


def test_slowdowns_are_those_of_the_model_where_distribution_puts_the_batches():
    found = predict(("4g", "3g"), demand(1, 1), KINDS, KNOWN)
    assert found == Outcome(strict=(1.2,), best_effort=(1.4,))
    crowded = predict(("7g",), demand(2, 2), KINDS, KNOWN)
    assert crowded.strict == (pytest.approx(2.4),) * 2


def test_what_does_not_fit_waits_and_a_strict_batch_that_waits_is_late():
    found = predict(("1g",), demand(2, 0), KINDS, KNOWN)
    assert sorted(found.strict) == [4.0, math.inf]
    assert found.late(limit=5.0, spread=0.0) == 0.5
    assert cost(found, Weights(limit=5.0)) > 0.5


def test_a_layout_without_a_slice_for_a_batch_is_worse_than_any_other():
    never = predict(("3g", "3g"), demand(3, 1, gib=25), KINDS, KNOWN)
    assert never.starved == 4
    crowded = predict(("7g",), demand(3, 1, gib=25), KINDS, KNOWN)
    assert (crowded.starved, len(crowded.strict)) == (0, 3)
    assert cost(never, Weights()) > cost(crowded, Weights()) + 5
    fast = Outcome(strict=(1.0,) * 9, best_effort=(math.inf,), starved=1)
    late = Outcome(strict=(math.inf,) * 9, best_effort=(1.0,))
    assert cost(fast, Weights(starved=20.0)) > cost(late, Weights(starved=20.0))


def test_risk_rises_about_the_limit():
    assert [risk(eta, 3.0, 0.1) for eta in (2.69, 2.7, 3.0, 3.3, math.inf)] == pytest.approx(
        [0, 0, 0.5, 1, 1]
    )
    assert (risk(3.0, 3.0, 0.0), risk(3.1, 3.0, 0.0)) == (0.0, 1.0)


def test_slices_that_stay_cost_nothing_in_a_change():
    weights = Weights(change_s=2, horizon_s=20)
    assert away(("4g", "2g", "1g"), ("4g", "3g"), KINDS) == pytest.approx(3 / 7)
    assert change_cost(("4g", "2g", "1g"), ("3g", "4g"), KINDS, weights) == pytest.approx(0.3 / 7)
    assert away(("4g", "3g"), ("3g", "4g"), KINDS) == 0


def test_a_layout_has_to_be_better_by_more_than_the_change_costs():
    prices = {("7g",): 0.5, ("4g", "3g"): 0.4, ("3g", "3g"): 0.45}
    for change, chosen in ((0.05, ("4g", "3g")), (0.2, ("7g",))):
        assert best(prices, ("7g",), prices.__getitem__, lambda _, c=change: c) == chosen


def test_the_order_of_slices_says_nothing_and_a_tie_changes_nothing():
    even = dict.fromkeys([("7g",), ("4g", "3g"), ("4g", "2g", "1g")], 0.1)
    assert best(even, ("1g", "2g", "4g"), even.__getitem__) == ("4g", "2g", "1g")
    assert best(even, ("3g", "3g"), even.__getitem__) == ("7g",)


def test_strict_work_that_small_slices_would_slow_down_gets_a_large_one():
    weights = Weights(limit=2.0)
    candidates = [("1g",) * 7, ("4g", "2g", "1g"), ("4g", "3g"), ("7g",)]

    def staying(layout):
        return expected_cost(layout, [demand(1, 1)], KINDS, KNOWN, weights)

    assert best(candidates, ("1g",) * 7, staying) in (("4g", "3g"), ("7g",))
    assert staying(("1g",) * 7) > 1


def test_demands_count_by_their_shares():
    weights = Weights()
    rare = [Demand(demand(1, 1).batches, 3.0), Demand(demand(4, 4).batches, 1.0)]
    each = [expected_cost(("4g", "3g"), [one], KINDS, KNOWN, weights) for one in rare]
    both = expected_cost(("4g", "3g"), rare, KINDS, KNOWN, weights)
    assert both == pytest.approx((3 * each[0] + each[1]) / 4)


@given(st.integers(0, 20), st.integers(1, 12))
def test_the_papers_choice_is_a_special_case(count, gib):
    memory = {name: kind.memory_bytes for name, kind in KINDS.items()}
    candidates = [("4g", "1g", "2g"), FALLBACK]
    price = least_memory(count * gib * GIB, memory, "4g")
    found = best(candidates, FALLBACK, price)
    # Without thresholds; what fits nowhere falls back on a tie.
    assert Counter(found) == Counter(wanted_layout(count, gib * GIB, memory, {}))


@given(st.integers(0, 4), st.integers(0, 4), st.integers(1, 12))
def test_every_batch_is_in_the_outcome(strict, best_effort, gib):
    for layout in (("7g",), ("4g", "2g", "1g"), ("2g", "2g", "2g", "1g")):
        found = predict(layout, demand(strict, best_effort, gib), KINDS, KNOWN)
        assert (len(found.strict), len(found.best_effort)) == (strict, best_effort)
        assert all(eta >= 1 for eta in (*found.strict, *found.best_effort))
