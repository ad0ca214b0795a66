"""What is expected on a layout, by predicted slowdowns, and which one is chosen for it."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shunter.allocator.placement.distribution import Batch
from shunter.allocator.placement.geometry_score import (
    Kind,
    Limit,
    maximal,
    moved,
    predict,
    weights,
)
from shunter.allocator.placement.scoring import Outlook, choose
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


def batches(strict, best_effort, gib=4):
    models = ["strict"] * strict + ["be"] * best_effort
    return [Batch(model, model == "strict", gib * GIB) for model in models]


def cost(layout, wanted, limit):
    return weights(limit, 2, 20).cost(predict(layout, wanted, KINDS, KNOWN, limit))


def test_maximal_layouts_are_those_that_no_other_one_contains():
    every = [("1",), ("2",), ("4",), ("1", "1"), ("1", "2"), ("2", "2"), ("1", "1", "2")]
    assert maximal(every) == (("4",), ("2", "2"), ("1", "1", "2"))


def test_slowdowns_are_those_of_the_model_where_distribution_puts_the_batches():
    found = predict(("4g", "3g"), batches(1, 1), KINDS, KNOWN, Limit())
    assert found == Outlook(eta=1.2, best_effort_eta=1.4)
    assert predict(("7g",), batches(2, 2), KINDS, KNOWN, Limit()).eta == pytest.approx(2.4)


def test_what_does_not_fit_waits_and_a_strict_batch_that_waits_is_late():
    found = predict(("1g",), batches(2, 0), KINDS, KNOWN, Limit(5.0, 0.0))
    assert found == Outlook(missed=0.5, eta=4.0)
    assert predict(("1g",), batches(0, 4), KINDS, KNOWN, Limit()).unserved == 0.75


def test_a_layout_without_a_slice_for_a_batch_is_worse_than_any_other():
    limit = Limit()
    never = predict(("3g", "3g"), batches(3, 1, gib=25), KINDS, KNOWN, limit)
    crowded = predict(("7g",), batches(3, 1, gib=25), KINDS, KNOWN, limit)
    assert (never.starved, crowded.starved) == (1, 0)
    count = weights(limit, 2, 20).cost
    assert count(never) > count(crowded) + 50
    assert count(Outlook(starved=0.1, eta=1.0)) >= count(Outlook(missed=1.0))


def test_risk_rises_about_the_limit():
    found = [Limit(3.0, 0.1).risk(eta) for eta in (2.69, 2.7, 3.0, 3.3, math.inf)]
    assert found == pytest.approx([0, 0, 0.5, 1, 1])
    assert [Limit(3.0, 0.0).risk(eta) for eta in (3.0, 3.1)] == [0.0, 1.0]


def test_slices_that_stay_cost_nothing_in_a_change():
    assert moved(("4g", "2g", "1g"), ("4g", "3g"), KINDS) == pytest.approx(3 / 7)
    assert moved(("4g", "3g"), ("3g", "4g"), KINDS) == 0
    price = weights(Limit(), change_s=2, horizon_s=20).cost(Outlook(moved=3 / 7))
    # As much as if strict work were late for that part of the time for which it is away.
    assert price == pytest.approx(weights(Limit(), 2, 20).cost(Outlook(missed=0.1 * 3 / 7)))


def test_strict_work_that_small_slices_would_slow_down_gets_a_large_one():
    candidates = [("7g",), ("4g", "3g"), ("4g", "2g", "1g"), ("1g",) * 7]
    prices = [(each, cost(each, batches(1, 1), Limit(2.0))) for each in candidates]
    assert choose(prices, [(("1g",) * 7, prices[-1][1])]) in (("4g", "3g"), ("7g",))
    assert prices[-1][1] > 10


@given(st.integers(0, 4), st.integers(0, 4), st.integers(1, 12))
def test_an_outlook_is_made_of_shares(strict, best_effort, gib):
    for layout in (("7g",), ("4g", "2g", "1g"), ("2g", "2g", "2g", "1g")):
        found = predict(layout, batches(strict, best_effort, gib), KINDS, KNOWN, Limit())
        assert all(0 <= each <= 1 for each in (found.missed, found.unserved, found.starved))
        assert (found.eta >= 1) is (strict > 0 and found.eta > 0)
        assert found.moved == 0
        if not strict:
            assert (found.missed, found.eta) == (0, 0)
        if not best_effort:
            assert (found.unserved, found.best_effort_eta) == (0, 0)
