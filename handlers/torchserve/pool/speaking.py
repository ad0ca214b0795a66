"""Whose log it is that this process writes now: each seat has an output of its own."""

from __future__ import annotations

import contextlib
import os
import sys

from shunter.handlers.pool.reception import Seat
from shunter.handlers.torchserve.output import LINES


class Speaker:
    """Of a process whose standard output and error become those of one seat after another."""

    def __init__(self) -> None:
        """It still is that of the seat which has started it."""
        self.seat: Seat | None = None
        self._nowhere = os.open(os.devnull, os.O_WRONLY)

    def be(self, seat: Seat | None) -> None:
        """What is printed from now on is this seat's; None: nobody's."""
        if seat is not self.seat:
            self.flush()
            self.seat = seat
            os.dup2(seat.output if seat else self._nowhere, 1)
            os.dup2(seat.errors if seat else self._nowhere, 2)

    def flush(self) -> None:
        """Let what was printed be in the log."""
        LINES.flush()
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError):  # nobody reads it any more
                stream.flush()
