"""``model.py`` of Triton's Python backend: the handler of a packed archive on a batch of texts.

Copied into Triton's model repository; runs in the stub process of the backend.
"""

from __future__ import annotations

import os
import sys
from typing import Any

# The stub ignores PYTHONPATH, and would take numpy from wherever its Python has one.
sys.path[:0] = os.environ["PYTHONPATH"].split(os.pathsep)

import numpy as np  # noqa: E402
import triton_python_backend_utils as pb_utils  # noqa: E402

from rivals.hosted import Hosted  # noqa: E402


class TritonPythonModel:
    """Texts to embeddings."""

    def initialize(self, args: dict[str, str]) -> None:
        """Load the model."""
        self._hosted = Hosted()

    def execute(self, requests: list[Any]) -> list[Any]:
        """One response for each request; Triton has formed the batch."""
        texts = [
            pb_utils.get_input_tensor_by_name(request, "text").as_numpy().item().decode()
            for request in requests
        ]
        rows = np.ascontiguousarray(self._hosted.vectors(texts))
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor("embedding", rows[place : place + 1])])
            for place in range(len(rows))
        ]
