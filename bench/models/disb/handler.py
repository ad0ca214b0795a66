"""One of DISB's networks on inputs made once: what a request costs is inference alone.

A request is JSON: ``{"seed": 3}`` picks an input; with ``"expect": "0123..."`` an answer that is
not bit for bit the expected one is not given: status 406. The answer is a hash of the output.

Settings in model-config.yaml::

    handler: {network: vgg19, width: 0.25, image: 160}    # what disb_models.build takes
"""

import hashlib
import json

import disb_models
import torch

SEEDS = 4


class DisbHandler:
    """Plain eager torch, so that it can be preempted anywhere."""

    def initialize(self, context):
        """Build the network; its weights are always the same."""
        self.context = context
        settings = dict(context.model_yaml_config["handler"])
        self.model, example = disb_models.build(settings.pop("network"), **settings)
        # Rolled, so that every seed has another input of the same kind.
        self.inputs = [example.roll(17 * seed, -1).contiguous() for seed in range(SEEDS)]

    def handle(self, data, context):
        """One answer per request; they are not batched."""
        return [self._answer(index, row) for index, row in enumerate(data)]

    def _answer(self, index, row):
        asked = row.get("data") or row.get("body")
        if isinstance(asked, bytes | bytearray):
            asked = json.loads(asked)
        with torch.inference_mode():
            output = self.model(self.inputs[asked["seed"] % SEEDS])
        found = hashlib.blake2b(output.numpy().tobytes(), digest_size=8).hexdigest()
        if asked.get("expect", found) != found:
            self.context.set_response_status(406, "Wrong Answer", idx=index)
        return found
