"""The processors of this host: NUMA nodes, SMT siblings, and which of them are ours.

Read from ``/sys`` below a given root, so that tests give a tree of their own. What the process may
use is its affinity mask, which a cpuset sets too; a CPU quota of its cgroup bounds how many of
them are of any use at once.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterable
from pathlib import Path

from shunter.allocator.cpus.cpu_list import CpuListError, parse_cpu_list
from shunter.allocator.cpus.topology import Cpu, Topology

SYSTEM = Path("devices/system")


def read_topology(
    affinity: Iterable[int] | None = None,
    sys_root: Path = Path("/sys"),
    proc_root: Path = Path("/proc"),
) -> Topology:
    """The CPUs in ``affinity`` (default: this process's) that are online.

    A host that tells less, such as a container without ``/sys``, counts as one node whose CPUs
    are cores of their own.
    """
    allowed = set(os.sched_getaffinity(0) if affinity is None else affinity)
    online = _read_list(sys_root / SYSTEM / "cpu/online")
    ids = sorted(allowed & online) if online else sorted(allowed)
    nodes = _nodes(sys_root)
    cpus = tuple(_read_cpu(sys_root, cpu, nodes.get(cpu, 0)) for cpu in ids)
    return Topology(cpus, read_quota(sys_root, proc_root))


def _read_cpu(sys_root: Path, cpu: int, node: int) -> Cpu:
    # Not by core_id, which some hosts repeat within a socket and others leave at -1.
    siblings = _read_list(sys_root / SYSTEM / f"cpu/cpu{cpu}/topology/thread_siblings_list")
    return Cpu(cpu, min(siblings, default=cpu), node)


def _nodes(sys_root: Path) -> dict[int, int]:
    """NUMA node of each CPU."""
    found = {}
    for folder in (sys_root / SYSTEM / "node").glob("node[0-9]*"):
        for cpu in _read_list(folder / "cpulist"):
            found[cpu] = int(folder.name[4:])
    return found


def read_quota(sys_root: Path = Path("/sys"), proc_root: Path = Path("/proc")) -> float:
    """CPUs' worth of time of this process's cgroup and those above it; inf without a limit."""
    limits = [math.inf]
    for line in _text(proc_root / "self/cgroup").splitlines():
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        names = controllers.split(",")
        if controllers == "":
            limits += _limits(sys_root / "fs/cgroup", path, _quota_v2)
        elif "cpu" in names:
            limits += _limits(sys_root / "fs/cgroup/cpu", path, _quota_v1)
            limits += _limits(sys_root / "fs/cgroup" / controllers, path, _quota_v1)
    return min(limits)


def _limits(root: Path, path: str, read: Callable[[Path], float]) -> list[float]:
    """Limits of a cgroup and of all above it."""
    parts = [part for part in path.split("/") if part not in ("", "..")]
    folders = [root.joinpath(*parts[:depth]) for depth in range(len(parts) + 1)]
    return [read(folder) for folder in folders]


def _quota_v2(folder: Path) -> float:
    match = re.fullmatch(r"(\d+) (\d+)", _text(folder / "cpu.max").strip())
    return int(match[1]) / int(match[2]) if match and int(match[2]) else math.inf


def _quota_v1(folder: Path) -> float:
    quota = _read_number(folder / "cpu.cfs_quota_us")
    period = _read_number(folder / "cpu.cfs_period_us")
    return quota / period if quota and quota > 0 and period else math.inf


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""


def _read_number(path: Path) -> int | None:
    text = _text(path).strip()
    return int(text) if re.fullmatch(r"-?\d{1,12}", text) else None


def _read_list(path: Path) -> set[int]:
    try:
        return set(parse_cpu_list(_text(path)))
    except CpuListError:
        return set()
