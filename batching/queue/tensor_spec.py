"""What a tensor of a request looks like. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class TensorSpec:
    """One tensor of one request: without the batch dimension."""

    name: str
    dtype: str
    """numpy's name, such as ``float32``."""
    shape: tuple[int, ...]

    @property
    def bytes(self) -> int:
        """Of one request."""
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize
