"""What is said of machines: good ones, and those that lack one thing each."""

import dataclasses
import math

import pytest

from shunter.plugins.doctor.checks import Level, diagnose
from shunter.plugins.doctor.records import Built, Facts, Gpus, Host, Software

SOFTWARE = Software(
    machine="x86_64",
    system="Linux",
    kernel=(6, 1),
    python=(3, 11),
    java=17,
    java_program="java",
    torchserve="0.12.0",
    torch="2.13.0",
    triton="/opt/tritonserver/bin/tritonserver",
    compiled={"TorchServe's jar": Built.FRESH, "the network front end": Built.FRESH},
    javac=False,
    compiler=False,
)
HOST = Host(
    cpus=16,
    nodes=2,
    quota=math.inf,
    memory=64 << 30,
    runtime="/dev/shm",
    runtime_free=32 << 30,
    runtime_writable=True,
    servers=0,
    taken=(),
    open_files=(65536, 65536),
    receive_bytes=8 << 20,
    may_force=False,
    returns_from_idle=True,
    clock="tsc",
)
GPUS = Gpus(("NVIDIA H100",), "", device_files=True, mps=True)
GOOD = Facts(SOFTWARE, HOST, GPUS, "shunter.toml", "")


def bad(facts):
    """Topic, level and advice of what is not right."""
    return [(f.topic, f.level, f.mend) for f in diagnose(facts) if f.level is not Level.OK]


def test_a_machine_that_has_everything():
    assert bad(GOOD) == []
    assert all(not finding.mend for finding in diagnose(GOOD))


STALE = {"TorchServe's jar": Built.STALE}
NO_LIBRARY = {"the network front end": Built.MISSING}
SOFTWARE_CASES = [
    ({"machine": "aarch64"}, "system", Level.ERROR, "x86-64 only"),
    ({"system": "Darwin"}, "system", Level.ERROR, "Linux"),
    ({"kernel": (4, 19)}, "system", Level.WARNING, "5.3"),
    ({"python": (3, 10)}, "Python", Level.ERROR, "3.11"),
    ({"python": (3, 14)}, "Python", Level.WARNING, "3.13"),
    ({"java": 11, "triton": None}, "Java", Level.ERROR, "openjdk-17-jre"),
    ({"java": None, "triton": None}, "Java", Level.ERROR, "JAVA_HOME"),
    ({"java": None}, "Java", Level.NOTE, "Triton needs none"),
    ({"torchserve": None}, "TorchServe", Level.NOTE, "pip install"),
    ({"torchserve": None, "triton": None}, "TorchServe", Level.ERROR, "pip install"),
    ({"torchserve": "0.11.1"}, "TorchServe", Level.ERROR, ">=0.12"),
    ({"torchserve": "0.120.1"}, "TorchServe", Level.ERROR, ">=0.12"),
    ({"torch": None}, "torch", Level.ERROR, "pip install torch"),
    ({"triton": None}, "Triton", Level.NOTE, "SHUNTER_TRITON"),
    ({"compiled": STALE}, "built", Level.ERROR, "openjdk-17-jdk"),
    ({"compiled": STALE, "compiler": True}, "built", Level.ERROR, "openjdk-17-jdk"),
    ({"compiled": STALE, "javac": True}, "built", Level.NOTE, "first use"),
    ({"compiled": NO_LIBRARY}, "built", Level.ERROR, "gcc"),
    ({"compiled": NO_LIBRARY, "compiler": True}, "built", Level.NOTE, "first use"),
]


@pytest.mark.parametrize(("lacks", "topic", "level", "mend"), SOFTWARE_CASES)
def test_software_that_is_not_there(lacks, topic, level, mend):
    found = bad(dataclasses.replace(GOOD, software=dataclasses.replace(SOFTWARE, **lacks)))
    assert [each[:2] for each in found if each[0] == topic] == [(topic, level)]
    assert mend in next(each[2] for each in found if each[0] == topic)
    assert {each[0] for each in found} <= {topic, "Triton"}


HOST_CASES = [
    ({"quota": 2.5}, "CPUs", Level.WARNING, "cpuset"),
    ({"memory": 1 << 30}, "memory", Level.WARNING, "limit"),
    ({"runtime_free": None}, "shared memory", Level.ERROR, "SHUNTER_RUNTIME_DIR"),
    ({"runtime_writable": False}, "shared memory", Level.ERROR, "SHUNTER_RUNTIME_DIR"),
    ({"runtime_free": 1 << 20}, "shared memory", Level.WARNING, "--shm-size"),
    ({"taken": (8080, 9999)}, "ports", Level.WARNING, "--port"),
    ({"taken": (8080,), "servers": 1}, "ports", Level.NOTE, "--port"),
    ({"open_files": (1024, 524288)}, "open files", Level.WARNING, "ulimit -n 65536"),
    ({"open_files": (1024, 2048)}, "open files", Level.WARNING, "ulimit -n 2048"),
    ({"open_files": (1024, -1)}, "open files", Level.WARNING, "ulimit -n 4096"),
    ({"receive_bytes": 212992}, "network", Level.WARNING, "rmem_max"),
    ({"returns_from_idle": False}, "scheduling", Level.NOTE, "ulimit -e 20"),
    ({"clock": "hpet"}, "clock", Level.WARNING, "clocksource=tsc"),
]


@pytest.mark.parametrize(("lacks", "topic", "level", "mend"), HOST_CASES)
def test_a_host_that_gives_little(lacks, topic, level, mend):
    [found] = bad(dataclasses.replace(GOOD, host=dataclasses.replace(HOST, **lacks)))
    assert found[:2] == (topic, level)
    assert mend in found[2]


@pytest.mark.parametrize(
    "more",
    [
        {"receive_bytes": None},
        {"receive_bytes": 212992, "may_force": True},
        {"memory": math.inf},
        {"open_files": (-1, -1)},
        {"quota": 16.0},
        {"clock": ""},
    ],
)
def test_what_is_no_matter(more):
    assert bad(dataclasses.replace(GOOD, host=dataclasses.replace(HOST, **more))) == []


GPU_CASES = [
    (Gpus((), "no driver", device_files=False, mps=False), "2.13.0", "GPUs", Level.NOTE),
    (Gpus((), "driver mismatch", device_files=True, mps=True), "2.13.0", "GPUs", Level.WARNING),
    (GPUS, "2.13.0+cpu", "GPUs", Level.WARNING),
    (dataclasses.replace(GPUS, mps=False), "2.13.0", "MPS", Level.NOTE),
]


@pytest.mark.parametrize(("gpus", "torch", "topic", "level"), GPU_CASES)
def test_gpus(gpus, torch, topic, level):
    software = dataclasses.replace(SOFTWARE, torch=torch)
    [found] = bad(dataclasses.replace(GOOD, gpus=gpus, software=software))
    assert found[:2] == (topic, level)
    assert found[2]


def test_settings():
    [found] = bad(dataclasses.replace(GOOD, settings_problem="alpha = 2 is not allowed"))
    assert found[:2] == ("settings", Level.ERROR)
    without = diagnose(dataclasses.replace(GOOD, settings=None))
    assert "shunter init" in without[-1].mend
    assert without[-1].level is Level.OK


def test_as_json():
    found = diagnose(GOOD)[0].as_json()
    assert found == {"topic": "system", "level": "ok", "said": "Linux 6.1 on x86_64", "mend": ""}
