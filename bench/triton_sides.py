"""The sides of the Triton benchmarks: our backend, Triton's Python backend in any setting, and no
backend to speak of.

All serve the same networks (models/rpc/networks.py) in the same ``tritonserver``.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import httpx
import numpy as np
import wrk
from common import Row
from cpu_use import CpuUse
from rivals import perf_analyzer, process, triton_rpc
from rivals.triton_rpc import variant
from rpc import h2load
from rpc.models import RpcModel, pack_model

from shunter.plugins import hosts
from shunter.plugins.triton import build

KINDS = ("http binary", "http json", "grpc")
ANALYZED = ("perf_analyzer http", "perf_analyzer grpc")
"""The same by perf_analyzer, Triton's own load generator."""
LOAD_S = 600.0
"""A model with five torch processes takes long to load."""
TYPES = {"uint8": "UINT8", "float32": "FP32"}


@dataclass(frozen=True)
class Static:
    """What a user of the Python backend chooses."""

    batch: int
    instances: int
    delay_us: int


@dataclass(frozen=True)
class Call:
    """A request that was encoded once."""

    kind: str
    body: bytes = b""
    header_bytes: int | None = None
    """Of a binary body."""
    grpc: h2load.Call | None = None
    analyzed: list[str] | None = None
    """Arguments of perf_analyzer."""


LIMIT = Static(64, 1, 0)
"""Of the backend that answers at once; only the number of instances means anything to it."""


class Ours:
    """Our backend, every model in one setting."""

    name = "shunter"

    def __init__(self, folder: Path, models: Sequence[RpcModel], batch: int, workers: int) -> None:
        self._workers = workers
        for model in models:
            pack_model(model, folder, batch=batch)
        self._files = [f"{model.name}.mar" for model in models]
        quiet = {"log-info": "false", "log-warning": "false"}
        self.process = hosts.process_of(folder, [], settings=quiet, name="triton")

    def __enter__(self) -> Self:
        self.process.start()
        try:
            for file in self._files:
                self.process.host.load(file, workers=self._workers)
        except BaseException:
            self.process.drain(0)
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.process.drain(10)

    @property
    def base(self) -> str:
        """Of HTTP."""
        return self.process.inference

    @property
    def grpc_port(self) -> int:
        """Of gRPC."""
        return int(self.process.grpc.rpartition(":")[2])

    def failure(self, what: str) -> RuntimeError:
        """An error with the end of its log."""
        lines = self.process.log.read_text(encoding="utf-8", errors="replace").splitlines()
        return RuntimeError("\n".join([f"{what}; its log ends:", *lines[-20:]]))

    def pids(self) -> list[int]:
        """The server and all workers."""
        models = self.process.host.status()["models"]
        return [self.process.pid, *(pid for each in models for pid in each["pids"])]


class PythonBackend(triton_rpc.TritonRpc):
    """Triton's Python backend: each model in each setting, of which those are loaded that are
    wanted.
    """

    def __init__(self, models: Sequence[RpcModel], settings: Sequence[Static]) -> None:
        super().__init__((), threads=1)
        self._given, self._grid = models, settings

    @staticmethod
    def named(model: RpcModel, setting: Static) -> RpcModel:
        """The model in that setting."""
        return variant(model, setting.batch, setting.instances * 1_000_000 + setting.delay_us)

    def _write_repository(self) -> None:
        (self.folder / "models").mkdir()
        for model in self._given:
            for setting in self._grid:
                self._models = {self.named(model, setting): (setting.batch, setting.instances)}
                super()._write_repository()
                [named] = self._models
                path = self.folder / "models" / named.name / "config.pbtxt"
                delay = f"{{ max_queue_delay_microseconds: {setting.delay_us} }}"
                text = path.read_text(encoding="ascii").replace(
                    "dynamic_batching { }", f"dynamic_batching {delay}"
                )
                path.write_text(text, encoding="ascii")
        self._models = {}

    def load(self, model: RpcModel, setting: Static) -> RpcModel:
        """Serve it; as it is called."""
        named = self.named(model, setting)
        self._ask(named, "load")
        return named

    def unload(self, model: RpcModel, setting: Static) -> None:
        """End its processes."""
        named = self.named(model, setting)
        self._ask(named, "unload")
        url = f"{self.base}/v2/models/{named.name}/ready"
        end = time.monotonic() + 60
        while process.answers(url) and time.monotonic() < end:
            time.sleep(0.05)

    def _ask(self, named: RpcModel, what: str) -> None:
        url = f"{self.base}/v2/repository/models/{named.name}/{what}"
        answer = httpx.post(url, json={}, timeout=LOAD_S, trust_env=False)
        if not answer.is_success:
            raise self.failure(f"{named.name}: {answer.text}")


