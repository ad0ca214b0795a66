"""Who is loaded: our front end and its rivals, each by a client in C from any place.

A load is ``clients`` connections with ``streams`` requests each on their way. Every row says what
processor time a request took in all processes of the server together (wall time of the load,
warm-up included; time that the kernel spends on packets is only in it where it is a process's).
``backlog_drops``: packets that were lost because they came faster than the kernel took them (of the
whole machine), as a switch or a NIC drops them too.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import time
import urllib.request
from abc import ABC, abstractmethod
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import quote

import psutil
import wrk
from common import Row
from cpu_use import CpuUse
from rivals import triton_rpc
from rivals.process import RivalFailed

from rpc import h2load
from rpc.load import Load
from rpc.models import RpcModel, pack_model
from rpc.namespaces import LOOPBACK, Place
from rpc.rival_sides import Stock
from rpc.sides import Ours, open_session
from rpc.widen import Axes, Setting
from shunter.plugins.torchserve import grpc_client
from shunter.plugins.torchserve.server import ServerFailed

STREAMS = (1, 2, 4, 8, 16, 32, 64)
BATCHES = (1, 8, 32)
INSTANCES = (1, 2, 4)
WARM_UP_S = 0.3
MOST_ON_WAY = 256 << 20
"""Bytes of requests that are on their way at once, of one side: with more a server has nothing more
to work on, but a queue of seconds in its memory, and says no to what comes next.
"""
SETTLED_CORES, LOOK_S, MOST_SETTLE_S = 0.1, 0.15, 20.0
FAILURES = (
    *(RuntimeError, OSError, subprocess.SubprocessError),
    *(psutil.Error, RivalFailed, ServerFailed),
)
"""What a server that breaks under its load brings about."""


class Loaded(ABC):
    """One protocol of one server."""

    name: str
    rival = ""
    """The headline's name of the server; empty: ours."""
    axes: ClassVar[Axes]
    only_loopback = False

    @abstractmethod
    def pid(self) -> int:
        """All processes of the server are below it."""

    @abstractmethod
    def load(
        self, place: Place, model: RpcModel, clients: int, setting: Setting, seconds: float
    ) -> Row:
        """Closed loop."""

    def reaches(self, place: Place) -> bool:
        """Whether it can be asked from there."""
        return place.name == LOOPBACK or not self.only_loopback

    def measure(
        self, place: Place, model: RpcModel, clients: int, setting: Setting, seconds: float
    ) -> Row:
        """:meth:`load`, and the server's processor time."""
        self.prepare(model, setting)
        use = CpuUse({"server": tree(self.pid())})
        use.begin()
        dropped = backlog_drops()
        row = self.load(place, model, clients, setting, seconds)
        use.end()
        cores = use.cores()["server"]
        cost = round(cores / row["rps"] * 1e6, 1) if row["rps"] else float("nan")
        more = {"server_cores": round(cores, 2), "server_cpu_us": cost}
        more["backlog_drops"] = backlog_drops() - dropped
        return {**row, **more, "settle_s": settle(self.pid())}

    def values(self, model: RpcModel, clients: int) -> Axes:
        """The axes, without what would be too much on its way."""
        return {
            axis: tuple(n for n in values if axis != "streams" or fits(model, clients, n))
            for axis, values in self.axes.items()
        }

    def is_alive(self) -> bool:
        """Whether the server is there, not whether it is well."""
        return True

    def restart(self) -> None:  # noqa: B027 - whoever has its server for one load needs nothing
        """End the server and start it anew."""

    def prepare(self, model: RpcModel, setting: Setting) -> None:  # noqa: B027 - most need nothing
        """Before the load: the setting is there."""


def fits(model: RpcModel, clients: int, streams: int) -> bool:
    """Whether so many requests may be on their way."""
    return clients * streams * model.size <= MOST_ON_WAY or streams == STREAMS[0]


def settle(pid: int) -> float:
    """Wait until a server has done what is left of its load: who is asked next has the cores, and
    its next load an empty queue. Seconds that it took.
    """
    begun, quiet, before = time.monotonic(), 0, busy_s(pid)
    while quiet < 2 and time.monotonic() - begun < MOST_SETTLE_S:
        time.sleep(LOOK_S)
        now = busy_s(pid)
        quiet = quiet + 1 if now - before < SETTLED_CORES * LOOK_S else 0
        before = now
    return round(time.monotonic() - begun, 1)


