"""torch's types by the names that numpy, and what it lacks, has for them."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

_SMALL = {
    name: getattr(torch, name) for name in ("bfloat16", "float8_e4m3fn", "float8_e5m2")
}
"""numpy knows them only as types of others."""


def torch_type(name: str) -> torch.dtype:
    """Raises TypeError for what torch has not.

    >>> torch_type("float32"), torch_type("bfloat16")
    (torch.float32, torch.bfloat16)
    """
    return _SMALL.get(name) or torch.from_numpy(np.empty(0, name)).dtype


def torch_view(array: NDArray[Any], name: str) -> torch.Tensor:
    """The memory of a contiguous array as a tensor of that type."""
    flat = torch.from_numpy(array.reshape(-1).view(np.uint8))
    return flat.view(torch_type(name)).reshape(array.shape)
