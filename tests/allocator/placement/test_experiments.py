"""Which models are run together to learn what they want, until enough is known."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shunter.allocator.placement.experiments import next_experiment, triples
from shunter.allocator.placement.slowdown import (
    Observation,
    contention,
    errors,
    fit,
    no_model,
    predicted,
)


def measured(fbr, together, noise=0.0, chance=None):
    """Each of those that ran is timed."""
    found = []
    for at, model in enumerate(together):
        spread = chance.gauss(1, noise) if chance else 1.0
        time = contention(fbr[each] for each in together) * spread
        found.append(Observation(model, together[:at] + together[at + 1 :], max(0.9, time)))
    return found


def learn(fbr, most, **options):
    observations, experiments = [], []
    while (together := next_experiment(sorted(fbr), observations, most)) is not None:
        assert 2 <= len(together) <= most
        assert together not in experiments
        experiments.append(together)
        observations += measured(fbr, together, **options)
        assert len(experiments) < 200
    return observations, experiments


def test_copies_come_first_and_end_when_they_are_slowed_down():
    _, experiments = learn({"a": 0.3, "b": 0.9}, most=8)
    assert experiments[:4] == [("a",) * 2, ("a",) * 3, ("a",) * 4, ("b",) * 2]
    assert len(experiments) == 5
    assert set(experiments[4]) == {"a", "b"}


def test_a_pair_is_run_with_as_many_as_can_be_seen():
    _, experiments = learn({"a": 0.3, "b": 0.4}, most=8)
    assert sorted(experiments[-1]) == ["a", "a", "b", "b"]


def test_what_nobody_can_slow_down_ends_too():
    observations, experiments = learn({"a": 0.01, "b": 0.02}, most=4)
    assert all(each.slowdown == 1 for each in observations)
    assert len(experiments) == 3 + 3 + 1
    assert set(fit(observations).at_most) == {"a", "b"}


def test_where_only_one_fits_there_is_nothing_to_learn():
    assert next_experiment(["a", "b"], [], most=1) is None


@given(
    st.lists(st.floats(0.15, 1.2), min_size=1, max_size=5),
    st.integers(0, 10_000),
)
def test_what_is_learnt_predicts_triples_that_were_never_run(values, seed):
    fbr = {f"m{i}": value for i, value in enumerate(values)}
    chance = random.Random(seed)
    observations, _ = learn(fbr, most=12, noise=0.01, chance=chance)
    found = fit(observations)
    held_out = [
        each
        for together in triples(sorted(fbr), found.fbr, most=12)
        for each in measured(fbr, together)
    ]
    ours = errors(held_out, lambda each: predicted(found.fbr, each))
    assert ours.worst < 0.1
    if len(values) >= 3 and sum(sorted(values)[:3]) > 1.2:
        assert ours.median < errors(held_out, no_model).median


def test_triples_are_those_first_that_want_most():
    found = list(triples(["a", "b", "c", "d"], {"a": 1, "b": 2, "c": 3, "d": 4}, most=3))
    assert found[0] == ("b", "c", "d")
    assert len(found) == 4
    assert list(triples(["a", "b", "c"], {"a": 1, "b": 1, "c": 1}, most=2)) == []


def test_of_no_models_nothing_is_run():
    assert next_experiment([], [], most=8) is None
    assert fit([]).fbr == pytest.approx({})
