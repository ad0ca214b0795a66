"""The slowdown model: its equations, and what a fit gets out of measurements."""

import doctest
import itertools
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shunter.allocator.placement import slowdown as model
from shunter.allocator.placement.least_squares import non_negative, solve
from shunter.allocator.placement.slowdown import (
    Observation,
    SlowdownModel,
    contention,
    errors,
    fit,
    no_model,
    of_copies,
    predicted,
)


def test_the_examples_in_the_text_are_true():
    assert doctest.testmod(model).failed == 0


TRUE = {"light": 0.15, "middle": 0.45, "heavy": 0.8, "hungry": 1.2}


def measure(fbr, together, noise=0.0, chance=None):
    spread = chance.gauss(1, noise) if chance else 1.0
    return Observation(
        together[0], tuple(together[1:]), max(0.9, contention(fbr[m] for m in together) * spread)
    )


def self_and_pairs(fbr, copies=12, **options):
    alone = [(name,) * n for name in fbr for n in range(2, copies + 1)]
    mixed = list(itertools.permutations(fbr, 2))
    return [measure(fbr, each, **options) for each in alone + mixed]


def test_a_fit_finds_what_measurements_were_made_of():
    found = fit(self_and_pairs(TRUE))
    assert found.fbr == pytest.approx(TRUE, abs=1e-6)
    assert found.errors.worst < 1e-6
    assert found.at_most == {}


def test_a_fit_holds_for_triples_that_it_has_not_seen_where_no_model_does_not():
    chance = random.Random(7)
    found = fit(self_and_pairs(TRUE, noise=0.03, chance=chance))
    triples = [measure(TRUE, each) for each in itertools.permutations(TRUE, 3)]
    ours = errors(triples, lambda each: predicted(found.fbr, each))
    none = errors(triples, no_model)
    assert ours.median < 0.05
    assert ours.worst < 0.1
    assert none.median > 0.25
    assert ours.count == none.count == 24


def test_what_never_slowed_anybody_down_is_only_bounded():
    observations = [
        Observation("a", ("a",), 1.0),
        Observation("a", ("b",), 1.01),
        Observation("c", ("c",), 1.6),
        Observation("a", ("c",), 1.0),
    ]
    found = fit(observations)
    assert found.fbr["c"] == pytest.approx(0.8)
    assert set(found.at_most) == {"a", "b"}
    assert found.at_most["a"] == pytest.approx(0.2)
    assert found.fbr["a"] <= 0.2 + 1e-9


def test_a_pair_that_is_not_slowed_down_holds_back_the_sum():
    # Alone these two would say 1.4 together; that they were not slowed down must count.
    free = fit([Observation("a", ("a",), 1.4), Observation("b", ("b",), 1.4)])
    held = fit(
        [
            Observation("a", ("a",), 1.4),
            Observation("b", ("b",), 1.4),
            *[Observation("a", ("b",), 1.0)] * 4,
        ]
    )
    assert free.fbr["a"] + free.fbr["b"] == pytest.approx(1.4)
    assert held.fbr["a"] + held.fbr["b"] < 1.2
    assert held.errors.worst > 0.05  # it says that the model does not explain this


def test_the_order_of_measurements_does_not_matter():
    observations = self_and_pairs(TRUE, noise=0.05, chance=random.Random(3))
    turned = observations[::-1]
    assert fit(turned).fbr == pytest.approx(fit(observations).fbr, abs=1e-9)


def test_no_measurements_give_nothing():
    found = fit([])
    assert (found.fbr, found.errors.count) == ({}, 0)


@given(
    st.lists(st.floats(0.05, 1.5), min_size=1, max_size=5),
    st.integers(0, 1000),
)
def test_a_fit_never_gives_less_than_nothing_and_explains_what_is_exact(values, seed):
    fbr = {f"m{i}": value for i, value in enumerate(values)}
    found = fit(self_and_pairs(fbr, copies=24))
    for name, value in fbr.items():
        assert found.fbr[name] >= 0
        assert found.fbr[name] == pytest.approx(value, abs=0.01)
    noisy = fit(self_and_pairs(fbr, copies=24, noise=0.1, chance=random.Random(seed)))
    assert all(value >= 0 for value in noisy.fbr.values())


