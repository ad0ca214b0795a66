"""The rivals in the RPC benchmarks, and how each is asked by its own public Python client."""

from __future__ import annotations

import http.client
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
from rivals import triton_rpc

from rpc.models import RpcModel, pack_model
from rpc.sides import Array, Ask, everywhere
from shunter.plugins.torchserve.grpc_client import InferenceClient
from shunter.plugins.torchserve.server import Server


class Stock:
    """TorchServe as it comes: one worker, no batching."""

    def __init__(
        self,
        store: Path,
        models: Sequence[RpcModel],
        *,
        batch: int = 1,
        delay_ms: int = 1,
        workers: int = 1,
        anywhere: bool = False,
    ) -> None:
        for model in models:
            pack_model(model, store, batch=batch, delay_ms=delay_ms)
        names = [f"{model.name}={model.name}.mar" for model in models]
        config = {"job_queue_size": "1000", "default_workers_per_model": str(workers)}
        self.server = Server(model_store=store, models=names, **everywhere(anywhere, config))
        self.registered: set[str] = set()
        """Models that were registered since the start."""

    def restart(self) -> None:
        """End the server and start it anew."""
        self.server.stop()
        self.registered.clear()
        self.server.start()

    def __enter__(self) -> Self:
        self.server.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.server.__exit__(kind, error, trace)


class StockGrpc:
    """TorchServe's gRPC, raw bytes in the request's map."""

    def __init__(self, stock: Stock) -> None:
        self.name, self._server = "torchserve grpc", stock.server

    def client(self, model: RpcModel, stack: ExitStack) -> Ask:
        """See :class:`Side`."""
        address = f"127.0.0.1:{self._server.grpc_inference}"
        client = stack.enter_context(InferenceClient(address))
        kind, shape = model.output

        def ask(x: Array) -> Array:
            answer = client.predict(model.name, {"data": x.tobytes()})
            return np.frombuffer(answer, kind).reshape(shape)

        return ask


class StockHttp:
    """TorchServe's HTTP, raw bytes as the body, one connection that stays."""

    def __init__(self, stock: Stock) -> None:
        self.name, self._server = "torchserve http", stock.server

    def client(self, model: RpcModel, stack: ExitStack) -> Ask:
        """See :class:`Side`."""
        connection = http.client.HTTPConnection("127.0.0.1", self._server.ports.inference)
        stack.callback(connection.close)
        path, (kind, shape) = f"/predictions/{model.name}", model.output
        headers = {"Content-Type": "application/octet-stream"}

        def ask(x: Array) -> Array:
            connection.request("POST", path, x.tobytes(), headers)
            answer = connection.getresponse()
            body = answer.read()
            if answer.status != 200:
                raise RuntimeError(f"{answer.status}: {body[:200]!r}")
            return np.frombuffer(body, kind).reshape(shape)

        return ask


class TritonSide:
    """Triton's gRPC with its own client, tensors in messages or in shared memory."""

    def __init__(self, server: triton_rpc.TritonRpc, *, shared: bool) -> None:
        self.name = "triton grpc + shm" if shared else "triton grpc"
        self._server = server
        self._kind = triton_rpc.SharedMemoryClient if shared else triton_rpc.GrpcClient

    def client(self, model: RpcModel, stack: ExitStack) -> Ask:
        """See :class:`Side`."""
        client = self._kind(self._server.grpc_port, model)
        stack.callback(client.close)
        return client.infer
