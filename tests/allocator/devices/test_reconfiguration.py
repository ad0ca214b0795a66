"""A change of instances is a transaction: the wanted layout or the one of before, never between."""

import contextlib
import fcntl
import itertools
import json
import random
import signal
import subprocess
import sys
from collections import Counter

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shunter.allocator.devices.advice import DeviceError
from shunter.allocator.devices.geometry import layouts, maximal, parse, plain, text_of
from shunter.allocator.devices.journal import Journal, Phase, Record, state_folder
from shunter.allocator.devices.reconfiguration import (
    Reconfiguration,
    ReconfigurationError,
    Recovery,
)
from shunter.allocator.devices.simulated.library import CHANGES
from shunter.allocator.devices.simulated.state import Fault
from shunter.allocator.devices.simulated.tables import MODELS

PROFILES = MODELS["a100-40gb"].profiles
FULL = maximal(plain(PROFILES))
EVERY = layouts(plain(PROFILES))
READS = (
    "nvmlDeviceGetGpuInstances",
    "nvmlGpuInstanceGetInfo",
    "nvmlDeviceGetMigDeviceHandleByIndex",
    "nvmlDeviceGetComputeRunningProcesses_v3",
    "nvmlDeviceGetMemoryInfo",
)


def layout(text):
    return parse(text, PROFILES)


def there(machine):
    """What a fresh look finds; everything in it must be usable."""
    found, unusable = machine.gpu.layout()
    assert not unusable
    return text_of(found, PROFILES)


def uuids(machine):
    return {each.placement: each.parts[0].uuid for each in machine.gpu.instances()}


class Programs:
    """Programs that use instances, and leave when they are asked."""

    def __init__(self, machine, stay=()):
        self.machine, self.stay, self.log = machine, stay, []
        self.serving = set()

    def leave(self, instances):
        self.log.append(("leave", sorted(each.profile for each in instances)))
        for each in instances:
            for part in each.parts:
                for pid in set(part.pids) - set(self.stay):
                    self.machine.vacate(part.uuid, pid)

    def settle(self, instances):
        self.log.append(("settle", sorted(each.profile for each in instances)))
        self.serving = {part.uuid for each in instances for part in each.parts}
        for uuid in self.serving:
            self.machine.occupy(uuid, 1000)


def begin(machine, text, tenants=None):
    machine.controller(tenants).change(layout(text))
    return there(machine)


# ---- changes that go well


def test_only_what_differs_is_touched(machine):
    programs = Programs(machine)
    begin(machine, "4g,3g", programs)
    before = uuids(machine)
    machine.controller(programs).change(layout("4g,2g,1g"))
    assert there(machine) == "4g@0:4 2g@4:2 1g@6:1"
    upper, lower = sorted(before)[1], sorted(before)[0]
    assert uuids(machine)[lower] == before[lower]
    assert before[upper] not in uuids(machine).values()
    assert programs.log[-2:] == [
        ("leave", ["3g.20gb"]),
        ("settle", ["1g.5gb", "2g.10gb", "4g.20gb"]),
    ]


def test_what_is_there_already_is_left_alone(machine):
    begin(machine, "4g,3g")
    with machine.store.change() as state:
        state.calls = 0
    programs = Programs(machine)
    found = machine.controller(programs).change(layout("4g,3g"))
    assert [each.profile for each in found] == ["4g.20gb", "3g.20gb"]
    assert machine.store.read().calls == 0
    assert [what for what, _ in programs.log] == ["settle"]


def test_an_instance_without_a_mig_device_is_made_anew(machine):
    begin(machine, "4g")
    machine.faults(Fault("nvmlGpuInstanceCreateComputeInstance"))
    with pytest.raises(DeviceError):
        machine.gpu.create(next(iter(layout("3g"))))
    assert machine.gpu.layout()[1] == layout("3g")
    machine.controller().change(layout("4g,3g"))
    assert there(machine) == "4g@0:4 3g@4:4"


@pytest.mark.slow
def test_every_full_layout_can_be_reached_from_every_other(machine, monkeypatch):
    monkeypatch.setattr("os.fsync", lambda descriptor: None)  # most of the time
    seen = set()

    def change(start, target):
        machine.controller().change(target)
        assert machine.gpu.layout() == (target, frozenset())
        seen.add((start, target))

    last = None
    for index, one in enumerate(FULL):
        change(last, one)
        for other in FULL[index + 1 :]:
            change(one, other)
            change(other, one)
        last = one
    assert seen >= set(itertools.permutations(FULL, 2))


