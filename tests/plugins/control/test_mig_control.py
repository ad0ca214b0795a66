"""Models leave instances that are about to go, and come back when there are others."""

import threading
from types import SimpleNamespace

import pytest

from shunter.allocator.devices.advice import DeviceError
from shunter.allocator.devices.geometry import parse, text_of
from shunter.allocator.devices.instances import GpuInstance, GpuRecord, Part
from shunter.allocator.devices.simulated.tables import MODELS
from shunter.allocator.devices.standing import Standing
from shunter.batching.page.layout import ChangeState
from shunter.batching.page.records import GroupTelemetry, SlotChange, SlotIdentity
from shunter.plugins.control.mig_control import MigControl
from shunter.plugins.control.observed import Observed
from shunter.plugins.control.settings import MigSettings

PROFILES = MODELS["a100-40gb"].profiles
SECOND = 10**9
GPU = "GPU-0"


def uuid(place):
    return f"MIG-{place.profile}-{place.start}"


GIB = 1 << 30


def gpu_of(text, used_gib=None, uuid_=GPU):
    """``used_gib``: by MIG device, of each process there."""
    known = {profile.id: profile for profile in PROFILES}
    used = used_gib or {}

    def part(place):
        gib = used.get(uuid(place), ())
        size, pids = known[place.profile].memory_mb << 20, tuple(range(len(gib)))
        return Part(0, uuid(place), known[place.profile].compute, size, sum(gib) * GIB, pids)

    instances = tuple(
        GpuInstance(
            number,
            known[place.profile].name,
            known[place.profile].compute,
            place,
            (part(place),),
        )
        for number, place in enumerate(sorted(parse(text, PROFILES)))
    )
    return GpuRecord(0, uuid_, "A100", 40 << 30, 0, "on", PROFILES, instances, ())


def device(text):
    (place,) = parse(text, PROFILES)
    return uuid(place)


BIG, SMALL, SMALLER = device("4g@0"), device("2g@4"), device("1g@6")
ALL, THREE = device("7g"), device("3g@4")


def group(instances, yields, **values):
    """A worker group of so many workers, all of them loaded."""
    known = {"group_instances": instances, "group_ready": instances, "group_cap": 8}
    return GroupTelemetry(**known | {"group_yields": yields} | values)


PLACES = [(place, each.memory_mb) for each in PROFILES for place in each.placements()]


class House:
    """A server that does at once what is wanted, and GPUs that a test changes."""

    def __init__(self, **settings):
        self.keeper = SimpleNamespace(standing=Standing(), wanted=(), started=0)
        self.keeper.start = self.start
        self.keeper.want = lambda texts: setattr(self.keeper, "wanted", tuple(texts))
        self.now, self.obeys, self.needs_gib = 0, True, 0
        self.undone = []
        self.slots = {0: self.model("strict", 0), 1: self.model("bulk", 1)}
        self.settings = MigSettings(models=("strict", "bulk"), **settings)
        self.begin()

    def begin(self):
        self.control = MigControl(lambda leaving, patience_s: self.keeper)
        self.control.use(self.settings)

    def start(self):
        self.keeper.started += 1

    @staticmethod
    def model(name, yields, auto=1):
        return {
            "identity": SlotIdentity(
                model_name=name,
                model_version="1",
                slot_state=1,
                auto=auto,
                registered_batch_size=8,
            ),
            "groups": [group(1, yields)],
            "change": SlotChange(0, ChangeState.NONE),
            "depth": 0,
        }

    def stand(self, text, used_gib=None, **changes):
        gpus = (gpu_of(text, used_gib),)
        self.keeper.standing = Standing(**{"gpus": gpus, "whole": frozenset([GPU])} | changes)

    def observed(self, state):
        return Observed(
            state["identity"], state["depth"], lambda: state["groups"], state["change"], None
        )

    def run(self, cycles=3, seconds=0.1, instances=None):
        for _ in range(cycles):
            self.now += round(seconds * SECOND)
            seen = {slot: self.observed(state) for slot, state in self.slots.items()}
            self.control.do_work(seen, {}, instances or {}, self.now)
            for slot, state in self.slots.items():
                self.obey(self.control.wanted(slot), state)

    def obey(self, wanted, state):
        if not wanted or wanted.request == state["change"].change_request:
            return
        sizes = {"": 1 << 62} | {uuid(each): size_mb << 20 for each, size_mb in PLACES}
        room = min(sizes[each.device] for each in wanted.slices)
        if not self.obeys or room < self.needs_gib * GIB:
            self.undone.append([each.device for each in wanted.slices])
            state["change"] = SlotChange(wanted.request, ChangeState.UNDONE)
            return
        state["change"] = SlotChange(wanted.request, ChangeState.SERVES)
        yields = state["groups"][0].group_yields
        state["groups"] = [
            group(
                each.instances,
                yields,
                group_cap=each.batch,
                group_threads=each.threads,
                group_device=where.device,
            )
            for each, where in zip(wanted.groups, wanted.slices, strict=True)
        ]

    def seats(self):
        return [
            [(group.group_device, group.group_instances) for group in state["groups"]]
            for state in self.slots.values()
        ]