def busy_s(pid: int) -> float:
    """Processor time of a process and all below it so far."""
    found = 0.0
    for each in tree(pid):
        with contextlib.suppress(psutil.NoSuchProcess):
            times = psutil.Process(each).cpu_times()
            found += times.user + times.system
    return found


def backlog_drops() -> int:
    """Packets that came faster than this kernel took them, of all interfaces so far."""
    lines = Path("/proc/net/softnet_stat").read_text(encoding="ascii").splitlines()
    return sum(int(line.split()[1], 16) for line in lines)


def tree(pid: int) -> list[int]:
    """A process and all below it."""
    root = psutil.Process(pid)
    return [pid, *(each.pid for each in root.children(recursive=True))]


class OurLoad(Loaded):
    """Sessions of our client's C core, one thread."""

    axes: ClassVar[Axes] = {"streams": STREAMS}

    def __init__(self, server: Ours, scheme: str) -> None:
        self.name, self._server, self._scheme = scheme, server, scheme
        self.only_loopback = scheme == "unix"

    def pid(self) -> int:
        """See :class:`Loaded`."""
        return self._server.pid

    def load(
        self, place: Place, model: RpcModel, clients: int, setting: Setting, seconds: float
    ) -> Row:
        """See :class:`Loaded`."""
        url = self._server.url(self._scheme, place.host)
        return place.run(self._load, url, model, clients, setting["streams"], seconds)

    @staticmethod
    def _load(url: str, model: RpcModel, clients: int, depth: int, seconds: float) -> Row:
        with Load(model, lambda: open_session(url, model), clients) as load:
            load.closed(WARM_UP_S, depth=depth)
            return load.closed(seconds, depth=depth)

    def copies(self, place: Place, model: RpcModel, clients: int, setting: Setting) -> float:
        """Bytes that our processes copy per byte of requests and answers, client included."""
        url = self._server.url(self._scheme, place.host)
        assert self._server.runtime  # asked from here: the server's own loopback is not there
        return place.run(self._copies, url, model, clients, setting["streams"])

    def _copies(self, url: str, model: RpcModel, clients: int, depth: int) -> float:
        with Load(model, lambda: open_session(url, model), clients) as load:
            before, client = self._server.counters(), load.copied()
            row = load.closed(WARM_UP_S, depth=depth)
            after = self._server.counters()
            names = ("copied_bytes", "gathered_bytes")
            copied = sum(after[name] - before[name] for name in names) + load.copied() - client
        done = row["requests"] - row["failed"]
        return round(copied / max(1, done * (model.size + model.reply)), 4)


class StockLoad(Loaded):
    """TorchServe: models in several settings, registered when they are needed."""

    rival = "torchserve"

    def __init__(self, stock: Stock, store: Path) -> None:
        self._stock, self._store = stock, store

    def pid(self) -> int:
        """See :class:`Loaded`."""
        return self._stock.server.pid

    def is_alive(self) -> bool:
        """See :class:`Loaded`."""
        return self._stock.server.running

    def restart(self) -> None:
        """See :class:`Loaded`."""
        self._stock.restart()

    def prepare(self, model: RpcModel, setting: Setting) -> None:
        """Registered with this batch, and as many workers as are wanted."""
        packed = batched(model, setting["batch"])
        archive, workers = self._store / f"{packed.name}.mar", setting["instances"]
        base, wanted = f"{self._stock.server.management}/models", {"synchronous": "true"}
        if packed.name not in self._stock.registered:
            if not archive.exists():
                pack_model(packed, self._store, batch=setting["batch"])
            more = {"url": archive.name, "initial_workers": workers, **wanted}
            _ask("POST", base, more)
            self._stock.registered.add(packed.name)
            return
        url = f"{base}/{packed.name}"
        with urllib.request.urlopen(url, timeout=60) as answer:
            if len(json.load(answer)[0]["workers"]) != workers:
                _ask("PUT", url, {"min_worker": workers, "max_worker": workers, **wanted})


