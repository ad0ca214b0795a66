"""What else the machine did while a benchmark ran: other processes, and processors taken away.

The watcher of :mod:`guard` looks every few seconds; the benchmark does not. Processes of the run
are those that inherited its mark or descend from it. What began and ended between two looks is not
seen.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PERIOD_S = 5.0
MOST_OTHERS = 0.05
"""Of all cores, by processes that do not belong to the run, on average."""
MOST_STEAL = 0.02
"""Of all processor time, taken by the machine below this one."""
_HZ = os.sysconf("SC_CLK_TCK")
Id = tuple[int, int]
"""A process: its pid, and when it began, in ticks after the boot."""


@dataclass(frozen=True)
class Look:
    """At one moment; processor time in ticks."""

    at_s: float
    others: dict[Id, int]
    steal: int
    total: int


@dataclass(frozen=True)
class _Process:
    parent: int
    began: int
    ticks: int
    marked: bool


def look(mark: str, own: Iterable[int], at_s: float, proc: Path = Path("/proc")) -> Look:
    """Now. ``mark``: a line of the environment of processes of the run; ``own``: others of it,
    with all that descend from them.
    """
    words = (proc / "stat").read_text(encoding="ascii").splitlines()[0].split()[1:9]
    found: dict[int, _Process] = {}
    for folder in proc.iterdir():
        if folder.name.isdigit() and (process := _process(folder, mark.encode())):
            found[int(folder.name)] = process
    ours = {*own, *(pid for pid, each in found.items() if each.marked)}
    others = {
        (pid, each.began): each.ticks
        for pid, each in found.items()
        if not _descends(pid, ours, found)
    }
    return Look(at_s, others, int(words[7]), sum(map(int, words)))


def _process(folder: Path, mark: bytes) -> _Process | None:
    """None for kernel threads, which work for all, and for what ended."""
    try:
        if not (folder / "cmdline").read_bytes():
            return None
        marked = mark in (folder / "environ").read_bytes().split(b"\0")
        fields = (folder / "stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    rest = fields.rpartition(")")[2].split()
    return _Process(int(rest[1]), int(rest[19]), int(rest[11]) + int(rest[12]), marked)


def _descends(pid: int, ours: set[int], found: dict[int, _Process]) -> bool:
    while pid in found and pid not in ours:
        pid = found[pid].parent
    return pid in ours


@dataclass
class Surroundings:
    """The sum over all looks."""

    first: Look
    last: Look
    busy_s: float = 0.0
    worst: float = 0.0
    """Cores of others in the worst period."""

    def see(self, now: Look) -> None:
        """The next look."""
        used = sum(
            ticks - self.last.others.get(each, 0)
            for each, ticks in now.others.items()
            # A process that is new began in this period: all of its time counts.
            if each in self.last.others or each[1] >= _ticks(self.last.at_s)
        )
        took = now.at_s - self.last.at_s
        if took > 0:
            self.busy_s += used / _HZ
            self.worst = max(self.worst, used / _HZ / took)
        self.last = now

    def summary(self) -> dict[str, Any]:
        """For a result."""
        took = self.last.at_s - self.first.at_s
        total = self.last.total - self.first.total
        return {
            "seconds": round(took, 1),
            "others_cores": round(self.busy_s / took, 3) if took else 0.0,
            "others_cores_worst": round(self.worst, 3),
            "steal": round((self.last.steal - self.first.steal) / total, 4) if total else 0.0,
        }


def _ticks(at_s: float) -> int:
    """Of a moment of the clock that counts from the boot."""
    return int(at_s * _HZ)


def contaminated(found: dict[str, Any], cores: int) -> list[str]:
    """Why a run does not count; empty when it does.

    >>> contaminated({"others_cores": 0.5, "steal": 0.0}, cores=2)
    ['other processes took 0.50 cores on average (at most 0.10)']
    """
    reasons = []
    if found.get("others_cores", 0) > MOST_OTHERS * cores:
        most = MOST_OTHERS * cores
        text = f"other processes took {found['others_cores']:.2f} cores on average"
        reasons.append(f"{text} (at most {most:.2f})")
    if found.get("steal", 0) > MOST_STEAL:
        reasons.append(f"{found['steal']:.1%} of the time was stolen (at most {MOST_STEAL:.0%})")
    return reasons


def write(path: Path, found: Surroundings) -> None:
    """For the benchmark, whole at any moment."""
    beside = path.with_suffix(".new")
    beside.write_text(json.dumps(found.summary()), encoding="ascii")
    beside.replace(path)


def read(path: Path) -> dict[str, Any]:
    """What the watcher wrote; nothing when it did not yet."""
    try:
        content: dict[str, Any] = json.loads(path.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return {}
    return content