# ---- changes that are refused before anything is touched


def test_a_layout_that_cannot_be_is_refused(machine):
    begin(machine, "4g,3g")
    with pytest.raises(DeviceError, match=r"4g@0:4 7g@0:8 cannot be on .*overlap"):
        machine.controller().change(layout("4g") | layout("7g"))
    assert there(machine) == "4g@0:4 3g@4:4"


def test_mig_that_is_off_is_refused(machine):
    with machine.store.change() as state:
        state.gpus[0].mig = state.gpus[0].pending = False
    with pytest.raises(DeviceError, match=r"MIG of .* is off"):
        machine.controller().change(layout("7g"))


def test_a_program_that_stays_stops_the_change_and_is_named(machine):
    programs = Programs(machine, stay={1000})
    begin(machine, "4g,3g", programs)
    with pytest.raises(DeviceError, match=r"pid 1000 on 3g.20gb; end them") as caught:
        machine.controller(programs).change(layout("4g,2g,1g"))
    assert not isinstance(caught.value, ReconfigurationError)
    assert there(machine) == "4g@0:4 3g@4:4"
    assert programs.log[-1] == ("settle", ["3g.20gb", "4g.20gb"])  # they may go on
    assert machine.controller().recover().what == "nothing"


def test_processes_are_waited_for_until_they_are_gone(machine):
    begin(machine, "7g")
    uuid = next(iter(uuids(machine).values()))
    machine.occupy(uuid, 5)
    times = iter(range(100))

    def sleep(seconds):
        machine.slept.append(seconds)
        if len(machine.slept) == 3:
            machine.vacate(uuid, 5)

    controller = machine.controller(patience_s=30, clock=lambda: next(times), sleep=sleep)
    controller.change(layout("4g,3g"))
    assert len(machine.slept) == 3
    assert there(machine) == "4g@0:4 3g@4:4"


def test_who_cannot_leave_says_why_and_goes_on(machine):
    class Stubborn(Programs):
        def leave(self, instances):
            raise RuntimeError("a batch hangs")

    programs = Stubborn(machine)
    begin(machine, "7g")
    with pytest.raises(RuntimeError, match="a batch hangs"):
        machine.controller(programs).change(layout("4g"))
    assert there(machine) == "7g@0:8"
    assert programs.log == [("settle", ["7g.40gb"])]


# ---- faults

CALLS = st.sampled_from([*sorted(CHANGES - {"nvmlDeviceSetMigMode"}), "", *READS])
FAULT = st.builds(
    Fault,
    call=CALLS,
    code=st.sampled_from((2, 4, 10, 15, 19, 23, 999)),
    skip=st.integers(0, 12),
    times=st.integers(1, 3),
    done=st.booleans(),
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from(FULL), st.sampled_from(FULL), st.lists(FAULT, max_size=2))
def test_whatever_fails_the_layout_is_the_wanted_one_or_that_of_before(
    machine_with, tmp_path_factory, start, target, faults
):
    with machine_with(tmp_path_factory.mktemp("state")) as machine:
        programs = Programs(machine)
        machine.controller(programs).change(start)
        # Faults that last outlive the tries to undo; those are another test.
        machine.faults(*faults[:1], *(each for each in faults[1:] if each.times == 1))
        failed = None
        try:
            machine.controller(programs).change(target)
        except DeviceError as error:
            failed = error
        machine.faults()
        found = machine.gpu.layout()
        assert found in ((target, frozenset()), (start, frozenset()))
        if failed is None:
            assert found[0] == target
        elif isinstance(failed, ReconfigurationError):
            assert failed.is_restored
            assert text_of(start, PROFILES) in str(failed)
        # Whatever it is, the next start finds nothing to do, and everything is used.
        assert machine.controller(programs).recover() in (
            Recovery("nothing", found[0]),
            Recovery("not begun", found[0]),
        )


@pytest.mark.slow
def test_two_hundred_changes_with_faults_never_leave_anything_between(machine, monkeypatch):
    monkeypatch.setattr("os.fsync", lambda descriptor: None)
    chance, programs, now = random.Random(11), Programs(machine), frozenset()
    outcomes = Counter()
    for _ in range(200):
        target = chance.choice(EVERY)
        call = chance.choice(["", *sorted(CHANGES), *READS])
        code = chance.choice((2, 4, 10, 19, 23, 999))
        machine.faults(
            Fault(call, code, chance.randrange(14), chance.randint(1, 2), chance.random() < 0.5)
        )
        with contextlib.suppress(DeviceError):
            machine.controller(programs).change(target)
        machine.faults()
        found, unusable = machine.gpu.layout()
        assert not unusable
        assert found in (now, target)
        outcomes["wanted" if found == target else "before"] += 1
        assert programs.serving == set(uuids(machine).values())
        now = found
    assert min(outcomes.values()) > 20  # both happen


