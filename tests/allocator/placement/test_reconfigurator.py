"""Which layout the best effort that is expected asks for, and when a GPU is changed to it."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shunter.allocator.devices.geometry import parse, plain, text_of
from shunter.allocator.devices.simulated.tables import MODELS
from shunter.allocator.placement.reconfigurator import (
    FALLBACK,
    LARGE,
    Backoff,
    Decision,
    Ewma,
    Thresholds,
    Waiting,
    decide,
    may_begin,
    thresholds,
    wanted_layout,
)
from shunter.allocator.placement.slowdown import SlowdownModel

GIB = 1 << 30
MEMORY = {"1g": 5 * GIB, "2g": 10 * GIB, "3g": 20 * GIB, "4g": 20 * GIB}
SMALL = ("1g", "2g")


def listing(expected, batch_bytes, memory, known):
    """Lines 5 to 23 of algorithm 2 as the paper prints them."""
    final_geometry, found = [], False
    for slice_set in (("1g", "2g"), ("3g",)):
        if sum(memory[kind] for kind in slice_set) >= expected * batch_bytes:
            bounds = known.get(slice_set, Thresholds())
            final_geometry += slice_set
            found = True
            break
    if not found or expected < bounds.low or expected > bounds.high:
        return ("4g", "3g")
    return (LARGE, *final_geometry)


@pytest.mark.parametrize(
    ("needed", "wanted"),
    [
        (0, (LARGE, *SMALL)),
        (15, (LARGE, *SMALL)),
        (15.1, FALLBACK),
        (20, FALLBACK),
        (20.1, FALLBACK),
    ],
)
def test_best_effort_gets_the_least_memory_that_holds_it(needed, wanted):
    assert wanted_layout(needed, GIB, MEMORY, {}) == wanted


LOADS = st.one_of(st.integers(0, 40), st.floats(0, 40))
BOUNDS = st.builds(Thresholds, st.sampled_from([0.0, 1.0, 2.5, 4.0]), st.sampled_from([2, 3.5, 64]))


@given(
    LOADS,
    st.one_of(st.integers(1, 12).map(lambda gib: gib * GIB), st.integers(1, 12 * GIB)),
    st.fixed_dictionaries({}, optional={SMALL: BOUNDS, ("3g",): BOUNDS}),
)
def test_the_score_with_the_weights_of_the_paper_chooses_as_its_listing(count, size, known):
    assert wanted_layout(count, size, MEMORY, known) == listing(count, size, MEMORY, known)


@pytest.mark.parametrize(
    ("expected", "wanted"),
    [
        (0, ("4g", "3g")),  # below the low threshold
        (1, ("4g", "3g")),
        (2, ("4g", "1g", "2g")),
        (3, ("4g", "1g", "2g")),
        (3.5, ("4g", "3g")),  # above the high one
        (5, ("4g", "3g")),  # a 3g holds it
        (6, ("4g", "3g")),  # nothing holds it
    ],
)
def test_the_layout_follows_the_best_effort_that_is_expected(expected, wanted):
    known = {SMALL: Thresholds(2, 3)}
    assert wanted_layout(expected, 4 * GIB, MEMORY, known) == wanted


def test_every_layout_that_can_be_wanted_is_legal_and_only_the_upper_half_changes():
    profiles = MODELS["a100-40gb"].profiles
    small = parse(",".join(("4g", *SMALL)), profiles, parse("4g,3g", profiles))
    assert text_of(small, profiles) == "4g@0:4 2g@4:2 1g@6:1"
    assert small & parse(",".join(FALLBACK), profiles, small) == parse("4g", plain(profiles))


def test_a_gpu_is_changed_when_another_layout_was_wanted_often_in_a_row():
    waiting, changes = Waiting(), []
    for _ in range(4):
        decision = decide(("4g", "3g"), ("4g", "1g", "2g"), waiting)
        waiting = decision.waiting
        changes.append(decision.change)
    assert changes == [False, False, False, True]
    assert waiting == Waiting()


def test_one_good_interval_begins_the_count_anew():
    wanted = ("4g", "1g", "2g")
    assert decide(("2g", "4g", "1g"), wanted, Waiting(2)) == Decision(wanted, False, Waiting())


def test_a_change_that_comes_soon_after_another_is_waited_for_longer_each_time():
    backoff, limits = Backoff(), []
    for looks in (4, 4, 4, 99, 99, 99, 100, 16):
        limits.append(backoff.limit(3))
        for _ in range(looks):
            backoff = backoff.looked()
        backoff = backoff.changed(3)
    # One layout that stayed for four times as long as is waited for is forgiven one that did not.
    assert limits == [3, 6, 12, 24, 24, 24, 24, 12]
    assert backoff.limit(3) == 24
    for _ in range(4):
        backoff = Backoff(backoff.count, stayed=1000).changed(3)
    assert backoff.limit(3) == 3


@given(st.integers(1, 200), st.integers(0, 200))
def test_never_more_than_a_part_of_the_gpus_is_changed_at_once(gpus, changing):
    more = may_begin(gpus, changing)
    assert more >= 0
    assert more + changing <= max(1, changing, math.floor(0.3 * gpus))
    assert may_begin(gpus, 0) >= 1


def test_the_expectation_follows_the_load():
    ewma = Ewma(0.5)
    assert ewma.value is None
    for count in (8, 0, 4):
        ewma = ewma.after(count)
    assert ewma.value == 4.0
    assert Ewma(1.0, 9.0).after(2).value == 2.0


def model(fbr_3g, fbr_2g):
    return SlowdownModel(
        whole="7g",
        alone_ms={
            "strict": {"7g": 50.0, "3g": 60.0, "2g": 90.0},
            "be": {"7g": 50.0, "3g": 60.0, "2g": 90.0},
        },
        fbr={
            "strict": {"7g": 0.2, "3g": 0.4, "2g": 0.5},
            "be": {"7g": 0.2, "3g": fbr_3g, "2g": fbr_2g},
        },
        bandwidth={"7g": 1.0, "3g": 0.5, "2g": 0.25, "1g": 0.125},
    )


def test_thresholds_are_where_the_slowdown_turns():
    # On 3g with n of it: 1.2 x (0.4 + 0.5 n), alone on 2g: 1.8; 1.68 with two, 2.28 with three.
    # On 2g with two thirds of n: 1.8 x (0.5 + 0.5 x 2n/3) above 3: with four of it, not with three.
    found = thresholds("strict", "be", model(0.5, 0.5), worst=3.0)
    assert found == Thresholds(low=3, high=3)


def test_light_best_effort_never_asks_for_slices_of_its_own():
    found = thresholds("strict", "be", model(0.0, 0.0), worst=3.0)
    assert found == Thresholds(low=65, high=64)
    assert wanted_layout(3, GIB, MEMORY, {SMALL: found}) == FALLBACK
