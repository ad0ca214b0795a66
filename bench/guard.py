"""A benchmark that ends, however it ends, leaves no server running.

Ctrl-C, SIGTERM and SIGHUP end it as an exception would: servers are stopped in order. A second one
of them ends it at once, and so does SIGKILL; what it started is then killed by a watcher: every
process that inherited the mark of this run. While it runs, the watcher looks at what else the
machine does (:mod:`surroundings`).
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import FrameType
from typing import Any

import surroundings

MARK = "SHUNTER_BENCH_RUN"
"""Environment variable: which run a process belongs to."""
ORDERLY_S = 60
"""So long may an orderly end take."""
_ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


_seen: list[Path] = []
"""Where the watcher writes what else the machine did."""


def install() -> None:
    """From now on nothing that this process starts outlives it. To be called once, at its start."""
    mark = f"{os.getpid()}-{os.urandom(8).hex()}"
    _seen[:] = [Path(tempfile.gettempdir()) / f"shunter-bench-{mark}.json"]
    _start_watcher(mark)
    os.environ[MARK] = mark
    for number in _ENDS:
        signal.signal(number, _end)


def seen() -> dict[str, Any]:
    """What else the machine did so far: ``surroundings.Surroundings.summary``."""
    return surroundings.read(_seen[0]) if _seen else {}


def _end(number: int, _: FrameType | None) -> None:
    for each in _ENDS:
        signal.signal(each, signal.SIG_DFL)
    signal.alarm(ORDERLY_S)  # ends this process, and then the watcher does the rest
    sys.exit(128 + number)


def _start_watcher(mark: str) -> None:
    here = Path(__file__).resolve()
    command = [sys.executable, "-S", str(here), str(os.getpid()), mark, *map(str, _seen)]
    # A session of its own: what is sent to the benchmark's process group does not reach it.
    watcher = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, start_new_session=True
    )
    assert watcher.stdout is not None
    with watcher.stdout as said:
        ready = said.readline()
    watcher.returncode = 0  # it outlives this process: nobody waits for it
    if not ready:
        raise RuntimeError("the watcher of this benchmark did not start")


def _watch(pid: int, mark: str, seen: Path) -> None:
    """Wait for the end of the benchmark, then kill until nothing is left that it started."""
    benchmark = os.pidfd_open(pid)
    os.write(1, b"ready\n")
    os.close(1)
    try:
        _look_until_it_ends(benchmark, (pid, os.getpid()), mark, seen)
    finally:
        _kill_what_is_left(mark)
        seen.unlink(missing_ok=True)


def _look_until_it_ends(benchmark: int, own: tuple[int, int], mark: str, seen: Path) -> None:
    """``own``: the benchmark and this process, which have no mark: it is for what they start."""

    def look() -> surroundings.Look:
        at_s = time.clock_gettime(time.CLOCK_BOOTTIME)
        return surroundings.look(f"{MARK}={mark}", own, at_s)

    first = look()
    found = surroundings.Surroundings(first, first)
    while not select.select([benchmark], [], [], surroundings.PERIOD_S)[0]:
        found.see(look())
        surroundings.write(seen, found)


def _kill_what_is_left(mark: str) -> None:
    while found := marked(mark):
        for each in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(each, signal.SIGKILL)


def marked(mark: str) -> list[int]:
    """Processes that inherited this mark and are alive."""
    wanted, found = f"{MARK}={mark}".encode(), []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                variables = (folder / "environ").read_bytes().split(b"\0")
            except OSError:  # ended, or somebody else's
                continue
            if wanted in variables:
                found.append(int(folder.name))
    return found


if __name__ == "__main__":
    _watch(int(sys.argv[1]), sys.argv[2], Path(sys.argv[3]))
