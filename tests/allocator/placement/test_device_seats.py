"""Who sits on which instance of a GPU, and which instances there should be."""

from itertools import pairwise
from types import SimpleNamespace

import pytest

from shunter.allocator.placement.device_seats import (
    Device,
    Guest,
    LayoutPolicy,
    MemoryNeed,
    seats,
)

GIB = 1 << 30
SIZES = {
    "7g": (1.0, 1.0, 40),
    "4g": (4 / 7, 0.5, 20),
    "3g": (3 / 7, 0.5, 20),
    "2g": (2 / 7, 0.25, 10),
}
SIZES["1g"] = (1 / 7, 0.125, 5)
MEMORY = {kind: size[2] * GIB for kind, size in SIZES.items()}


def place(name, kind):
    compute, bandwidth, gib = SIZES[kind]
    return SimpleNamespace(
        name=name, kind=kind, compute=compute, bandwidth=bandwidth, memory_bytes=gib * GIB
    )


FOUR_THREE = [place("A", "4g"), place("B", "3g")]
FOUR_TWO_ONE = [place("A", "4g"), place("C", "2g"), place("D", "1g")]
STRICT, BULK, MORE = Guest("s", True, 1), Guest("b", False, 1), Guest("m", False, 1)


@pytest.mark.parametrize(
    ("guests", "places", "expected"),
    [
        ([STRICT, BULK], FOUR_THREE, {"s": ("A",), "b": ("B",)}),
        ([STRICT, BULK, MORE], FOUR_TWO_ONE, {"s": ("A",), "b": ("D",), "m": ("D",)}),
        ([BULK, STRICT], [place("A", "7g")], {"s": ("A",), "b": ("A",)}),
        ([STRICT], [], {"s": ()}),
        ([Guest("b", False, 2, 4 * GIB)], FOUR_TWO_ONE, {"b": ("C", "D")}),
        ([Guest("b", False, 1, 30 * GIB)], FOUR_THREE, {"b": ()}),
        ([Guest("s", True, 3)], FOUR_THREE, {"s": ("A", "A", "A")}),
    ],
)
def test_best_effort_is_on_the_smallest_strict_where_it_is_slowed_down_least(
    guests, places, expected
):
    assert seats(guests, places) == expected


def test_whoever_may_stay_does_and_the_others_find_room_beside():
    kept = Guest("b", False, 1, now=("A",))
    lost = Guest("s", True, 1, now=("gone",))
    assert seats([kept, lost], FOUR_THREE, stay=True) == {"b": ("A",), "s": ("A",)}
    assert seats([kept, lost], FOUR_THREE) == {"b": ("B",), "s": ("A",)}


def test_memory_of_those_who_stay_is_taken():
    kept = Guest("b", False, 1, 15 * GIB, now=("A",))
    lost = Guest("m", False, 1, 15 * GIB)
    assert seats([kept, lost], FOUR_THREE, stay=True)["m"] == ("B",)
    assert seats([kept, lost], FOUR_THREE[:1], stay=True)["m"] == ()


@pytest.mark.parametrize(
    ("now", "shut", "expected"),
    [
        # All others have their best seats.
        (("A", "gone"), "A", {"b": ("A",), "s": ("B",)}),
        (("A", "A"), "B", {"b": ("A",), "s": ("A",)}),
        (("A", "B"), "AB", {"b": ("A",), "s": ("B",)}),
        (("gone", "gone"), "AB", {"b": (), "s": ()}),
    ],
)
def test_where_a_gpu_is_not_whole_everybody_stays_and_nobody_comes(now, shut, expected):
    guests = [Guest("b", False, 1, now=now[:1]), Guest("s", True, 1, now=now[1:])]
    assert seats(guests, FOUR_THREE, shut=shut) == expected


def look(policy, batches, *layouts):
    devices = [Device(f"g{i}", layout, MEMORY) for i, layout in enumerate(layouts)]
    policy = policy.after(devices, batches, 4 * GIB)
    return policy, policy.wanted


def test_a_layout_changes_when_another_one_was_wanted_often_enough():
    policy, found = LayoutPolicy(wait=2), {}
    for expected in ({}, {}, {"g0": ("4g", "1g", "2g")}):
        policy, found = look(policy, 2, ("4g", "3g"))
        assert found == expected
    assert look(policy, 2, ("4g", "2g", "1g"))[1] == {}


def test_too_much_best_effort_gets_the_fallback_and_one_gpu_changes_at_a_time():
    policy, found = look(LayoutPolicy(wait=0), 60, ("7g",), ("7g",))
    assert found == {"g0": ("4g", "3g")}
    assert look(policy, 60, ("4g", "3g"), ("7g",))[1] == {"g1": ("4g", "3g")}


@pytest.mark.parametrize("wait", [0, 1])
def test_a_gpu_that_cannot_be_changed_lets_the_next_one_begin(wait):
    policy, found = LayoutPolicy(wait=wait), []
    for _ in range(4):
        policy, wanted = look(policy, 60, ("7g",), ("7g",), ("7g",))
        found.append([*wanted])
    assert found[-1] == ["g0", "g1", "g2"][: 4 - wait]
    assert all(len(after) - len(before) <= 1 for before, after in pairwise(found))


@pytest.mark.parametrize(
    ("layout", "batches", "wanted"),
    [
        # The change was undone: it stays wanted as long as the load is such.
        (("4g", "3g"), [2, 2, 2], [("4g", "1g", "2g")] * 3),
        (("4g", "3g"), [2, 60, 0], [("4g", "1g", "2g"), None, None]),
        (("7g",), [2, 60], [("4g", "1g", "2g"), ("4g", "3g")]),
    ],
)
def test_what_is_right_as_it_is_is_not_to_change_any_more(layout, batches, wanted):
    policy, found = LayoutPolicy(wait=0), []
    for count in batches:
        policy = policy.after([Device("g", layout, MEMORY)], count, 4 * GIB)
        found.append(policy.wanted.get("g"))
    assert found == wanted


def test_what_could_not_be_made_stays_wanted_while_something_else_is_waited_for():
    policy, found = look(LayoutPolicy(wait=1), 2, ("7g",))
    policy, found = look(policy, 2, ("7g",))
    assert found == {"g0": ("4g", "1g", "2g")}
    assert look(policy, 60, ("7g",))[1] == found


def test_a_gpu_that_is_parted_otherwise_than_in_the_paper_is_left_alone():
    device = Device("g", ("2g",), {"1g": 1, "2g": 2, "4g": 4})
    assert LayoutPolicy(wait=0).after([device], 1, GIB).wanted == {}


@pytest.mark.parametrize(
    ("looks", "seen"),
    [
        ([(5, 40), (3, 40)], 5),
        ([(5, 40), (0, 0)], 5),
        ([(15, 20), (9, 20), (16, 20)], 16),
        ([(30, 40), (6, 20)], 6),
        ([(30, 40), (0, 20)], 30),
        ([(30, 40), (6, 20), (30, 40), (0, 0)], 30),
    ],
)
def test_what_an_instance_takes_is_the_most_that_was_seen_where_there_is_no_more_room(looks, seen):
    memory = MemoryNeed()
    for used, room in looks:
        memory.look(used, room)
    assert memory.seen_bytes == seen


@pytest.mark.parametrize(("seen", "largest", "needed"), [(30, 20, 20), (6, 20, 6), (30, 0, 30)])
def test_what_an_instance_needs_is_no_more_than_the_largest_device_has(seen, largest, needed):
    assert MemoryNeed(seen_bytes=seen).plan(largest, 0) == needed