def test_nothing_is_started_where_nothing_is_wanted():
    made = []
    control = MigControl(lambda *_: made.append(1))
    control.use(MigSettings())
    control.do_work({}, {}, {}, 0)
    assert (made, control.standing) == ([], None)


def test_models_are_seated_on_the_instances_that_are_there():
    house = House()
    house.stand("4g@0,2g@4,1g@6")
    house.run()
    assert house.seats() == [[(BIG, 1)], [(SMALLER, 1)]]
    assert house.keeper.started == 1


def test_layouts_of_the_settings_are_wanted():
    house = House(layouts=("4g,3g",))
    house.run(1)
    assert house.keeper.wanted == ("4g,3g",)


def test_a_model_that_may_not_be_changed_stays_where_it_is(caplog):
    house = House()
    house.slots[0] = house.model("strict", 0, auto=0)
    house.slots[2] = house.model("other", 0)
    house.stand("4g@0,2g@4,1g@6")
    house.run()
    assert house.seats() == [[("", 1)], [(SMALLER, 1)], [("", 1)]]
    assert caplog.text.count("strict/1 stays where it is") == 1


def test_who_loses_its_instance_moves_and_who_does_not_stays():
    house = House()
    house.stand("4g@0,2g@4,1g@6")
    house.run()
    house.stand("4g@0,2g@4,1g@6", closing=frozenset([SMALLER]), changing=1)
    house.run()
    assert house.seats() == [[(BIG, 1)], [(SMALL, 1)]]
    house.stand("4g@0,2g@4", changing=0)
    house.run()
    assert house.seats() == [[(BIG, 1)], [(SMALL, 1)]]


def test_where_no_instance_is_left_models_serve_on_the_host_and_come_back():
    house = House()
    house.stand("7g")
    house.run()
    house.stand("7g", closing=frozenset([device("7g")]), changing=1)
    house.run()
    assert house.seats() == [[("", 1)], [("", 1)]]
    house.stand("4g@0,1g@6")
    house.run()
    assert house.seats() == [[(BIG, 1)], [(SMALLER, 1)]]


def test_an_instance_that_is_gone_is_left():
    house = House()
    house.stand("7g")
    house.run()
    house.stand("4g@0")
    house.run()
    assert house.seats() == [[(BIG, 1)], [(BIG, 1)]]


def test_nobody_begins_on_a_gpu_that_is_not_whole_and_who_is_there_stays():
    house = House()
    house.stand("4g@0,1g@6", whole=frozenset())
    house.run()
    assert house.seats() == [[("", 1)], [("", 1)]]
    house.stand("4g@0,1g@6")
    house.run()
    house.stand("4g@0,2g@4,1g@6", whole=frozenset())
    house.run()
    assert house.seats() == [[(BIG, 1)], [(SMALLER, 1)]]


def test_a_gpu_that_is_not_whole_holds_nobody_up_who_is_elsewhere():
    broken = gpu_of("2g@4", uuid_="GPU-1")
    house = House()
    house.stand("4g@0", gpus=(gpu_of("4g@0"), broken))
    house.run()
    assert house.seats() == [[(BIG, 1)], [(BIG, 1)]]
    house.stand("4g@0,1g@6", gpus=(gpu_of("4g@0,1g@6"), broken))
    house.run()
    assert house.seats() == [[(BIG, 1)], [(SMALLER, 1)]]


