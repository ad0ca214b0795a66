"""Which split of the cores is chosen for which load."""

import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from shunter.allocator.placement.core_load import Load, OnCores
from shunter.allocator.placement.core_split import decide
from shunter.allocator.placement.scoring import Weights
from shunter.allocator.placement.seats import Seat, moved

TWO = [(2,), (1, 1)]


def load(model, rate, strict=False, ms=10.0, speedup=1.5, slo=math.inf, fbr=0.0, most=2):
    """A model that takes ``ms`` on one core and gets faster by ``speedup`` with each doubling."""
    times = {n: ms / speedup ** math.log2(n) for n in range(1, most + 1)}
    return Load(model, strict, rate, {n: OnCores(t, 1e3 / t, fbr) for n, t in times.items()}, slo)


def chosen(*loads, splits=TWO, weights=None, current=()):
    return decide(splits, loads, weights or Weights(), current)


def test_best_effort_that_scales_badly_gets_a_core_of_its_own_while_the_slo_allows_it():
    found = chosen(load("s", 10, strict=True, slo=50), load("b", 1000))
    assert [seat.cores for seat in found.seats] == [1, 1]
    assert all("b" in seat.best_effort for seat in found.seats)
    assert found.outlook.missed < 0.01


def test_strict_work_that_one_core_makes_too_late_gets_all_of_them():
    found = chosen(load("s", 10, strict=True, slo=8), load("b", 1000))
    assert found.seats == (Seat(2, ("s",), ("b",)),)


def test_strict_work_that_is_too_much_for_a_core_is_on_both():
    found = chosen(load("s", 130, strict=True, slo=60, speedup=1.1), load("b", 1000))
    assert found.seats == (Seat(1, ("s",), ("b",)),) * 2


def test_little_best_effort_is_on_the_fewest_and_smallest_sets():
    loads = load("s", 20, True, slo=100, speedup=1.05, most=4), load("b", 5, most=4)
    seats = chosen(*loads, splits=[(3, 1), (2, 2), (4,)]).seats
    assert [seat for seat in seats if "b" in seat.best_effort] == [Seat(1, (), ("b",))]
    assert seats[0].strict == ("s",)


def test_what_little_is_gained_is_not_worth_a_change():
    loads = load("s", 10, strict=True, slo=50), load("b", 1000)
    there = chosen(*loads).seats
    other = (Seat(2, ("s",), ("b",)),)
    assert there != other
    assert chosen(*loads, weights=Weights(moved=1.0), current=other).seats == other
    assert moved(other, there) == 1
    assert moved(other, other) == moved((), other) == 0


PAIR = (Seat(2, ("a",)), Seat(2, ("b",)))


@given(
    st.lists(st.tuples(st.floats(0.9, 1.1), st.floats(0.9, 1.1)), min_size=1, max_size=3),
    st.sampled_from([PAIR, PAIR[::-1]]),
)
def test_rates_that_are_about_equal_never_change_places(rates, current):
    splits = [(2, 2), (4,), (3, 1), (2, 1, 1), (1, 1, 1, 1)]
    for a, b in rates:
        loads = [
            load(m, 60 * r, True, slo=60, speedup=1.4, most=4) for m, r in (("a", a), ("b", b))
        ]
        assert chosen(*loads, splits=[(2, 2)], current=current).seats == current
        current_of_all = chosen(*loads, splits=splits, current=current).seats
        assert chosen(*loads[::-1], splits=splits, current=current_of_all).seats == current_of_all


@given(st.permutations(["a", "b", "c"]), st.floats(0.98, 1.02))
def test_neither_rank_nor_order_of_names_is_a_difference(names, factor):
    loads = [load(m, 10 * factor**at, True, slo=80) for at, m in enumerate(names)]
    loads.append(load("x", 100))
    first = chosen(
        load("a", 10, True, slo=80), *(load(m, 10, True, slo=80) for m in "bc"), loads[3]
    )
    assert all(list(seat.strict) == sorted(seat.strict) for seat in chosen(*loads).seats)
    assert chosen(*loads, current=first.seats).seats == first.seats


