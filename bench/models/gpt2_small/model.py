"""The smallest GPT-2, one step without a cache. Goes into the archive: no Shunter here."""

import torch
from torch import nn
from torch.nn import functional

VOCABULARY = 50257
POSITIONS = 1024
TOKENS = 128
WIDTH = 768
HEADS = 12
INNER = 3072


class Network(nn.Module):
    """Radford et al. 2019: normalised before each part; words are read and written alike."""

    def __init__(self, layers: int = 12) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, WIDTH)
        self.positions = nn.Embedding(POSITIONS, WIDTH)
        nn.init.normal_(self.words.weight, std=0.02)
        nn.init.normal_(self.positions.weight, std=0.02)
        self.layers = nn.ModuleList(_layer() for _ in range(layers))
        self.norm = nn.LayerNorm(WIDTH)

    @staticmethod
    def example() -> torch.Tensor:
        """A text (1, 128): token ids."""
        return torch.randint(VOCABULARY, (1, TOKENS))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Scores (n, 50257) of the token that follows token ids (n, 128)."""
        count = ids.shape[0]
        x = self.words(ids) + self.positions.weight[:TOKENS]
        for layer in self.layers:
            parts = layer["qkv"](layer["norm"](x)).view(count, TOKENS, 3, HEADS, WIDTH // HEADS)
            query, key, value = parts.permute(2, 0, 3, 1, 4).unbind()
            seen = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
            x = x + layer["join"](seen.transpose(1, 2).reshape(count, TOKENS, WIDTH))
            inner = functional.gelu(layer["inner"](layer["inner_norm"](x)), approximate="tanh")
            x = x + layer["out"](inner)
        return functional.linear(self.norm(x[:, -1]), self.words.weight)


def _layer() -> nn.ModuleDict:
    return nn.ModuleDict(
        {
            "norm": nn.LayerNorm(WIDTH),
            "qkv": nn.Linear(WIDTH, 3 * WIDTH),
            "join": nn.Linear(WIDTH, WIDTH),
            "inner_norm": nn.LayerNorm(WIDTH),
            "inner": nn.Linear(WIDTH, INNER),
            "out": nn.Linear(INNER, WIDTH),
        }
    )
