"""What Triton's clients are told of a model, and of a server."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from shunter.batching.queue.tensor_spec import TensorSpec
from shunter.nic_frontend.tritonlike.values import triton_type
from shunter.nic_frontend.wire.layout import WIRE_VERSION

MOST_BATCH = (1 << 31) - 1
"""A batch of any size becomes as many requests."""
NOT_SERVED = frozenset(
    (
        *("load_model", "unload_model", "get_model_repository_index"),
        *("get_inference_statistics", "get_trace_settings", "update_trace_settings"),
        *("get_log_settings", "update_log_settings", "register_cuda_shared_memory"),
        *("start_stream", "stop_stream", "async_stream_infer"),
        *("generate_request_body", "parse_response_body"),
        *("register_plugin", "unregister_plugin", "plugin"),
    )
)
"""Methods of Triton's clients that have no meaning here."""


def server_metadata() -> dict[str, Any]:
    """``version`` is that of the wire format."""
    return {
        "name": "shunter",
        "version": str(WIRE_VERSION),
        "extensions": ["system_shared_memory"],
    }


def model_metadata(
    name: str, version: str, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]
) -> dict[str, Any]:
    """Names, types and shapes of the tensors; -1 is the batch."""
    tensors = {
        kind: [
            {"name": s.name, "datatype": triton_type(s.dtype), "shape": [-1, *s.shape]}
            for s in specs
        ]
        for kind, specs in (("inputs", inputs), ("outputs", outputs))
    }
    return {"name": name, "versions": [version or "1"], **tensors}


def model_config(
    name: str, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]
) -> dict[str, Any]:
    """The part of Triton's ModelConfig that is known: shapes are without the batch."""
    tensors = {
        kind: [
            {"name": s.name, "data_type": _config_type(s.dtype), "dims": [*s.shape]}
            for s in specs
        ]
        for kind, specs in (("input", inputs), ("output", outputs))
    }
    return {"name": name, "max_batch_size": MOST_BATCH, **tensors}


def _config_type(dtype: str) -> str:
    name = triton_type(dtype)
    return f"TYPE_{'STRING' if name == 'BYTES' else name}"
