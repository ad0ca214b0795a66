"""A small encoder of texts that are made from a seed."""

import torch
from torch import nn

TOKENS, VOCABULARY, HEADS = 16, 512, 4


class Network(nn.Module):
    """``depth`` blocks of ``width`` numbers a token."""

    def __init__(self, width, depth, outputs=16):
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, width)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(width, HEADS, 4 * width, batch_first=True)
            for _ in range(depth)
        )
        self.head = nn.Linear(TOKENS * width, outputs)

    def example(self, seed):
        """One input, always the same."""
        choose = torch.Generator().manual_seed(seed)
        return torch.randint(VOCABULARY, (TOKENS,), generator=choose, device="cpu")

    def forward(self, x):
        """Raw scores."""
        x = self.words(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x.flatten(1))
