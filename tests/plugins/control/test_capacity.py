"""Instances follow the load: one for each batch, kept a while, within the memory of all."""

import pytest

from shunter.allocator.memory.processes import Footprint
from shunter.batching.page.layout import ChangeState
from shunter.batching.page.records import GroupTelemetry, SlotChange, SlotIdentity
from shunter.batching.page.slices import of_cpus
from shunter.plugins.control.capacity import PAUSE_NS, Autoscaling, Capacity
from shunter.plugins.control.observed import Observed, Wanted
from shunter.plugins.control.settings import AutoscalingSettings, Settings

SECOND, MIB = 10**9, 1 << 20


class House:
    """A server that does at once what is wanted."""

    def __init__(self, models=1, **settings):
        self.scaling = Autoscaling(lambda owner: self.sizes)
        self.scaling.settings = AutoscalingSettings(
            **{"auto": True, "interval_s": 1, "keep_s": 10} | settings
        )
        self.sizes = dict.fromkeys(range(models), Footprint(100 * MIB, 0))
        self.memory, self.gpu_free, self.gpu = 10_000 * MIB, 0, {}
        self.now, self.obeys = 0, True
        self.depth = [0] * models
        self.groups = [[GroupTelemetry(group_instances=1, group_cap=8)] for _ in range(models)]
        self.change = [SlotChange(0, ChangeState.NONE)] * models
        self.auto = 1

    def observed(self, slot):
        identity = SlotIdentity(
            model_name=f"m{slot}", model_version="1", slot_state=1, auto=self.auto
        )
        return Observed(
            identity, self.depth[slot], lambda: self.groups[slot], self.change[slot], None
        )

    def run(self, seconds=2):
        for _ in range(2 * seconds):
            self.now += SECOND // 2
            slots = {slot: self.observed(slot) for slot in range(len(self.depth))}
            self.scaling.do_work(slots, {}, self.gpu, self.free, 1, self.now)
            for slot in slots:
                self.obey(slot, self.scaling.wanted(slot))
        return [groups[0].group_instances for groups in self.groups]

    def free(self):
        there = sum(groups[0].group_instances for groups in self.groups)
        return {"host": float(self.memory - 100 * MIB * there), "gpu": float(self.gpu_free)}

    def obey(self, slot, wanted):
        if self.obeys and wanted and wanted.request != self.change[slot].change_request:
            self.change[slot] = SlotChange(wanted.request, ChangeState.SERVES)
            self.groups[slot] = [
                GroupTelemetry(group_instances=g.instances, group_cap=g.batch)
                for g in wanted.groups
            ]


@pytest.mark.parametrize(
    ("depth", "expected"), [(0, 1), (1, 1), (8, 1), (9, 2), (24, 3), (1000, 8)]
)
def test_there_is_an_instance_for_each_batch_of_requests(depth, expected):
    house = House()
    house.depth[0] = depth
    assert house.run() == [expected]


def test_nothing_changes_where_it_is_not_allowed():
    house = House(auto=False)
    house.depth[0] = 100
    assert house.run() == [1]
    assert house.scaling.counts == {}


def test_an_instance_ends_when_it_was_surplus_long_enough():
    house = House(keep_s=60)
    house.depth[0] = 24
    assert house.run() == [3]
    house.depth[0] = 0
    assert house.run(50) == [3]
    assert house.run(50) == [1]


def test_the_warm_pool_is_never_smaller_than_told():
    assert House(least=2).run() == [2]


def test_a_burst_between_two_looks_counts():
    house = House(interval_s=4)
    house.run(6)
    house.depth[0] = 24
    house.run(1)
    house.depth[0] = 0
    house.run(4)
    assert house.scaling.wanted(0).groups[0].instances == 3


def test_memory_is_counted_once_for_all_models():
    house = House(models=2)
    house.depth = [64, 64]
    house.memory = 450 * MIB
    assert sum(house.run()) == 4


def test_what_one_model_keeps_is_given_up_when_another_one_needs_the_room():
    house = House(models=2, keep_s=600)
    house.memory = 450 * MIB
    house.depth = [24, 0]
    assert house.run() == [3, 1]
    house.depth = [0, 24]
    assert house.run(40) == [1, 3]


def test_memory_of_gpus_bounds_models_that_are_seated_there():
    house = House()
    house.depth[0] = 64
    house.gpu, house.gpu_free = {0: 4000 * MIB}, 8500 * MIB
    house.run()
    assert house.scaling.counts == {0: 3}  # one is there
    assert house.scaling.wanted(0) is None  # who seats it says how many


def test_models_that_others_decide_about_are_left_alone():
    house = House()
    house.depth[0] = 64
    house.auto = 0
    assert house.run() == [1]
    house.auto = 1
    house.groups[0] = [GroupTelemetry(group_instances=1, group_cap=8, group_slices=of_cpus([0]))]
    assert house.run() == [1]
    house.groups[0] = [GroupTelemetry(group_instances=1, group_cap=8)] * 2
    assert house.run() == [1]


def test_what_was_not_taken_up_is_wanted_again_after_a_while():
    house = House()
    house.depth[0], house.obeys = 16, False
    house.run()
    first = house.scaling.wanted(0).request
    house.run(10)
    assert house.scaling.wanted(0).request == first
    house.run(PAUSE_NS // SECOND)
    assert house.scaling.wanted(0).request == first + 1


def test_after_one_that_was_done_the_next_one_comes_at_once():
    house = House(keep_s=0)
    for depth, expected in ((24, 3), (0, 1), (64, 8), (0, 1)):
        house.depth[0] = depth
        assert house.run() == [expected]


def test_of_several_wishes_the_last_one_holds():
    capacity = Capacity(lambda: 0.0)
    capacity.use(Settings())
    other = Wanted(3, (), pin=False)
    assert capacity.wanted(0, None) is None
    assert capacity.wanted(0, other) is other