def test_a_fault_that_lasts_is_undone_when_it_is_over(machine):
    begin(machine, "7g")
    machine.faults(Fault("nvmlDeviceCreateGpuInstanceWithPlacement", 999, times=-1))
    with pytest.raises(ReconfigurationError, match="Undoing it failed too") as caught:
        machine.controller().change(layout("4g,3g"))
    assert not caught.value.is_restored
    assert "has none and is to have 7g@0:8" in str(caught.value)
    assert machine.slept == [0.5, 1, 2]
    with pytest.raises(ReconfigurationError):
        machine.controller().recover()
    machine.faults()
    assert machine.controller().recover().what == "undone"
    assert there(machine) == "7g@0:8"


def test_a_change_that_finds_another_unfinished_finishes_that_first(machine):
    begin(machine, "7g")
    machine.faults(Fault("nvmlDeviceCreateGpuInstanceWithPlacement", 999, times=-1))
    with pytest.raises(ReconfigurationError):
        machine.controller().change(layout("4g,3g"))
    machine.faults()
    programs = Programs(machine)
    machine.controller(programs).change(layout("3g,2g"))
    assert programs.log[0] == ("settle", ["7g.40gb"])
    assert there(machine) == "2g@0:2 3g@4:4"


def test_ctrl_c_leaves_no_half_of_a_change(machine):
    begin(machine, "7g")
    gpu = machine.gpu
    create = gpu.create
    interrupted = []

    def press(place):
        if not interrupted:
            interrupted.append(place)
            raise KeyboardInterrupt
        create(place)

    gpu.create = press
    with pytest.raises(KeyboardInterrupt):
        Reconfiguration(gpu, machine.folder, sleep=machine.slept.append).change(layout("4g,3g"))
    assert there(machine) == "7g@0:8"


def test_another_program_that_changes_instances_meanwhile_is_found_out(machine):
    gpu = machine.gpu
    create = gpu.create

    def create_one_more(place):
        create(place)
        if place.size == 4:
            gpu.create = create
            create(next(iter(layout("1g@6"))))

    gpu.create = create_one_more
    with pytest.raises(ReconfigurationError, match="does another program change instances"):
        Reconfiguration(gpu, machine.folder, sleep=machine.slept.append).change(layout("4g"))
    assert there(machine) == "none"


def test_a_mig_device_that_is_seen_late_is_waited_for(machine):
    gpu = machine.gpu
    seen = gpu._parts
    gpu._parts = dict  # none yet

    def sleep(seconds):
        machine.slept.append(seconds)
        if len(machine.slept) == 3:
            gpu._parts = seen

    Reconfiguration(gpu, machine.folder, sleep=sleep).change(layout("4g"))
    assert machine.slept == [0.1] * 3
    assert there(machine) == "4g@0:4"


# ---- starts


def test_instances_are_made_again_after_a_reboot_and_only_then(machine):
    programs = Programs(machine)
    begin(machine, "4g,2g,1g", programs)
    assert machine.controller().recover() == Recovery("nothing", layout("4g,2g,1g"))
    machine.reboot()
    assert there(machine) == "none"
    assert machine.controller(programs).recover().what == "made again"
    assert there(machine) == "4g@0:4 2g@4:2 1g@6:1"
    assert programs.log[-1][0] == "settle"
    assert machine.controller().recover().what == "nothing"


def test_a_gpu_that_shunter_never_changed_is_left_alone(machine):
    machine.gpu.create(next(iter(layout("3g"))))
    assert machine.controller().recover().what == "nothing"
    assert there(machine) == "3g@4:4"


def test_what_somebody_else_made_after_the_reboot_stays(machine):
    begin(machine, "4g,3g")
    machine.reboot()
    machine.gpu.create(next(iter(layout("7g"))))
    found = machine.controller().recover()
    assert (found.what, found.why) == ("differs", "4g@0:4 3g@4:4 was made, 7g@0:8 is there")
    assert there(machine) == "7g@0:8"


