"""``model.py`` of Triton's Python backend for the RPC benchmarks: the same networks.

Copied into Triton's model repository; runs in the stub process of the backend.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

# The stub ignores PYTHONPATH, and would take numpy from wherever its Python has one.
sys.path[:0] = os.environ["PYTHONPATH"].split(os.pathsep)

import numpy as np  # noqa: E402
import triton_python_backend_utils as pb_utils  # noqa: E402


class TritonPythonModel:
    """One input, one output."""

    def initialize(self, args: dict[str, str]) -> None:
        """Build the network."""
        config = json.loads(args["model_config"])
        self._network = None
        name = config["parameters"]["network"]["string_value"]
        self._reply = tuple(map(int, config["output"][0]["dims"]))
        if name != "empty":
            sys.path.insert(0, os.path.dirname(__file__))
            import torch
            from networks import build

            torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
            self._torch, self._network = torch, build(name)
        self._empty = np.zeros((1, *self._reply), np.uint8)

    def execute(self, requests: list[Any]) -> list[Any]:
        """One response for each request; Triton has formed the batch."""
        tensors = (pb_utils.get_input_tensor_by_name(request, "x") for request in requests)
        inputs = [tensor.as_numpy() for tensor in tensors]
        if self._network is None:
            rows = [self._empty] * len(requests)
        else:
            batch = np.concatenate(inputs) if len(inputs) > 1 else inputs[0]
            with self._torch.inference_mode():
                found = self._network(self._torch.from_numpy(batch)).numpy()
            rows, place = [], 0  # slices: np.split takes longer than a small network
            for each in inputs:
                rows.append(found[place : place + len(each)])
                place += len(each)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("y", row)]) for row in rows]
