"""Procurement by tables, and against a market that fails, is slow, and takes machines away."""

import random
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shunter.allocator.cluster.procurement import (
    Acquire,
    Drain,
    Kind,
    Owned,
    Phase,
    Procurement,
    Release,
    Rules,
)

SPOT, SAFE = Kind.SPOT, Kind.ON_DEMAND
LIVE, STARTING, DRAINING = Phase.LIVE, Phase.STARTING, Phase.DRAINING


def owned(name, kind=SPOT, phase=LIVE, since=0.0, **others):
    return Owned(name, kind, phase, since, **others)


def step(machines, wanted, now=0.0, failed=None, rules=None):
    return Procurement(rules or Rules()).step(now, machines, wanted, failed)[1]


def test_spot_first():
    assert step([], 3) == [Acquire(SPOT, 3)]
    assert step([owned("a"), owned("b", phase=STARTING)], 3) == [Acquire(SPOT, 1)]


def test_on_demand_when_spot_has_failed_and_nothing_when_both_have():
    assert step([], 3, failed={SPOT: 3}) == [Acquire(SAFE, 3)]
    assert step([], 3, failed={SPOT: 3, SAFE: 1}) == []


def test_one_kind_only_and_some_that_nobody_takes_away():
    assert step([], 3, rules=Rules(only=SAFE)) == [Acquire(SAFE, 3)]
    assert step([], 3, rules=Rules(only=SPOT), failed={SPOT: 1}) == []
    base = Rules(on_demand_least=2)
    assert step([], 3, rules=base) == [Acquire(SAFE, 2), Acquire(SPOT, 1)]
    assert step([owned("a", SAFE), owned("b", SAFE), owned("c")], 2, rules=base) == [
        Drain("c", "not needed")
    ]
    assert step([], 3, rules=Rules(only=SPOT, on_demand_least=2)) == [Acquire(SPOT, 3)]


def test_a_machine_whose_end_is_announced_is_replaced_at_once_and_serves_until_it_is():
    going = owned("a", ends_at=120.0)
    assert step([going, owned("b")], 2) == [Acquire(SPOT, 1)]
    assert step([going, owned("b"), owned("c", phase=STARTING)], 2) == []
    assert step([going, owned("b"), owned("c")], 2) == [
        Drain("a", "its end was announced, and it is replaced")
    ]


def test_it_is_drained_in_time_even_when_nothing_replaces_it():
    going = owned("a", ends_at=120.0, work=3.0)
    waiting = [going, owned("b", phase=STARTING, since=90.0)]
    assert step(waiting, 1, now=104.0) == []
    assert step(waiting, 1, now=105.0) == [Drain("a", "its end is near")]


def test_only_a_drained_machine_without_work_is_released():
    busy = owned("a", phase=DRAINING, work=0.5)
    assert step([busy, owned("b")], 1) == []
    assert step([replace(busy, work=0.0), owned("b")], 1) == [Release("a", "it has no work left")]


def test_what_does_not_start_is_given_up_and_the_other_kind_asked_for():
    slow = owned("a", phase=STARTING)
    assert step([slow], 1, now=300.0) == []
    assert step([slow], 1, now=301.0) == [
        Acquire(SAFE, 1),
        Release("a", "it did not start in time"),
    ]
    taken = replace(slow, ends_at=60.0)
    assert Release("a", "its end was announced") in step([taken], 1, now=1.0)


def test_what_is_dear_and_what_has_least_work_goes_first():
    machines = [owned("a", work=9.0), owned("b", work=1.0), owned("c", SAFE, work=5.0)]
    assert [each.name for each in step(machines, 1)] == ["c", "b"]


def test_back_to_spot_a_part_at_a_time_when_there_is_spot_again():
    machines = [owned(f"m{at}", SAFE) for at in range(20)]
    assert step(machines, 20) == [Acquire(SPOT, 2)]
    assert step(machines, 20, failed={SPOT: 1}) == []
    assert step([*machines, owned("s", phase=STARTING)], 20) == [Acquire(SPOT, 1)]
    assert step([*machines, owned("s", phase=STARTING), owned("t", phase=STARTING)], 20) == []
    assert step(machines[1:], 20) == [Acquire(SPOT, 3)]
    came = [*machines, owned("s"), owned("t")]
    assert [type(each) for each in step(came, 20)] == [Drain, Drain]
    assert step(machines, 20, rules=Rules(only=SAFE)) == []
    assert step(machines, 20, rules=Rules(on_demand_least=20)) == []


