import math
import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shunter.allocator.cluster.load import Fit, Live, Machine, ModelState, SliceLoad
from shunter.allocator.cluster.routing import Refusal, Request, Route, Router

QUICK = ModelState(Fit(0.01, 0.002))


def machine(name, waits=0.0, model=QUICK, **others):
    return Machine(name, {"m": model}, (SliceLoad(strict_s=waits),), **others)


def router(*machines, **how):
    found = Router(random.Random(1), **how)
    for each in machines:
        found.publish(each)
    return found


def strict(deadline_s=math.inf, tried=()):
    return Request("m", True, deadline_s, frozenset(tried))


BEST_EFFORT = Request("m", False)


def test_strict_goes_where_it_ends_first():
    found = router(machine("a", 0.3), machine("b", 0.1)).choose(strict())
    assert found == Route("b", "", pytest.approx(0.1 + 0.012))


def test_a_hot_model_is_worth_a_queue_shorter_than_the_swap():
    cold = machine("cold", 0.0, ModelState(QUICK.fit, swap_s=0.2))
    assert router(cold, machine("hot", 0.1)).choose(strict()).machine == "hot"
    assert router(cold, machine("hot", 0.3)).choose(strict()).machine == "cold"


def test_the_few_that_have_a_model_hot_are_found_among_many():
    cold = [machine(f"c{at}", 0.0, ModelState(QUICK.fit, swap_s=2.0)) for at in range(200)]
    found = router(*cold, machine("hot", 0.1))
    assert [found.choose(strict()).machine for _ in range(20)] == ["hot"] * 20


def test_a_slice_is_named_and_bandwidth_and_size_count():
    model = ModelState(Fit(0.1, 0.0), fbr=0.8)
    slices = (
        SliceLoad("small", compute=1 / 7, rdf=2.0),
        SliceLoad("shared", compute=3 / 7, fbr=0.8),
        SliceLoad("large", compute=3 / 7, strict_s=0.05),
    )
    found = router(Machine("a", {"m": model}, slices))
    assert found.choose(strict()) == Route("a", "large", pytest.approx(0.15))
    assert found.choose(BEST_EFFORT).slice == "small"


def test_best_effort_that_has_to_give_way_first_counts_for_strict():
    slow = Machine("a", {"m": QUICK}, (SliceLoad(best_effort_s=1.0, gives_way_s=0.5),))
    soon = Machine("b", {"m": QUICK}, (SliceLoad(best_effort_s=1.0, gives_way_s=0.1),))
    assert router(slow, soon).choose(strict()).machine == "b"


def test_best_effort_is_packed_onto_machines_of_low_order_until_they_are_full():
    found = router(*(machine(name, order=at) for at, name in enumerate("cab")), room_s=0.1)
    went = [found.choose(BEST_EFFORT).machine for _ in range(25)]
    assert went == sorted(went, key="cab".index)
    counts = Counter(went)
    assert set(counts) == {"c", "a", "b"}
    assert counts["c"] == counts["a"] > counts["b"]


def test_best_effort_keeps_away_from_where_strict_works():
    busy = Machine("a", {"m": QUICK}, (SliceLoad(strict_s=0.3, strict_share=0.6),), order=0)
    assert router(busy, machine("b", order=1)).choose(BEST_EFFORT).machine == "b"


def test_where_nobody_has_room_best_effort_goes_where_it_ends_first():
    found = router(machine("a", 3.0), machine("b", 2.0), room_s=0.1)
    assert found.choose(BEST_EFFORT).machine == "b"


def test_a_draining_machine_and_one_that_was_tried_get_nothing():
    found = router(machine("a", 0.5), machine("b", is_draining=True), machine("c"))
    assert {found.choose(strict()).machine for _ in range(9)} == {"c"}
    assert found.choose(strict(tried="c")).machine == "a"
    assert found.choose(Request("m", False, tried=frozenset("c"))).machine == "a"
    found.remove("c")
    assert found.choose(strict()).machine == "a"
    found.publish(machine("b"))
    assert found.choose(strict()).machine == "b"


