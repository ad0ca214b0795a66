"""Which models are placed on which cores when: numbers in, wanted configurations out."""

import dataclasses
import itertools
import math
import random

import pytest

from shunter.allocator.cpus.topology import Cpu, Topology
from shunter.allocator.devices.slices import ComputeSlice
from shunter.allocator.placement.core_split import Decision
from shunter.allocator.placement.scoring import Outlook
from shunter.allocator.placement.seats import Seat
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
from shunter.plugins.control import placement as module
from shunter.plugins.control.fixed_policy import with_configuration, with_shares
from shunter.plugins.control.observed import GroupShare, Observed
from shunter.plugins.control.placement import Placement
from shunter.plugins.control.reconfiguration import Reconfiguration
from shunter.plugins.control.seating import shares
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
        self.settings = PlacementSettings(auto=True, interval_s=1, **settings)
        self.start_controller()
        self.now, self.free = 0, 10_000 * MIB
        self.obeys = True
        self.slo_ms = slo_ms
        self.slots = {}
        for slot in (STRICT, BEST_EFFORT):
            self.add(slot)

    def start_controller(self):
        """It knows nothing of one before it."""
        self.placement = Placement(two_cpus, self.settings)
        self.policy = Reconfiguration(
            lambda: [2],
            lambda: self.free,
            ConfigurationSettings(timeout_s=1),
            self.placement,
        )

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
            self.half_second()

    def half_second(self):
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


def test_a_model_has_its_workers_where_it_is_to_run_first_in_front(world, monkeypatch):
    monkeypatch.setattr(module, "decide", lambda *_: Decision(SHARED, Outlook()))
    world.run(10, strict=10, best_effort=1000)
    wanted = world.policy.wanted(BEST_EFFORT)
    assert wanted.pin is False
    commands = with_configuration(Commands(SlotCommands(), (GroupCommands(),)), wanted)
    assert tuple(group.wanted_cpus for group in commands.groups) == tuple(
        where.cpus for where in wanted.slices
    )
    shares = world.policy.shares(BEST_EFFORT)
    assert shares == (GroupShare(), GroupShare((1, 1)))
    shared = with_shares(commands, shares)
    assert [group.preference for group in shared.groups] == [(0, 0), (1, 1)]


def test_what_groups_get_is_said_of_workers_that_serve_on_their_sets_and_of_no_others():
    world = World(slo_ms=35)
    world.run(2, strict=10, best_effort=1000)
    assert not any(world.policy.shares(slot) for slot in world.slots)
    world.obeys = False
    world.run(8)
    assert world.placement.seats
    assert world.policy.wanted(BEST_EFFORT) or world.policy.wanted(STRICT)
    # The old workers are everywhere: nothing of the new ones holds for them while these load.
    assert not any(world.policy.shares(slot) for slot in world.slots)
    world.obeys = True
    world.run(8)
    assert [len(world.policy.shares(slot)) for slot in world.slots] == [
        len(state["groups"]) for state in world.slots.values()
    ]
    # A controller that was started anew finds the workers where they are, and leaves them there.
    before = {slot: world.policy.shares(slot) for slot in world.slots}
    world.start_controller()
    world.run(10, strict=10, best_effort=1000)
    assert {slot: world.policy.shares(slot) for slot in world.slots} == before
    assert all(world.policy.wanted(slot) is None for slot in world.slots)


def group(cpus, cap=8, **values):
    return GroupTelemetry(group_instances=1, group_cap=cap, group_slices=of_cpus(cpus), **values)


SETS = (
    Seat(4, ("s/1", "t/1"), ()),
    Seat(2, ("s/1",), ()),
    Seat(1, ("s/1", "u/1"), ("b/1",)),
    Seat(1, (), ("b/1",)),
)
CPUS = ([0, 1, 2, 3], [4, 5], [6], [7])
RATES = {4: 300.0, 2: 200.0, 1: 120.0}


