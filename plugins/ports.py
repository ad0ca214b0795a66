"""Ports for servers of this host that are told theirs before they take them."""

from __future__ import annotations

import contextlib
import secrets
import socket
from pathlib import Path

LOWEST, USUAL_END = 10_240, 32_768
_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")


def free_ports(count: int, host: str = "127.0.0.1") -> list[int]:
    """Ports that differ and that nobody has now.

    They are none that the kernel gives to connections, one of which could take a port after it was
    found and before its server is there. Raises OSError: ``host`` is not this one's.
    """
    end = _first_of_connections()
    with contextlib.ExitStack() as held:
        found: list[int] = []
        while len(found) < count:
            probe = held.enter_context(socket.socket())
            port = secrets.randbelow(end - LOWEST) + LOWEST if end > LOWEST + 1000 else 0
            try:
                probe.bind((host, port))
            except OSError:
                probe.bind((host, 0))  # what is wrong with the host is said
                continue
            found.append(int(probe.getsockname()[1]))
        return found


def _first_of_connections() -> int:
    try:
        return int(_RANGE.read_text(encoding="ascii").split()[0])
    except (OSError, ValueError, IndexError):
        return USUAL_END
