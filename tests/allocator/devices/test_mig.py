"""A GPU through NVML: what is read, what is changed, and what its errors say."""

import ctypes
import json
import subprocess
import sys

import pynvml
import pytest

from shunter.allocator.devices import names
from shunter.allocator.devices.advice import DeviceError
from shunter.allocator.devices.geometry import Placement, parse, text_of
from shunter.allocator.devices.inventory import take_stock
from shunter.allocator.devices.mig import gpus, nvml_started
from shunter.allocator.devices.simulated.library import SimulatedLibrary, installed
from shunter.allocator.devices.simulated.state import Fault, State
from shunter.allocator.devices.simulated.store import Store
from shunter.allocator.devices.simulated.tables import MODELS


def make(gpu, text):
    for each in sorted(parse(text, gpu.profiles)):
        gpu.create(each)


@pytest.mark.parametrize("model", MODELS)
def test_profiles_are_those_that_the_gpu_lists(machine_with, tmp_path, model):
    with machine_with(tmp_path, model) as machine:
        listed = machine.gpu.profiles
        assert sorted(listed, key=lambda each: each.index) == sorted(
            MODELS[model].profiles, key=lambda each: each.index
        )
        assert machine.gpu.name == MODELS[model].product


def test_a_driver_that_tells_no_names_has_profiles_too(machine):
    missing = pynvml.NVML_ERROR_FUNCTION_NOT_FOUND
    machine.faults(Fault("nvmlDeviceGetGpuInstanceProfileInfoV", missing, times=-1))
    kinds = {each.kind: each.name for each in machine.gpu.profiles if each.is_plain}
    assert kinds == {
        "1g": "1g.5gb",
        "2g": "2g.10gb",
        "3g": "3g.20gb",
        "4g": "4g.20gb",
        "7g": "7g.40gb",
    }


def test_instances_are_made_at_their_places_and_are_mig_devices(machine):
    make(machine.gpu, "4g,2g,1g")
    found = machine.gpu.instances()
    assert [each.profile for each in found] == ["4g.20gb", "2g.10gb", "1g.5gb"]
    assert [(each.placement.start, each.placement.size) for each in found] == [
        (0, 4),
        (4, 2),
        (6, 1),
    ]
    assert all(each.is_whole and each.parts[0].uuid.startswith("MIG-") for each in found)
    assert found[0].parts[0].memory_bytes == round(19.62 * 1024) << 20
    known = names.inventory()[0].instances
    assert {(i.device.uuid, i.device.start, i.device.size) for i in known} == {
        (each.parts[0].uuid, each.placement.start, each.placement.size) for each in found
    }


def test_an_instance_is_ended_with_all_that_it_is_parted_into(machine):
    make(machine.gpu, "3g,2g")
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    of_2g = next(each for each in machine.gpu.instances() if each.compute == 2)
    by_hand = pynvml.nvmlDeviceGetGpuInstanceById(handle, of_2g.number)
    whole = pynvml.nvmlGpuInstanceGetComputeInstanceById(by_hand, 0)
    pynvml.nvmlComputeInstanceDestroy(whole)
    for _ in range(2):
        pynvml.nvmlGpuInstanceCreateComputeInstance(by_hand, 0)
    parted = next(each for each in machine.gpu.instances() if each.compute == 2)
    assert len(parted.parts) == 2
    assert not parted.is_whole
    assert machine.gpu.layout()[1] == {parted.placement}
    machine.gpu.destroy(parted.placement)
    assert text_of(machine.gpu.layout()[0], machine.gpu.profiles) == "3g@4:4"
    machine.gpu.destroy(parted.placement)  # it is gone: nothing to do


def test_who_may_not_list_instances_sees_them_without_their_places(machine):
    make(machine.gpu, "4g,3g")
    with machine.store.change() as state:
        state.privileged = False
    seen = machine.gpu.seen()
    assert {(each.profile, each.placement) for each in seen} == {("4g", None), ("3g", None)}
    with pytest.raises(DeviceError, match="run as root"):
        machine.gpu.instances()


@pytest.mark.parametrize(
    ("prepare", "act", "told"),
    [
        ("7g", lambda gpu: gpu.create(Placement(0, 4, 5)), "Insufficient Resources; something"),
        ("", lambda gpu: gpu.create(Placement(1, 4, 5)), "does not know this place"),
        ("", lambda gpu: gpu.create(Placement(0, 4, 6)), "no profile with the id 6"),
    ],
)
def test_an_error_says_what_to_do(machine, prepare, act, told):
    make(machine.gpu, prepare or "none")
    with pytest.raises(DeviceError, match=told):
        act(machine.gpu)


def test_what_is_in_use_is_named(machine):
    make(machine.gpu, "2g")
    instance = machine.gpu.instances()[0]
    machine.occupy(instance.parts[0].uuid, 4711)
    assert machine.gpu.instances()[0].pids == (4711,)
    assert machine.gpu.instances()[0].parts[0].used_bytes == 100 << 20
    with pytest.raises(DeviceError, match=r"\(pids 4711\); it is still in use") as caught:
        machine.gpu.destroy(instance.placement)
    assert caught.value.code == pynvml.NVML_ERROR_IN_USE


