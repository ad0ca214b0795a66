"""Wide linear layers, each added to what came before."""

import torch
from torch import nn
from torch.nn import functional


class Network(nn.Module):
    """``depth`` layers of ``width`` times ``width`` numbers."""

    def __init__(self, width, depth, outputs=16):
        super().__init__()
        self.width = width
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.head = nn.Linear(width, outputs)

    def example(self, seed):
        """One input, always the same."""
        return torch.randn(self.width, generator=torch.Generator().manual_seed(seed), device="cpu")

    def forward(self, x):
        """Raw scores."""
        for layer in self.layers:
            x = functional.layer_norm(x + layer(x).relu(), x.shape[1:])
        return self.head(x)
