"""Convolutions over small pictures, each added to what came before."""

import torch
from torch import nn
from torch.nn import functional

SIDE = 8


class Network(nn.Module):
    """``depth`` layers of 3 times 3 convolutions with ``width`` channels."""

    def __init__(self, width, depth, outputs=16):
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, stride=2, padding=1)
        self.norm = nn.BatchNorm2d(width)
        self.layers = nn.ModuleList(nn.Conv2d(width, width, 3, padding=1) for _ in range(depth))
        self.head = nn.Linear(width * (SIDE // 2) ** 2, outputs)

    def example(self, seed):
        """One input, always the same."""
        return torch.randn(
            3, SIDE, SIDE, generator=torch.Generator().manual_seed(seed), device="cpu"
        )

    def forward(self, x):
        """Raw scores."""
        x = self.norm(self.stem(x))
        for layer in self.layers:
            x = functional.layer_norm(x + layer(x).relu(), x.shape[1:])
        return self.head(x.flatten(1))