def test_a_refusal_says_why():
    caution = ModelState(Fit(0.01, 0.002, caution_s=0.05))
    found = router(machine("a", 0.3), machine("b", 0.1, caution), machine("z", is_draining=True))
    late = found.choose(strict(0.15))
    assert late == Refusal(
        "no machine would answer model 'm' within 150.0 ms: the best, 'b', in 112.0 ms,"
        " and 50.0 ms to be sure",
        pytest.approx(0.112),
    )
    assert "every machine that has model 'm' was tried" in found.choose(strict(tried="ab")).reason
    assert found.choose(Request("x", True)).reason == "none of 3 machines has model 'x'"
    found.remove("a")
    found.remove("b")
    found.remove("never there")
    assert found.choose(strict()).reason == "every machine that has model 'm' is draining (1)"


def test_what_was_sent_counts_until_the_machine_publishes():
    found = router(machine("a"), machine("b", 0.02))
    went = [found.choose(strict()).machine for _ in range(6)]
    assert set(went) == {"a", "b"}
    found.publish(machine("a"))
    assert found.choose(strict()) == Route("a", "", pytest.approx(0.012))


def test_the_load_of_drawn_machines_is_even():
    names = [f"m{at}" for at in range(50)]
    found = router(*map(machine, names))
    counts = Counter(found.choose(strict()).machine for _ in range(5000))
    assert max(counts.values()) <= 1.1 * 100


SECONDS = st.integers(0, 20).map(lambda each: each / 100)
STATES = st.builds(ModelState, st.builds(Fit, SECONDS, SECONDS, SECONDS), SECONDS)
SLICES = st.builds(
    SliceLoad,
    st.sampled_from("xy"),
    strict_s=SECONDS,
    best_effort_s=SECONDS,
    gives_way_s=SECONDS,
    strict_share=st.sampled_from([0.0, 0.5, 1.0]),
)
MACHINES = st.builds(
    Machine,
    st.sampled_from("abcdefgh"),
    st.dictionaries(st.sampled_from("mn"), STATES, max_size=2),
    st.lists(SLICES, max_size=2, unique_by=lambda each: each.name).map(tuple),
    order=st.integers(0, 2),
    is_draining=st.booleans(),
)
REQUESTS = st.builds(
    Request,
    st.sampled_from("mno"),
    st.booleans(),
    st.one_of(SECONDS, st.just(math.inf)),
    st.frozensets(st.sampled_from("abc")),
)
STEPS = st.lists(st.one_of(MACHINES, st.sampled_from("abcdefgh"), REQUESTS), max_size=40)


def soonest(live, request):
    """By looking at all: the least number of seconds, and with what makes it sure."""
    ends = []
    for each in live.values():
        state = each.machine.models.get(request.model)
        if state and not each.machine.is_draining and each.machine.name not in request.tried:
            end = each.soonest(state, strict=request.is_strict)[0]
            ends.append(end + state.fit.caution_s)
    return min(ends, default=math.inf)


@given(STEPS, st.integers(0, 99))
def test_a_request_is_refused_if_and_only_if_no_machine_would_answer_in_time(steps, seed):
    found, live = Router(random.Random(seed), choices=1, room_s=0.1), {}
    for step in steps:
        if isinstance(step, Machine):
            found.publish(step)
            live[step.name] = Live(step)
        elif isinstance(step, str):
            found.remove(step)
            live.pop(step, None)
        else:
            best = soonest(live, step)
            route = found.choose(step)
            if isinstance(route, Refusal):
                assert route.reason
                assert best > step.deadline_s or best == math.inf
                continue
            assert best <= step.deadline_s
            assert route.machine not in step.tried
            chosen = live[route.machine]
            assert not chosen.machine.is_draining
            state = chosen.machine.models[step.model]
            at = [each.name for each in chosen.machine.slices].index(route.slice)
            assert route.predicted_s == chosen.ends(state, strict=step.is_strict)[at]
            assert route.predicted_s + state.fit.caution_s <= step.deadline_s
            chosen.send(state, at, strict=step.is_strict)
    assert {each.name for each in found.machines} == set(live)


@pytest.mark.parametrize("overloaded", [False, True])
def test_a_decision_among_many_machines_looks_at_few(overloaded, monkeypatch):
    looked = Counter()
    real = Live.soonest

    def counted(self, model, *, strict):
        looked[self.machine.name] += 1
        return real(self, model, strict=strict)

    counts = []
    for size in (16, 1024):
        found = router(*(machine(f"m{at}", 0.1) for at in range(size)))
        found.choose(strict())
        monkeypatch.setattr(Live, "soonest", counted)
        looked.clear()
        for _ in range(100):
            found.choose(strict(0.05 if overloaded else math.inf))
        monkeypatch.undo()
        counts.append(looked.total())
    assert counts[1] <= 2 * counts[0] <= 2000
