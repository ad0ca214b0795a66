"""What arrays of Triton's clients hold, and what of ours: byte strings, and bfloat16 as float32."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from typing import Any

import numpy as np

from shunter.batching.queue.tensor_spec import BYTES, dtype_of
from shunter.nic_frontend.client.requests.calls import Array
from shunter.nic_frontend.client.requests.errors import BadRequestError

_TYPES = {
    "BOOL": "bool",
    **{f"INT{bits}": f"int{bits}" for bits in (8, 16, 32, 64)},
    **{f"UINT{bits}": f"uint{bits}" for bits in (8, 16, 32, 64)},
    **{f"FP{bits}": f"float{bits}" for bits in (16, 32, 64)},
    "BF16": "bfloat16",
    "BYTES": BYTES,
}
DATATYPES = tuple(_TYPES)
_NAMES = {name: triton for triton, name in _TYPES.items()}
_LENGTH = struct.Struct("<I")


def triton_type(dtype: str) -> str:
    """Triton's name of a type of numpy; numpy's where it has none."""
    return "BYTES" if dtype == "object" else _NAMES.get(dtype, dtype)


def given(datatype: str, array: Array) -> Array | None:
    """An array that a caller gives, as the model takes it; None: it has another type.

    As for Triton's clients a BF16 tensor is of float32, and a BYTES tensor of objects or of S.
    """
    if datatype == "BYTES":
        return array.astype(object) if array.dtype.kind in "OS" else None
    if datatype == "BF16" and array.dtype == np.float32:
        return array.astype(dtype_of("bfloat16"))
    return array if array.dtype == dtype_of(_TYPES[datatype]) else None


def taken(array: Array) -> Array:
    """An array of the model's as Triton's clients have it."""
    return array.astype(np.float32) if array.dtype == dtype_of("bfloat16") else array


def from_region(datatype: str, view: memoryview, shape: Sequence[int], name: str) -> Array:
    """What lies in shared memory. Raises BadRequestError."""
    try:
        if datatype == "BYTES":
            return np.array(_strings(view, math.prod(shape)), object).reshape(shape)
        return np.frombuffer(view, dtype_of(_TYPES[datatype])).reshape(shape)
    except (ValueError, struct.error) as error:
        text = f"{name}: {len(view)} bytes are not {datatype} {list(shape)}"
        raise BadRequestError(text) from error


def to_region(array: Array, view: memoryview, name: str) -> None:
    """Write an answer into shared memory. Raises BadRequestError when there is no room."""
    content = _joined(array) if array.dtype.kind == "O" else array.tobytes()
    if len(view) < len(content):
        raise BadRequestError(f"{name} has {len(content)} bytes; its region has {len(view)}")
    view[: len(content)] = content


def _strings(view: memoryview, count: int) -> list[bytes]:
    """Each has its length before it; behind the last there may be anything."""
    found, at = [], 0
    for _ in range(count):
        length = _LENGTH.unpack_from(view, at)[0]
        begin, at = at + _LENGTH.size, at + _LENGTH.size + length
        if at > len(view):
            raise ValueError("a byte string ends behind the region")
        found.append(bytes(view[begin:at]))
    return found


def _joined(array: Array) -> bytes:
    parts: list[Any] = []
    for each in array.reshape(-1):
        parts += (_LENGTH.pack(len(each)), each)
    return b"".join(parts)
