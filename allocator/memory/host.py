"""How much memory the host, and the cgroups of this process, would still give."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class _Hierarchy:
    """Where a version of cgroups says what."""

    own: str
    """Pattern of this process's path in /proc/self/cgroup."""
    root: str
    limit: str
    used: str
    unused: str


_V2 = _Hierarchy(
    own=r"(?m)^0::/(.*)$",
    root="fs/cgroup",
    limit="memory.max",
    used="memory.current",
    unused="inactive_file",
)
_V1 = _Hierarchy(
    own=r"(?m)^\d+:(?:[^:\n]*,)?memory(?:,[^:\n]*)?:/(.*)$",
    root="fs/cgroup/memory",
    limit="memory.limit_in_bytes",
    used="memory.usage_in_bytes",
    unused="total_inactive_file",
)


def available_bytes(sys_root: Path = Path("/sys"), proc_root: Path = Path("/proc")) -> float:
    """Bytes that new processes may take without swapping; inf when nothing tells."""
    found = re.search(r"(?m)^MemAvailable:\s+(\d+) kB$", _text(proc_root / "meminfo"))
    left = int(found[1]) * 1024 if found else math.inf
    groups = _text(proc_root / "self/cgroup")
    for version in (_V2, _V1):
        own = re.search(version.own, groups)
        # This process's group and all above it; in a container the path may not exist.
        folder = Path(own[1] if own else "")
        for part in (folder, *folder.parents):
            left = min(left, _left(sys_root / version.root / part, version))
    return max(0.0, left)


def _left(cgroup: Path, version: _Hierarchy) -> float:
    limit, used = _number(cgroup / version.limit), _number(cgroup / version.used)
    if limit is None or used is None:
        return math.inf
    # Pages of files that nobody uses are given back when memory is short.
    cache = re.search(rf"(?m)^{version.unused} (\d+)$", _text(cgroup / "memory.stat"))
    return limit - used + (int(cache[1]) if cache else 0)


def _number(path: Path) -> int | None:
    """None too where there is no limit: v1 says a number of 19 digits then, v2 a word."""
    text = _text(path).strip()
    return int(text) if re.fullmatch(r"\d{1,18}", text) else None


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""
