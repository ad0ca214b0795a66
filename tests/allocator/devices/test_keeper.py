"""Wanted layouts are carried out one GPU after the other, and whatever fails is mended first."""

import contextlib
import random

import pynvml
import pytest

from shunter.allocator.devices import keeper as module
from shunter.allocator.devices.advice import DeviceError
from shunter.allocator.devices.geometry import layouts, parse, plain, text_of
from shunter.allocator.devices.inventory import PATIENCE
from shunter.allocator.devices.journal import Journal, Phase, Record
from shunter.allocator.devices.keeper import Keeper
from shunter.allocator.devices.mig import gpus
from shunter.allocator.devices.simulated.library import CHANGES
from shunter.allocator.devices.simulated.state import Fault
from shunter.allocator.devices.simulated.tables import MODELS
from shunter.allocator.devices.standing import number_of, texts_for

PROFILES = MODELS["a100-40gb"].profiles
READS = (
    "nvmlDeviceGetGpuInstances",
    "nvmlGpuInstanceGetInfo",
    "nvmlDeviceGetMigDeviceHandleByIndex",
    "nvmlDeviceGetMemoryInfo",
)


class House:
    """A keeper that is driven by hand, and those who have work on instances."""

    def __init__(self, machine):
        self.machine, self.now = machine, 0.0
        self.left, self.refuses = [], False
        self.begin()

    def begin(self):
        """As after the start of a process."""
        self.keeper = Keeper(
            self.machine.folder,
            self,
            patience_s=0,
            sleep=lambda _: None,
            clock=lambda: self.now,
        )
        self.there = gpus()

    def leave(self, names):
        self.left.append((names, self.keeper.standing.closing, self.keeper.standing.changing))
        if self.refuses:
            raise DeviceError("models did not leave")

    def work(self, *layouts_, passing=0.0):
        if layouts_:
            self.keeper.want(layouts_)
        self.now += passing
        self.keeper.work(gpus())
        return self.keeper.standing

    def texts(self):
        return [text_of(gpu.layout()[0], PROFILES) for gpu in gpus()]


@pytest.fixture
def house(machine):
    return House(machine)


@pytest.fixture
def two(machine_with, tmp_path):
    with machine_with(tmp_path / "state", "a100-40gb", "a100-40gb") as machine:
        yield House(machine)


def test_nothing_is_changed_while_nothing_is_wanted(house):
    standing = house.work()
    assert (standing.layouts, standing.changes, standing.done) == ("0: none", 0, 0)
    assert standing.whole == {gpu.uuid for gpu in house.there}


def test_a_wanted_layout_is_made_and_told_of(house):
    standing = house.work("4g,3g")
    assert standing.layouts == "0: 4g@0:4 3g@4:4"
    assert (standing.done, standing.changes, standing.undone) == (number_of(["4g,3g"]), 1, 0)
    assert not standing.changing and not standing.closing
    assert house.work().changes == 1  # it is there


def test_one_layout_is_for_all_gpus_or_there_is_one_for_each(two):
    two.work("4g,3g")
    assert two.texts() == ["4g@0:4 3g@4:4"] * 2
    two.work("7g", "4g,2g,1g")
    assert two.texts() == ["7g@0:8", "4g@0:4 2g@4:2 1g@6:1"]


def test_a_wrong_number_of_layouts_is_told_of(two):
    standing = two.work("7g", "7g", "7g")
    assert "3 layouts are wanted" in standing.problem
    assert two.texts() == ["none"] * 2
    assert standing.done == number_of(["7g"] * 3)


def test_who_is_on_what_goes_is_asked_to_leave_and_nobody_may_come(house):
    house.work("4g,3g")
    uuids = {each.placement.start: each.parts[0].uuid for each in house.machine.gpu.instances()}
    house.work("4g,2g,1g")
    ((names, closing, changing),) = house.left
    assert names == closing == {uuids[4]}
    assert changing == 1
    assert not house.keeper.standing.closing


def test_who_does_not_leave_keeps_the_layout(house):
    house.work("4g,3g")
    house.refuses = True
    standing = house.work("7g")
    assert house.texts() == ["4g@0:4 3g@4:4"]
    assert (standing.done, standing.undone) == (number_of(["7g"]), 1)
    assert standing.problem == "models did not leave"
    assert not standing.closing and not standing.changing


def test_what_was_given_up_is_tried_again_later_and_ever_more_rarely(house):
    house.machine.faults(Fault("nvmlDeviceCreateGpuInstanceWithPlacement", 19, times=2))
    assert house.work("7g").undone == 1
    assert house.work(passing=module.FIRST_RETRY_S - 1).undone == 1
    assert house.work(passing=1).undone == 2
    assert house.work(passing=2 * module.FIRST_RETRY_S - 1).changes == 0
    standing = house.work(passing=1)
    assert (standing.changes, standing.problem) == (1, "")
    assert house.texts() == ["7g@0:8"]


