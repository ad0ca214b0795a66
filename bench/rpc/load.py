"""Load on our front end from C: many open sessions, one thread."""

from __future__ import annotations

import ctypes
import os
import statistics
import time
from collections.abc import Callable
from ctypes import POINTER, Structure, byref, c_int, c_uint32, c_uint64, c_void_p
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from common import Row, percentile
from numpy.typing import NDArray

from rpc.compiled import compiled
from rpc.models import RpcModel
from shunter.nic_frontend.client import Session
from shunter.nic_frontend.client.native_client import NativeClient
from shunter.nic_frontend.wire.layout import WINDOW

SOURCE = Path(__file__).with_name("load.c")
STAMP = 1 << 32
"""Between the stamps of two sessions."""
ROOM = 4_000_000
"""Latencies of one run."""


class _Session(Structure):
    _fields_ = (
        ("client", c_void_p),
        ("socket", c_int),
        ("input", c_void_p),
        ("input_bytes", c_uint64),
        ("stamp", c_uint64),
        ("outputs", c_void_p),
        ("output_bytes", c_uint64),
        ("idempotent", c_uint64),
    )


class _Result(Structure):
    _fields_ = tuple(
        (name, c_uint64)
        for name in ("answered", "failed", "latencies", "wall_ns", "begun", "on_way_ns")
    )


@cache
def functions() -> ctypes.CDLL:
    """load.c, compiled against the data path's library."""
    found = ctypes.CDLL(str(compiled(SOURCE)))
    found.load_closed.argtypes = [
        *(POINTER(_Session), c_uint32, c_uint32, c_uint64),
        *(c_void_p, c_uint64, POINTER(_Result)),
    ]
    found.load_open.argtypes = [
        *(POINTER(_Session), c_uint32, c_void_p, c_uint64, c_uint64, c_void_p, POINTER(_Result)),
    ]
    return found


class Load:
    """Sessions with one model, given away to C."""

    def __init__(
        self,
        model: RpcModel,
        opened: Callable[[], Session],
        clients: int,
        *,
        idempotent: bool = False,
        stamped: bool = False,
        first: int = 1,
    ) -> None:
        """``opened`` opens a session; ``stamped``: a request's first 8 bytes are only its own,
        ``first``: number of the first session in them.
        """
        self._sessions = [opened() for _ in range(clients)]
        self._natives = [native_of(session) for session in self._sessions]
        request = np.ascontiguousarray(model.request())
        copies = WINDOW if stamped else 1
        self._inputs = [np.stack([request] * copies) for _ in range(clients)]
        self._outputs = [np.zeros((WINDOW, model.reply), np.uint8) for _ in range(clients)]
        self._c = (_Session * clients)()
        for i, native in enumerate(self._natives):
            self._c[i] = _Session(
                native.handle,
                native.socket,
                self._inputs[i].ctypes.data,
                model.size,
                STAMP * (i + first) if stamped else 0,
                self._outputs[i].ctypes.data,
                model.reply,
                int(idempotent),
            )
        self._latencies: NDArray[np.uint64] = np.zeros(ROOM, np.uint64)

    def closed(self, seconds: float, *, depth: int = 1) -> Row:
        """``depth`` requests on their way in every session; requests per second, latencies.

        Where there is no credit for so many, each begins as soon as there is.
        """
        result, run = _Result(), functions().load_closed  # which may have to be compiled
        until = time.monotonic_ns() + int(seconds * 1e9)
        used = time.process_time()
        error = run(
            *(self._c, len(self._c), depth, until),
            *(self._latencies.ctypes.data, ROOM, byref(result)),
        )
        used = time.process_time() - used
        _check(error)
        return self._row(result, self._latencies[: result.latencies], used)

    def open(self, rate: float, seconds: float, *, seed: int, patience_s: float = 10) -> Row:
        """Poisson arrivals; a latency counts from the time at which it should have been sent."""
        count = max(1, int(rate * seconds))
        gaps = np.random.default_rng(seed).exponential(1e9 / rate, count)
        at = np.cumsum(gaps).astype(np.uint64)
        result = _Result()
        used = time.process_time()
        error = functions().load_open(
            *(self._c, len(self._c), at.ctypes.data, count, int(patience_s * 1e9)),
            *(self._latencies.ctypes.data, byref(result)),
        )
        used = time.process_time() - used
        _check(error)
        found = self._latencies[:count]
        return self._row(result, found[found != np.iinfo(np.uint64).max], used)

    def _row(self, result: _Result, latencies: NDArray[np.uint64], used: float) -> Row:
        us = (latencies / 1000).tolist()
        wall = result.wall_ns / 1e9
        return {
            "rps": round(result.answered / wall, 1),
            "requests": result.begun,
            "mean_on_their_way": round(result.on_way_ns / result.wall_ns, 2),
            "failed": result.failed,
            "p50_us": round(statistics.median(us), 1) if us else float("nan"),
            "p99_us": round(percentile(us, 0.99), 1),
            "client_cores": round(used / wall, 2),
            "lost": sum(native.numbers()["lost"] for native in self._natives),
        }

    @property
    def segment(self) -> int:
        """Payload bytes of a datagram."""
        return self._natives[0].segment

    def copied(self) -> int:
        """Payload bytes that all sessions have copied so far."""
        return sum(native.numbers()["copied"] for native in self._natives)

    def unknown(self) -> int:
        """Sessions of which the server has said that there is no such one."""
        return sum(native.unknown_ns > 0 for native in self._natives)

    def answers(self) -> list[NDArray[np.uint8]]:
        """What came last, by session."""
        return self._outputs

    def close(self) -> None:
        """End the sessions."""
        for session in self._sessions:
            session.close()

    def __enter__(self) -> Load:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()


def native_of(session: Session) -> NativeClient:
    """Its core in C."""
    if session.native is None:
        raise RuntimeError("the load comes from C, and there is no session now")
    return session.native


def _check(error: int) -> None:
    if error < 0:
        raise OSError(-error, os.strerror(-error))
