"""Memory by kind of process, and how fast it grows.

Which processes there are changes with every fault, and one that is new is smaller than one that has
served for a while: sums by kind say more of that than of growth. So growth is also measured within
processes, by what is theirs alone: pages of files (torch's libraries) come in for a long time, and
go again when the host wants them back.
"""

from __future__ import annotations

import contextlib
import math
import re
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

from common import Row

ROLES = {b"shunter.plugins.control.controller": "controller", b"nic": "front_end"}
"""An argument of a process, and which one it is."""
KINDS = ("jvm", "controller", "front_end", "workers", "pool")
SETTLED_S = 300.0
"""So long a process has served before it counts: it has seen all shapes by then."""
_LEAST = 3
"""Samples that a slope needs."""


def by_role(processes: Mapping[str, Sequence[int]]) -> dict[str, list[int]]:
    """Those of ``pool.memory.processes``, where the controller and the front end are others."""
    found: dict[str, list[int]] = {kind: [] for kind in (*KINDS, "others")}
    for kind, pids in processes.items():
        for pid in pids:
            found[role_of(_command(pid)) if kind == "others" else kind].append(pid)
    return found


def role_of(command: Sequence[bytes]) -> str:
    """What a process is that is neither JVM nor worker.

    >>> role_of([b"python", b"-P", b"-m", b"shunter.plugins.cli.main", b"nic", b"--runtime"])
    'front_end'
    """
    return next((role for argument, role in ROLES.items() if argument in command), "others")


def _command(pid: int) -> list[bytes]:
    with contextlib.suppress(OSError):  # it has ended
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    return []


def private(groups: Mapping[str, Sequence[int]]) -> dict[str, dict[str, float]]:
    """MB of each process that are nobody else's and no file's, by kind and process."""
    return {
        kind: {str(pid): mb for pid in pids if (mb := _private_mb(pid)) is not None}
        for kind, pids in groups.items()
    }


def _private_mb(pid: int) -> float | None:
    """None: it has ended."""
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii")
    except OSError:
        return None
    found = re.search(r"(?m)^Anonymous:\s+(\d+) kB$", text)
    return int(found[1]) * 1024 / 1e6 if found else None


def within(samples: Sequence[Row], kind: str) -> float:
    """MB per hour that the processes of a kind grow, all together; NaN: none was there for long.

    From one sample to the next, of those that had been there for ``SETTLED_S``; for as many as
    there are on average.

    >>> sizes = [{"1": 50.0 + i, "2": 90.0} for i in range(40)]
    >>> within([{"s": 36.0 * i, "private": {"pool": each}} for i, each in enumerate(sizes)], "pool")
    100.0
    """
    since: dict[str, float] = {}
    grown = hours = 0.0
    before, before_s = dict[str, float](), 0.0
    for sample in samples:
        sizes = sample["private"][kind]
        since = {pid: since.get(pid, sample["s"]) for pid in sizes}
        for pid in sizes.keys() & before.keys():
            if before_s - since[pid] >= SETTLED_S:
                grown += sizes[pid] - before[pid]
                hours += (sample["s"] - before_s) / 3600
        before, before_s = sizes, sample["s"]
    count = statistics.fmean(len(each["private"][kind]) for each in samples) if samples else 0
    return round(grown / hours * count, 2) if hours else math.nan


def growth(samples: Sequence[Row], name: str) -> float:
    """MB per hour: least squares over the second half, of samples that were taken between faults.

    >>> growth([{"s": 36 * i, "x": 5 + i, "quiet": True} for i in range(8)], "x")
    100.0
    """
    last_s = samples[-1]["s"] if samples else 0.0
    rows = [row for row in samples if row["quiet"] and 2 * row["s"] >= last_s]
    if len(rows) < _LEAST:
        return float("nan")
    times, sizes = [row["s"] / 3600 for row in rows], [row[name] for row in rows]
    return round(statistics.linear_regression(times, sizes).slope, 2)


def summary(samples: Sequence[Row]) -> Row:
    """Slopes by kind of process, and between which sizes each was between faults."""
    quiet = [row for row in samples if row["quiet"]]
    row: Row = {"samples": len(samples), "quiet_samples": len(quiet)}
    for measure in ("rss", "pss"):
        row[f"{measure}_slopes"] = {kind: growth(samples, f"{kind}_{measure}") for kind in KINDS}
        row[f"{measure}_mb"] = {
            kind: [quiet[0][f"{kind}_{measure}"], quiet[-1][f"{kind}_{measure}"]]
            for kind in (KINDS if quiet else ())
        }
    row["growth_within"] = {kind: within(samples, kind) for kind in KINDS}
    return row | {"files_slope": growth(samples, "files"), "pss_slope": growth(samples, "pss")}