def test_an_nvml_that_answers_again_is_no_problem_any_more(house):
    house.machine.faults(Fault("nvmlDeviceGetMemoryInfo", 999, times=1))
    said = []

    def pause():
        said.append(house.keeper.standing.problem)
        if len(said) == 2:
            house.keeper.end()

    house.keeper._pause = pause
    house.keeper.run()
    assert "read the memory" in said[0]
    assert said[1] == ""


def test_a_layout_that_cannot_be_is_given_up_and_says_why(house):
    standing = house.work("4g,4g")
    assert standing.done == number_of(["4g,4g"])
    assert "do not fit" in standing.problem


def test_a_gpu_on_which_undoing_failed_too_is_whole_again_before_anything_is_given_up(house):
    house.work("4g,3g")
    create = "nvmlDeviceCreateGpuInstanceWithPlacement"
    house.machine.faults(Fault(create, 999, times=6))  # the change, and its four tries back
    standing = house.work("7g")
    assert standing.undone == 1 and not standing.whole
    assert standing.done == number_of(["4g,3g"])
    standing = house.work(passing=1)
    assert standing.whole == {house.there[0].uuid}
    assert house.texts() == ["4g@0:4 3g@4:4"]
    assert standing.done == number_of(["7g"])
    assert house.work(passing=module.FIRST_RETRY_S).changes == 2


def without_mig(machine, index, is_off):
    with machine.store.change() as state:
        state.gpus[index].mig = state.gpus[index].pending = not is_off


def test_a_gpu_that_cannot_be_mended_holds_no_other_one_up(two):
    two.work("4g,3g")
    two.machine.reboot()
    without_mig(two.machine, 1, is_off=True)
    two.begin()
    standing = two.work("7g")
    assert standing.whole == {two.there[0].uuid}
    assert standing.layouts == "0: 7g@0:8"
    assert "MIG" in standing.problem
    assert standing.done == 0
    for passing in (1, module.FIRST_RETRY_S):
        standing = two.work(passing=passing)
        assert (standing.changes, standing.undone) == (1, 0)
    without_mig(two.machine, 1, is_off=False)
    standing = two.work(passing=module.LAST_MEND_S)  # long before what failed is tried again
    assert two.texts() == ["7g@0:8"] * 2
    assert (standing.done, standing.problem) == (number_of(["7g"]), "")


def lose(house, index, is_lost=True):
    with house.machine.store.change() as state:
        state.gpus[index].is_lost = is_lost
        state.gpus[index].instances = []


def lose_patience(house):
    for _ in range(PATIENCE):
        with pytest.raises(DeviceError, match="GPU is lost"):
            house.work()


def test_a_gpu_that_is_lost_holds_no_other_one_up_and_each_keeps_its_place(two):
    lose(two, 0)
    two.begin()
    two.keeper.want(["7g", "4g,3g"])
    lose_patience(two)
    standing = two.work()
    assert [each.index for each in standing.gpus] == [1]
    assert (standing.layouts, standing.undone) == ("1: 4g@0:4 3g@4:4", 0)
    assert texts_for(standing, {standing.gpus[0].uuid: "7g"}) == ["", "7g"]
    lose(two, 0, is_lost=False)
    standing = two.work(passing=module.LAST_RETRY_S)
    assert standing.layouts == "0: 7g@0:8; 1: 4g@0:4 3g@4:4"


def test_a_gpu_that_is_lost_while_it_serves_is_left_out_until_it_is_whole_again(two):
    before = two.work("4g,3g")
    lose(two, 0)
    lose_patience(two)
    assert two.keeper.standing.gpus == before.gpus, "nobody leaves for one failed call"
    for _ in range(3):
        standing = two.work("7g")
    assert standing.layouts == "1: 7g@0:8"
    assert standing.whole == {before.gpus[1].uuid}
    two.keeper.want(())
    lose(two, 0, is_lost=False)
    assert two.work().layouts == "0: 4g@0:4 3g@4:4; 1: 7g@0:8", "it is made again"


def test_why_a_gpu_does_not_answer_is_told_once_and_stands_there_until_it_does(two, caplog):
    lose(two, 1)
    rounds, said = PATIENCE + 3, []

    def pause():
        said.append(two.keeper.standing.problem)
        if len(said) == rounds:
            lose(two, 1, is_lost=False)
        if len(said) > rounds:
            two.keeper.end()

    two.keeper._pause = pause
    two.keeper.run()
    assert all("cannot open GPU 1: GPU is lost" in each for each in said[:rounds])
    assert said[rounds] == ""
    assert caplog.text.count("GPU is lost") == 1


