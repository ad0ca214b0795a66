"""Tensors whose sizes each request chooses, as one run of bytes. Pure.

A function with any such input or output (a dimension that is ANY, BYTES, requests of several
rows, streamed answers) is *packed*: each of its requests and answers is one run of bytes, for
whose length there is only a limit. Whoever carries it (network, queue, dispatcher) needs to know
no more; what is in it is between the client and the worker::

    u32 rows, u32 0
    u64 bytes of each tensor
    u32 sizes of the dimensions of each tensor, one tensor behind the other, without the rows
    0 up to a multiple of ALIGN: for the tensors of one function this header is always as long
    the tensors, each at a multiple of ALIGN

Everything is little-endian. ``rows`` is 1, or the size of the first dimension of all tensors where
requests are batches themselves. A tensor of byte strings has for each element its u32 length and
its bytes, as in KServe's binary protocol.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shunter.batching.queue.tensor_spec import ANY, BYTES, TensorSpec, dtype_of

ALIGN = 64
MOST_BYTES = 1 << 30
_ROWS = struct.Struct("<II")
_LENGTH = struct.Struct("<I")


class PackedError(ValueError):
    """These are not the tensors of the function; the message says why."""


@dataclass(frozen=True)
class Place:
    """Where a tensor is in a packed run of bytes."""

    offset: int
    bytes: int
    shape: tuple[int, ...]
    """With the rows, where there are any."""


@dataclass(frozen=True)
class Packing:
    """The tensors of a packed function's requests, or of its answers."""

    specs: tuple[TensorSpec, ...]
    batched: bool = False
    """Whether a request is a batch itself: its tensors have a first dimension more, of its rows."""

    @cached_property
    def header(self) -> int:
        """Bytes before the first tensor.

        >>> Packing((TensorSpec("x", "float32", (ANY, 3)),)).header
        64
        """
        return _up(_ROWS.size + 8 * len(self.specs) + 4 * self._dims)

    @cached_property
    def least(self) -> int:
        """Bytes of the smallest run: one row, and nothing where a size may be chosen.

        >>> Packing((TensorSpec("x", "int8", (ANY,)), TensorSpec("y", "int8", (2,)))).least
        66
        """
        sizes = [_bytes_of(s, tuple(max(0, n) for n in s.shape))[0] for s in self.specs]
        return list(_places(self.header, sizes))[-1] + sizes[-1]

    @cached_property
    def _dims(self) -> int:
        return sum(len(spec.shape) for spec in self.specs)

    @cached_property
    def _sizes(self) -> struct.Struct:
        """Of the tensors, and of their dimensions."""
        return struct.Struct(f"<{len(self.specs)}Q{self._dims}I")

    def pack(self, tensors: Sequence[Any]) -> bytearray:
        """One run of bytes. ``tensors``: arrays, or of byte strings what numpy makes arrays of.

        Raises PackedError.
        """
        if len(tensors) != len(self.specs):
            raise PackedError(f"{len(tensors)} tensors; there are {len(self.specs)}")
        arrays = [_array(spec, each) for spec, each in zip(self.specs, tensors, strict=True)]
        rows = self._rows_of(arrays)
        contents = [
            _joined(a) if s.dtype == BYTES else np.ascontiguousarray(a)
            for s, a in zip(self.specs, arrays, strict=True)
        ]
        sizes = [c.nbytes for c in contents]
        places = list(_places(self.header, sizes))
        end = places[-1] + sizes[-1]
        if end > MOST_BYTES:
            raise PackedError(f"{end} bytes; at most {MOST_BYTES}")
        run = bytearray(end)
        dims = [n for a in arrays for n in (a.shape[1:] if self.batched else a.shape)]
        _ROWS.pack_into(run, 0, rows, 0)
        self._sizes.pack_into(run, _ROWS.size, *sizes, *dims)
        flat = np.frombuffer(run, np.uint8)
        for at, content in zip(places, contents, strict=True):
            flat[at : at + content.nbytes] = content.reshape(-1).view(np.uint8)
        return run

    def _rows_of(self, arrays: Sequence[NDArray[Any]]) -> int:
        rows = {a.shape[0] if self.batched and a.ndim else 1 for a in arrays}
        if len(rows) != 1 or 0 in rows:
            raise PackedError(f"tensors of {sorted(rows)} rows; all have as many, at least 1")
        for spec, array in zip(self.specs, arrays, strict=True):
            _check_shape(spec, array.shape[1:] if self.batched else array.shape)
            if self.batched and not array.ndim:
                raise PackedError(f"{spec.name}: no rows")
        return rows.pop()

    def places(self, run: memoryview | bytes | bytearray) -> tuple[int, list[Place]]:
        """Rows, and where the tensors are in a run of bytes that anybody may have made.

        Of byte strings only the place is checked, not their lengths. Raises PackedError.
        """
        if len(run) < self.header:
            raise PackedError(f"{len(run)} bytes; the header alone has {self.header}")
        rows, reserved = _ROWS.unpack_from(run)
        if reserved or rows < 1 or (rows != 1 and not self.batched):
            raise PackedError(f"{rows} rows, and {reserved} where 0 belongs")
        numbers = self._sizes.unpack_from(run, _ROWS.size)
        sizes, dims = numbers[: len(self.specs)], iter(numbers[len(self.specs) :])
        if any(run[_ROWS.size + self._sizes.size : self.header]):
            raise PackedError("something behind the sizes")
        found = []
        offsets = _places(self.header, sizes)
        for spec, size, offset in zip(self.specs, sizes, offsets, strict=True):
            shape = tuple(next(dims) for _ in spec.shape)
            _check_shape(spec, shape)
            shape = (rows, *shape) if self.batched else shape
            least, most = _bytes_of(spec, shape)
            if _bytes_of(spec, tuple(max(1, n) for n in shape))[0] > MOST_BYTES:
                raise PackedError(f"{spec.name}: {list(shape)} is beyond all bounds")
            if not least <= size <= most or offset + size > len(run):
                raise PackedError(f"{spec.name}: {size} bytes for {spec.dtype} {list(shape)}")
            found.append(Place(offset, size, shape))
        end = found[-1].offset + found[-1].bytes
        if end != len(run):
            raise PackedError(f"{len(run)} bytes; the tensors end at {end}")
        return rows, found

    def unpack(self, run: memoryview | bytes | bytearray) -> tuple[int, list[NDArray[Any]]]:
        """Rows and tensors; numbers as views of ``run``, byte strings as arrays of ``bytes``.

        Raises PackedError.

        >>> packing = Packing((TensorSpec("x", "int8", (ANY,)),))
        >>> packing.unpack(packing.pack([[1, 2, 3]]))
        (1, [array([1, 2, 3], dtype=int8)])
        """
        rows, places = self.places(run)
        view = memoryview(run)
        tensors: list[NDArray[Any]] = []
        for spec, place in zip(self.specs, places, strict=True):
            content = view[place.offset : place.offset + place.bytes]
            if spec.dtype == BYTES:
                tensors.append(_strings(spec, content, place.shape))
            else:
                tensors.append(np.frombuffer(content, dtype_of(spec.dtype)).reshape(place.shape))
        return rows, tensors


