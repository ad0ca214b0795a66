"""Triton with gRPC, and its own Python client with and without system shared memory.

The server is the one of ``triton_server``; every model is a folder of its repository.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from rpc import h2load
from rpc.models import RpcModel

from rivals import environments, process, triton_server
from rivals.process import BENCH

CLIENT = ("tritonclient==2.62.0", "python-rapidjson")
ANSWER_S = 20.0
"""For a call: Triton sometimes never answers one with tensors in shared memory."""
GOODBYE_S = 5.0
"""For the last call of a client: nothing is lost where a server that hangs does not hear it."""
TYPES = {"uint8": "UINT8", "int64": "INT64", "float32": "FP32"}
_CONFIG = """\
name: "{name}"
backend: "python"
max_batch_size: {max_batch}
input [ {{ name: "x" data_type: TYPE_{input} dims: {input_shape} }} ]
output [ {{ name: "y" data_type: TYPE_{output} dims: {output_shape} }} ]
instance_group [ {{ kind: KIND_CPU count: {instances} }} ]
parameters [ {{ key: "network" value: {{ string_value: "{network}" }} }} ]
dynamic_batching {{ }}
"""


def client_module() -> Any:
    """tritonclient.grpc; installed into the rivals' cache. Raises environments.Unavailable."""
    folder = environments.installed("tritonclient-2.62.0", CLIENT, dependencies=False)
    if str(folder) not in sys.path:
        sys.path.append(str(folder))
    import tritonclient.grpc

    return tritonclient.grpc


def inference_error() -> type[Exception]:
    """What tritonclient raises."""
    client_module()
    from tritonclient.utils import InferenceServerException

    return InferenceServerException


class TritonRpc(triton_server.Triton):
    """Serves ``models`` over gRPC."""

    def __init__(
        self,
        models: Sequence[RpcModel],
        *,
        max_batch: int = 8,
        threads: int = 2,
        variants: Sequence[tuple[int, int]] = (),
        address: str = "127.0.0.1",
    ) -> None:
        """``variants``: batch and instances, each of which is a model of its own: ``variant``."""
        super().__init__(Path(), max_batch=max_batch, threads=threads)
        self._models = {model: (max_batch, 1) for model in models if not variants}
        for model in models:
            for batch, instances in variants:
                self._models[variant(model, batch, instances)] = batch, instances
        self._address = address
        self.grpc_port = process.free_ports().grpc_inference

    def failure(self, what: str) -> process.RivalFailed:
        """An error with the end of its log."""
        return self._failure(what)

    def _unpack(self) -> None:
        """There is no archive."""

    def _command(self) -> list[str]:
        command = super()._command()
        for first, count in (("--allow-grpc", 2), ("--load-model", 2)):
            at = command.index(first)
            del command[at : at + count]
        loads = [word for model in self._models for word in ("--load-model", model.name)]
        grpc = ("--grpc-address", self._address, "--grpc-port", str(self.grpc_port))
        return [*command, *loads, "--allow-grpc", "true", *grpc]

    def _write_repository(self) -> None:
        for model, (batch, instances) in self._models.items():
            version = self.folder / "models" / model.name / "1"
            version.mkdir(parents=True)
            shutil.copy(Path(__file__).with_name("triton_rpc_model.py"), version / "model.py")
            shutil.copy(BENCH / "models/rpc/networks.py", version)
            config = _CONFIG.format(
                name=model.name,
                network=model.network,
                max_batch=batch,
                instances=instances,
                input=TYPES[model.input[0]],
                input_shape=list(model.input[1]),
                output=TYPES[model.output[0]],
                output_shape=list(model.output[1]),
            )
            (version.parent / "config.pbtxt").write_text(config, encoding="ascii")

    def _ready_url(self) -> str:
        return f"{self.base}/v2/health/ready"


def variant(model: RpcModel, batch: int, instances: int) -> RpcModel:
    """The same model in another setting."""
    return replace(model, name=f"{model.name}-{batch}-{instances}")


def call(server: TritonRpc, model: RpcModel) -> h2load.Call:
    """One request, encoded by Triton's own client."""
    request = _request(model)
    request.raw_input_contents.append(model.request().tobytes())
    return _call(server, model, request)


