"""What is to be seen of a worker's process from outside: its memory, and what it printed."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

_LOG_LINES = 60
_LOG_TAIL = 32768
_RAISED = re.compile(r"(?:\w+\.)*[A-Z]\w*(?:Error|Exception|Failed|Exit|Interrupt)(?:: .*)?\Z")
"""The line of a traceback that says what was raised."""
_CHAINED = re.compile(r"(?:The above exception was the direct cause|During handling of the above)")


def peak_bytes(pid: int) -> int:
    """Highest resident memory so far, without mapped files."""
    sizes = {}
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        name, _, value = line.partition(":")
        if name in ("VmHWM", "RssFile"):
            sizes[name] = int(value.split()[0]) * 1024
    return max(0, sizes.get("VmHWM", 0) - sizes.get("RssFile", 0))


def last_lines(log: Path) -> list[str]:
    """Those for people at the end of a log; none when it cannot be read."""
    try:
        with log.open("rb") as opened:
            opened.seek(max(0, os.fstat(opened.fileno()).st_size - _LOG_TAIL))
            lines = opened.read().decode("utf-8", "replace").splitlines()
    except OSError:
        return []
    said = [line for line in lines if line.strip() and not line.startswith("[METRICS]")]
    return said[-_LOG_LINES:]


def raised_in(lines: Sequence[str]) -> str:
    """The last exception of a log, and what caused it, in a line; empty: there is none."""
    chain: list[str] = []
    is_chained = False
    for line in lines:
        if _RAISED.match(line):
            chain = [*chain, line] if is_chained else [line]
            is_chained = False
        elif _CHAINED.match(line):
            is_chained = True
    return ", caused by ".join(dict.fromkeys(reversed(chain)))