def test_the_next_controller_moves_nobody_who_is_where_he_should_be():
    house = House()
    house.stand("4g@0,1g@6")
    house.run()
    house.begin()
    house.run()
    assert house.control.wanted(0) is None
    assert house.seats() == [[(BIG, 1)], [(SMALLER, 1)]]


def test_until_the_instances_are_known_only_those_move_whose_instance_is_about_to_go():
    house = House()
    house.stand("4g@0,1g@6")
    house.run()
    house.begin()
    house.keeper.standing = Standing()
    house.run()
    assert house.seats() == [[(BIG, 1)], [(SMALLER, 1)]]
    house.keeper.standing = Standing(closing=frozenset([SMALLER]), changing=1)
    house.run()
    assert house.seats() == [[(BIG, 1)], [("", 1)]]


def test_a_move_that_was_not_possible_is_tried_again_later():
    house = House()
    house.stand("4g@0,1g@6")
    house.obeys = False
    house.run(3)
    first = house.control.wanted(0).request
    house.run(5)
    assert house.control.wanted(0).request == first
    house.obeys = True
    house.run(15)
    assert house.seats() == [[(BIG, 1)], [(SMALLER, 1)]]


def heeds_no_devices(wanted, state):
    if wanted:
        state["change"] = SlotChange(wanted.request, ChangeState.SERVES)


def test_a_server_that_heeds_no_devices_is_asked_again_only_when_there_are_others():
    house = House()
    house.stand("4g@0,1g@6")
    house.obey = heeds_no_devices
    house.run(100, seconds=60)
    assert house.control.wanted(0).request == 1
    house.stand("4g@0,2g@4,1g@6")
    house.run(100, seconds=60)
    assert house.control.wanted(0).request == 2
    house.control.use(house.settings)
    house.run(100, seconds=60)
    assert house.control.wanted(0).request == 3


def test_what_is_refused_time_and_again_is_tried_ever_more_rarely_and_never_given_up():
    house = House()
    house.stand("4g@0,1g@6")
    house.obeys = False
    house.run(200, seconds=60)
    before = house.control.wanted(0).request
    house.run(200, seconds=60)
    assert 15 <= house.control.wanted(0).request - before <= 20
    house.obeys = True
    house.run(20, seconds=60)
    assert house.seats() == [[(BIG, 1)], [(SMALLER, 1)]]


def test_who_waits_to_try_again_leaves_all_the_same():
    house = House()
    house.stand("4g@0,1g@6")
    house.run()
    house.stand("4g@0,2g@4")
    house.obeys = False
    house.run(20, seconds=60)
    assert house.seats() == [[(BIG, 1)], [(SMALLER, 1)]]
    house.obeys = True
    house.stand("4g@0,2g@4", closing=frozenset([SMALL]), changing=1)
    house.run()
    assert house.seats() == [[(BIG, 1)], [(BIG, 1)]]


def test_a_model_gets_as_many_instances_as_it_is_to_have():
    house = House()
    house.stand("4g@0,2g@4,1g@6")
    house.run(instances={0: 1, 1: 3})
    assert house.seats() == [[(BIG, 1)], [(SMALLER, 3)]]


def test_an_instance_that_found_no_room_comes_back_when_there_is_some():
    house = House()
    del house.slots[0]
    house.slots[1]["groups"] = [group(2, 1)]
    house.stand("7g")
    house.run()
    house.stand("7g", {ALL: [15, 15]})
    house.run(1)
    house.stand("4g@0,3g@4")
    house.run()
    assert house.seats() == [[(BIG, 1), (THREE, 1)]]
    house.stand("4g@0,2g@4,1g@6")
    house.run()
    assert house.seats() == [[(BIG, 1)]]
    house.stand("4g@0,2g@4,1g@6", closing=frozenset([BIG]), changing=1)
    house.run()
    assert house.seats() == [[("", 2)]]
    house.stand("4g@0,3g@4")
    house.run()
    assert house.seats() == [[(BIG, 1), (THREE, 1)]]


