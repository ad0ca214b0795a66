"""What the processes that serve several models say of the weights they hold."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from shunter.batching.page.processes import is_alive
from shunter.plugins.view import tables


def read(runtime: Path) -> list[dict[str, Any]]:
    """Those that live, by their numbers: the files ``pool.K.json`` of a server's runtime folder.

    One that was killed leaves its file there.
    """
    found = [told for path in runtime.glob("pool.*.json") if (told := _read(path))]
    return sorted(found, key=lambda told: told["pool"])


def _read(path: Path) -> dict[str, Any] | None:
    try:
        told = json.loads(path.read_text("utf-8"))
        told["pool"] = int(told["pool"])
        told["age_ms"] = max(0, round((time.time() - path.stat().st_mtime) * 1e3))
        return told if is_alive(told["pid"]) else None
    except (OSError, ValueError, TypeError, KeyError):  # it ends, or is not what it should be
        return None


def draw(pools: Sequence[dict[str, Any]]) -> Table:
    """How full their hot memory is, how often weights had to come, and who is there now."""
    numbers = "pid,models,hot MB,of MB,hits,misses,ms a swap,evictions"
    table = tables.empty("processes of several models", "process", numbers, "hot")
    for told in pools:
        misses = told.get("misses", 0)
        table.add_row(
            str(told["pool"]),
            str(told["pid"]),
            str(len(told.get("models", ()))),
            f"{told.get('bytes', 0) / 1e6:.0f}",
            f"{told.get('budget', 0) / 1e6:.0f}",
            str(told.get("hits", 0)),
            str(misses),
            f"{told.get('swap_ms', 0) / misses:.1f}" if misses else "-",
            str(told.get("evictions", 0)),
            ", ".join(told.get("hot", ())) or "-",
        )
    return table
