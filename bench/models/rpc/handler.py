"""Bytes of a tensor in, bytes of a tensor out: the same for TorchServe and the tensor queue.

Settings in model-config.yaml::

    handler: {network: empty, reply: 40}    # does nothing, answers with so many bytes
    handler: {network: resnet50}            # one of networks.py
    handler: {network: empty, reply: 40, record: PATH}    # writes down what ran, see infer()
    handler: {network: empty, reply: 40, batches: PATH}   # writes down batch sizes, a byte each
    handler: {network: empty, reply: 40, takes_ms: [8, 1]}    # sleeps: for a batch, for a request
"""

import os
import time

import networks
import torch


class RpcHandler:
    """One input, one output."""

    def initialize(self, context):
        """Build the network."""
        settings = context.model_yaml_config["handler"]
        self.name = settings["network"]
        self.empty = bytes(settings.get("reply", 0))
        self.record = appended(settings.get("record"))
        self.batches = appended(settings.get("batches"))
        self.takes_ms = settings.get("takes_ms")
        self.network = None if self.name == "empty" else networks.build(self.name)

    def handle(self, data, context):
        """TorchServe's way: each request is the raw bytes of a tensor."""
        rows = [row.get("data") or row.get("body") for row in data]
        self.work(len(rows))
        if self.network is None:
            return [self.empty] * len(rows)
        (kind, shape), _ = networks.SHAPES[self.name]
        dtype = getattr(torch, kind)
        tensors = [torch.frombuffer(row, dtype=dtype).view(1, *shape) for row in rows]
        with torch.inference_mode():
            found = self.network(torch.cat(tensors) if len(tensors) > 1 else tensors[0])
        return [row.numpy().tobytes() for row in found]

    def infer(self, inputs, outputs):
        """The tensor queue's way: views of its memory.

        What is written down is the first 8 bytes of each request, in one write for a batch.
        """
        if self.record is not None:
            os.write(self.record, inputs[0][:, :8].contiguous().numpy().tobytes())
        self.work(len(inputs[0]))
        if self.network is not None:
            outputs[0].copy_(self.network(inputs[0]))

    def work(self, count):
        """What a batch costs besides the network, and the note of its size."""
        if self.takes_ms is not None:
            time.sleep((self.takes_ms[0] + self.takes_ms[1] * count) / 1000)
        if self.batches is not None:
            os.write(self.batches, bytes([count]))


def appended(path):
    """A descriptor for a file that is written at its end, None for none."""
    if path is None:
        return None
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
