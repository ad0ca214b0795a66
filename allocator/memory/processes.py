"""How much memory the workers of a server take, by the slot that their environment names."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

SLOT = b"SHUNTER_SLOT="


@dataclass(frozen=True)
class Footprint:
    """Of one worker of a model."""

    own: int = 0
    """Bytes that no other process shares."""
    shared: int = 0
    """Bytes that it has in common with others."""


def footprints(server: int, proc: Path = Path("/proc")) -> dict[int, Footprint]:
    """The largest worker of each slot; of those that end meanwhile nothing is told."""
    found: dict[int, Footprint] = {}
    for pid in _below(server, proc):
        slot = _slot(pid, proc)
        if slot is not None:
            mine, before = _footprint(pid, proc), found.get(slot, Footprint())
            found[slot] = Footprint(max(mine.own, before.own), max(mine.shared, before.shared))
    return found


def _below(pid: int, proc: Path) -> Iterator[int]:
    for children in proc.glob(f"{pid}/task/*/children"):
        for word in _read(children).split():
            yield int(word)
            yield from _below(int(word), proc)


def _slot(pid: int, proc: Path) -> int | None:
    for pair in _read(proc / str(pid) / "environ").split(b"\0"):
        number = pair.removeprefix(SLOT)
        if number != pair and number.isdigit():
            return int(number)
    return None


def _footprint(pid: int, proc: Path) -> Footprint:
    sizes = re.findall(
        rb"(?m)^(Private|Shared)_\w+:\s+(\d+) kB$", _read(proc / f"{pid}/smaps_rollup")
    )
    totals = {b"Private": 0, b"Shared": 0}
    for kind, size in sizes:
        totals[kind] += int(size) * 1024
    return Footprint(totals[b"Private"], totals[b"Shared"])


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""
