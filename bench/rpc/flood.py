"""Hellos under other people's addresses: flood.c in a process of its own.

As a script: ``flood.py HOST PORT RATE PAYLOAD`` (hexadecimal) floods until its input ends, then
says how many it sent.
"""

from __future__ import annotations

import ctypes
import os
import socket
import struct
import subprocess
import sys
import threading
import time
from ctypes import c_char_p, c_int, c_int64, c_uint32, c_uint64
from ipaddress import ip_network
from pathlib import Path
from typing import Any

BENCH = Path(__file__).resolve().parents[1]


class Flood:
    """So many a second from a place, until the end. A context manager."""

    def __init__(self, place: Any, port: int, rate: int, payload: bytes) -> None:
        """``place``: see :mod:`rpc.namespaces`."""
        self._command = [sys.executable, __file__, place.host, str(port), str(rate), payload.hex()]
        self._place = place
        self.sent, self.rate = 0, 0.0

    def __enter__(self) -> Flood:
        pipe = subprocess.PIPE
        self._process = self._place.run(
            lambda: subprocess.Popen(self._command, stdin=pipe, stdout=pipe, text=True)
        )
        assert self._process.stdout is not None
        if self._process.stdout.readline() != "floods\n":
            raise RuntimeError("the flood did not begin")
        self._began = time.monotonic()
        return self

    def __exit__(self, *_: object) -> None:
        took = time.monotonic() - self._began
        told, _ = self._process.communicate()
        self.sent = int(told or -1)
        if self.sent < 0:
            raise RuntimeError(f"the flood ended: {os.strerror(-self.sent)}")
        self.rate = self.sent / took


def main(host: str, port: str, rate: str, payload: str) -> None:
    """Flood."""
    sys.path.insert(0, str(BENCH))
    from rpc.compiled import compiled
    from rpc.namespaces import SPOOFED
    from shunter.nic_frontend.wire.hello import NONCE
    from shunter.nic_frontend.wire.layout import HEADER_BYTES

    library = ctypes.CDLL(str(compiled(Path(__file__).with_name("flood.c"))))
    library.flood_run.restype = c_int64
    library.flood_run.argtypes = [
        *(c_int, c_int, c_char_p, c_uint32, c_uint32),
        *(c_char_p, c_uint32, c_uint32, c_uint32, c_uint64),
    ]
    to = struct.pack("=H2s4s8x", socket.AF_INET, int(port).to_bytes(2), socket.inet_aton(host))
    stop, spoofed, message = os.eventfd(0), ip_network(SPOOFED), bytes.fromhex(payload)
    threading.Thread(target=_wait, args=(stop,), daemon=True).start()
    with socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW) as raw:
        print("floods", flush=True)
        sent = library.flood_run(
            *(raw.fileno(), stop, to, int(spoofed.network_address), int(spoofed.netmask)),
            *(message, len(message), HEADER_BYTES, NONCE, int(rate)),
        )
    print(sent)


def _wait(stop: int) -> None:
    sys.stdin.read()
    os.eventfd_write(stop, 1)


if __name__ == "__main__":
    main(*sys.argv[1:])