def test_after_a_reboot_a_gpu_that_lost_mig_says_what_to_do(machine_with, tmp_path):
    with machine_with(tmp_path, "h100-80gb") as machine:
        machine.controller().change(layout("4g,3g"))
        machine.reboot()
        with pytest.raises(DeviceError, match=r"MIG of .* is off"):
            machine.controller().recover()
        with machine.store.change() as state:
            state.gpus[0].mig = state.gpus[0].pending = True
        assert machine.controller().recover().what == "made again"


@pytest.mark.parametrize(
    ("record", "what", "after"),
    [
        (Record(Phase.DRAINING, layout("7g"), layout("4g,3g")), "not begun", "7g@0:8"),
        (Record(Phase.FORWARD, layout("7g"), layout("4g,3g")), "finished", "4g@0:4 3g@4:4"),
        (Record(Phase.BACK, layout("7g"), layout("4g,3g")), "undone", "7g@0:8"),
    ],
)
def test_a_start_goes_on_where_the_last_one_was_interrupted(machine, record, what, after):
    begin(machine, "7g")
    Journal(machine.folder, machine.gpu.uuid).write(record)
    assert machine.controller().recover().what == what
    assert there(machine) == after


def test_what_cannot_be_finished_at_a_start_is_undone(machine):
    begin(machine, "3g@0")
    controller = machine.controller()
    controller.journal.write(Record(Phase.FORWARD, layout("3g@0"), layout("4g,3g")))
    machine.faults(Fault("nvmlDeviceCreateGpuInstanceWithPlacement", 23))
    found = controller.recover()
    assert found.what == "undone"
    assert "Insufficient Resources" in found.why
    assert there(machine) == "3g@0:4"


# ---- the process is killed

CHANGE = """
import sys
from pathlib import Path
from shunter.allocator.devices.geometry import parse
from shunter.allocator.devices.mig import gpus, nvml_started
from shunter.allocator.devices.reconfiguration import Reconfiguration
from shunter.allocator.devices.simulated.library import SimulatedLibrary, installed
from shunter.allocator.devices.simulated.store import Store

with installed(SimulatedLibrary(Store(Path(sys.argv[1])))), nvml_started():
    gpu = gpus()[0]
    change = Reconfiguration(gpu, Path(sys.argv[2]))
    change.recover()
    if len(sys.argv) > 3:
        change.change(parse(sys.argv[3], gpu.profiles))
"""


def change_in_another_process(machine, *text):
    command = [sys.executable, "-c", CHANGE, str(machine.store.path), str(machine.folder), *text]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.slow
@pytest.mark.parametrize("done", [False, True])
@pytest.mark.parametrize("skip", range(8))
def test_a_process_that_is_killed_in_the_middle_is_finished_by_the_next(
    machine_with, tmp_path, skip, done
):
    with machine_with(tmp_path / "state", path=tmp_path / "gpus") as machine:
        begin(machine, "4g,3g")
        kept = uuids(machine)[next(iter(layout("4g")))]
        # Of two calls that destroy and four that create, then none: it is not killed.
        machine.faults(Fault("", 0, skip=skip, done=done, kill=True))
        killed = change_in_another_process(machine, "4g,2g,1g").returncode == -signal.SIGKILL
        assert killed == (skip < 6)
        machine.faults()
        machine.controller().recover()
        assert there(machine) == "4g@0:4 2g@4:2 1g@6:1"
        assert uuids(machine)[next(iter(layout("4g")))] == kept


@pytest.mark.slow
@pytest.mark.parametrize(("first", "second"), [(0, 1), (2, 0), (3, 1), (4, 0)])
def test_the_next_may_be_killed_too(machine_with, tmp_path, first, second):
    with machine_with(tmp_path / "state", path=tmp_path / "gpus") as machine:
        begin(machine, "4g,3g")
        for skip, text in ((first, ["4g,2g,1g"]), (second, [])):
            machine.faults(Fault("", 0, skip=skip, done=True, kill=True))
            killed = change_in_another_process(machine, *text)
            assert killed.returncode == -signal.SIGKILL, killed.stderr
        machine.faults()
        assert machine.controller().recover().what == "finished"
        assert there(machine) == "4g@0:4 2g@4:2 1g@6:1"