def test_the_base_is_made_good_when_spot_had_to_stand_in_for_it():
    rules, machines = Rules(on_demand_least=2), [owned("a", SAFE), owned("b")]
    assert step(machines, 2, rules=rules) == [Acquire(SAFE, 1)]
    assert step(machines, 2, rules=rules, failed={SAFE: 1}) == []
    assert step([*machines, owned("c", SAFE)], 2, rules=rules) == [Drain("b", "not needed")]


def test_a_kind_that_fails_again_and_again_is_asked_for_ever_less_often():
    state, asked, failed = Procurement(Rules(only=SPOT, retry_most_s=500.0)), [], 0
    for now in range(2000):
        state, actions = state.step(float(now), [], 1, {SPOT: failed})
        asked += [now] * len(actions)
        failed = len(actions)
    assert asked == [0, 61, 182, 423, 904, 1405, 1906]
    came = [owned("a", since=1950.0)]
    assert state.step(2000.0, came, 1)[0].supply[SPOT].failures == 0


class Market:
    """Machines as a cloud gives them, drawn at random: requests fail, starts take long or for ever,
    spot machines are taken after a notice.
    """

    def __init__(self, seed, bad_until, notice_s):
        self.draw, self.bad_until, self.notice_s = random.Random(seed), bad_until, notice_s
        self.machines, self.failed, self.count, self.lost = {}, Counter(), 0, 0
        self.starts, self.log = {}, []

    def act(self, now, actions):
        self.failed = Counter()
        for each in actions:
            self.log.append((now, each))
            match each:
                case Acquire(kind, count):
                    for _ in range(count):
                        self.acquire(now, kind)
                case Drain(name):
                    assert self.machines[name].phase == LIVE
                    self.machines[name] = replace(
                        self.machines[name], phase=DRAINING, since=now
                    )
                case Release(name):
                    assert self.machines[name].work == 0
                    del self.machines[name]

    def acquire(self, now, kind):
        bad = now < self.bad_until
        if bad and self.draw.random() < (0.6 if kind == SPOT else 0.2):
            self.failed[kind] += 1
            return
        self.count += 1
        name = f"m{self.count}"
        self.machines[name] = owned(name, kind, STARTING, now)
        self.starts[name] = now + (9e9 if bad and self.draw.random() < 0.1 else 60)

    def pass_time(self, now):
        for name, each in list(self.machines.items()):
            if each.phase == STARTING and now >= self.starts[name]:
                each = replace(each, phase=LIVE, since=now, work=1.0)
            if each.phase == DRAINING:
                each = replace(each, work=max(0.0, each.work - self.draw.choice([0.0, 0.2])))
            wants_back = now < self.bad_until and self.draw.random() < 0.02
            if each.kind == SPOT and each.ends_at is None and wants_back:
                each = replace(each, ends_at=now + self.notice_s)
            self.machines[name] = each
            if each.ends_at is not None and now >= each.ends_at:
                self.lost += each.phase == LIVE
                del self.machines[name]


@given(
    seed=st.integers(0, 10**6),
    wanted=st.lists(st.integers(0, 12), min_size=1, max_size=4),
    notice_s=st.sampled_from([30.0, 120.0]),
    least=st.integers(0, 3),
)
def test_as_many_serve_as_are_wanted_once_they_can_be_had_and_then_all_is_quiet(
    seed, wanted, notice_s, least
):
    market, state = Market(seed, 1500.0, notice_s), Procurement(Rules(on_demand_least=least))
    for now in range(0, 6000, 10):
        market.pass_time(now)
        target = wanted[min(now // 400, len(wanted) - 1)]
        state, actions = state.step(now, list(market.machines.values()), target, market.failed)
        market.act(now, actions)
    assert market.lost == 0
    serving = Counter(each.kind for each in market.machines.values())
    assert {each.phase for each in market.machines.values()} <= {LIVE}
    assert serving.total() == target
    assert serving[SAFE] == min(least, target)
    assert not [each for each in market.log if each[0] > 4500]


@pytest.mark.parametrize("kind", Kind)
def test_no_machine_is_drained_to_be_acquired_again_in_a_quiet_market(kind):
    market, state = Market(1, 0.0, 30.0), Procurement(Rules(only=kind))
    for now in range(0, 3000, 5):
        market.pass_time(now)
        state, actions = state.step(now, list(market.machines.values()), 8, market.failed)
        market.act(now, actions)
    assert market.log == [(0, Acquire(kind, 8))]
