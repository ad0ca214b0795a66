"""A client of TorchServe's v1 gRPC inference API, without compiled stubs.

TorchServe's wheel ships no Python stubs, so the few messages needed are declared here as protobuf
descriptors. Field numbers are those of TorchServe's ``inference.proto``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_PACKAGE = "org.pytorch.serve.grpc.inference"
METHOD = f"/{_PACKAGE}.InferenceAPIsService/Predictions"
_OPTIONS = (("grpc.enable_http_proxy", 0), ("grpc.max_receive_message_length", -1))


def _declare() -> descriptor_pool.DescriptorPool:
    kind = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(
        name="shunter/inference.proto", package=_PACKAGE, syntax="proto3"
    )
    request = file.message_type.add(name="PredictionsRequest")
    single = kind.LABEL_OPTIONAL
    request.field.add(name="model_name", number=1, type=kind.TYPE_STRING, label=single)
    request.field.add(name="model_version", number=2, type=kind.TYPE_STRING, label=single)
    entry = request.nested_type.add(name="InputEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=kind.TYPE_STRING, label=single)
    entry.field.add(name="value", number=2, type=kind.TYPE_BYTES, label=single)
    request.field.add(
        name="input",
        number=3,
        type=kind.TYPE_MESSAGE,
        label=kind.LABEL_REPEATED,
        type_name=f".{_PACKAGE}.PredictionsRequest.InputEntry",
    )
    response = file.message_type.add(name="PredictionResponse")
    response.field.add(name="prediction", number=1, type=kind.TYPE_BYTES, label=single)
    # A pool of our own: real stubs of the same messages may live in this process too.
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return pool


def _message(pool: descriptor_pool.DescriptorPool, name: str) -> Any:
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.{name}"))


_POOL = _declare()
PredictionsRequest = _message(_POOL, "PredictionsRequest")
PredictionResponse = _message(_POOL, "PredictionResponse")


def predictions_request(model: str, inputs: Mapping[str, bytes], version: str = "") -> Any:
    """A PredictionsRequest; without a version it is for the default one."""
    request = PredictionsRequest(model_name=model, model_version=version)
    for key, value in inputs.items():
        request.input[key] = value
    return request


class InferenceClient:
    """One channel to a server; threads may share it. A context manager.

    ``grpc.RpcError`` of a call carries TorchServe's status and text.
    """

    def __init__(self, address: str, *, token: str | None = None) -> None:
        """``address`` is host:port, ``token`` the inference key where tokens are on."""
        self._channel = grpc.insecure_channel(address, options=_OPTIONS)
        self._metadata = [("authorization", f"Bearer {token}")] if token else []
        self._call = self._channel.unary_unary(
            METHOD,
            request_serializer=PredictionsRequest.SerializeToString,
            response_deserializer=PredictionResponse.FromString,
        )

    def predict(
        self,
        model: str,
        inputs: Mapping[str, bytes],
        *,
        version: str = "",
        timeout_s: float | None = 60,
    ) -> bytes:
        """The prediction's bytes. ``inputs`` may hold x-shunter-class and x-shunter-deadline-ms."""
        request = predictions_request(model, inputs, version)
        return self._call(request, timeout=timeout_s, metadata=self._metadata).prediction

    def close(self) -> None:
        """Close the channel."""
        self._channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
