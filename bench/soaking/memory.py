"""Memory by kind of process, and how fast it grows."""

from __future__ import annotations

import contextlib
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

from common import Row

ROLES = {b"shunter.plugins.control.controller": "controller", b"nic": "front_end"}
"""An argument of a process, and which one it is."""
KINDS = ("jvm", "controller", "front_end", "workers", "pool")
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
    return row | {"files_slope": growth(samples, "files"), "pss_slope": growth(samples, "pss")}