@pytest.mark.parametrize(
    ("name", "yields", "groups", "expected"),
    [
        # Strict work first where no best effort is, in proportion to what each set can do; its
        # own best effort the other way round, and without it as the last resort.
        (
            "s",
            0,
            [0, 1, 2],
            [((0, 1), (1000, 1)), ((0, 1), (667, 1)), ((1, 0), (400, 1000))],
        ),
        # On sets that are all for strict work its best effort is taken as it comes.
        ("t", 0, [0], [((0, 1), (1000, 1000))]),
        ("u", 0, [2], [((1, 0), (1000, 1000))]),
        # Best effort: where no strict work is.
        ("b", 1, [2, 3], [((1, 1), (1000, 1000)), ((0, 0), (1000, 1000))]),
        # Two groups on one set share what the set can do.
        (
            "s",
            0,
            [0, 0, 1],
            [((0, 1), (750, 1000)), ((0, 1), (750, 1000)), ((0, 1), (1000, 1000))],
        ),
        # Not all on sets of its own: it is on its way.
        ("s", 0, [0, 3], []),
        ("x", 0, [0], []),
        ("s", 0, [], []),
    ],
)
def test_what_each_group_gets(name, yields, groups, expected):
    seen = Observed(
        SlotIdentity(model_name=name, model_version="1"),
        0,
        lambda: [group(CPUS[at], group_yields=yields) for at in groups],
        SlotChange(),
        None,
    )
    slices = [ComputeSlice("", "host", "", 1.0, 1.0, 0, tuple(cpus)) for cpus in CPUS]
    found = shares(seen, SETS, slices, RATES)
    assert [(each.preference, each.weight_milli) for each in found] == expected
    for of_class in (0, 1):
        assert not found or any(each.weight_milli[of_class] == 1000 for each in found)


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


APART = (Seat(1, ("m0/1",)), Seat(1, (), ("m1/1",)))
SHARED = (Seat(1, ("m0/1",), ("m1/1",)), Seat(1, (), ("m1/1",)))


def test_one_look_that_wants_something_else_begins_the_count_anew(world, monkeypatch):
    story = [APART] * 3 + [SHARED] + [APART] * 4
    found = []

    def decide(*_):
        found.append(world.placement.seats)
        return Decision(story[len(found) - 1], Outlook())

    monkeypatch.setattr(module, "decide", decide)
    while len(found) < len(story):
        world.run(1, strict=10, best_effort=1000)
    assert found == [()] * len(story)
    assert world.placement.seats == APART  # with the last one


@pytest.mark.parametrize("free", range(0, 700, 50))
def test_targets_fit_into_the_memory_together_and_who_finds_none_stays(world, monkeypatch, free):
    """An instance needs 100 MiB; best-effort models are on two sets, with half of it for each."""
    others = ("m1/1", "m2/1")
    seats = (Seat(1, ("m0/1",), others), Seat(1, (), others))
    monkeypatch.setattr(module, "decide", lambda *_: Decision(seats, Outlook()))
    world.add(2)
    world.obeys = False
    world.run(10, strict=10, best_effort=1000)
    models = world.policy._models
    for model in models.values():
        model.forget_target()
    slots = {slot: world.observed(state) for slot, state in world.slots.items()}
    assert world.placement.place(models, slots, free * MIB, lambda *_: True)
    left = free * MIB
    for model in models.values():
        assert model.target is not None or model.complaint
        if model.target is not None:
            assert model.needs <= left
            left -= model.needs - 100 * MIB
    assert free < 100 or models[STRICT].target is not None


def test_a_split_is_kept_when_memory_is_short_for_a_while(world, monkeypatch):
    world.run(10, strict=10, best_effort=1000)
    seats, wanted = world.placement.seats, world.policy.wanted(STRICT).request
    assert seats
    world.free = 10 * MIB  # it has what it has
    world.run(20)
    assert (world.placement.seats, world.policy.wanted(STRICT).request) == (seats, wanted)
    assert not any(model.complaint for model in world.policy._models.values())
    monkeypatch.setattr(module, "load_of", lambda *_: None)
    world.run(2)
    assert world.placement.seats == seats
    world.run(3)
    assert world.placement.seats == ()


def test_a_model_that_follows_another_on_its_slot_has_a_rate_of_its_own(world, monkeypatch):
    rates = []

    def decide(_, loads, *rest):
        rates.append({load.model: load.rate for load in loads})
        return Decision((Seat(2, ("m0/1",), (loads[1].model,)),), Outlook())

    monkeypatch.setattr(module, "decide", decide)
    world.run(4, strict=10, best_effort=1000)
    state = world.slots[BEST_EFFORT]
    state["identity"] = dataclasses.replace(state["identity"], model_name="other")
    world.run(4, best_effort=0)
    assert {each["other/1"] for each in rates if "other/1" in each} == {0}


