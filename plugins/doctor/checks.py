"""What is right with a machine, what is wrong, and what mends it. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from enum import IntEnum
from typing import Any

from shunter.plugins.doctor.records import Built, Facts, Gpus, Host, Software

JAVA = 17
PYTHONS = ((3, 11), (3, 13))
TORCHSERVE = "0.12"
KERNEL = (5, 3)
"""The first with pidfds."""
RUNTIME_MB = 64
MEMORY_MB = 2048
"""A server, its controller and one small model."""
OPEN_FILES = 4096
RECEIVE_MB = 4
GOOD_CLOCKS = ("", "tsc", "kvm-clock", "hyperv_clocksource_tsc_page", "arch_sys_counter")
"""Those that are read without a system call."""
PORTS = {
    8080: "inference",
    8081: "management",
    8082: "metrics",
    7070: "gRPC inference",
    7071: "gRPC management",
    8083: "the network front end",
}


class Level(IntEnum):
    """How much a finding matters."""

    OK = 0
    NOTE = 1
    """Something optional is not there."""
    WARNING = 2
    """It serves, but less well than it could."""
    ERROR = 3
    """It does not serve."""


@dataclass(frozen=True)
class Finding:
    """One line of the report."""

    topic: str
    level: Level
    said: str
    mend: str = ""
    """What to do, a command where there is one."""

    def as_json(self) -> dict[str, Any]:
        """For programs."""
        return asdict(self) | {"level": self.level.name.lower()}


def diagnose(facts: Facts) -> list[Finding]:
    """All findings, by topic."""
    return [
        *_software(facts.software),
        *_compiled(facts.software),
        *_host(facts.host),
        *_limits(facts.host),
        *_gpus(facts.gpus, facts.software.torch),
        _settings(facts),
    ]


def _software(has: Software) -> Iterator[Finding]:
    known = has.system == "Linux" and has.machine == "x86_64"
    where = f"{has.system} {has.kernel[0]}.{has.kernel[1]} on {has.machine}"
    if not known:
        yield Finding("system", Level.ERROR, where, "Shunter runs on Linux on x86-64 only")
    elif has.kernel < KERNEL:
        mend = "the network front end needs Linux 5.3 or later"
        yield Finding("system", Level.WARNING, where, mend)
    else:
        yield Finding("system", Level.OK, where)
    yield _python(has.python)
    yield _java(has)
    yield _torchserve(has)
    yield _torch(has.torch)
    yield _triton(has)


def _python(version: tuple[int, int]) -> Finding:
    said = f"{version[0]}.{version[1]}"
    if PYTHONS[0] <= version <= PYTHONS[1]:
        return Finding("Python", Level.OK, said)
    level = Level.ERROR if version < PYTHONS[0] else Level.WARNING
    return Finding("Python", level, said, "tried with Python 3.11 to 3.13")


def _java(has: Software) -> Finding:
    if has.java is not None and has.java >= JAVA:
        return Finding("Java", Level.OK, str(has.java))
    said = f"{has.java}" if has.java else f"{has.java_program} does not run"
    level = Level.ERROR if has.triton is None else Level.NOTE
    mend = "apt-get install openjdk-17-jre-headless (or set JAVA_HOME); Triton needs none"
    return Finding("Java", level, said, mend)


def _torchserve(has: Software) -> Finding:
    if has.torchserve is None:
        level = Level.ERROR if has.triton is None else Level.NOTE
        mend = "pip install 'torchserve>=0.12,<0.13', or serve with Triton"
        return Finding("TorchServe", level, "not installed", mend)
    if has.torchserve.split(".")[:2] != TORCHSERVE.split("."):
        mend = "pip install 'torchserve>=0.12,<0.13': the jar refuses another"
        return Finding("TorchServe", Level.ERROR, has.torchserve, mend)
    return Finding("TorchServe", Level.OK, has.torchserve)


def _torch(version: str | None) -> Finding:
    if version is None:
        mend = "pip install torch --index-url https://download.pytorch.org/whl/cpu (or your CUDA's)"
        return Finding("torch", Level.ERROR, "not installed", mend)
    return Finding("torch", Level.OK, version)


def _triton(has: Software) -> Finding:
    if has.triton is None:
        mend = "only for serve --triton: SHUNTER_TRITON names one; `make triton` gets one"
        return Finding("Triton", Level.NOTE, "not found", mend)
    return Finding("Triton", Level.OK, has.triton)


def _compiled(has: Software) -> Iterator[Finding]:
    for name, state in has.compiled.items():
        is_java = name.endswith("jar")
        can_build = has.javac if is_java else has.compiler
        tool = "openjdk-17-jdk-headless" if is_java else "gcc libc6-dev"
        if state is Built.FRESH:
            yield Finding("built", Level.OK, name)
        elif can_build:
            yield Finding("built", Level.NOTE, f"{name}: {state.value}", "it is built at first use")
        else:
            mend = f"apt-get install {tool}, or install a wheel, which brings it"
            yield Finding("built", Level.ERROR, f"{name}: {state.value}", mend)


def _host(has: Host) -> Iterator[Finding]:
    said = f"{has.cpus} in {_count(has.nodes, 'NUMA node')}"
    if has.quota < has.cpus:
        said += f", a quota of {has.quota:g}"
        mend = "workers are not pinned under a quota: give the container whole CPUs (--cpuset-cpus)"
        yield Finding("CPUs", Level.WARNING, said, mend)
    else:
        yield Finding("CPUs", Level.OK, said)
    if math.isfinite(has.memory):
        low = has.memory < MEMORY_MB << 20
        mend = "models may not load: free some, or raise the limit" if low else ""
        said = f"{has.memory / (1 << 30):.1f} GiB available"
        yield Finding("memory", Level.WARNING if low else Level.OK, said, mend)
    yield _runtime(has)
    said = f"{_count(has.servers, 'server')} of yours {'runs' if has.servers == 1 else 'run'}"
    yield Finding("servers", Level.OK, said if has.servers else "none of yours runs")
    if has.taken:
        named = ", ".join(f"{port} ({PORTS.get(port, 'asked for')})" for port in has.taken)
        mend = "shunter serve --port N --grpc M, or other addresses in config.properties"
        level = Level.NOTE if has.servers else Level.WARNING
        yield Finding("ports", level, f"in use: {named}", mend)
    else:
        yield Finding("ports", Level.OK, "the usual ones are free")
    if has.clock not in GOOD_CLOCKS:
        mend = f"reading {has.clock} costs a system call; boot with clocksource=tsc if it is stable"
        yield Finding("clock", Level.WARNING, has.clock, mend)
    else:
        yield Finding("clock", Level.OK, has.clock or "unknown")


def _runtime(has: Host) -> Finding:
    if has.runtime_free is None or not has.runtime_writable:
        said = f"{has.runtime} {'is not there' if has.runtime_free is None else 'is not writable'}"
        mend = "SHUNTER_RUNTIME_DIR=FOLDER names another, best one of memory (tmpfs)"
        return Finding("shared memory", Level.ERROR, said, mend)
    said = f"{has.runtime}, {has.runtime_free >> 20} MB free"
    if has.runtime_free < RUNTIME_MB << 20:
        mend = "docker run --shm-size=256m (Kubernetes: an emptyDir with medium: Memory)"
        return Finding("shared memory", Level.WARNING, said, mend)
    return Finding("shared memory", Level.OK, said)


def _limits(has: Host) -> Iterator[Finding]:
    soft, hard = has.open_files
    # -1 is infinity.
    if 0 <= soft < OPEN_FILES:
        how = f"ulimit -n {OPEN_FILES if hard < 0 else min(hard, 65536)} (systemd: "
        if 0 <= hard <= soft:
            how = "more only from outside (docker run --ulimit nofile=65536, systemd: "
        mend = f"{how}LimitNOFILE=65536): each connection and worker needs one"
        yield Finding("open files", Level.WARNING, f"at most {soft}", mend)
    else:
        yield Finding("open files", Level.OK, "no limit" if soft < 0 else f"at most {soft}")
    if has.receive_bytes is not None:
        low = has.receive_bytes < RECEIVE_MB << 20 and not has.may_force
        mend = "sysctl -w net.core.rmem_max=8388608: else bursts of datagrams are lost and resent"
        said = f"receive buffers of at most {has.receive_bytes >> 10} KB"
        said = "receive buffers as large as wanted" if has.may_force else said
        level = Level.WARNING if low else Level.OK
        yield Finding("network", level, said, mend if low else "")
    if has.returns_from_idle:
        yield Finding("scheduling", Level.OK, "models load behind those who serve")
    else:
        mend = "CAP_SYS_NICE or `ulimit -e 20` (systemd: LimitNICE=20), if changes disturb"
        said = "models load beside those who serve"
        yield Finding("scheduling", Level.NOTE, said, mend)


def _gpus(has: Gpus, torch: str | None) -> Iterator[Finding]:
    if not has.names:
        level = Level.WARNING if has.device_files else Level.NOTE
        yield Finding("GPUs", level, "none" if not has.device_files else "not usable", has.problem)
        return
    cpu_only = torch is not None and re.search(r"\+cpu\b", torch)
    mend = "this torch has no CUDA: install the build for your driver" if cpu_only else ""
    yield Finding("GPUs", Level.WARNING if cpu_only else Level.OK, ", ".join(has.names), mend)
    if not has.mps:
        mend = "nvidia-cuda-mps-control comes with the driver's packages"
        yield Finding("MPS", Level.NOTE, "models do not share a slice by MPS", mend)


def _settings(facts: Facts) -> Finding:
    if facts.settings_problem:
        return Finding("settings", Level.ERROR, facts.settings_problem, "correct it")
    if facts.settings is None:
        mend = "`shunter init` writes a commented shunter.toml"
        return Finding("settings", Level.OK, "the defaults hold", mend)
    return Finding("settings", Level.OK, f"{facts.settings} can be used")


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
