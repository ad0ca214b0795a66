"""The data path for a socket, within the limits of this process."""

from __future__ import annotations

import resource
import socket

from shunter.nic_frontend.server.listeners import set_gro
from shunter.nic_frontend.server.native_server import MOST_SESSIONS, NativeServer

MOST_DESCRIPTORS = 4096
"""The data path takes streams whose descriptors are less."""
OTHER_DESCRIPTORS = 512
"""So many are kept for what is no session: workers, queues, clients that say hello."""
DataPath = NativeServer


def make_data_path(
    udp: socket.socket, doorbell: int, wake: int, *, spin_us: int, gro: bool
) -> DataPath:
    """For this socket; workers ring the doorbell, and it returns when ``wake`` can be read.

    ``gro``: let the kernel merge datagrams, where the path can take them. Raises LibraryError.
    """
    merges = gro and set_gro(udp)
    path = NativeServer(udp.fileno(), doorbell, wake, spin_us=spin_us, gro=merges)
    descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    path.limit(MOST_SESSIONS, max(1, min(descriptors, MOST_DESCRIPTORS) - OTHER_DESCRIPTORS))
    return path
