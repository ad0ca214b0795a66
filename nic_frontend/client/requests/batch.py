"""Many requests in one array for each tensor: ``[n, ...]`` is cut into n requests. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from shunter.nic_frontend.client.requests.calls import Array, Tensors, parts
from shunter.nic_frontend.client.requests.errors import BatchError, InferenceError
from shunter.nic_frontend.client.requests.packed import PackedTensors


class Batch:
    """Its requests, and its answers."""

    def __init__(
        self, tensors: Tensors, arrays: Sequence[Array], out: Sequence[Array] | None = None
    ) -> None:
        """``out``: arrays for the answers. Raises BadRequestError."""
        self.requests = tensors.cut(arrays)
        self.places: list[list[Array]] | None = None
        """Where the answer of each belongs, None: nobody knows how large it will be."""
        self._outputs: list[Array] = []
        self._packed = tensors if isinstance(tensors, PackedTensors) else None
        if self._packed is None or out is not None:
            count = len(self.requests)
            made = [np.empty((count, *shape), dtype) for dtype, shape in tensors.made]
            self._outputs = made if out is None else list(out)
            self.places = [parts(self._outputs, i) for i in range(count)]

    def outputs(self, found: Sequence[Any]) -> list[Array]:
        """The outputs, if all of it was ``found``. Raises BatchError."""
        errors = {i: each for i, each in enumerate(found) if isinstance(each, InferenceError)}
        if errors:
            raise BatchError(self._outputs or found, errors)
        return self._packed.join(found) if self._packed and not self._outputs else self._outputs
