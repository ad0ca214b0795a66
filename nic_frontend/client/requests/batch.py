"""Many requests in one array for each tensor: ``[n, ...]`` is cut into n requests. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from shunter.nic_frontend.client.requests.calls import Array, Tensors
from shunter.nic_frontend.client.requests.errors import BadRequestError, BatchError, InferenceError


def cut(tensors: Tensors, arrays: Sequence[Array]) -> list[list[Array]]:
    """Each request's arrays, which lie in these. Raises BadRequestError."""
    if len(arrays) != len(tensors.inputs):
        raise BadRequestError(f"{len(arrays)} tensors; the model has {len(tensors.inputs)}")
    for spec, array in zip(tensors.inputs, arrays, strict=True):
        if not isinstance(array, np.ndarray):
            kind = type(array).__name__
            raise BadRequestError(f"{spec.name}: a {kind}, not an array of numpy")
        if array.shape[1:] != spec.shape or not array.ndim or array.dtype != spec.dtype:
            wanted = ", ".join(map(str, ("n", *spec.shape)))
            raise BadRequestError(
                f"{spec.name}: {array.dtype} {array.shape}; a batch is {spec.dtype} ({wanted})"
            )
    counts = {len(array) for array in arrays}
    if len(counts) != 1:
        raise BadRequestError(f"batches of different sizes: {sorted(counts)}")
    return [parts(arrays, i) for i in range(counts.pop())]


def parts(arrays: Sequence[Array], at: int) -> list[Array]:
    """One of the requests, or its answer."""
    return [array[at, ...] for array in arrays]


def memory(tensors: Tensors, count: int) -> list[Array]:
    """For the answers."""
    return [np.empty((count, *shape), dtype) for dtype, shape in tensors.made]


def check(outputs: list[Array], found: Sequence[object]) -> list[Array]:
    """The outputs, if all of it was ``found``. Raises BatchError."""
    errors = {i: each for i, each in enumerate(found) if isinstance(each, InferenceError)}
    if errors:
        raise BatchError(outputs, errors)
    return outputs
