"""What a tensor of a request looks like. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass

import ml_dtypes
import numpy as np

BYTES = "bytes"
"""Type of a tensor whose elements are byte strings of any length (BYTES of KServe's protocol)."""
ANY = -1
"""A dimension whose size each request chooses."""
MOST_DIMS = 32
_KINDS = "biufc"
"""numpy's kinds of numbers."""
_SMALL = {
    name: np.dtype(getattr(ml_dtypes, name))
    for name in ("bfloat16", "float8_e4m3fn", "float8_e5m2")
}
"""What numpy does not have; the names are those of torch."""


@dataclass(frozen=True)
class TensorSpec:
    """One tensor of one request: without the batch dimension."""

    name: str
    dtype: str
    """numpy's name, such as ``float32``, or torch's, such as ``bfloat16``, or BYTES."""
    shape: tuple[int, ...]
    """With ANY where a request may choose."""

    @property
    def bytes(self) -> int:
        """Of one request. Raises ValueError when requests differ in that."""
        if not self.is_fixed:
            raise ValueError(f"{self.name}: {self.dtype} {list(self.shape)} has no fixed size")
        return math.prod(self.shape) * dtype_of(self.dtype).itemsize

    @property
    def is_fixed(self) -> bool:
        """Whether all requests have as many bytes of it."""
        return self.dtype != BYTES and ANY not in self.shape

    def check(self) -> None:
        """Raises ValueError, or TypeError, for what is no tensor."""
        if self.dtype != BYTES:
            dtype_of(self.dtype)
        if min(self.shape, default=0) < ANY or len(self.shape) > MOST_DIMS:
            raise ValueError(f"{self.name} is {self.dtype} {list(self.shape)}")


def dtype_of(name: str) -> np.dtype:
    """numpy's type of a tensor of numbers. Raises ValueError, or TypeError, for another name.

    >>> [dtype_of(name).itemsize for name in ("float64", "bfloat16", "float8_e5m2")]
    [8, 2, 1]
    """
    if name in _SMALL:
        return _SMALL[name]
    found = np.dtype(name)
    if found.kind not in _KINDS:
        raise ValueError(f"no numbers: {name}")
    return found
