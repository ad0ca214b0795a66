"""Which models are placed on which cores when: numbers in, wanted configurations out."""

import dataclasses

import pytest

from shunter.allocator.cpus.topology import Cpu, Topology
from shunter.allocator.planning.profile import Cell, Profile, Provenance
from shunter.batching.page.layout import ChangeState
from shunter.batching.page.records import (
    Commands,
    GroupCommands,
    GroupTelemetry,
    SlotChange,
    SlotCommands,
    SlotIdentity,
)
from shunter.batching.page.slices import ALL_CPUS, of_cpus
from shunter.plugins.control.fixed_policy import with_configuration
from shunter.plugins.control.observed import Observed
from shunter.plugins.control.placement import Placement
from shunter.plugins.control.reconfiguration import Reconfiguration
from shunter.plugins.control.settings import ConfigurationSettings, PlacementSettings

SECOND, MIB = 10**9, 1 << 20
STRICT, BEST_EFFORT = 0, 1
SLOW = {(1, 1): 10.0, (1, 8): 70.0, (2, 1): 9.0, (2, 8): 60.0}
"""Hardly faster on two threads than on one: two instances do most."""


FAST = {(1, 1): 10.0, (1, 8): 70.0, (2, 1): 7.0, (2, 8): 40.0}


def profile(cells):
    measured = {
        key: Cell(*key, ms, ms, ms, runs=9, peak_bytes=100 * MIB) for key, ms in cells.items()
    }
    where = Provenance("m", "hash", "cpu", 2, "2.0", "sample")
    return Profile(where, 2, 8, "adaptive", measured)


def two_cpus():
    return Topology(tuple(Cpu(id=i, physical=i, node=0) for i in range(2)))


class World:
    """A server with a strict and a best-effort model that does at once what is wanted."""

    def __init__(self, slo_ms=100, **settings):
        self.placement = Placement(two_cpus, PlacementSettings(auto=True, interval_s=1, **settings))
        self.policy = Reconfiguration(
            lambda: [2],
            lambda: 10_000 * MIB,
            ConfigurationSettings(timeout_s=1, alpha=1, window=1),
            self.placement,
        )
        self.now = 0
        self.obeys = True
        self.slo_ms = slo_ms
        self.slots = {}
        for slot in (STRICT, BEST_EFFORT):
            self.add(slot)

    def add(self, slot, of=None, auto=1):
        group = GroupTelemetry(
            group_instances=1,
            group_threads=2,
            group_cap=8,
            group_yields=int(slot != STRICT),
            group_slices=ALL_CPUS,
        )
        self.slots[slot] = {
            "identity": SlotIdentity(
                model_name=f"m{slot}",
                model_version="1",
                slot_state=1,
                auto=auto,
                registered_batch_size=8,
                slo_us=self.slo_ms * 1000,
            ),
            "groups": [group],
            "change": SlotChange(0, ChangeState.NONE),
            "arrivals": 0,
            "rate": 0,
            "depth": 1,
            "profile": of or profile(SLOW),
        }

    def run(self, seconds, **rates):
        for name, rate in rates.items():
            self.slots[{"strict": STRICT, "best_effort": BEST_EFFORT}[name]]["rate"] = rate
        for _ in range(2 * seconds):
            self.now += SECOND // 2
            for state in self.slots.values():
                state["arrivals"] += state["rate"] // 2
            self.policy.observe(
                {slot: self.observed(state) for slot, state in self.slots.items()},
                dict.fromkeys(self.slots, 0),
                self.now,
            )
            for slot, state in self.slots.items():
                self.obey(self.policy.wanted(slot), state)

    @staticmethod
    def observed(state):
        return Observed(
            state["identity"],
            state["depth"],
            lambda: state["groups"],
            state["change"],
            state["profile"],
            arrivals=state["arrivals"],
        )

    def obey(self, wanted, state):
        if not self.obeys or not wanted or wanted.request == state["change"].change_request:
            return
        places = [each.cpus for each in wanted.slices] or [0] * len(wanted.groups)
        state["groups"] = [
            dataclasses.replace(
                state["groups"][0],
                group_instances=g.instances,
                group_threads=g.threads,
                group_cap=g.batch,
                group_slices=cpus or ALL_CPUS,
            )
            for g, cpus in zip(wanted.groups, places, strict=True)
        ]
        state["change"] = SlotChange(wanted.request, ChangeState.SERVES)

    def places(self, slot):
        return self.observed(self.slots[slot]).places


@pytest.fixture
def world():
    return World()


def test_the_split_follows_the_load_both_ways():
    world = World(slo_ms=50)
    world.slots[STRICT]["profile"] = profile(FAST)
    world.run(10, strict=30, best_effort=1000)
    assert {*world.places(STRICT), *world.places(BEST_EFFORT)} == {of_cpus([0]), of_cpus([1])}
    assert len(world.policy.wanted(BEST_EFFORT).slices) == 2
    world.run(20, strict=180)
    assert world.placement.seats == ()
    assert not any(world.places(STRICT) + world.places(BEST_EFFORT))
    before = world.policy.wanted(STRICT).request
    world.run(20)
    assert world.policy.wanted(STRICT).request == before  # and then it is quiet


def test_one_look_is_no_reason_for_a_change(world):
    world.run(2, strict=10, best_effort=1000)
    assert world.places(STRICT) == world.places(BEST_EFFORT) == [0]
    assert world.placement.seats == ()


def test_a_model_has_its_workers_where_it_is_to_run_first_in_front():
    world = World(slo_ms=35)
    world.run(10, strict=10, best_effort=1000)
    wanted = world.policy.wanted(BEST_EFFORT)
    assert [preference for preference, _ in wanted.preferences] == sorted(
        preference for preference, _ in wanted.preferences
    )
    assert wanted.pin is False
    commands = with_configuration(Commands(SlotCommands(), (GroupCommands(),)), wanted)
    assert tuple(group.wanted_cpus for group in commands.groups) == tuple(
        where.cpus for where in wanted.slices
    )
    assert [group.preference for group in commands.groups] == list(wanted.preferences)


@pytest.mark.parametrize("change", ["auto", "profile", "class", "settings"])
def test_where_it_may_not_decide_everybody_is_free_again(world, change):
    world.run(10, strict=10, best_effort=1000)
    assert any(world.places(STRICT))
    if change == "settings":
        world.placement.settings = PlacementSettings(auto=False)
    elif change == "class":
        del world.slots[BEST_EFFORT]
    else:
        world.add(7, auto=int(change != "auto"))
        if change == "profile":
            world.slots[7]["profile"] = None
    world.run(20, strict=10)
    assert world.placement.seats == ()
    assert not any(any(world.places(slot)) for slot in world.slots)


def test_a_model_that_comes_is_placed_at_the_next_look(world):
    world.run(10, strict=10, best_effort=1000)
    world.add(2)
    strict = world.policy.wanted(STRICT).request
    world.run(8, strict=10, best_effort=1000)
    assert world.policy.wanted(STRICT).request == strict  # the others stay where they are
    assert any("m2/1" in each.best_effort for each in world.placement.seats)
    assert any(world.places(2))
