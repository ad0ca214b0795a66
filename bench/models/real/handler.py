"""Bytes of a tensor in, bytes of a tensor out: the same for TorchServe and the tensor queue.

Settings in model-config.yaml::

    handler: {network: minilm, folder: PATH}    # one of real_networks.py, its files
    handler: {network: minilm, folder: PATH, threads: 0}    # those that its worker is given
"""

import torch
from real_networks import SHAPES, Network


class RealHandler:
    """One input, one output."""

    def initialize(self, context):
        """Load the network."""
        settings = context.model_yaml_config["handler"]
        threads = torch.get_num_threads()
        self.network = Network(settings["folder"], settings["network"])
        if "threads" in settings:
            torch.set_num_threads(settings["threads"] or threads)

    def handle(self, data, context):
        """TorchServe's way: each request is the raw bytes of a tensor."""
        (kind, shape), _ = SHAPES[self.network.name]
        dtype = getattr(torch, kind)
        bodies = (row.get("data") or row.get("body") for row in data)
        found = self.network.of_requests(
            [torch.frombuffer(body, dtype=dtype).view(shape) for body in bodies]
        )
        return [row.numpy().tobytes() for row in found]

    def infer(self, batch, outputs=None):
        """The network front end's way; ``batch`` of sentences is packed, and has no outputs."""
        if outputs is None:
            return self.network.of_batch(batch["ids"], batch.sizes("ids")[:, 0])
        outputs[0].copy_(self.network.of_batch(batch[0]))
        return None