def left_half_done(house):
    """By an earlier process: a GPU that was to get another layout."""
    house.work("4g,3g")
    gpu = house.there[0]
    before, wanted = parse("4g,3g", gpu.profiles), parse("7g", gpu.profiles)
    Journal(house.machine.folder, gpu.uuid).write(Record(Phase.FORWARD, before, wanted))
    house.begin()
    return gpu


def test_nothing_is_being_changed_on_a_gpu_that_could_not_be_mended(house):
    left_half_done(house)
    house.machine.faults(Fault("nvmlDeviceCreateGpuInstanceWithPlacement", times=-1))
    standing = house.work()
    assert len(house.left) == 1
    assert (standing.whole, standing.changing, standing.closing) == (set(), 0, set())


def test_nothing_is_being_changed_once_it_is_seen_what_there_is(house):
    """Also when that could not be seen at once after a change that an earlier process began."""
    gpu = left_half_done(house)
    settled, seen = house.keeper.settled, []

    def settled_and_unanswered():
        house.machine.faults(Fault("nvmlDeviceGetMemoryInfo", 999))
        settled()
        seen.append((house.keeper.standing.changing, bool(house.keeper.standing.closing)))

    house.keeper.settled = settled_and_unanswered
    standing = house.work()
    assert seen == [(1, True)]
    assert (standing.whole, standing.changing, standing.closing) == ({gpu.uuid}, 0, set())
    assert standing.problem == ""


def test_on_a_full_disk_it_is_seen_all_the_same_which_instances_there_are(house):
    lock = Journal(house.machine.folder, house.there[0].uuid).path.with_suffix(".lock")
    lock.parent.mkdir(parents=True)
    lock.symlink_to("/dev/full")
    standing = house.work()
    assert (standing.layouts, standing.problem) == ("0: none", "")
    assert standing.whole == {house.there[0].uuid}


@pytest.mark.parametrize(("phase", "texts"), [(Phase.FORWARD, "7g@0:8"), (Phase.BACK, "4g@0:4")])
def test_the_next_process_finishes_or_undoes_what_one_left(house, phase, texts):
    gpu = house.there[0]
    before, wanted = parse("4g", gpu.profiles), parse("7g", gpu.profiles)
    Journal(house.machine.folder, gpu.uuid).path.parent.mkdir(parents=True, exist_ok=True)
    Journal(house.machine.folder, gpu.uuid).write(Record(phase, before, wanted))
    house.begin()
    assert house.work().whole
    assert house.texts() == [texts]


@pytest.mark.parametrize("seed", range(3))
def test_after_every_change_a_layout_is_the_wanted_or_the_one_of_before(two, seed):
    choose = random.Random(seed)
    every = [text_of(each, PROFILES) for each in layouts(plain(PROFILES))]
    for _ in range(10):
        before = two.texts()
        wanted = [choose.choice(every), choose.choice(every)]
        two.machine.faults(
            *(
                Fault(
                    choose.choice(("", *sorted(CHANGES), *READS)),
                    choose.choice((2, 19, 23, 999)),
                    skip=choose.randrange(6),
                    times=choose.choice((1, 2, 6, 12)),
                    done=choose.random() < 0.3,
                )
                for _ in range(choose.randrange(3))
            )
        )
        two.keeper.want(wanted)
        for _ in range(30):
            if two.keeper.standing.done == number_of(wanted):
                break
            with contextlib.suppress(DeviceError):  # it looks again
                two.work(passing=10)
        two.machine.faults()
        assert two.keeper.standing.done == number_of(wanted)
        for now, old, new in zip(two.texts(), before, wanted, strict=True):
            assert now in (old, new)


def split(gpu):
    """Part the first instance of a GPU in two, as an operator may."""
    handle = pynvml.nvmlDeviceGetHandleByIndex(gpu.index)
    instance = pynvml.nvmlDeviceGetGpuInstanceById(handle, gpu.instances()[0].number)
    whole = pynvml.nvmlGpuInstanceGetComputeInstanceById(instance, 0)
    pynvml.nvmlComputeInstanceDestroy(whole)
    for _ in range(2):
        pynvml.nvmlGpuInstanceCreateComputeInstance(instance, 0)


def test_texts_are_in_the_order_of_the_gpus_and_leave_alone_those_that_are_not_named(two):
    two.work("4g,3g")
    split(two.there[0])
    before = two.work()
    found = before.gpus
    assert len(found[0].instances[0].parts) == 2
    texts = texts_for(before, {found[1].uuid: "7g"})
    assert texts == ["", "7g"]
    standing = two.work(*texts)
    assert two.texts() == ["4g@0:4 3g@4:4", "7g@0:8"]
    assert standing.gpus[0] == found[0]
    without_mig(two.machine, 0, is_off=True)
    assert two.work(passing=module.LAST_RETRY_S).undone == 0
