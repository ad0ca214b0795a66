"""The kernel alone, asked as our front end is: what no server on these sockets can exceed.

The same bytes in datagrams of the same size, or on streams, from as many sockets, answered by a
process that does nothing else: nothing is checked, kept, brought together or given to a worker.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import socket
import statistics
import time
from contextlib import ExitStack
from ctypes import POINTER, Structure, byref, c_uint64
from functools import cache
from pathlib import Path
from typing import ClassVar, Self

import numpy as np
from common import Row, percentile

from rpc.compiled import compiled
from rpc.loaded import STREAMS, Loaded
from rpc.models import RpcModel
from rpc.namespaces import LOOPBACK, Place, mtu_of
from rpc.widen import Axes, Setting
from shunter.nic_frontend.wire.layout import HEADER_BYTES

SOURCE = Path(__file__).with_name("bare.c")
UDP_GRO, SO_SNDBUFFORCE, SO_RCVBUFFORCE = 104, 32, 33
BUFFER = 64 << 20
ONE_BUFFER = 2 << 20
"""Of a client's socket: a whole request is taken at once."""
IP_AND_UDP = 28
LOOPBACK_DATAGRAM = 61440
WARM_UP_S = 0.3
ROOM = 4_000_000
BACKLOG = 512


NAMES = ("socket", "sent", "answers", "begun", "wanted", "source")


class _Client(Structure):
    _fields_ = tuple((name, c_uint64) for name in NAMES)


class _Load(Structure):
    _fields_ = tuple(
        (name, c_uint64)
        for name in (
            *("stream", "request", "reply", "segment", "depth", "until_ns"),
            *("answered", "latencies", "again"),
        )
    )


@cache
def functions() -> ctypes.CDLL:
    """bare.c, compiled."""
    found = ctypes.CDLL(str(compiled(SOURCE)))
    found.bare_serve.argtypes = [*(ctypes.c_int,) * 3, *(c_uint64,) * 3]
    found.bare_ask.argtypes = [
        *(POINTER(_Client), ctypes.c_uint32, POINTER(_Load), ctypes.c_void_p, c_uint64),
    ]
    return found


def segment_of(place: Place) -> int:
    """The largest datagram that is not cut into fragments there."""
    if place.name == LOOPBACK:
        return LOOPBACK_DATAGRAM
    return mtu_of(place.name.removeprefix("mtu")) - IP_AND_UDP


def bytes_of(model: RpcModel, segment: int) -> int:
    """Of a request with a header in each of its segments."""
    return model.size + HEADER_BYTES * -(-model.size // (segment - HEADER_BYTES))


class BareServer:
    """Answers for one size of requests and one of segments. A context manager."""

    def __init__(self, model: RpcModel, segment: int) -> None:
        self._arguments = bytes_of(model, segment), bytes_of(model, 1 << 30), self.reply_of(model)
        self._stack = ExitStack()

    @staticmethod
    def reply_of(model: RpcModel) -> int:
        """Bytes of an answer."""
        return model.reply + HEADER_BYTES

    def __enter__(self) -> Self:
        udp = self._stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        listener = self._stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_STREAM))
        stop, self._stop = socket.socketpair()
        for buffer in (SO_SNDBUFFORCE, SO_RCVBUFFORCE):
            udp.setsockopt(socket.SOL_SOCKET, buffer, BUFFER)
        udp.setsockopt(socket.IPPROTO_UDP, UDP_GRO, 1)
        for each in (udp, listener):
            each.bind(("0.0.0.0", 0))
        listener.listen(BACKLOG)
        self.ports = {"udp": udp.getsockname()[1], "tcp": listener.getsockname()[1]}
        descriptors = udp.fileno(), listener.fileno(), stop.fileno()
        args = (*descriptors, *self._arguments)
        serve = functions().bare_serve
        self._process = multiprocessing.get_context("fork").Process(target=serve, args=args)
        self._process.start()
        stop.close()
        self._stack.callback(self._end)
        return self

    def _end(self) -> None:
        self._stop.close()
        self._process.join(5)
        self._process.kill()

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def pid(self) -> int:
        """Its process."""
        assert self._process.pid is not None
        return self._process.pid


class BareLoad(Loaded):
    """One protocol of the kernel; a server of its own for each load."""

    rival = "kernel"
    axes: ClassVar[Axes] = {"streams": STREAMS}

    def __init__(self, scheme: str) -> None:
        self.name, self._scheme = f"bare {scheme}", scheme

    def pid(self) -> int:
        """See :class:`Loaded`."""
        return self._server.pid

    def measure(
        self, place: Place, model: RpcModel, clients: int, setting: Setting, seconds: float
    ) -> Row:
        """See :class:`Loaded`."""
        with BareServer(model, segment_of(place)) as self._server:
            return super().measure(place, model, clients, setting, seconds)

    def load(
        self, place: Place, model: RpcModel, clients: int, setting: Setting, seconds: float
    ) -> Row:
        """See :class:`Loaded`."""
        return place.run(self._load, place, model, clients, setting["streams"], seconds)

    def _load(
        self, place: Place, model: RpcModel, clients: int, depth: int, seconds: float
    ) -> Row:
        kind = socket.SOCK_DGRAM if self._scheme == "udp" else socket.SOCK_STREAM
        with ExitStack() as stack:
            asking, size = (_Client * clients)(), bytes_of(model, segment_of(place))
            sources: np.ndarray = np.ones((clients, size), np.uint8)
            for client, source in zip(asking, sources, strict=True):
                client.source = source.ctypes.data
                end = stack.enter_context(socket.socket(socket.AF_INET, kind))
                end.setsockopt(socket.SOL_SOCKET, SO_SNDBUFFORCE, ONE_BUFFER)
                end.connect((place.host, self._server.ports[self._scheme]))
                client.socket = end.fileno()
            self._ask(place, model, asking, depth, WARM_UP_S)
            return self._ask(place, model, asking, depth, seconds)

    def _ask(
        self, place: Place, model: RpcModel, asking: ctypes.Array, depth: int, seconds: float
    ) -> Row:
        is_stream, segment = self._scheme == "tcp", segment_of(place)
        request = bytes_of(model, 1 << 30 if is_stream else segment)
        until_ns = time.monotonic_ns() + int(seconds * 1e9)
        reply = BareServer.reply_of(model)
        load = _Load(is_stream, request, reply, min(segment, request), depth, until_ns)
        latencies: np.ndarray = np.zeros(ROOM, np.uint64)
        used = time.process_time()
        where = latencies.ctypes.data
        error = functions().bare_ask(asking, len(asking), byref(load), where, ROOM)
        used = time.process_time() - used
        if error:
            raise OSError(-error, "bare_ask")
        us = (latencies[: load.latencies] / 1000).tolist()
        return {
            "rps": round(load.answered / seconds, 1),
            "requests": load.answered,
            "failed": 0,
            "sent_again": load.again,
            "p50_us": round(statistics.median(us), 1) if us else float("nan"),
            "p99_us": round(percentile(us, 0.99), 1),
            "client_cores": round(used / seconds, 2),
        }