def test_copies_tell_as_soon_as_they_are_slowed_down():
    assert of_copies(3, 1.02) is None
    assert of_copies(8, 1.2) == pytest.approx(0.15)


# ---- the model of a device

KNOWN = SlowdownModel(
    whole="7g",
    alone_ms={
        "strict": {"7g": 50.0, "4g": 60.0, "3g": 75.0, "1g": 200.0},
        "batch": {"7g": 100.0, "4g": 140.0, "3g": 180.0, "1g": 600.0},
    },
    fbr={"strict": {"7g": 0.3, "4g": 0.55}, "batch": {"7g": 0.6}},
    bandwidth={"7g": 1.0, "4g": 0.5, "3g": 0.5, "1g": 0.125},
)


def test_alone_a_model_is_slowed_down_by_the_slice_only():
    assert [KNOWN.eta("strict", kind) for kind in ("7g", "4g", "3g", "1g")] == [1, 1.2, 1.5, 4]


def test_what_was_measured_on_a_slice_counts_before_what_is_scaled():
    assert KNOWN.fbr_on("strict", "4g") == 0.55
    assert KNOWN.fbr_on("strict", "3g") == pytest.approx(0.3 / 1.5 / 0.5)
    assert KNOWN.fbr_on("batch", "4g") == pytest.approx(0.6 / 1.4 / 0.5)


def test_the_time_of_a_batch_beside_others():
    beside = KNOWN.fbr_on("strict", "4g") + KNOWN.fbr_on("batch", "4g")
    assert KNOWN.time_ms("strict", "4g", ["batch"]) == pytest.approx(50 * 1.2 * beside)
    # A smaller slice of one's own can be better than a larger one with company.
    assert KNOWN.eta("strict", "3g") < KNOWN.eta("strict", "4g", ["batch", "batch"])


@given(st.lists(st.sampled_from(["strict", "batch"]), max_size=5), st.sampled_from(["4g", "3g"]))
def test_company_never_makes_anybody_faster(beside, kind):
    alone = KNOWN.eta("strict", kind)
    assert KNOWN.eta("strict", kind, beside) >= alone
    assert KNOWN.eta("strict", kind, [*beside, "batch"]) >= KNOWN.eta("strict", kind, beside)


# ---- the solver


@given(st.integers(0, 10_000))
def test_non_negative_least_squares_are_those_of_scipy(seed):
    optimize = pytest.importorskip("scipy.optimize")
    chance = np.random.default_rng(seed)
    rows = chance.normal(size=(chance.integers(1, 12), chance.integers(1, 7)))
    values = chance.normal(size=rows.shape[0])
    mine = non_negative(rows, values)
    assert (mine >= 0).all()
    _, best = optimize.nnls(rows, values)
    assert np.linalg.norm(rows @ mine - values) == pytest.approx(best, abs=1e-6)


@given(st.integers(0, 10_000))
def test_bounds_are_as_if_their_rows_counted_only_when_they_are_crossed(seed):
    chance = np.random.default_rng(seed)
    count = chance.integers(1, 5)
    equal, below = chance.uniform(0, 2, (4, count)), chance.uniform(0, 2, (3, count))
    value, most = chance.uniform(0, 3, 4), chance.uniform(0, 3, 3)

    def cost(x):
        over = np.maximum(below @ x - most, 0)
        return ((equal @ x - value) ** 2).sum() + (over**2).sum()

    best = solve(equal, value, below, most)
    assert (best >= 0).all()
    for _ in range(50):  # It is convex: no step to anywhere is an improvement.
        step = chance.normal(size=count) * 10.0 ** -chance.integers(0, 5)
        assert cost(np.maximum(best + step, 0)) >= cost(best) - 1e-9