def _up(size: int) -> int:
    return -(-size // ALIGN) * ALIGN


def _places(at: int, sizes: Sequence[int]) -> Iterator[int]:
    for size in sizes:
        yield at
        at = _up(at + size)


def _array(spec: TensorSpec, content: Any) -> NDArray[Any]:
    try:
        if spec.dtype == BYTES:
            return np.asarray(content, object)
        array = np.asarray(content)
        casting = "same_kind" if array.size else "unsafe"  # [] is of some type, too
        return array.astype(dtype_of(spec.dtype), casting=casting, copy=False)
    except (TypeError, ValueError) as error:
        raise PackedError(f"{spec.name}: no {spec.dtype}: {error}") from error


def _check_shape(spec: TensorSpec, shape: tuple[int, ...]) -> None:
    wrong = len(shape) != len(spec.shape) or any(
        declared not in (ANY, size) for declared, size in zip(spec.shape, shape, strict=False)
    )
    if wrong:
        raise PackedError(f"{spec.name}: {list(shape)}; the model has {list(spec.shape)}")


def _bytes_of(spec: TensorSpec, shape: tuple[int, ...]) -> tuple[int, int]:
    """Least and most bytes of a tensor."""
    elements = math.prod(shape)
    if spec.dtype == BYTES:
        return elements * _LENGTH.size, MOST_BYTES
    return (elements * dtype_of(spec.dtype).itemsize,) * 2


def _joined(array: NDArray[Any]) -> NDArray[np.uint8]:
    """The bytes of an array of byte strings; text is taken as UTF-8."""
    parts: list[bytes] = []
    for each in array.reshape(-1):
        content = each.encode() if isinstance(each, str) else each
        if not isinstance(content, bytes | bytearray | memoryview):
            raise PackedError(f"{type(each).__name__} where a byte string belongs")
        parts += (_LENGTH.pack(len(content)), bytes(content))
    return np.frombuffer(b"".join(parts), np.uint8)


def _strings(spec: TensorSpec, content: memoryview, shape: tuple[int, ...]) -> NDArray[Any]:
    found = np.empty(math.prod(shape), object)
    at = 0
    for i in range(len(found)):
        if at + _LENGTH.size > len(content):
            raise PackedError(f"{spec.name}: {i} of {len(found)} byte strings")
        begin = at + _LENGTH.size
        at = begin + _LENGTH.unpack_from(content, at)[0]
        if at > len(content):
            raise PackedError(f"{spec.name}: byte string {i} ends behind the tensor")
        found[i] = bytes(content[begin:at])
    if at != len(content):
        raise PackedError(f"{spec.name}: {len(content) - at} bytes behind the last byte string")
    return found.reshape(shape)