ALL_ERRORS = sorted(value for name, value in vars(pynvml).items() if name.startswith("NVML_ERROR_"))


@pytest.mark.parametrize("code", ALL_ERRORS)
def test_every_error_of_nvml_becomes_a_sentence_with_advice(machine, code):
    make(machine.gpu, "2g")
    for call, act in (
        ("nvmlDeviceCreateGpuInstanceWithPlacement", lambda gpu: gpu.create(Placement(6, 1, 19))),
        ("nvmlGpuInstanceDestroy", lambda gpu: gpu.destroy(Placement(0, 2, 14))),
        ("nvmlDeviceGetGpuInstances", lambda gpu: gpu.instances()),
    ):
        machine.faults(Fault(call, code, times=-1))
        with pytest.raises(DeviceError) as caught:
            act(machine.gpu)
        said = str(caught.value)
        assert said.startswith("cannot ")
        assert "; " in said
        assert "{" not in said
        assert caught.value.code == code


def test_mig_that_is_off_or_waits_or_is_missing_is_said(machine):
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    machine.gpu.check_ready()
    pynvml.nvmlDeviceSetMigMode(handle, pynvml.NVML_DEVICE_MIG_DISABLE)
    with pytest.raises(DeviceError, match=r"is off: .* `nvidia-smi -i 0 -mig 1`"):
        machine.gpu.check_ready()
    machine.occupy(machine.gpu.uuid, 1)
    status = pynvml.nvmlDeviceSetMigMode(handle, pynvml.NVML_DEVICE_MIG_ENABLE)
    assert (status, machine.gpu.mode()) == (pynvml.NVML_ERROR_IN_USE, (False, True))
    with pytest.raises(DeviceError, match="waits for a reset"):
        machine.gpu.check_ready()
    with machine.store.change() as state:
        state.gpus[0].can_mig = False
    assert machine.gpu.mode() is None
    assert machine.gpu.profiles == ()
    with pytest.raises(DeviceError, match="has no MIG"):
        machine.gpu.check_ready()


def test_no_driver_is_said_once_and_clearly():
    class Missing:
        def __getattr__(self, name):
            return lambda *_: pynvml.NVML_ERROR_LIBRARY_NOT_FOUND

    with installed(Missing()), pytest.raises(DeviceError, match="no NVIDIA driver"), nvml_started():
        pass


def test_gpus_that_do_not_answer_are_left_out_and_the_others_keep_their_numbers(
    machine_with, tmp_path, caplog
):
    with machine_with(tmp_path, *["a100-40gb"] * 3) as machine:
        with machine.store.change() as state:
            state.gpus[1].is_lost = True
        assert [gpu.index for gpu in gpus()] == [0, 2]
        machine.faults(Fault("nvmlDeviceGetMemoryInfo", pynvml.NVML_ERROR_UNKNOWN))
        assert [each.index for each in take_stock()] == [2]
        assert "cannot open GPU 1: GPU is lost" in caplog.text
        assert "cannot read the memory of" in caplog.text
        denied = pynvml.NVML_ERROR_NO_PERMISSION
        machine.faults(Fault("nvmlDeviceGetHandleByIndex_v2", denied, times=-1))
        with pytest.raises(DeviceError, match="give access to /dev/nvidia0"):
            gpus()


# ---- the simulated library itself


def test_a_number_of_what_is_gone_stands_for_nothing(machine):
    make(machine.gpu, "2g")
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    part = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, 0)
    instance = pynvml.nvmlDeviceGetGpuInstanceById(handle, pynvml.nvmlDeviceGetGpuInstanceId(part))
    first = pynvml.nvmlDeviceGetUUID(part)
    machine.gpu.destroy(Placement(0, 2, 14))
    machine.gpu.create(Placement(0, 2, 14))
    for call, of in ((pynvml.nvmlDeviceGetUUID, part), (pynvml.nvmlGpuInstanceGetInfo, instance)):
        with pytest.raises(pynvml.NVMLError_InvalidArgument):
            call(of)
    assert machine.gpu.instances()[0].parts[0].uuid != first


def test_capacity_and_a_place_that_the_driver_chooses(machine):
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    make(machine.gpu, "4g")
    left = {
        each.kind: pynvml.nvmlDeviceGetGpuInstanceRemainingCapacity(handle, each.id)
        for each in machine.gpu.profiles
    }
    assert left == {"1g": 3, "2g": 1, "3g": 1, "4g": 0, "7g": 0, "1g.5gb+me": 1, "1g.10gb": 2}
    pynvml.nvmlDeviceCreateGpuInstance(handle, 14)
    assert {each.start for each in machine.gpu.layout()[0]} == {0, 4}
    with pytest.raises(pynvml.NVMLError_InsufficientResources):
        pynvml.nvmlDeviceCreateGpuInstance(handle, 9)


