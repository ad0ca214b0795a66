"""What a machine has of all that Shunter uses: read here, judged in :mod:`.checks`."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import resource
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from shunter.allocator.cpus.discovery import read_topology
from shunter.allocator.devices.advice import DeviceError
from shunter.allocator.devices.inventory import take_stock
from shunter.allocator.memory.host import available_bytes
from shunter.batching.page import runtime
from shunter.handlers.placement.gentle import can_return_from_idle
from shunter.nic_frontend import build
from shunter.nic_frontend.server.listeners import SO_RCVBUFFORCE
from shunter.plugins import hosts
from shunter.plugins.control import settings
from shunter.plugins.doctor.records import Built, Facts, Gpus, Host, Software

JAVA_S = 30
"""A Java that has not said its version by then is none."""
CLOCK = "devices/system/clocksource/clocksource0/current_clocksource"


def gather(
    ports: Iterable[int],
    environ: Mapping[str, str] = os.environ,
    sys_root: Path = Path("/sys"),
    proc_root: Path = Path("/proc"),
    dev_root: Path = Path("/dev"),
) -> Facts:
    """Look. Nothing is changed, and nothing is built."""
    path, problem = _settings(environ)
    return Facts(
        _software(environ),
        _host(ports, environ, sys_root, proc_root),
        _gpus(dev_root),
        None if path is None else str(path),
        problem,
    )


def _settings(environ: Mapping[str, str]) -> tuple[Path | None, str]:
    path = settings.find(None, environ, Path.cwd())
    try:
        settings.key_digest(settings.load(path).classes)
    except settings.SettingsError as error:
        return path, str(error)
    return path, ""


def _software(environ: Mapping[str, str]) -> Software:
    home = environ.get("JAVA_HOME")
    program = f"{home}/bin/java" if home else "java"  # as TorchServe looks for it
    numbers = re.match(r"(\d+)\.(\d+)", platform.release())
    return Software(
        machine=platform.machine(),
        system=platform.system(),
        kernel=(int(numbers[1]), int(numbers[2])) if numbers else (0, 0),
        python=sys.version_info[:2],
        java=_java(program),
        java_program=program,
        torchserve=_version("torchserve"),
        torch=_version("torch"),
        triton=hosts.triton_program(),
        compiled={name: _state(fresh) for name, fresh in hosts.compiled().items()},
        javac=shutil.which(f"{home}/bin/javac" if home else "javac") is not None,
        compiler=_compiler(),
    )


def _java(program: str) -> int | None:
    try:
        done = subprocess.run(
            [program, "-version"], capture_output=True, text=True, check=True, timeout=JAVA_S
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return java_version(done.stderr)


def java_version(said: str) -> int | None:
    """The feature version that ``java -version`` says.

    >>> java_version('openjdk version "17.0.9" 2023-10-17'), java_version('java version "1.8.0_1"')
    (17, 8)
    """
    found = re.search(r'version "(?:1\.)?(\d+)', said)
    return int(found[1]) if found else None


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _state(fresh: bool | None) -> Built:
    return Built.MISSING if fresh is None else Built.FRESH if fresh else Built.STALE


def _compiler() -> bool:
    try:
        return shutil.which(build.compiler()[0]) is not None
    except build.BuildError:
        return False


def _host(
    ports: Iterable[int], environ: Mapping[str, str], sys_root: Path, proc_root: Path
) -> Host:
    topology = read_topology(sys_root=sys_root, proc_root=proc_root)
    folder = runtime.parent(environ)
    most = _text(proc_root / "sys/net/core/rmem_max")
    return Host(
        cpus=len(topology.cpus),
        nodes=len({cpu.node for cpu in topology.cpus}),
        quota=topology.quota,
        memory=available_bytes(sys_root, proc_root),
        runtime=str(folder),
        runtime_free=_free(folder),
        runtime_writable=os.access(folder, os.W_OK | os.X_OK),
        servers=len(runtime.live(environ)),
        taken=tuple(port for port in ports if _is_taken(port)),
        open_files=resource.getrlimit(resource.RLIMIT_NOFILE),
        receive_bytes=int(most) if most.isdecimal() else None,
        may_force=_may_force(),
        returns_from_idle=can_return_from_idle(),
        clock=_text(sys_root / CLOCK),
    )


def _free(folder: Path) -> int | None:
    try:
        found = os.statvfs(folder)
    except OSError:
        return None
    return found.f_bavail * found.f_frsize


def _is_taken(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return True
    return False


def _may_force() -> bool:
    """Whether ``SO_RCVBUFFORCE`` works: it needs CAP_NET_ADMIN where the network belongs."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 1 << 16)
        except OSError:
            return False
    return True


def _gpus(dev_root: Path) -> Gpus:
    device_files = any(dev_root.glob("nvidia[0-9]*"))
    mps = shutil.which("nvidia-cuda-mps-control") is not None
    try:
        records = take_stock()
    except DeviceError as error:
        return Gpus((), str(error), device_files, mps)
    return Gpus(tuple(each.name for each in records), "", device_files, mps)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""
