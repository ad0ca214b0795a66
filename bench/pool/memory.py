"""How much memory a server takes: proportional set sizes of all its processes, and its files.

A page that several processes have counts once in their sum (PSS). The one copy of the weights is a
file in memory (tmpfs); what of it no process has touched is in nobody's PSS, but it is there,
so it is added. Unpacked archives on disk are page cache, which the kernel takes back.
"""

from __future__ import annotations

import contextlib
import os
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from common import Row

MARK = "SHUNTER_BENCH_SERVER"
"""Environment variable: which server a process belongs to, whoever its parent is."""
KINDS = ("jvm", "pool", "workers", "others")
_RUNTIME = b"SHUNTER_RUNTIME_DIR="
_MB = 1e6


def processes(mark: str) -> dict[str, list[int]]:
    """Of the server with this mark, by kind. ``workers``: those that the server starts for models,
    which in a pool are seats; ``pool``: the processes in which the models of these are."""
    found: dict[str, list[int]] = {kind: [] for kind in KINDS}
    wanted = f"{MARK}={mark}".encode()
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with contextlib.suppress(OSError):  # ended, or somebody else's
                if wanted in (folder / "environ").read_bytes().split(b"\0"):
                    command = (folder / "cmdline").read_bytes().split(b"\0")
                    found[kind_of(command)].append(int(folder.name))
    return found


def kind_of(command: Sequence[bytes]) -> str:
    """What a process is, by its command line; that of a seat ends with what it stands for.

    >>> kind_of([b"/usr/bin/java", b"-jar"])
    'jvm'
    >>> kind_of([b"python", b"-P", b"-m", b"shunter.handlers.torchserve.pool.worker"])
    'pool'
    >>> kind_of([b"python", b"model_service_worker.py", b"--sock-name", b"/tmp/a"])
    'workers'
    """
    name = os.path.basename(command[0])
    if name == b"java":
        return "jvm"
    if name == b"shunter-seat" or b"--sock-name" in command:
        return "workers"
    return "pool" if any(each.endswith(b".pool.worker") for each in command) else "others"


def memory_of(groups: Mapping[str, Sequence[int]]) -> Row:
    """In MB: PSS and RSS by kind, files in memory, and the ``total`` of PSS, with what nobody has
    touched of these."""
    row: Row = {}
    shared = total = 0.0
    for kind, pids in groups.items():
        sizes = [_sizes(pid) for pid in pids]
        row[f"{kind}_pss"] = sum(each.get("Pss", 0) for each in sizes) / _MB
        row[f"{kind}_rss"] = sum(each.get("Rss", 0) for each in sizes) / _MB
        shared += sum(each.get("Pss_Shmem", 0) for each in sizes)
        total += sum(each.get("Pss", 0) for each in sizes)
    files = sum(_files_in(folder) for folder in _runtime_folders(groups))
    row["pss"] = total / _MB
    row["files"] = files / _MB
    row["total"] = (total - shared + max(shared, files)) / _MB
    row["processes"] = sum(map(len, groups.values()))
    return {key: round(value, 1) for key, value in row.items()}


def _sizes(pid: int) -> dict[str, int]:
    """Bytes by name; nothing of a process that has ended."""
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii")
    except OSError:
        return {}
    found = re.findall(r"(?m)^(Pss\w*|Rss):\s+(\d+) kB$", text)
    return {name: int(kb) * 1024 for name, kb in found}


def _runtime_folders(groups: Mapping[str, Sequence[int]]) -> set[Path]:
    found = set()
    for pid in groups.get("jvm", ()):
        with contextlib.suppress(OSError):
            for pair in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                if pair.startswith(_RUNTIME):
                    found.add(Path(os.fsdecode(pair.removeprefix(_RUNTIME))))
    return found


def _files_in(folder: Path) -> int:
    """Bytes that its files take in memory."""
    size = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError):
            size += path.lstat().st_blocks * 512
    return size


class MemoryWatch(threading.Thread):
    """Samples until ``stop``."""

    def __init__(self, look: Callable[[], Row], every_s: float) -> None:
        """``look`` gives a sample."""
        super().__init__(daemon=True)
        self._look, self._every_s = look, every_s
        self._over, self._began = threading.Event(), time.monotonic()
        self.samples: list[Row] = []

    def run(self) -> None:
        """For the thread."""
        while not self._over.wait(self._every_s):
            row = self._look()
            self.samples.append({"s": round(time.monotonic() - self._began, 2), **row})

    def stop(self) -> None:
        """No more samples."""
        self._over.set()
        self.join()
