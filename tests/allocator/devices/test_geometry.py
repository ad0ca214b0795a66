"""Which layouts a GPU can have, how users write them, and the way between two."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shunter.allocator.devices.geometry import (
    LayoutError,
    Placement,
    Profile,
    diff,
    fault,
    layouts,
    maximal,
    parse,
    plain,
    text_of,
)
from shunter.allocator.devices.simulated.tables import MODELS

PROFILES = MODELS["a100-40gb"].profiles
USUAL = plain(PROFILES)

NVIDIAS_FIGURE = """
1g@0 1g@1 1g@2 1g@3 1g@4 1g@5 1g@6
1g@0 1g@1 1g@2 1g@3 2g@4 1g@6
1g@0 1g@1 1g@2 1g@3 3g@4
1g@0 1g@1 2g@2 1g@4 1g@5 1g@6
1g@0 1g@1 2g@2 2g@4 1g@6
1g@0 1g@1 2g@2 3g@4
2g@0 1g@2 1g@3 1g@4 1g@5 1g@6
2g@0 1g@2 1g@3 2g@4 1g@6
2g@0 1g@2 1g@3 3g@4
2g@0 2g@2 1g@4 1g@5 1g@6
2g@0 2g@2 2g@4 1g@6
2g@0 2g@2 3g@4
3g@0 1g@4 1g@5 1g@6
3g@0 2g@4 1g@6
3g@0 3g@4
4g@0 1g@4 1g@5 1g@6
4g@0 2g@4 1g@6
4g@0 3g@4
7g@0
"""


@pytest.mark.parametrize("model", MODELS)
def test_seven_slices_have_297_layouts_of_which_19_are_full_those_of_nvidias_figure(model):
    usual = plain(MODELS[model].profiles)
    assert len(layouts(usual)) == 297
    assert len(maximal(usual)) == 19
    assert set(maximal(usual)) == {parse(row, usual) for row in NVIDIAS_FIGURE.strip().splitlines()}


def test_layouts_are_those_that_the_rule_allows_and_no_other():
    few = tuple(profile for profile in PROFILES if profile.kind in ("2g", "3g", "1g.10gb"))
    places = [each for profile in few for each in profile.placements()]
    subsets = [
        frozenset(each for i, each in enumerate(places) if mask >> i & 1)
        for mask in range(1, 1 << len(places))
    ]
    allowed = {each for each in subsets if fault(each, PROFILES) is None}
    assert set(layouts(PROFILES, few)) == allowed
    assert len(layouts(PROFILES, few)) == len(allowed)


def test_full_means_that_nothing_can_be_added():
    places = [each for profile in USUAL for each in profile.placements()]
    full = {
        layout
        for layout in layouts(USUAL)
        if all(each in layout or fault(layout | {each}, USUAL) for each in places)
    }
    assert full == set(maximal(USUAL))


@pytest.mark.parametrize(
    ("text", "placed"),
    [
        ("4g,3g", "4g@0:4 3g@4:4"),
        ("3g", "3g@4:4"),  # at 0 it would take a compute slice from everybody
        ("3g 2g", "2g@0:2 3g@4:4"),
        ("1g,2g,4g", "4g@0:4 2g@4:2 1g@6:1"),
        ("1g", "1g@6:1"),
        ("3g.20gb@0:4", "3g@0:4"),
        ("1g.10gb,3g", "1g.10gb@0:2 3g@4:4"),
        ("1g.5gb+me@3", "1g.5gb+me@3:1"),
        ("none", "none"),
        ("2g@2,2g", "2g@0:2 2g@2:2"),
    ],
)
def test_users_write_kinds_and_get_the_best_places(text, placed):
    assert text_of(parse(text, PROFILES), PROFILES) == placed


def test_what_lies_somewhere_already_stays_there():
    current = parse("3g@0", PROFILES)
    assert text_of(parse("3g,1g", PROFILES, current), PROFILES) == "3g@0:4 1g@6:1"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "allowed: kinds of instances, as in 4g,3g, or none"),
        ("4g,4g", "2 x 4g do not fit"),
        ("7g,1g", "1 x 7g and 1 x 1g do not fit"),
        ("5g", "allowed: 1g, 1g.5gb+me, 1g.10gb, 2g, 3g, 4g, 7g"),
        ("3g@2", "3g may start at 0, 4"),
        ("4g@0:3", "4g may start at 0"),
        ("3g@4,2g@4", "at these places"),
    ],
)
def test_what_cannot_be_is_refused_with_what_is_allowed(text, told):
    with pytest.raises(LayoutError, match=re.escape(told)):
        parse(text, PROFILES)


@pytest.mark.parametrize(
    ("layout", "told"),
    [
        ([Placement(0, 4, 9), Placement(2, 2, 14)], "3g@0:4 and 2g@2:2 overlap"),
        ([Placement(0, 1, 77)], "no profile"),
        ([Placement(7, 1, 19)], "1g cannot lie at 7"),
        ([Placement(i, 1, 20) for i in (0, 1)], "2 x 1g.5gb+me are too many; allowed: 1"),
    ],
)
def test_a_fault_says_what_is_wrong(layout, told):
    assert told in fault(layout, PROFILES)


def test_compute_slices_are_counted_where_places_alone_would_allow_more():
    a = Profile(1, "3g", 3, ((0, 2),), 1)
    b = Profile(2, "2g", 2, ((2, 2),), 1)
    assert "5 compute slices are wanted, the GPU has 3" in fault(
        [Placement(0, 2, 1), Placement(2, 2, 2)], (a, b)
    )


ANY = st.sampled_from((frozenset(), *layouts(PROFILES)))


@given(ANY, ANY, st.data())
def test_a_change_leaves_what_both_have_and_makes_the_rest(current, target, data):
    unusable = frozenset(each for each in sorted(current) if data.draw(st.booleans()))
    change = diff(current, target, unusable)
    after = (current - set(change.destroy)) | set(change.create)
    assert after == target
    assert set(change.keep) == (current & target) - unusable
    assert not set(change.keep) & ({*change.destroy} | {*change.create})
    assert bool(change) == (current != target or bool(unusable))


@given(ANY)
def test_what_is_printed_can_be_read(layout):
    assert parse(text_of(layout, PROFILES), PROFILES) == layout
