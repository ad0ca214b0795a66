"""``model.py`` of Triton's Python backend for networks of the model store.

Copied into Triton's model repository; runs in the stub process of the backend.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

# The stub ignores PYTHONPATH, and would take numpy from wherever its Python has one.
sys.path[:0] = os.environ["PYTHONPATH"].split(os.pathsep)

import triton_python_backend_utils as pb_utils  # noqa: E402


class TritonPythonModel:
    """One input, one output."""

    def initialize(self, args: dict[str, str]) -> None:
        """Load the network."""
        sys.path.insert(0, os.path.dirname(__file__))
        import torch
        from real_networks import Network

        said = json.loads(args["model_config"])["parameters"]
        folder, name = (said[key]["string_value"] for key in ("folder", "network"))
        self._torch, self._network = torch, Network(folder, name)
        if "threads" in said:
            torch.set_num_threads(int(said["threads"]["string_value"]))

    def execute(self, requests: list[Any]) -> list[Any]:
        """One response for each request; Triton has formed the batch."""
        tensors = (pb_utils.get_input_tensor_by_name(request, "x") for request in requests)
        rows = [self._torch.from_numpy(tensor.as_numpy()[0]) for tensor in tensors]
        found = self._network.of_requests(rows).numpy()
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor("y", found[place : place + 1])])
            for place in range(len(found))
        ]
