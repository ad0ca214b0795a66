"""The lossy link of link.c in a process of its own."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import socket
import struct
from ctypes import Structure, byref, c_char_p, c_int, c_uint32, c_uint64
from dataclasses import asdict, dataclass
from functools import cache
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from typing import Any

from common import Row

from rpc.compiled import compiled

BUFFER = 8 << 20


@dataclass(frozen=True)
class Faults:
    """Shares of the datagrams, in each direction."""

    lost: float = 0.0
    doubled: float = 0.0
    overtaken: float = 0.0

    def row(self) -> Row:
        """For a result."""
        return asdict(self)


class _Faults(Structure):
    _fields_ = (
        *((name, c_uint32) for name in ("lost_ppm", "doubled_ppm", "overtaken_ppm")),
        ("seed", c_uint64),
    )


class _Counts(Structure):
    _fields_ = tuple((name, c_uint64) for name in ("passed", "lost", "doubled", "overtaken"))


@cache
def _functions() -> ctypes.CDLL:
    found = ctypes.CDLL(str(compiled(Path(__file__).with_name("link.c"))))
    found.link_run.argtypes = [
        *(c_int, c_int, c_char_p, c_uint32, ctypes.POINTER(_Faults), ctypes.c_void_p),
    ]
    return found


class Link:
    """Clients send to ``port``. A context manager."""

    def __init__(self, server_port: int, faults: Faults, seed: int = 7) -> None:
        self._faults = _Faults(
            *(round(1e6 * share) for share in (faults.lost, faults.doubled, faults.overtaken)),
            seed,
        )
        self._server = struct.pack(
            "=H2s4s8x", socket.AF_INET, server_port.to_bytes(2, "big"), bytes([127, 0, 0, 1])
        )

    def __enter__(self) -> Link:
        self._down = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._down.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER)
        self._down.bind(("127.0.0.1", 0))
        self.port = self._down.getsockname()[1]
        self._stop = os.eventfd(0)
        self._memory = SharedMemory(create=True, size=ctypes.sizeof(_Counts))
        _functions()  # compiled before the fork
        self._process = multiprocessing.get_context("fork").Process(target=self._run)
        self._process.start()
        return self

    def _run(self) -> None:
        counts = _Counts.from_buffer(self._memory.buf)
        size = len(self._server)
        _functions().link_run(
            self._down.fileno(), self._stop, self._server, size, byref(self._faults), byref(counts)
        )
        os._exit(0)  # not the parent's exit handlers

    def counts(self) -> Row:
        """Datagrams so far."""
        counts = _Counts.from_buffer_copy(self._memory.buf)
        return {name: getattr(counts, name) for name, _ in _Counts._fields_}

    def __exit__(self, *_: Any) -> None:
        os.eventfd_write(self._stop, 1)
        self._process.join(5)
        self._process.kill()
        self._process.join()
        self._down.close()
        os.close(self._stop)
        self._memory.close()
        self._memory.unlink()