class FrontEndAlone(PythonBackend):
    """Triton before a backend that answers at once (models/null_backend): what no backend can pass.
    Its requests are not batched.
    """

    name = "limit"

    def __init__(self, model: RpcModel) -> None:
        super().__init__([model], [LIMIT])

    def _write_repository(self) -> None:
        super()._write_repository()
        for config in (self.folder / "models").glob("*/config.pbtxt"):
            text = config.read_text(encoding="ascii").replace('"python"', '"null"')
            lines = [line for line in text.splitlines() if "dynamic_batching" not in line]
            config.write_text("\n".join(lines) + "\n", encoding="ascii")

    def _write_backends(self, server: Path) -> Path:
        folder = self.folder / "backends"
        source = Path(__file__).parent / "models/null_backend/null.c"
        build.link(folder / "null/libtriton_null.so", [source], build.includes())
        return folder


# ---- load


def call_of(server: Any, model: RpcModel, kind: str) -> Call:
    """A request of that kind, which the server has answered once. Raises RuntimeError."""
    if kind == "grpc":
        return Call(kind, grpc=triton_rpc.call(server, model))
    if kind in ANALYZED:
        check(server, model, None)
        protocol = kind.split()[1]
        port = server.grpc_port if protocol == "grpc" else server.base.rpartition(":")[2]
        return Call(kind, analyzed=perf_analyzer.arguments(model.name, protocol, int(port)))
    x = model.request()
    entry: dict[str, Any] = {
        "name": "x",
        "shape": [1, *x.shape],
        "datatype": TYPES[model.input[0]],
    }
    if kind == "http json":
        entry["data"] = x.reshape(-1).tolist()
        return Call(kind, json.dumps({"inputs": [entry]}).encode())
    entry["parameters"] = {"binary_data_size": x.nbytes}
    head = json.dumps({"inputs": [entry], "parameters": {"binary_data_output": True}}).encode()
    return Call(kind, head + x.tobytes(), len(head))


def check(server: Any, model: RpcModel, want: np.ndarray | None) -> np.ndarray:
    """What it answers; RuntimeError when that is not what is wanted."""
    client = triton_rpc.GrpcClient(server.grpc_port, model)
    try:
        found = client.infer(model.request())
    finally:
        client.close()
    if want is not None and not np.allclose(found, want, atol=1e-4):
        raise RuntimeError(f"{model.name} answers otherwise than the other side")
    return found


def measured(server: Any, model: RpcModel, call: Call, connections: int, seconds: float) -> Row:
    """A closed loop of so many connections, with the processor time of all of the server."""
    use, began = CpuUse({"server": server.pids()}), time.monotonic()
    use.begin()
    if call.analyzed is not None:
        found = perf_analyzer.run(call.analyzed, connections, seconds)
    elif call.grpc is not None:
        found = h2load.complete(call.grpc, clients=connections, seconds=seconds)
    else:
        found = _wrk(f"{server.base}/v2/models/{model.name}/infer", call, connections, seconds)
    use.end()
    took = time.monotonic() - began
    # Where it is not counted how many there were in all, the rate was about the same all the time.
    asked = found.pop("asked", 0) or max(found["rps"], 1e-9) * took
    found["cpu_us"] = round(use.cores()["server"] * took * 1e6 / asked, 1)
    return found


def _wrk(url: str, call: Call, connections: int, seconds: float) -> Row:
    headers = {"Content-Type": "application/json"}
    if call.header_bytes is not None:
        headers = wrk.BINARY | {"Inference-Header-Content-Length": str(call.header_bytes)}
    with wrk.script_of(call.body, headers) as lua:
        return wrk.load(url, lua, connections, seconds)