def test_of_equal_sets_everybody_keeps_his_own():
    before = (Seat(1, ("b",)), Seat(1, ("a", "c")))
    assert moved(before, (Seat(1, ("a", "c")), Seat(1, ("b",)))) == 1
    loads = [load(m, 1, True, slo=30) for m in "abc"] + [load("x", 500)]
    current = tuple(Seat(1, seat.strict, ("x",)) for seat in before)
    assert chosen(*loads, splits=[(1, 1)], current=current).outlook.moved <= 0.25


def test_who_comes_does_not_make_the_others_change_equal_sets():
    loads = load("s", 10, True, slo=50), load("b", 5), load("x", 5)
    current = Seat(1, (), ("b",)), Seat(1, ("s",))
    found = chosen(*loads, splits=[(1, 1)], current=current)
    assert found.seats == (Seat(1, (), ("b", "x")), Seat(1, ("s",)))
    assert found.outlook.moved == 0


def test_a_place_is_left_for_a_better_one_or_when_the_model_has_changed_its_class():
    loads = load("s", 10, True, slo=8), load("b", 1000)  # one core makes it too late
    apart = (Seat(1, ("s",), ("b",)), Seat(1, (), ("b",)))
    assert chosen(*loads, current=apart).seats == (Seat(2, ("s",), ("b",)),)
    was_strict = (Seat(2, ("b", "s")),)
    assert chosen(*loads, current=was_strict).seats == (Seat(2, ("s",), ("b",)),)


def test_what_is_waited_for_is_not_exchanged_for_one_that_is_hardly_better():
    loads = load("s", 10, True, slo=50), load("b", 1)
    best = decide([(1, 1)], loads, Weights()).seats
    like = (Seat(1, ("s",), ("b",)), Seat(1, (), ("b",)))
    assert like != best
    assert decide([(1, 1)], loads, Weights(), awaited=like).seats == like
    late = (Seat(1, ("s",), ("b",)),)
    slow = load("s", 95, True, slo=50), load("b", 1)
    assert decide([(1, 1)], slow, Weights(), awaited=late).seats != late


def test_models_that_crowd_the_memory_are_kept_apart_in_time():
    """On sets of their own both would run at once; on one set best effort stands still."""
    calm = load("s", 30, True, slo=50, fbr=0.5), load("b", 1000, fbr=0.5)
    assert len(chosen(*calm).seats) == 2
    rough = load("s", 30, True, slo=15, fbr=1, speedup=1.9), load("b", 1000, fbr=1)
    assert len(chosen(*rough).seats) == 1


@given(st.floats(1, 50), st.floats(1, 50), st.floats(0, 2), st.floats(0, 2))
def test_batches_get_longer_with_the_load_and_never_by_leaps(one, full, rho, more):
    on = OnCores(one, 100.0, full_ms=full)
    assert on.expected_ms(0) == one
    assert on.expected_ms(1) == pytest.approx(max(one, full))
    step = on.expected_ms(rho + more) - on.expected_ms(rho)
    assert -1e-9 <= step <= more * 50 + 1e-9


def test_without_one_of_the_classes_the_other_has_everything():
    assert chosen(load("b", 10)).seats[0].best_effort == ("b",)
    assert chosen(load("s", 10, True, slo=50)).seats[0].strict == ("s",)
    with pytest.raises(ValueError, match="no split"):
        chosen(load("s", 10, True), splits=[])


@given(
    st.lists(st.tuples(st.booleans(), st.floats(0, 500), st.floats(1, 2)), min_size=1, max_size=4)
)
@example([(False, 96.0, 1.0), (False, 393.0, 1.0)])  # the most there is, and rounding
def test_everybody_has_a_place(drawn):
    loads = [load(f"m{i}", r, s, speedup=f, slo=40) for i, (s, r, f) in enumerate(drawn)]
    found = chosen(*loads)
    assert sum(seat.cores for seat in found.seats) <= 2
    for each in loads:
        seats = (x.strict if each.is_strict else x.best_effort for x in found.seats)
        assert any(each.model in models for models in seats)
    assert 0 <= found.outlook.missed <= 1
    # Two sets with a core each do at most this much of what both cores do as one set.
    most = max((2 / f for is_strict, _, f in drawn if not is_strict), default=1)
    assert 1 - most - 1e-9 <= found.outlook.unserved <= 1 + 1e-9
