"""A Python program of ours that is kept running: it starts again, later each time, when it ends or
hangs. It ends with this process, whose end of a pipe is its standard input."""

from __future__ import annotations

import contextlib
import logging
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO

from shunter.plugins import events

LOGGER = logging.getLogger("shunter.supervised")
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.2, 30.0
HELD_S = 60.0
SILENT_S = 15.0
"""Programs of ours beat at least every second; so many of silence are not load."""


class Supervised:
    """Such a program. All methods are one thread's."""

    def __init__(
        self, name: str, arguments: Sequence[str], log: Path, heartbeat: Callable[[], int]
    ) -> None:
        """``arguments``: of Python; ``heartbeat``: a number that it changes all the time."""
        self.name, self._log, self._heartbeat = name, log, heartbeat
        # -P: the working directory is not a place to import from.
        self._command = [sys.executable, "-P", *arguments]
        self._process: subprocess.Popen[bytes] | None = None
        self._pause_s, self._due, self._began = FIRST_PAUSE_S, 0.0, 0.0
        self._beat, self._beat_at = 0, 0.0

    @property
    def pid(self) -> int:
        """0: it does not run."""
        return self._process.pid if self._process and self._process.poll() is None else 0

    def look(self) -> None:
        """Start what does not run, end what hangs. To be called several times a second."""
        now = time.monotonic()
        if self._process is None:
            if now >= self._due:
                self._launch(now)
        elif self._process.poll() is not None:
            self._ended(now)
        elif (beat := self._heartbeat()) != self._beat:
            self._beat, self._beat_at = beat, now
        elif now - self._beat_at > SILENT_S:
            LOGGER.error("the %s, process %d, is silent and is killed", self.name, self.pid)
            self._process.kill()

    def _launch(self, now: float) -> None:
        self._process = subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        assert self._process.stderr is not None
        relaying = (self._process.stderr,)
        threading.Thread(target=self._relay, args=relaying, name=self.name, daemon=True).start()
        self._began = self._beat_at = now

    def _relay(self, lines: IO[bytes]) -> None:
        """What it says goes to the log, and is told."""
        with lines:
            for line in lines:
                with contextlib.suppress(OSError), self._log.open("ab") as log:
                    log.write(line)
                events.relay(self.name, line.decode("utf-8", "replace").rstrip())

    def _ended(self, now: float) -> None:
        assert self._process is not None and self._process.stdin is not None
        LOGGER.error(
            "the %s ended with status %d; it starts again in %g s",
            *(self.name, self._process.returncode, self._pause_s),
        )
        self._process.stdin.close()
        self._process = None
        self._pause_s = FIRST_PAUSE_S if now - self._began > HELD_S else self._pause_s
        self._due = now + self._pause_s
        self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S)

    def close(self) -> None:
        """End it for good."""
        if self._process is not None:
            assert self._process.stdin is not None
            self._process.stdin.close()  # it ends with us
            self._process.terminate()
            try:
                self._process.wait(5)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None
