"""The data path that this machine can have: in C where the library is, else in Python."""

from __future__ import annotations

import logging
import resource
import socket

from shunter.batching.native import library
from shunter.nic_frontend.core import MOST_SESSIONS
from shunter.nic_frontend.listeners import set_gro
from shunter.nic_frontend.native_server import NativeServer
from shunter.nic_frontend.python_server import PythonServer

LOGGER = logging.getLogger("shunter.nic")
DataPath = NativeServer | PythonServer
MOST_DESCRIPTORS = 4096
"""The data path takes streams whose descriptors are less."""
OTHER_DESCRIPTORS = 512
"""So many are kept for what is no session: workers, queues, clients that say hello."""


def make_data_path(
    udp: socket.socket, doorbell: int, wake: int, *, spin_us: int, gro: bool
) -> DataPath:
    """For this socket; workers ring the doorbell, and it returns when ``wake`` can be read.

    ``gro``: let the kernel merge datagrams, where the path can take them.
    """
    path = _made(udp, doorbell, wake, spin_us=spin_us, gro=gro)
    descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    path.limit(MOST_SESSIONS, max(1, min(descriptors, MOST_DESCRIPTORS) - OTHER_DESCRIPTORS))
    return path


def _made(udp: socket.socket, doorbell: int, wake: int, *, spin_us: int, gro: bool) -> DataPath:
    if library() is None:
        LOGGER.warning("there is no library of the data path: it runs in Python, slower")
        return PythonServer(udp.fileno(), doorbell, wake, spin_us=spin_us, gro=False)
    merges = gro and set_gro(udp)
    return NativeServer(udp.fileno(), doorbell, wake, spin_us=spin_us, gro=merges)
