"""Memory that a session shares with its model's workers: inputs are written where they read."""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from ctypes import addressof, c_char

import numpy as np

from shunter.batching.queue.shared_memory import is_sealed
from shunter.batching.queue.tensor_spec import TensorSpec, dtype_of
from shunter.nic_frontend.client.requests.calls import Array
from shunter.nic_frontend.wire.segments import shared_places


class SharedInputs:
    """Room for so many requests; that of each is where its number says."""

    def __init__(self, descriptor: int, inputs: Sequence[TensorSpec], requests: int) -> None:
        """Map what came with the session; the descriptor stays the caller's.

        Raises OSError when it is not memory for so much, or could become less.
        """
        self.requests, self._inputs = requests, inputs
        self._places, self._each = shared_places([spec.bytes for spec in inputs])
        size = requests * self._each
        if not size or descriptor < 0 or not is_sealed(descriptor, size):
            raise OSError("the server shares no memory that inputs fit into")
        self._memory = mmap.mmap(descriptor, size)
        self.address = addressof(c_char.from_buffer(self._memory))

    def arrays(self, req_id: int) -> list[Array]:
        """Those of a request. The memory is there as long as they are."""
        begin = req_id % self.requests * self._each
        return [
            np.ndarray(spec.shape, dtype_of(spec.dtype), self._memory, begin + at)
            for spec, at in zip(self._inputs, self._places, strict=True)
        ]