def test_another_model_in_a_slot_has_its_own_number_of_instances():
    house = House()
    house.stand("4g@0,1g@6")
    house.run()
    house.slots[1] = house.model("strict", 1)
    house.slots[1]["groups"] = [group(2, 1)]
    house.slots[1]["identity"] = SlotIdentity(
        model_name="strict", model_version="2", slot_state=1, auto=1, registered_batch_size=8
    )
    house.run()
    assert house.seats() == [[(BIG, 1)], [(SMALLER, 2)]]


def test_a_configuration_that_others_want_counts():
    house = House()
    house.stand("4g@0,1g@6")
    house.run()
    house.slots[1]["groups"] = [group(3, 1)]
    house.slots[1]["change"] = SlotChange(7, ChangeState.SERVES)
    house.run()
    assert house.seats() == [[(BIG, 1)], [(SMALLER, 3)]]


@pytest.mark.parametrize("obeys", [True, False])
def test_an_operators_number_of_instances_stays(obeys):
    house = House()
    house.stand("4g@0,1g@6")
    house.run()
    house.stand("none")
    house.run()
    house.obeys = obeys
    house.stand("4g@0")
    house.run()
    assert house.seats()[1] == [(BIG if obeys else "", 1)]
    house.slots[1]["groups"] = [group(3, 1)]
    house.stand("none")
    house.run(20, seconds=60)
    assert house.seats()[1] == [("", 3)]
    house.obeys = True
    house.stand("4g@0")
    house.run()
    assert house.seats()[1] == [(BIG, 3)]


def test_what_is_to_go_is_free_when_nobody_is_there_or_on_the_way():
    house = House(patience_s=30)
    house.stand("4g@0,1g@6")
    house.run()
    left = threading.Event()

    def leave():
        house.control.leave(frozenset([SMALLER]))
        left.set()

    thread = threading.Thread(target=leave)
    thread.start()
    house.run(4)  # it is still offered: nobody moves
    assert not left.is_set()
    house.stand("4g@0,1g@6", closing=frozenset([SMALLER]), changing=1)
    while not left.wait(0.01):
        house.run(1)
    thread.join()
    assert house.seats() == [[(BIG, 1)], [(BIG, 1)]]


def test_who_does_not_leave_in_time_is_named():
    house = House(patience_s=1)
    house.stand("4g@0,1g@6")
    house.run()
    house.control._settings = MigSettings(models=("strict", "bulk"), patience_s=1)
    with pytest.raises(DeviceError, match="Nothing was changed"):
        house.control.leave(frozenset([SMALLER]))


def test_layouts_follow_the_load_of_best_effort():
    house = House(auto=True, wait=0, interval_s=1)
    house.stand("4g@0,3g@4")
    house.slots[1]["depth"] = 8
    house.run(4, seconds=1)
    wanted = parse(house.keeper.wanted[0], PROFILES)
    assert text_of(wanted, PROFILES) == "4g@0:4 2g@4:2 1g@6:1"
    house.slots[1]["depth"] = 8 * 100
    house.run(4, seconds=1)
    assert house.keeper.wanted == (), "it could not be made, and what is there is right again"


def test_a_model_that_took_more_than_any_instance_has_gets_a_seat_nevertheless():
    house = House()
    del house.slots[1]
    house.stand("7g", {ALL: [30]})
    house.run()
    assert house.control.bytes_of(0) == 30 * GIB
    house.stand("7g", {ALL: [30]}, closing=frozenset([ALL]), changing=1)
    house.run()
    assert house.seats() == [[("", 1)]], "more room than that may come"
    house.stand("4g@0,3g@4")
    house.run()
    assert house.seats() == [[(BIG, 1)]]
    assert 19 * GIB < house.control.bytes_of(0) < 20 * GIB, "all of it"
    house.stand("4g@0,3g@4", {BIG: [6]})
    house.run()
    assert house.control.bytes_of(0) == 6 * GIB, "it runs with that"


