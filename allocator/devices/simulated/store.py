"""Where simulated GPUs are kept: in a file that several processes share, or in this one only."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from shunter.allocator.devices.simulated.state import State


class Store:
    """The state of simulated GPUs, one caller at a time."""

    def __init__(self, path: Path | None = None, state: State | None = None) -> None:
        """``path``: a file, made from ``state`` if it is not there; None: only in memory."""
        self.path = path
        self._state = state or State()
        if path is not None:
            with self._locked():
                if not path.exists():
                    self._write(self._state)

    @contextmanager
    def change(self) -> Iterator[State]:
        """The state, to be changed; a file keeps it as it was when the block raises."""
        with self._locked():
            state = self._load()
            yield state
            self._write(state)

    def read(self) -> State:
        """The state as it is, to be looked at."""
        # A file is replaced as a whole: whoever only reads waits for nobody.
        return self._load()

    def _load(self) -> State:
        return self._state if self.path is None else State.loads(self.path.read_text("utf-8"))

    def _write(self, state: State) -> None:
        self._state = state
        if self.path is not None:
            # At once or not at all: a process may be killed at any moment.
            new = self.path.with_name(f"{self.path.name}.{os.getpid()}")
            new.write_text(state.dumps(), encoding="utf-8")
            new.replace(self.path)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        if self.path is None:
            yield
            return
        with self.path.with_name(f"{self.path.name}.lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
