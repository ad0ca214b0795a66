"""One number for an outlook, and when another layout is chosen."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shunter.allocator.placement.scoring import Outlook, Weights, choose


@pytest.mark.parametrize(
    "worse",
    [
        Outlook(missed=0.1),
        Outlook(unserved=0.1),
        Outlook(starved=0.01),
        Outlook(eta=2.0),
        Outlook(moved=0.5),
    ],
)
def test_whatever_is_worse_costs_more(worse):
    assert Weights().cost(worse) > Weights().cost(Outlook()) == 0


def test_strict_work_counts_most_of_what_runs_and_what_never_runs_more():
    cost = Weights().cost
    assert cost(Outlook(missed=0.11)) > cost(Outlook(unserved=1.0))
    assert cost(Outlook(starved=0.11)) > cost(Outlook(missed=1.0))
    assert cost(Outlook(moved=1.0)) < cost(Outlook(unserved=0.1))


@pytest.mark.parametrize(
    ("costs", "kept", "margin", "found"),
    [
        ({"a": 1.0, "b": 1.0}, {}, 0.0, "a"),  # the first of equals
        ({"a": 1.0, "b": 0.9}, {}, 0.0, "b"),
        ({"a": 1.0, "b": 1 - 1e-12}, {}, 0.0, "a"),
        ({"a": 1.0}, {"now": 1.0}, 0.0, "now"),  # a tie changes nothing
        ({"a": 1.0}, {"now": 1.1}, 0.0, "a"),
        ({"a": 1.0}, {"now": 1.1}, 0.2, "now"),
        ({"a": 1.0}, {"awaited": 1.1}, 0.2, "awaited"),
        # What is there rather than what is waited for, unless that is better by more.
        ({"a": 1.0}, {"awaited": 1.1, "now": 1.15}, 0.2, "now"),
        ({"a": 1.0}, {"awaited": 1.1, "now": 1.5}, 0.2, "awaited"),
    ],
)
def test_what_is_there_stays_unless_another_is_better_by_more_than_the_margin(
    costs, kept, margin, found
):
    assert choose(costs.items(), kept.items(), margin) == found


def test_no_candidate_is_an_error():
    with pytest.raises(ValueError, match="no layout"):
        choose([], [("now", 1.0)])


@given(st.lists(st.floats(0, 10), min_size=1), st.floats(0, 10), st.floats(0, 1))
def test_a_change_gains_more_than_the_margin(costs, now, margin):
    found = choose(((at, cost) for at, cost in enumerate(costs)), [(-1, now)], margin)
    if found == -1:
        assert now <= min(costs) + margin + 1e-6
    else:
        assert costs[found] < now - margin
