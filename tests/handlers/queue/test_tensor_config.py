"""The ``tensors:`` of a model: what they may say, and what is said of a mistake."""

import numpy as np
import pytest
import torch

from shunter.batching.queue.packed import MOST_BYTES
from shunter.batching.queue.packed_form import USUAL_BYTES, PackedForm
from shunter.batching.queue.tensor_spec import TensorSpec, dtype_of
from shunter.handlers.device.torch_types import torch_type, torch_view
from shunter.handlers.queue.tensor_config import (
    Backlog,
    Padding,
    TensorConfig,
    TensorConfigError,
    tensor_config,
)

X = {"name": "x", "dtype": "float32", "shape": [3]}
ANY_X = {"name": "x", "dtype": "int64", "shape": [-1, 3]}
TEXT = {"name": "text", "dtype": "bytes", "shape": []}


def config(inputs=(X,), outputs=(X,), **more):
    return tensor_config({"tensors": {"inputs": list(inputs), "outputs": list(outputs), **more}})


def test_tensors_of_one_size_are_not_packed():
    spec = TensorSpec("x", "float32", (3,))
    assert config() == TensorConfig((spec,), (spec,))
    assert config(batched=False, streamed=False).packing is None
    assert config(graphs=False).graphs is False


@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3fn", "float8_e5m2", "complex64", "bool"])
def test_types_of_numbers(dtype):
    [spec] = config([{**X, "dtype": dtype}]).inputs
    assert spec.dtype == dtype and torch_type(dtype) == getattr(torch, dtype)


@pytest.mark.parametrize(
    ("given", "form"),
    [
        ({"inputs": [ANY_X]}, PackedForm()),
        ({"outputs": [TEXT]}, PackedForm()),
        ({"batched": True}, PackedForm(batched=True)),
        ({"streamed": True}, PackedForm(streamed=True)),
        (
            {"inputs": [TEXT], "request_bytes": 1000, "answer_bytes": MOST_BYTES},
            PackedForm(request_bytes=1000, answer_bytes=MOST_BYTES),
        ),
    ],
)
def test_what_makes_a_model_packed(given, form):
    found = config(**given)
    assert found.packing == form and found.padding == Padding()
    assert PackedForm().request_bytes == USUAL_BYTES


def test_how_batches_are_padded():
    assert config([ANY_X], ragged=True).padding == Padding(ragged=True)
    padding = config([ANY_X], buckets=[8, 32]).padding
    assert [padding.size(n) for n in (0, 8, 9, 32, 33)] == [8, 8, 32, 32, 33]


def test_how_far_readers_may_be_behind():
    assert config(streamed=True).backlog == Backlog(1 << 20, 5000, 30_000)
    found = config(streamed=True, backlog_bytes=0, backlog_ms=7, stall_ms=9).backlog
    assert found == Backlog(0, 7, 9)


WRONG = [
    ({"inputs": []}, "inputs: a list with at least one tensor"),
    ({"inputs": [X, X]}, "inputs: 'x' is there twice"),
    ({"inputs": [3]}, "3; allowed: name, dtype"),
    ({"inputs": [{**X, "dims": 1}]}, "allowed: name, dtype"),
    ({"inputs": [{**X, "dtype": "float31"}]}, "float32, bfloat16, float8_e4m3fn"),
    ({"inputs": [{**X, "dtype": "longdouble"}]}, "a type of numpy and torch"),
    ({"inputs": [{**X, "dtype": "S3"}]}, "or bytes"),
    ({"inputs": [{**X, "shape": [-2]}]}, "-1: each request chooses"),
    ({"inputs": [{**X, "shape": 3}]}, "a list of sizes"),
    ({"bached": True}, "bached is not known; allowed: answer_bytes, backlog_bytes, backlog_ms, "),
    ({"batched": 1}, "batched: 1; allowed: true or false"),
    ({"graphs": 0}, "graphs: 0; allowed: true or false"),
    ({"streamed": "no"}, "streamed: 'no'; allowed: true or false"),
    ({"inputs": [TEXT], "request_bytes": 67}, "request_bytes: 67; allowed: 68, which the smallest"),
    ({"inputs": [TEXT], "request_bytes": "1"}, "request_bytes: '1'; allowed: 68"),
    ({"inputs": [TEXT], "request_bytes": True}, "request_bytes: True; allowed: 68"),
    ({"inputs": [TEXT], "answer_bytes": MOST_BYTES + 1}, f"to {MOST_BYTES}"),
    ({"request_bytes": 1000}, "request_bytes: all requests have the same size"),
    ({"answer_bytes": 1000}, "answer_bytes: all requests have the same size"),
    ({"ragged": True}, "ragged: all requests have the same size"),
    ({"buckets": [1]}, "buckets: all requests have the same size"),
    ({"streamed": True, "backlog_ms": -1}, "backlog_ms: -1; allowed: 0 to"),
    ({"streamed": True, "backlog_bytes": True}, "backlog_bytes: True; allowed: 0 to"),
    ({"inputs": [TEXT], "backlog_ms": 5}, "backlog_ms: it is for models with streamed: true"),
    ({"streamed": True, "stall_ms": -1}, "stall_ms: -1; allowed: 0 to"),
    ({"stall_ms": 5}, "stall_ms: it is for models with streamed: true"),
    ({"backlog_bytes": 5}, "backlog_bytes: it is for models with streamed: true"),
    ({"inputs": [TEXT], "ragged": 1}, "ragged: 1; allowed: true or false"),
    ({"inputs": [TEXT], "buckets": 3}, "buckets: 3; allowed: a list of sizes"),
    ({"inputs": [TEXT], "buckets": [0]}, "a list of sizes, each larger than the last"),
    ({"inputs": [TEXT], "buckets": [2, 2]}, "each larger than the last"),
    ({"inputs": [TEXT], "buckets": [3, 2]}, "each larger than the last"),
    ({"inputs": [TEXT], "buckets": [True]}, "each larger than the last"),
    ({"inputs": [TEXT], "ragged": True, "buckets": [2]}, "where tensors are ragged nothing is"),
]


@pytest.mark.parametrize(("tensors", "message"), WRONG, ids=[m for _, m in WRONG])
def test_what_is_wrong_is_said(tensors, message):
    with pytest.raises(TensorConfigError) as error:
        config(**tensors)
    assert str(error.value).startswith("tensors: ") and message in str(error.value)


@pytest.mark.parametrize("tensors", [None, [], {"inputs": [X]}], ids=str)
def test_both_sides_are_needed(tensors):
    with pytest.raises(TensorConfigError, match="two lists, inputs and outputs"):
        tensor_config({"tensors": tensors})


def test_a_view_is_the_memory_itself():
    for name in ("bfloat16", "float8_e5m2", "int32"):
        array = np.zeros((2, 3), dtype_of(name))
        torch_view(array, name)[1] = 2
        assert array.astype(float).tolist() == [[0] * 3, [2] * 3]
    assert torch_view(np.empty((0, 4), dtype_of("bfloat16")), "bfloat16").shape == (0, 4)
