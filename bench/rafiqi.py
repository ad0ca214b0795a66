"""Rafiqi's own batching daemon (section 3.3) beside a server with Shunter, to compare with.

Once per quantum it counts the requests that arrived and takes the paper's step; the server waits
for as many requests as it says on the control page, where the controller writes a threshold that
the operator fixed. A process of its own, so that the clients' load does not delay it::

    python bench/rafiqi.py PAGE MODEL

The server's controller must leave the page alone meanwhile: :data:`SETTINGS`.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from shunter.batching.forming.threshold import DEFAULT_ALPHA, DEFAULT_CAP, IDLE, step
from shunter.batching.page.control_page import ControlPage
from shunter.batching.page.layout import SLOT_FIELDS, SLOT_SIZE, SLOTS_OFFSET
from shunter.plugins.control.fixed_policy import fixed_commands
from shunter.plugins.control.settings import ModelSettings

QUANTUM_NS = 5_000_000
SETTINGS = """
[controller]
interval_ms = 60_000
"""
"""The controller would take back what is written here in every one of its duty cycles."""
_ARRIVALS, _SEQUENCE, _FIXED = (
    SLOT_FIELDS[name].offset // 8
    for name in ("arrivals", "command_sequence", "threshold_fixed_milli")
)


class Daemon:
    """The threshold of one model on a page."""

    def __init__(self, page: ControlPage, slot: int) -> None:
        """Start idle, with the default commands."""
        self._words, self._base = page.words, (SLOTS_OFFSET + slot * SLOT_SIZE) // 8
        commands = fixed_commands(ModelSettings(), page.read_identity(slot))
        page.write_commands(slot, replace(commands[0], threshold_fixed_milli=1000), commands[1])
        self.value = IDLE
        self._before = self._arrivals()

    def _arrivals(self) -> int:
        at = self._base + _ARRIVALS
        return self._words[at] + self._words[at + 1]

    def end_quantum(self) -> None:
        """One step with what arrived since the last one."""
        arrivals = self._arrivals()
        self.value = step(self.value, arrivals - self._before, DEFAULT_ALPHA, DEFAULT_CAP)
        self._before = arrivals
        milli = round(self.value * 1e3)
        if self._words[self._base + _FIXED] != milli:
            self._words[self._base + _SEQUENCE] += 1
            self._words[self._base + _FIXED] = milli
            self._words[self._base + _SEQUENCE] += 1


@contextmanager
def running(page: Path, model: str) -> Iterator[None]:
    """The daemon of a model that is registered, as long as the context lasts."""
    command = [sys.executable, __file__, str(page), model]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            if not process.stdout.readline():  # it prints a line when it works
                raise RuntimeError(f"the daemon ended with status {process.wait()}")
            yield
        finally:
            process.kill()


def main() -> None:
    """Serve until somebody ends it."""
    path, model = sys.argv[1:]
    with ControlPage.attach(Path(path)) as page:
        slots = {page.read_identity(slot).model_name: slot for slot in page.live_slots()}
        daemon = Daemon(page, slots[model])
        print("ready", flush=True)
        due_ns = time.monotonic_ns()
        while True:
            due_ns += QUANTUM_NS
            time.sleep(max(0, due_ns - time.monotonic_ns()) / 1e9)
            daemon.end_quantum()


if __name__ == "__main__":
    main()
