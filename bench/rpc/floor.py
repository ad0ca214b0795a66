"""Where the time of a call goes (SplitRPC Figure 8): the kernel, the data path, Python.

The kernel: the same datagrams to a process that answers and does nothing else, both in C; asleep
while they wait or awake, whichever is faster. The model: its handler called in this process. The
data path: the same call by the C client, less the kernel and the model. The client: the same call
in Python, less that. Large datagrams are copied into the kernel here, while the client gives its
own pages: what that saves is counted for the data path, whose share may then be below 0.
"""

from __future__ import annotations

import ctypes
import importlib.util
import multiprocessing
import socket
import statistics
import time
from collections.abc import Sequence
from contextlib import ExitStack
from types import SimpleNamespace

import numpy as np
import torch
from common import Row

from rpc.load import Load, functions
from rpc.models import FOLDER, RpcModel
from rpc.sides import OurSide
from shunter.nic_frontend.wire.layout import HEADER_BYTES
from shunter.nic_frontend.wire.segments import SegmentPlan

ROUNDS = 300
SECONDS = 0.3


def _handler_class() -> type:
    """Of bench/models/rpc. By its path: other folders have a module ``handler`` too."""
    spec = importlib.util.spec_from_file_location("rpc_handler", FOLDER / "handler.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.RpcHandler


def measure(model: RpcModel, side: OurSide) -> Row:
    """Medians in microseconds of one round of each."""
    segment, native = _native(model, side)
    echo = min(_echo(model, segment, spin=spin) for spin in (False, True))
    python, own = _python(model, side), _model(model)
    return {
        "kernel": round(echo, 1),
        "model": round(own, 1),
        "data path": round(native - echo - own, 1),
        "python client": round(python - native, 1),
        "total": round(python, 1),
    }


def medians(rounds: Sequence[Row]) -> Row:
    """Over the rounds."""
    return {key: round(statistics.median(r[key] for r in rounds), 1) for key in rounds[0]}


def _native(model: RpcModel, side: OurSide) -> tuple[int, float]:
    with Load(model, lambda: side.session(model), 1) as load:
        load.closed(0.05)
        return load.segment, load.closed(SECONDS)["p50_us"]


def _python(model: RpcModel, side: OurSide) -> float:
    with ExitStack() as stack:
        ask, x = side.client(model, stack), model.request()
        latencies = []
        for number in range(ROUNDS + 20):
            begun = time.perf_counter_ns()
            ask(x)
            if number >= 20:
                latencies.append((time.perf_counter_ns() - begun) / 1000)
    return statistics.median(latencies)


def _model(model: RpcModel) -> float:
    """Its handler with a batch of one, as the worker calls it."""
    handler = _handler_class()()
    settings = {"network": model.network, "reply": model.reply}
    handler.initialize(SimpleNamespace(model_yaml_config={"handler": settings}))
    request = torch.from_numpy(model.request()[None])
    answer = torch.zeros((1, *model.output[1]), dtype=getattr(torch, model.output[0]))
    latencies = []
    for _ in range(ROUNDS):
        begun = time.perf_counter_ns()
        handler.infer([request], [answer])
        latencies.append((time.perf_counter_ns() - begun) / 1000)
    return statistics.median(latencies)


def _serve(descriptor: int, count: int, reply: int, spin: bool) -> None:
    functions().echo_serve(descriptor, count, reply, spin)


def _echo(model: RpcModel, segment: int, *, spin: bool) -> float:
    plan = SegmentPlan((model.size,), segment)
    size = HEADER_BYTES + model.size // plan.count
    latencies: np.ndarray = np.zeros(ROUNDS, np.uint64)
    address = latencies.ctypes.data_as(ctypes.c_void_p)
    functions()  # compiled before the fork
    with (
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client,
    ):
        for each in (server, client):
            each.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8 << 20)
        server.bind(("127.0.0.1", 0))
        client.connect(server.getsockname())
        args = (server.fileno(), plan.count, HEADER_BYTES + model.reply, spin)
        process = multiprocessing.get_context("fork").Process(target=_serve, args=args)
        process.start()
        try:
            asked = (client.fileno(), plan.count, size, ROUNDS, address, spin)
            error = functions().echo_ask(*asked)
        finally:
            client.send(b"x")
            process.join(5)
            process.kill()
    if error:
        raise OSError(-error, "echo")
    return float(np.median(latencies)) / 1000
