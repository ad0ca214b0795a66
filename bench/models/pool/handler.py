"""A model that says who it is: every archive has its own copy of this file, and its own model.py.

A request is JSON: ``{"seed": 3}`` picks an input that is made from the seed. The answer names the
model and has the numbers that its network gives, which no other model of the set gives; with
``"expect": [...]`` an answer that differs from them is not given: status 406.

Settings in model-config.yaml::

    handler: {width: 1024, depth: 6}    # what the network takes
"""

import json
from pathlib import Path

import torch
from model import Network

NAME = "the name of the archive"
SEEDS = 4
TOLERANCE = 2e-3
"""How far numbers may be from the expected ones; those of other models are farther."""


class PoolHandler:
    """Plain eager torch; the weights are those of the archive."""

    def initialize(self, context):
        """Load the weights from the archive's file."""
        settings = context.model_yaml_config["handler"]
        weights = context.manifest["model"]["serializedFile"]
        path = Path(context.system_properties["model_dir"]) / weights
        device = self._device(context.system_properties.get("gpu_id"))
        with torch.device("meta"):
            self.model = Network(**settings)
        self.model.load_state_dict(torch.load(path, weights_only=True), assign=True)
        self.model.to(device).eval()
        self.inputs = [self.model.example(seed).to(device) for seed in range(SEEDS)]

    def handle(self, data, context):
        """One answer per request of a batch."""
        asked = [self._asked(row) for row in data]
        batch = torch.stack([self.inputs[each["seed"] % SEEDS] for each in asked])
        with torch.inference_mode():
            rows = torch.nn.functional.normalize(self.model(batch)).tolist()
        for index, (each, row) in enumerate(zip(asked, rows, strict=True)):
            expected = each.get("expect", row)
            if max(abs(a - b) for a, b in zip(row, expected, strict=True)) > TOLERANCE:
                context.set_response_status(406, "Wrong Answer", idx=index)
        return [{"model": NAME, "numbers": row} for row in rows]

    def _device(self, gpu):
        if gpu is None or not torch.cuda.is_available():
            return torch.device("cpu")
        torch.backends.cudnn.allow_tf32 = False  # the numbers are compared with a CPU's
        return torch.device("cuda", int(gpu))

    def _asked(self, row):
        found = row.get("data") or row.get("body")
        return json.loads(found) if isinstance(found, bytes | bytearray) else found
