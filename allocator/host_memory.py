"""How much memory the host, and the cgroup of this process, would still give."""

from __future__ import annotations

import math
import re
from pathlib import Path


def available_bytes(sys_root: Path = Path("/sys"), proc_root: Path = Path("/proc")) -> float:
    """Bytes that new processes may take without swapping; inf when nothing tells."""
    found = re.search(r"(?m)^MemAvailable:\s+(\d+) kB$", _text(proc_root / "meminfo"))
    left = int(found[1]) * 1024 if found else math.inf
    own = re.search(r"(?m)^0::/(.*)$", _text(proc_root / "self/cgroup"))
    # This process's group and all above it; in a container the path may not exist.
    folder = Path(own[1] if own else "")
    for part in (folder, *folder.parents):
        left = min(left, _left(sys_root / "fs/cgroup" / part))
    return max(0.0, left)


def _left(cgroup: Path) -> float:
    limit, used = (_text(cgroup / f"memory.{name}").strip() for name in ("max", "current"))
    if not (limit.isdigit() and used.isdigit()):
        return math.inf
    # Pages of files that nobody uses are given back when memory is short.
    cache = re.search(r"(?m)^inactive_file (\d+)$", _text(cgroup / "memory.stat"))
    return int(limit) - int(used) + (int(cache[1]) if cache else 0)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""
