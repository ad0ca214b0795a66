"""One name per device: what users may write, and a fake NVML under the shell."""

import json
import subprocess
import sys
from types import SimpleNamespace

import pynvml
import pytest

from shunter.allocator.devices.names import Device, Gpu, Instance, inventory, main, resolve

A, B = "GPU-11111111-aaaa", "GPU-11112222-bbbb"
LOW, HIGH, OLD = "MIG-51515151-0000", "MIG-52525252-0000", f"MIG-{B}/7/0"


def gpu(uuid, *instances):
    return Gpu(Device(uuid, uuid), instances)


GPUS = (
    gpu(
        A,
        Instance(Device(LOW, A, 0, 4), 2, 0),
        Instance(Device(HIGH, A, 4, 4), 1, 0),
    ),
    gpu(B, Instance(Device(OLD, B, 0, 1), 7, 0)),
)


@pytest.mark.parametrize(
    ("name", "uuid"),
    [
        ("0", A),
        ("1", B),
        ("2", None),
        ("-1", None),
        ("²", None),
        (A, A),
        (A.lower(), A),
        ("GPU-11111", A),
        ("GPU-11112222", B),
        ("GPU-1111", None),  # which of them?
        ("GPU-", None),
        ("GPU", None),
        ("", None),
        ("GPU-9", None),
        (LOW, LOW),
        ("MIG-52", HIGH),
        ("MIG-5", None),
        (f"MIG-{A}/2/0", LOW),
        (f"MIG-{A}/1/0", HIGH),
        (f"MIG-{A}/1/1", None),
        (f"MIG-{A}/1", None),
        (f"MIG-{A}", None),
        ("MIG-GPU-11111/1/0", HIGH),
        (OLD, OLD),
    ],
)
def test_a_name_stands_for_one_device_or_none(name, uuid):
    found = resolve(name, GPUS)
    assert (found and found.uuid) == uuid


class FakeError(Exception):
    pass


class FakeNvml:
    """NVML with the GPUs above."""

    NVMLError = FakeError

    def __init__(self, gpus=GPUS, *, privileged=True, library=True):
        self.gpus, self.privileged, self.library = gpus, privileged, library
        self.open = 0

    def nvmlInit(self):
        if not self.library:
            raise FakeError
        self.open += 1

    def nvmlShutdown(self):
        self.open -= 1

    def nvmlDeviceGetCount(self):
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index):
        return self.gpus[index]

    def nvmlDeviceGetUUID(self, handle):
        return handle.device.uuid.encode()

    def nvmlDeviceGetMaxMigDeviceCount(self, handle):
        if handle.device.uuid == "GPU-old":
            raise FakeError
        return 7

    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle, index):
        if index % 2 or index // 2 >= len(handle.instances):
            raise FakeError
        return handle.instances[index // 2]

    def nvmlDeviceGetGpuInstanceId(self, handle):
        return handle.gpu_instance

    def nvmlDeviceGetComputeInstanceId(self, handle):
        return handle.compute_instance

    def nvmlDeviceGetGpuInstanceById(self, handle, number):
        if not self.privileged:
            raise FakeError
        return next(each for each in handle.instances if each.gpu_instance == number)

    def nvmlGpuInstanceGetInfo(self, handle):
        return SimpleNamespace(placement=handle.device)


def test_the_inventory_is_what_nvml_has():
    nvml = FakeNvml((*GPUS, gpu("GPU-old")))
    assert inventory(nvml) == (*GPUS, gpu("GPU-old"))
    assert nvml.open == 0


def test_the_fake_has_only_what_nvml_has():
    assert all(hasattr(pynvml, name) for name in vars(FakeNvml) if name.startswith("nvml"))


def test_an_instance_whose_place_is_secret_is_all_over_its_gpu():
    found = inventory(FakeNvml(privileged=False))
    assert found[0].instances[1].device == Device(HIGH, A, 0, 8)


def test_where_there_is_no_nvml_nothing_is_known(capsys):
    assert inventory(FakeNvml(library=False)) is None
    main(["0"], FakeNvml(library=False))
    assert capsys.readouterr().out == "null\n"


def test_the_program_says_what_names_stand_for(capsys):
    main(["1", "MIG-52", "GPU-9"], FakeNvml())
    assert json.loads(capsys.readouterr().out) == [
        {"uuid": B, "gpu": B, "start": 0, "size": 8},
        {"uuid": HIGH, "gpu": A, "start": 4, "size": 4},
        None,
    ]


def test_the_program_runs_with_the_real_library_or_without_it():
    command = [sys.executable, "-m", "shunter.allocator.devices.names", "--", "GPU-none"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) in (None, [None])