class Story(World):
    """A server whose workers take time to load, now and then in vain, under arrivals by chance."""

    def __init__(self, seed, failures):
        super().__init__(slo_ms=50)
        self.policy.settings = ConfigurationSettings(timeout_s=2)
        self.slots[STRICT]["profile"] = profile(FAST)
        self.add(2)
        self.lot, self.failures = random.Random(seed), failures
        self.loading = {}
        self.taken = []
        """When, and the split that was taken."""

    def run(self, seconds, **rates):
        for _ in range(2 * seconds):
            before = self.placement.seats
            for slot, rate in zip(self.slots, rates.values(), strict=True):
                # As for many independent clients: the square root is the spread of their number.
                some = self.lot.gauss(rate / 2, math.sqrt(rate / 2))
                self.slots[slot]["rate"] = 2 * max(0, round(some))
                self.slots[slot]["depth"] = self.lot.randint(0, 3)
            self.half_second()
            if self.placement.seats != before:
                self.taken.append((self.now, self.placement.seats))
            self.check()

    def obey(self, wanted, state):
        change = state["change"]
        if wanted and wanted.request != change.change_request:
            state["change"] = SlotChange(wanted.request, ChangeState.UNDER_WAY)
            self.loading[wanted.request, id(state)] = self.lot.randint(1, 6)
        elif wanted and change.change_state == ChangeState.UNDER_WAY:
            key = wanted.request, id(state)
            self.loading[key] -= 1
            if not self.loading[key]:
                if self.lot.random() < self.failures:
                    state["change"] = SlotChange(wanted.request, ChangeState.UNDONE)
                else:
                    state["change"] = SlotChange()  # as one that is not there yet
                    super().obey(wanted, state)

    def check(self):
        """One model changes at a time, and every class of every model has somebody to take it."""
        under_way = [
            slot
            for slot, state in self.slots.items()
            if state["change"].change_state == ChangeState.UNDER_WAY
        ]
        assert len(under_way) <= 1
        for slot, state in self.slots.items():
            assert state["groups"]
            shares = self.policy.shares(slot)
            assert len(shares) in (0, len(state["groups"]))
            assert all(weight >= 1 for share in shares for weight in share.weight_milli)
            wanted = self.policy.wanted(slot)
            assert wanted is None or wanted.groups

    def where(self):
        return {slot: set(self.places(slot)) for slot in self.slots}


LIGHT, HEAVY = (
    {"strict": 30, "best_effort": 300, "other": 200},
    {"strict": 180, "best_effort": 300, "other": 200},
)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("failures", [0.0, 0.3])
def test_a_shift_of_load_changes_the_split_which_then_settles(seed, failures):
    story = Story(seed, failures)
    found = []
    for load in (LIGHT, HEAVY, LIGHT):
        story.taken.clear()
        shifted = story.now
        story.run(120, **load)
        found.append((story.placement.seats, story.where()))
        # Soon after the shift, and then no more.
        assert len(story.taken) == 1
        assert story.taken[0][0] - shifted <= 40 * SECOND
    (light, at_light), (heavy, at_heavy), (again, _) = found
    assert len(light) == 2
    assert heavy == ()
    assert len(again) == 2
    assert all(place != {0} for place in at_light.values())
    assert all(place == {0} for place in at_heavy.values())


def test_requests_that_wait_on_a_smaller_set_are_no_reason_to_leave_it():
    """They wait because it is smaller; where there is more room they are fewer, and so on."""
    world = World(slo_ms=50)
    world.slots[STRICT]["profile"] = profile(FAST)
    changes = []
    for _ in range(60):
        before = world.placement.seats
        world.slots[STRICT]["depth"] = 8 if before else 1
        world.run(1, strict=30, best_effort=1000)
        changes.append(world.placement.seats != before)
    assert sum(changes) == 1
    assert len(world.placement.seats) == 2


def test_a_load_that_is_about_where_two_splits_are_as_good_changes_less_and_less(
    world, monkeypatch
):
    splits = itertools.cycle([SHARED] * 4 + [()] * 4)
    everybody = (Seat(2, ("m0/1",), ("m1/1",)),)
    monkeypatch.setattr(module, "decide", lambda *_: Decision(next(splits) or everybody, Outlook()))
    changes = []
    for _ in range(100):
        before = world.placement.seats
        world.run(1, strict=10, best_effort=1000)
        changes.append(world.placement.seats != before)
    assert 1 <= sum(changes) <= 2, "as often as it was wanted it would be 25"
