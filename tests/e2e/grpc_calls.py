"""gRPC calls that the product's own client does not make: KServe v2 and streamed answers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import grpc
from e2e_exchange import TIMEOUT_S
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_FIELD = descriptor_pb2.FieldDescriptorProto
_ONE, _MANY = _FIELD.LABEL_OPTIONAL, _FIELD.LABEL_REPEATED
_TEXT, _BYTES, _INT64, _MESSAGE = (
    _FIELD.TYPE_STRING,
    _FIELD.TYPE_BYTES,
    _FIELD.TYPE_INT64,
    _FIELD.TYPE_MESSAGE,
)
_V1 = "org.pytorch.serve.grpc.inference"
_V2 = "org.pytorch.serve.grpc.openinference"
_TENSOR = [
    ("name", 1, _TEXT, _ONE, ""),
    ("datatype", 2, _TEXT, _ONE, ""),
    ("shape", 3, _INT64, _MANY, ""),
    ("contents", 5, _MESSAGE, _ONE, f".{_V2}.InferTensorContents"),
]
_MESSAGES: dict[str, dict[str, list[tuple[str, int, Any, Any, str]]]] = {
    _V1: {
        "InputEntry": [("key", 1, _TEXT, _ONE, ""), ("value", 2, _BYTES, _ONE, "")],
        "PredictionsRequest": [
            ("model_name", 1, _TEXT, _ONE, ""),
            ("input", 3, _MESSAGE, _MANY, f".{_V1}.InputEntry"),
        ],
        "PredictionResponse": [("prediction", 1, _BYTES, _ONE, "")],
    },
    _V2: {
        "InferTensorContents": [("int64_contents", 3, _INT64, _MANY, "")],
        "InferTensor": _TENSOR,
        "ModelInferRequest": [
            ("model_name", 1, _TEXT, _ONE, ""),
            ("id", 3, _TEXT, _ONE, ""),
            ("inputs", 5, _MESSAGE, _MANY, f".{_V2}.InferTensor"),
        ],
        "ModelInferResponse": [
            ("id", 3, _TEXT, _ONE, ""),
            ("outputs", 5, _MESSAGE, _MANY, f".{_V2}.InferTensor"),
        ],
    },
}


def _declare() -> dict[str, Any]:
    pool = descriptor_pool.DescriptorPool()
    for package, messages in _MESSAGES.items():
        file = descriptor_pb2.FileDescriptorProto(name=package, package=package, syntax="proto3")
        for name, fields in messages.items():
            message = file.message_type.add(name=name)
            for field, number, kind, label, of in fields:
                added = message.field.add(name=field, number=number, type=kind, label=label)
                if of:
                    added.type_name = of
        pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{package}.{name}"))
        for package, messages in _MESSAGES.items()
        for name in messages
    }


_CLASSES = _declare()


def _channel(port: int) -> grpc.Channel:
    return grpc.insecure_channel(f"127.0.0.1:{port}", options=[("grpc.enable_http_proxy", 0)])


def infer(port: int, model: str, requests: list[tuple[str, int]]) -> list[tuple[str, list[int]]]:
    """KServe v2: send all (id, x) at once; ids and data of the answers."""
    with _channel(port) as channel:
        call = channel.unary_unary(
            f"/{_V2}.GRPCInferenceService/ModelInfer",
            request_serializer=_CLASSES["ModelInferRequest"].SerializeToString,
            response_deserializer=_CLASSES["ModelInferResponse"].FromString,
        )
        calls = []
        for request, x in requests:
            message = _CLASSES["ModelInferRequest"](model_name=model, id=request)
            tensor = message.inputs.add(name="x", datatype="INT64", shape=[1])
            tensor.contents.int64_contents.append(x)
            calls.append(call.future(message, timeout=TIMEOUT_S))
        answers = [call.result() for call in calls]
        return [(a.id, list(a.outputs[0].contents.int64_contents)) for a in answers]


def stream(port: int, model: str, body: bytes) -> Iterator[str]:
    """The parts of a streamed answer."""
    with _channel(port) as channel:
        call = channel.unary_stream(
            f"/{_V1}.InferenceAPIsService/StreamPredictions",
            request_serializer=_CLASSES["PredictionsRequest"].SerializeToString,
            response_deserializer=_CLASSES["PredictionResponse"].FromString,
        )
        request = _CLASSES["PredictionsRequest"](model_name=model)
        request.input.add(key="data", value=body)
        for part in call(request, timeout=TIMEOUT_S):
            yield part.prediction.decode()