def test_a_gpu_that_is_not_whole_has_no_room_for_who_comes():
    house = House()
    del house.slots[1]
    house.stand("7g", {ALL: [30]})
    house.run()
    house.stand("7g", {ALL: [30]}, closing=frozenset([ALL]), changing=1)
    house.run()
    assert house.seats() == [[("", 1)]]
    house.slots[2] = house.model("bulk", 1)
    other = gpu_of("7g", uuid_="GPU-1")
    house.slots[2]["groups"] = [group(1, 0, group_device=ALL)]
    house.stand("4g@0", gpus=(gpu_of("4g@0"), other))
    house.run()
    assert house.seats()[0] == [(BIG, 1)], "what is wanted there fits, as far as is known"


def test_memory_of_a_neighbour_is_not_taken_for_its_own_while_a_worker_starts_again():
    house = House()
    del house.slots[1]
    house.slots[2] = house.model("bulk", 0)
    house.stand("1g@6")
    house.run()
    assert house.seats() == [[(SMALLER, 1)]] * 2
    house.stand("1g@6", {SMALLER: [4]})
    house.run()
    assert [house.control.bytes_of(slot) for slot in (0, 2)] == [0, 0]
    house.slots[2] = house.model("other", 0, auto=0)
    house.slots[2]["groups"] = [group(1, 0, group_device=SMALLER)]
    house.run()
    assert house.control.bytes_of(0) == 0, "also beside one that is not seated here"
    del house.slots[2]
    house.run()
    assert house.control.bytes_of(0) == 4 * GIB, "now it is alone there"


def test_memory_of_a_stranger_is_not_taken_for_its_own_while_a_worker_starts_again():
    house = House()
    del house.slots[1]
    house.stand("7g")
    house.run()
    house.slots[0]["groups"] = [group(1, 0, group_ready=0, group_device=ALL)]
    house.stand("7g", {ALL: [30]})
    house.run()
    assert house.control.bytes_of(0) == 0
    house.slots[0]["groups"] = [group(1, 0, group_device=ALL)]
    house.run()
    assert house.control.bytes_of(0) == 30 * GIB


def only_bulk(text, needs_gib):
    house = House()
    del house.slots[0]
    house.needs_gib = needs_gib
    house.stand(text)
    return house


def test_a_model_of_unknown_memory_that_does_not_come_to_a_slice_is_tried_on_a_larger_one():
    house = only_bulk("4g@0,2g@4,1g@6", needs_gib=8)
    house.run(50, seconds=60)
    assert (house.seats(), house.undone) == ([[(SMALL, 1)]], [[SMALLER]])
    house.stand("4g@0,2g@4,1g@6", {SMALL: [3]})
    house.needs_gib = 3
    house.run()
    assert house.seats() == [[(SMALLER, 1)]], "it was another reason: so much it takes"


def test_what_comes_to_no_slice_stays_on_the_host_and_is_tried_anew_ever_more_rarely():
    house = only_bulk("4g@0,2g@4,1g@6", needs_gib=30)
    house.run(12)
    assert house.seats() == [[("", 1)]]
    assert house.undone == [[SMALLER], [SMALL], [BIG]]
    house.run(100, seconds=60)
    assert 20 <= len(house.undone) <= 60
    house.needs_gib = 0
    house.run(15, seconds=60)
    assert house.seats() == [[(SMALLER, 1)]]


def test_who_is_on_a_slice_does_not_leave_it_for_what_another_one_lacks():
    house = only_bulk("4g@0", needs_gib=8)
    house.run()
    house.stand("4g@0,1g@6")
    house.run(100, seconds=60)
    assert house.seats() == [[(BIG, 1)]]
    assert house.control.bytes_of(1) == 0
    assert 10 <= len(house.undone) <= 20 and all(each == [SMALLER] for each in house.undone)


def test_who_must_leave_is_tried_on_all_that_is_open_then_on_the_host():
    house = only_bulk("4g@0,1g@6", needs_gib=0)
    house.run()
    house.stand("4g@0,2g@4,1g@6", closing=frozenset([SMALLER]), changing=1)
    house.needs_gib = 30
    house.run(10)
    assert (house.seats(), house.undone) == ([[("", 1)]], [[SMALL], [BIG]])