@pytest.mark.slow
def test_a_process_that_is_killed_while_it_undoes_is_undone_by_the_next(machine_with, tmp_path):
    with machine_with(tmp_path / "state", path=tmp_path / "gpus") as machine:
        begin(machine, "7g")
        machine.faults(
            Fault("nvmlDeviceCreateGpuInstanceWithPlacement", 23, skip=1),
            Fault("nvmlDeviceCreateGpuInstanceWithPlacement", 0, skip=1, kill=True),
        )
        assert change_in_another_process(machine, "4g,3g").returncode == -signal.SIGKILL
        machine.faults()
        assert machine.controller().recover().what == "undone"
        assert there(machine) == "7g@0:8"


# ---- several at once


def test_two_who_change_one_gpu_at_once_are_told_apart(machine):
    begin(machine, "7g")
    told = []

    class Second(Programs):
        def leave(self, instances):
            super().leave(instances)
            with pytest.raises(DeviceError) as caught:
                machine.controller().change(layout("none"))
            told.append(str(caught.value))
            told.append(change_in_another_process_fails())

    def change_in_another_process_fails():
        code = "import fcntl, sys; fcntl.flock(open(sys.argv[1]), fcntl.LOCK_EX | fcntl.LOCK_NB)"
        lock = machine.folder / f"{machine.gpu.uuid}.lock"
        done = subprocess.run(
            [sys.executable, "-c", code, str(lock)], capture_output=True, text=True, check=False
        )
        return "BlockingIOError" in done.stderr

    machine.controller(Second(machine)).change(layout("4g,3g"))
    assert "are being changed by pid" in told[0]
    assert told[1] is True
    assert there(machine) == "4g@0:4 3g@4:4"


def test_one_gpu_does_not_wait_for_another(machine_with, tmp_path):
    from shunter.allocator.devices.mig import gpus

    with machine_with(tmp_path, "a100-40gb", "h200-141gb") as machine:
        first, second = gpus()
        with Journal(tmp_path, first.uuid).alone():
            Reconfiguration(second, tmp_path).change(parse("7g", second.profiles))
        assert text_of(second.layout()[0], second.profiles) == "7g@0:8"
    assert machine.folder == tmp_path


# ---- the journal


def test_what_is_written_is_read(tmp_path):
    journal = Journal(tmp_path, "GPU-1")
    assert journal.read() is None
    record = Record(Phase.FORWARD, layout("4g,3g"), layout("7g"), "destroy 4g@0:4")
    journal.write(record)
    assert journal.read() == record
    assert json.loads(journal.path.read_text())["step"] == "destroy 4g@0:4"


@pytest.mark.parametrize("text", ["", "{", "[]", '{"phase": "settled"}', '{"phase": 3}'])
def test_a_journal_that_cannot_be_read_is_said(tmp_path, text):
    journal = Journal(tmp_path, "GPU-1")
    journal.path.write_text(text)
    with pytest.raises(DeviceError, match="then delete the file"):
        journal.read()


def test_a_folder_that_cannot_be_written_is_said(machine, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(DeviceError, match="set SHUNTER_STATE_DIR to a folder"):
        Reconfiguration(machine.gpu, tmp_path / "file" / "below").change(layout("7g"))


def test_a_lock_goes_when_its_holder_does(tmp_path):
    journal = Journal(tmp_path, "GPU-1")
    with journal.alone(), pytest.raises(DeviceError), journal.alone():
        pass
    lock = journal.path.with_suffix(".lock").open()
    with lock, journal.alone(), pytest.raises(BlockingIOError):
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    with journal.alone():
        pass


def test_a_full_disk_stops_nobody_who_has_nothing_to_write(machine):
    machine.folder.mkdir()
    journal = Journal(machine.folder, machine.gpu.uuid)
    journal.write(Record(Phase.SETTLED, layout("none"), layout("none")))
    journal.path.with_suffix(".lock").symlink_to("/dev/full")
    assert machine.controller().recover().what == "nothing"
    journal.path.with_suffix(".new").symlink_to("/dev/full")
    with pytest.raises(DeviceError, match="No space left"):
        machine.controller().change(layout("7g"))
    assert there(machine) == "none"


def test_the_folder_outlives_a_reboot(monkeypatch):
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    assert str(state_folder({"SHUNTER_STATE_DIR": "/s"})) == "/s/devices"
    assert str(state_folder({"XDG_STATE_HOME": "/x"})) == "/x/shunter/devices"
    assert str(state_folder({"HOME": "/h"})) == "/h/.local/state/shunter/devices"
    monkeypatch.setattr("os.geteuid", lambda: 0)
    assert str(state_folder({"HOME": "/h"})) == "/var/lib/shunter/devices"