def shared_call(server: TritonRpc, model: RpcModel, stack: ExitStack) -> h2load.Call:
    """The same with tensors in the regions of a client, which are there until the end of ``stack``;
    every request has the same ones. A server that hangs raises RivalFailed.
    """
    try:
        client = SharedMemoryClient(server.grpc_port, model)
        stack.callback(client.close)
        client.infer(model.request())  # its input stays there
    except inference_error() as error:
        raise server.failure(f"Triton does not answer {model.name}") from error
    request = _request(model)
    request.outputs.add(name="y")
    sides = ((request.inputs[0], model.size), (request.outputs[0], model.reply))
    for name, (tensor, size) in zip(client.names, sides, strict=True):
        tensor.parameters["shared_memory_region"].string_param = name
        tensor.parameters["shared_memory_byte_size"].int64_param = size
    return _call(server, model, request)


def _request(model: RpcModel) -> Any:
    request = client_module().service_pb2.ModelInferRequest(model_name=model.name)
    entry = request.inputs.add(name="x", datatype=TYPES[model.input[0]])
    entry.shape.extend([1, *model.input[1]])
    return request


def _call(server: TritonRpc, model: RpcModel, request: Any) -> h2load.Call:
    """The call, with the length of a real answer."""
    grpc = client_module()
    with grpc.InferenceServerClient(f"127.0.0.1:{server.grpc_port}") as client:
        try:
            reply = client._client_stub.ModelInfer(request, timeout=ANSWER_S).ByteSize()
        except grpc.grpc.RpcError as error:
            raise server.failure(f"Triton does not answer {model.name}") from error
    path = "/inference.GRPCInferenceService/ModelInfer"
    return h2load.Call(server.grpc_port, path, request.SerializeToString(), reply)


class GrpcClient:
    """tritonclient on one model; tensors in the messages."""

    def __init__(self, port: int, model: RpcModel) -> None:
        self._grpc = client_module()
        self._client = self._grpc.InferenceServerClient(f"127.0.0.1:{port}")
        self._model = model
        self._shape = [1, *model.input[1]]
        self._type = TYPES[model.input[0]]

    def infer(self, x: np.ndarray) -> np.ndarray:
        """One request."""
        tensor = self._grpc.InferInput("x", self._shape, self._type)
        tensor.set_data_from_numpy(x[None])
        return self._client.infer(self._model.name, [tensor]).as_numpy("y")[0]

    def close(self) -> None:
        self._client.close()


class SharedMemoryClient(GrpcClient):
    """tritonclient on one model; tensors in two regions of system shared memory."""

    def __init__(self, port: int, model: RpcModel) -> None:
        super().__init__(port, model)
        from tritonclient.utils import shared_memory

        self._shm = shared_memory
        self._sizes = [
            int(np.prod(shape)) * np.dtype(kind).itemsize
            for kind, shape in (model.input, model.output)
        ]
        self.names = [f"{kind}-{model.name}-{port}" for kind in ("in", "out")]
        self._regions = []
        try:
            for name, size in zip(self.names, self._sizes, strict=True):
                region = shared_memory.create_shared_memory_region(name, f"/{name}", size)
                self._regions.append(region)
                self._client.register_system_shared_memory(
                    name, f"/{name}", size, client_timeout=ANSWER_S
                )
        except BaseException:
            self.close()
            raise

    def infer(self, x: np.ndarray) -> np.ndarray:
        """One request; the tensor is copied into its region first, as a caller has to."""
        self._shm.set_shared_memory_region(self._regions[0], [x[None]])
        tensor = self._grpc.InferInput("x", self._shape, self._type)
        tensor.set_shared_memory(self.names[0], self._sizes[0])
        wanted = self._grpc.InferRequestedOutput("y")
        wanted.set_shared_memory(self.names[1], self._sizes[1])
        self._client.infer(
            self._model.name, [tensor], outputs=[wanted], client_timeout=ANSWER_S
        )
        kind, shape = self._model.output
        return self._shm.get_contents_as_numpy(self._regions[1], kind, (1, *shape))[0]

    def close(self) -> None:
        with suppress(inference_error()):  # it hangs, or was started anew
            self._client.unregister_system_shared_memory(client_timeout=GOODBYE_S)
        for region in self._regions:
            self._shm.destroy_shared_memory_region(region)
        super().close()