class StockHttpLoad(StockLoad):
    """wrk; a connection has one request on its way."""

    name = "torchserve http"
    axes: ClassVar[Axes] = {"batch": BATCHES, "instances": INSTANCES}

    def load(
        self, place: Place, model: RpcModel, clients: int, setting: Setting, seconds: float
    ) -> Row:
        """See :class:`Loaded`."""
        server = self._stock.server
        path = f"/predictions/{batched(model, setting['batch']).name}"
        url = f"http://{place.host}:{server.ports.inference}{path}"
        with wrk.script_of(model.request().tobytes()) as script:
            found = place.run(wrk.run, url, script, clients, seconds, server.pid)
        us = {"p50_us": 1000 * found.p50_ms, "p99_us": 1000 * found.p99_ms}
        return {"rps": round(found.rate, 1), "failed": found.errors, **us}


class StockGrpcLoad(StockLoad):
    """h2load."""

    name = "torchserve grpc"
    axes: ClassVar[Axes] = {"streams": STREAMS, "batch": BATCHES, "instances": INSTANCES}

    def load(
        self, place: Place, model: RpcModel, clients: int, setting: Setting, seconds: float
    ) -> Row:
        """See :class:`Loaded`."""
        name = batched(model, setting["batch"]).name
        request = grpc_client.predictions_request(name, {"data": model.request().tobytes()})
        reply = grpc_client.PredictionResponse(prediction=bytes(model.reply)).ByteSize()
        port = self._stock.server.grpc_inference
        call = h2load.Call(port, grpc_client.METHOD, request.SerializeToString(), reply)
        return grpc_load(call, place, clients, setting, seconds)


class TritonLoad(Loaded):
    """h2load; tensors in the messages, or in system shared memory."""

    rival = "triton"
    axes: ClassVar[Axes] = {"streams": STREAMS, "batch": BATCHES, "instances": INSTANCES[:2]}
    variants: ClassVar = [(batch, instances) for batch in BATCHES for instances in INSTANCES[:2]]

    def __init__(self, server: triton_rpc.TritonRpc, stack: ExitStack, *, shared: bool) -> None:
        self.name = "triton grpc + shm" if shared else "triton grpc"
        self._server, self._stack, self.only_loopback = server, stack, shared
        self._calls: dict[tuple[Path, RpcModel], h2load.Call] = {}

    def is_alive(self) -> bool:
        """See :class:`Loaded`."""
        return self._server.running

    def restart(self) -> None:
        """See :class:`Loaded`."""
        self._server.stop()
        self._server.start()

    def pid(self) -> int:
        """See :class:`Loaded`."""
        return self._server.pids()[0]

    def load(
        self, place: Place, model: RpcModel, clients: int, setting: Setting, seconds: float
    ) -> Row:
        """See :class:`Loaded`."""
        asked = triton_rpc.variant(model, setting["batch"], setting["instances"])
        key = self._server.folder, asked  # a folder is of one start
        if key not in self._calls:
            self._calls[key] = self._call(asked)
        return grpc_load(self._calls[key], place, clients, setting, seconds)

    def _call(self, model: RpcModel) -> h2load.Call:
        if not self.only_loopback:
            return triton_rpc.call(self._server, model)
        return triton_rpc.shared_call(self._server, model, self._stack)


def grpc_load(
    call: h2load.Call, place: Place, clients: int, setting: Setting, seconds: float
) -> Row:
    """h2load from a place."""

    def run() -> Row:
        streams = setting["streams"]
        return h2load.run(call, clients=clients, seconds=seconds, streams=streams, host=place.host)

    return place.run(run)


def batched(model: RpcModel, batch: int) -> RpcModel:
    """The same model, registered with a batch size."""
    return replace(model, name=f"{model.name}-{batch}")


def _ask(method: str, url: str, query: dict[str, Any]) -> None:
    text = "&".join(f"{name}={quote(str(value))}" for name, value in query.items())
    request = urllib.request.Request(f"{url}?{text}", method=method)
    urllib.request.urlopen(request, timeout=120).close()


def ours(server: Ours) -> list[OurLoad]:
    """All transports."""
    return [OurLoad(server, scheme) for scheme in ("udp", "tcp", "unix")]
