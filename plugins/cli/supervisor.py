"""What systemd (or whoever sets ``NOTIFY_SOCKET``) is told of a server: sd_notify(3)."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Mapping

_US = 1e-6


class Supervisor:
    """Tells who supervises this process how it is; nobody, where nobody asks."""

    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        """``WATCHDOG_PID`` names whom the watchdog is for, if it is there."""
        name = environ.get("NOTIFY_SOCKET", "")
        self._address = "\0" + name[1:] if name.startswith("@") else name
        wanted = environ.get("WATCHDOG_USEC", "")
        is_ours = environ.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        self._every_s = int(wanted) * _US / 2 if wanted.isdecimal() and is_ours else None
        self._next = 0.0

    def ready(self, status: str) -> None:
        """It serves from now on."""
        self._tell(f"READY=1\nSTATUS={status}")

    def stopping(self) -> None:
        """It takes no more requests."""
        self._tell("STOPPING=1\nSTATUS=draining")

    def look(self, is_well: Callable[[], bool]) -> None:
        """When it is time say that it is well, if it is; else the supervisor will end it."""
        if self._every_s is None or time.monotonic() < self._next:
            return
        self._next = time.monotonic() + self._every_s
        if is_well():
            self._tell("WATCHDOG=1")

    def _tell(self, text: str) -> None:
        if not self._address:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as end:
                end.connect(self._address)
                end.send(text.encode())
        except OSError:
            pass  # a supervisor that is gone is no reason to end
