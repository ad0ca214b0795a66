"""Which slice each batch gets: best effort the smallest, strict where it is slowed down least."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shunter.allocator.placement.distribution import (
    Batch,
    SliceState,
    ascending,
    distribute,
    shares,
    tags,
)
from shunter.allocator.placement.slowdown import SlowdownModel

KNOWN = SlowdownModel(
    whole="7g",
    alone_ms={
        "strict": {"7g": 50.0, "4g": 55.0, "3g": 65.0, "2g": 100.0, "1g": 200.0},
        "light": {"7g": 20.0, "4g": 21.0, "3g": 22.0, "2g": 24.0, "1g": 30.0},
        "be": {"7g": 100.0, "4g": 130.0, "3g": 160.0, "2g": 250.0, "1g": 500.0},
    },
    fbr={
        "strict": {"7g": 0.3, "4g": 0.6, "3g": 0.5, "2g": 0.6, "1g": 0.6},
        "light": {"7g": 0.1, "4g": 0.1, "3g": 0.1, "2g": 0.2, "1g": 0.3},
        "be": {"7g": 0.4, "4g": 0.7, "3g": 0.6, "2g": 0.6, "1g": 0.7},
    },
    bandwidth={"7g": 1.0, "4g": 0.5, "3g": 0.5, "2g": 0.25, "1g": 0.125},
)
GIB = 1 << 30


def of(kind, free=None, running=()):
    compute = {"7g": 1.0, "4g": 4 / 7, "3g": 3 / 7, "2g": 2 / 7, "1g": 1 / 7}[kind]
    memory = {"7g": 40, "4g": 20, "3g": 20, "2g": 10, "1g": 5}[kind]
    return SliceState(kind, kind, compute, (memory if free is None else free) * GIB, running)


def strict(memory=4, model="strict"):
    return Batch(model, True, memory * GIB)


def be(memory=4):
    return Batch("be", False, memory * GIB)


def test_best_effort_takes_the_smallest_slices_first():
    slices = [of("4g"), of("2g"), of("1g")]
    found = distribute(slices, [be(4), be(4), be(4), be(4)], KNOWN)
    assert found == ["1g", "2g", "2g", "4g"]


def test_tags_are_the_share_of_memory_that_best_effort_takes():
    slices = [of("4g"), of("2g"), of("1g")]
    assert tags(slices, 0) == {"1g": 0, "2g": 0, "4g": 0}
    assert tags(slices, 10 * GIB) == {"1g": 1, "2g": 0.5, "4g": 0}
    assert tags(slices, 99 * GIB) == {"1g": 1, "2g": 1, "4g": 1}
    assert tags([of("1g", free=0)], GIB) == {"1g": 1}


def test_strict_is_spread_where_sharing_costs_more_than_a_smaller_slice():
    slices = [of("4g"), of("3g")]
    # On 4g: 1.1 alone, 1.1 x 1.2 = 1.32 for the second; on 3g: 1.3.
    assert distribute(slices, [strict(), strict()], KNOWN) == ["4g", "3g"]


def test_strict_shares_a_slice_where_that_is_still_faster():
    slices = [of("4g"), of("1g")]
    assert distribute(slices, [strict()] * 3, KNOWN) == ["4g"] * 3


def test_strict_counts_the_best_effort_that_is_expected():
    slices = [of("4g"), of("3g")]
    # Two batches of best effort fill most of 3g: a second strict batch is better off on 4g.
    batches = [strict(), strict(), be(8), be(8)]
    assert distribute(slices, batches, KNOWN) == ["4g", "4g", "3g", "3g"]


def test_strict_goes_beside_best_effort_where_the_model_says_so():
    slices = [of("4g", running=("strict",) * 4), of("3g", running=("be",))]
    assert distribute(slices, [strict()], KNOWN) == ["3g"]


def test_a_slice_that_best_effort_fills_is_left_to_it_unless_there_is_no_other():
    assert distribute([of("4g"), of("1g")], [strict(1), be(5)], KNOWN) == ["4g", "1g"]
    assert distribute([of("1g")], [strict(1), be(5)], KNOWN) == ["1g", None]


def test_strict_is_placed_first_however_batches_came():
    assert distribute([of("1g")], [be(4), strict(4)], KNOWN) == [None, "1g"]


def test_what_was_never_measured_is_said():
    with pytest.raises(KeyError, match="unknown"):
        distribute([of("1g")], [strict(1, "unknown")], KNOWN)


def test_shares_say_how_a_models_batches_are_spread():
    batches = [strict(), strict(), strict(), be(), be()]
    assert shares(batches, ["4g", "4g", "3g", "1g", None]) == {
        "strict": {"4g": pytest.approx(2 / 3), "3g": pytest.approx(1 / 3)},
        "be": {"1g": 1.0},
    }


KINDS = st.lists(st.sampled_from(["4g", "3g", "2g", "1g"]), min_size=1, max_size=4, unique=True)
BATCHES = st.lists(
    st.builds(
        Batch,
        st.sampled_from(["strict", "light", "be"]),
        st.booleans(),
        st.integers(0, 8).map(lambda gib: gib * GIB),
    ),
    max_size=8,
)


@given(KINDS, BATCHES)
def test_memory_is_never_given_twice_and_only_who_does_not_fit_waits(kinds, batches):
    slices = [of(kind) for kind in kinds]
    found = distribute(slices, batches, KNOWN)
    left = {each.name: each.free_bytes for each in slices}
    for batch, name in zip(batches, found, strict=True):
        if name is not None:
            left[name] -= batch.memory_bytes
    assert all(free >= 0 for free in left.values())
    for batch, name in zip(batches, found, strict=True):
        if name is None:
            assert all(batch.memory_bytes > free for free in left.values())


@given(KINDS, st.integers(0, 5))
def test_the_first_strict_batch_gets_the_least_slowdown_that_there_is(kinds, count):
    slices = [of(kind) for kind in kinds]
    found = distribute(slices, [strict(1), *[be(1)] * count], KNOWN)[0]
    tagged = tags(slices, count * GIB)
    free = [each for each in slices if tagged[each.name] < 1] or slices

    def slowed(each):
        there, room = [], count
        for other in ascending(slices):
            mine = min(room, other.free_bytes // GIB)
            room -= mine
            if other is each:
                there = ["be"] * mine
        return KNOWN.eta("strict", each.kind, there)

    assert slowed(next(each for each in slices if each.name == found)) == pytest.approx(
        min(map(slowed, free))
    )
