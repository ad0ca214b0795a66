import pytest
from hypothesis import given
from hypothesis import strategies as st

from shunter.batching.preemption.cutting import cut, segments_ns


@pytest.mark.parametrize(
    ("calls", "costs", "target", "before", "boundaries", "parts"),
    [
        ("", [], 10, 0, "", []),
        ("", [], 10, 7, "", [7]),
        ("a", [5], 10, 0, "", [5]),
        ("abc", [5, 5, 5], 10, 0, "c", [10, 5]),
        ("abc", [5, 5, 5], 10, 1, "b", [6, 10]),
        ("abc", [5, 5, 5], 5, 0, "bc", [5, 5, 5]),
        ("abc", [1, 50, 1], 10, 0, "bc", [1, 50, 1]),
        ("abc", [50, 1, 1], 10, 0, "b", [50, 2]),
        ("ababab", [5, 6, 5, 6, 5, 6], 11, 0, "a", [11, 11, 11]),
        ("abab", [9, 9, 9, 9], 10, 0, "ab", [9, 9, 9, 9]),
        ("abc", [0, 0, 0], 0, 0, "", [0]),
    ],
)
def test_cuts(calls, costs, target, before, boundaries, parts):
    found = cut(calls, costs, target, before)
    assert found.boundaries == set(boundaries)
    assert segments_ns(calls, costs, found.boundaries, before) == parts
    assert (found.segments, found.longest_ns) == (len(parts), max(parts, default=0))


passes = st.lists(st.tuples(st.integers(0, 8), st.integers(0, 50)), min_size=1, max_size=40)


@given(passes, st.integers(0, 60), st.integers(0, 50))
def test_a_segment_that_is_too_long_is_a_single_call(seen, target, before):
    calls, costs = [c for c, _ in seen], [n for _, n in seen]
    found = cut(calls, costs, target, before)
    parts = segments_ns(calls, costs, found.boundaries, before)
    assert sum(parts) == sum(costs) + before
    assert all(part <= target or part in costs or part == before for part in parts)


@given(st.lists(st.integers(1, 50), min_size=1, max_size=40), st.integers(1, 60))
def test_no_two_neighbours_could_have_been_one_segment(costs, target):
    calls = range(len(costs))
    parts = segments_ns(calls, costs, cut(calls, costs, target).boundaries)
    begins = iter(costs)
    firsts = []
    for part in parts:
        firsts.append(first := next(begins))
        while first < part:
            first += next(begins)
    assert all(a + b > target for a, b in zip(parts, firsts[1:], strict=False))
