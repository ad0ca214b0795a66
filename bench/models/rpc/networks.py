"""What stands behind the calls of the RPC benchmarks: nothing, or a network.

A network takes one batch of its only input, a numpy array, and returns a batch of its output.
"""

import torch
from torch import nn

SHAPES = {
    "lenet": (("uint8", (784,)), ("float32", (10,))),
    "minilm": (("int64", (2, 384)), ("float32", (384,))),
    "resnet50": (("float32", (3, 224, 224)), ("float32", (1000,))),
}
"""Type and shape of input and output of one request."""
EMPTY = {784: 40, 6144: 2048, 602112: 4000}
"""Bytes in and out of the models that do nothing."""


class LeNet(nn.Module):
    """LeCun et al. 1998, random weights."""

    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            *(nn.Conv2d(1, 6, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
            *(nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10)),
        )

    def forward(self, pixels):
        return self.features(pixels.view(-1, 1, 28, 28).float() / 255)


class MiniLm(nn.Module):
    """Token ids and mask to an embedding; six layers of width 384, random weights."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(30522, 384)
        layer = nn.TransformerEncoderLayer(384, 12, 1536, activation="gelu", batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 6, enable_nested_tensor=False)

    def forward(self, tokens):
        ids, mask = tokens[:, 0], tokens[:, 1]
        hidden = self.layers(self.words(ids), src_key_padding_mask=mask == 0)
        return (hidden * mask.unsqueeze(-1)).sum(1) / mask.sum(1, keepdim=True).clamp(min=1)


def build(name):
    """The network of that name, frozen."""
    torch.manual_seed(7)
    if name == "resnet50":
        from shunter.model_store.resnet50.archive import random_model

        network = random_model()
    else:
        network = {"lenet": LeNet, "minilm": MiniLm}[name]()
    (kind, shape), _ = SHAPES[name]
    example = torch.zeros((2, *shape), dtype=getattr(torch, kind))
    with torch.inference_mode(False), torch.no_grad():
        traced = torch.jit.trace(network.eval(), example, check_trace=False)
        return torch.jit.optimize_for_inference(torch.jit.freeze(traced))
