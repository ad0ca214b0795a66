"""Requests of Triton's shape as those of a session."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from shunter.batching.queue.tensor_spec import BYTES, TensorSpec, dtype_of
from shunter.nic_frontend.client.requests.calls import Array, Options
from shunter.nic_frontend.client.requests.errors import BadRequestError, BatchError
from shunter.nic_frontend.client.requests.packed import PackedTensors
from shunter.nic_frontend.client.session import Session
from shunter.nic_frontend.tritonlike.shared_regions import Regions
from shunter.nic_frontend.tritonlike.tensors import (
    InferInput,
    InferRequestedOutput,
    batch_of,
    in_order,
    output,
)
from shunter.nic_frontend.tritonlike.values import to_region


def ask(
    session: Session,
    inputs: Sequence[InferInput],
    outputs: Sequence[InferRequestedOutput] | None,
    regions: Regions,
    options: Options,
) -> dict[str, Array]:
    """The outputs by their names. Raises InferenceError, RegionError."""
    arrays = in_order(session.inputs, {each.name(): each for each in inputs}, regions)
    batch = batch_of(session.inputs, arrays)
    asked = {each.name(): each for each in outputs or ()}
    if unknown := asked.keys() - {spec.name for spec in session.outputs}:
        raise BadRequestError(f"the model has no output {', '.join(sorted(unknown))}")
    infer = _packed if isinstance(session.tensors, PackedTensors) else _fixed
    found = infer(session, arrays, batch, asked, regions, options)
    return found if outputs is None else {name: found[name] for name in asked}


def _fixed(
    session: Session,
    arrays: Sequence[Array],
    batch: int | None,
    asked: Mapping[str, InferRequestedOutput],
    regions: Regions,
    options: Options,
) -> dict[str, Array]:
    front = () if batch is None else (batch,)
    found = {
        spec.name: output(spec, front, asked.get(spec.name), regions) for spec in session.outputs
    }
    if batch is None:
        session.infer(arrays, options, out=list(found.values()))
    else:
        try:
            session.infer_batch(arrays, options, out=list(found.values()))
        except BatchError as error:
            raise error.errors[min(error.errors)] from error
    return found


def _packed(
    session: Session,
    arrays: Sequence[Array],
    batch: int | None,
    asked: Mapping[str, InferRequestedOutput],
    regions: Regions,
    options: Options,
) -> dict[str, Array]:
    """Of a model whose requests choose their sizes: so do answers."""
    tensors = session.tensors
    assert isinstance(tensors, PackedTensors)
    if batch == 0:
        found = [_none(spec) for spec in tensors.outputs]
    elif batch is not None:
        try:
            found = session.infer_batch(arrays, options)
        except BatchError as error:
            raise error.errors[min(error.errors)] from error
    elif tensors.form.batched:
        raise BadRequestError("a request of this model is a batch: shapes have it in front")
    else:
        found = session.infer(arrays, options)
    outputs = {spec.name: array for spec, array in zip(tensors.outputs, found, strict=True)}
    for name, each in asked.items():
        if each.region is not None:
            to_region(outputs[name], regions.view(*each.region), name)
    return outputs


def _none(spec: TensorSpec) -> Array:
    """No answer."""
    kind = np.dtype(object) if spec.dtype == BYTES else dtype_of(spec.dtype)
    return np.empty((0, *(max(0, size) for size in spec.shape)), kind)