def test_a_function_that_this_version_of_nvml_does_not_have(machine):
    with pytest.raises(pynvml.NVMLError_FunctionNotFound):
        pynvml.nvmlDeviceGetTemperature(pynvml.nvmlDeviceGetHandleByIndex(0), 0)


def test_the_library_has_only_what_pynvml_calls():
    from pathlib import Path

    from shunter.allocator.devices.simulated.library import CALLS, PLAIN

    source = Path(pynvml.__file__).read_text(encoding="utf-8")
    assert [name for name in (*CALLS, *PLAIN) if f'"{name}"' not in source] == []


def test_mig_devices_are_told_from_gpus(machine):
    make(machine.gpu, "3g")
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    part = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, 0)
    assert not pynvml.nvmlDeviceIsMigDeviceHandle(handle).value
    assert pynvml.nvmlDeviceIsMigDeviceHandle(part).value
    assert pynvml.nvmlDeviceGetName(part) == "NVIDIA A100-SXM4-40GB MIG 3g.20gb"
    parent = pynvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(part)
    assert pynvml.nvmlDeviceGetUUID(parent) == machine.gpu.uuid
    again = pynvml.nvmlDeviceGetHandleByUUID(pynvml.nvmlDeviceGetUUID(part))
    assert ctypes.cast(again, ctypes.c_void_p).value == ctypes.cast(part, ctypes.c_void_p).value
    with pytest.raises(pynvml.NVMLError_NotFound):
        pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, 1)


def test_a_change_takes_the_time_that_was_asked_for(tmp_path):
    slept = []
    store = Store(state=State.of(["h100-80gb"]))
    with store.change() as state:
        state.seconds = 0.5
    with installed(SimulatedLibrary(store, sleep=slept.append)), nvml_started():
        make(gpus()[0], "4g,3g")
        gpus()[0].destroy(Placement(0, 4, 5))
    assert slept == [0.5] * 3


SEE = """
import json, sys
from pathlib import Path
from shunter.allocator.devices.inventory import take_stock
from shunter.allocator.devices.mig import gpus, nvml_started
from shunter.allocator.devices.simulated.library import SimulatedLibrary, installed
from shunter.allocator.devices.simulated.store import Store
from shunter.allocator.devices.geometry import Placement

with installed(SimulatedLibrary(Store(Path(sys.argv[1])))), nvml_started():
    gpu = gpus()[0]
    before = [each.profile for each in gpu.instances()]
    gpu.create(Placement(4, 4, 9))
    print(json.dumps(before))
"""


def test_several_processes_see_one_gpu(machine_with, tmp_path):
    path = tmp_path / "gpus"
    with machine_with(tmp_path, path=path) as machine:
        make(machine.gpu, "4g")
        done = subprocess.run(
            [sys.executable, "-c", SEE, str(path)], capture_output=True, text=True, check=True
        )
        assert json.loads(done.stdout) == ["4g.20gb"]
        assert [each.profile for each in machine.gpu.instances()] == ["4g.20gb", "3g.20gb"]


MAKE = """
import sys
from pathlib import Path
from shunter.allocator.devices.inventory import take_stock
from shunter.allocator.devices.mig import gpus, nvml_started
from shunter.allocator.devices.simulated.library import SimulatedLibrary, installed
from shunter.allocator.devices.simulated.store import Store
from shunter.allocator.devices.geometry import Placement

with installed(SimulatedLibrary(Store(Path(sys.argv[1])))), nvml_started():
    place = Placement(*map(int, sys.argv[2].split(",")))
    for _ in range(10):
        gpus()[0].create(place)
        gpus()[0].destroy(place)
    gpus()[0].create(place)
"""


@pytest.mark.slow
def test_changes_of_several_processes_at_once_are_all_there(machine_with, tmp_path):
    path = tmp_path / "gpus"
    with machine_with(tmp_path, path=path) as machine:
        makers = [
            subprocess.Popen([sys.executable, "-c", MAKE, str(path), place])
            for place in ("0,1,19", "2,2,14", "4,4,9")
        ]
        assert [maker.wait() for maker in makers] == [0] * 3
        assert text_of(machine.gpu.layout()[0], machine.gpu.profiles) == "1g@0:1 2g@2:2 3g@4:4"
        assert machine.store.read().calls == 3 * (10 * 4 + 2)


def test_an_instance_that_goes_while_it_is_read_is_not_there(machine):
    make(machine.gpu, "3g,2g")
    gpu = machine.gpu
    list_them = gpu._handles
    gone = []

    def list_and_lose(profile):
        found = list_them(profile)
        if profile.kind == "2g" and not gone:
            gone.append(profile)
            gpus()[0].destroy(Placement(0, 2, 14))
        return found

    gpu._handles = list_and_lose
    assert [each.profile for each in gpu.instances()] == ["3g.20gb"]
    assert gone
