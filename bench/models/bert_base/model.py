"""BERT base as a text classifier. Goes into the archive, so nothing of Shunter is imported."""

import torch
from torch import nn
from torch.nn import functional

VOCABULARY = 30522
POSITIONS = 512
TOKENS = 128
WIDTH = 768
HEADS = 12
INNER = 3072
LABELS = 2
EPSILON = 1e-12


class Network(nn.Module):
    """Devlin et al. 2018: encoder, pooler, scores of two labels."""

    def __init__(self, layers: int = 12) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, WIDTH)
        self.positions = nn.Embedding(POSITIONS, WIDTH)
        self.norm = nn.LayerNorm(WIDTH, EPSILON)
        self.layers = nn.ModuleList(_layer() for _ in range(layers))
        self.pool = nn.Linear(WIDTH, WIDTH)
        self.classify = nn.Linear(WIDTH, LABELS)

    @staticmethod
    def example() -> torch.Tensor:
        """A text (1, 128): token ids, all of them real."""
        return torch.randint(VOCABULARY, (1, TOKENS))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Scores (n, 2) of token ids (n, 128)."""
        count = ids.shape[0]
        x = self.norm(self.words(ids) + self.positions.weight[:TOKENS])
        for layer in self.layers:
            parts = layer["qkv"](x).view(count, TOKENS, 3, HEADS, WIDTH // HEADS)
            query, key, value = parts.permute(2, 0, 3, 1, 4).unbind()
            seen = functional.scaled_dot_product_attention(query, key, value)
            seen = seen.transpose(1, 2).reshape(count, TOKENS, WIDTH)
            x = layer["norm"](x + layer["join"](seen))
            x = layer["out_norm"](x + layer["out"](functional.gelu(layer["inner"](x))))
        return self.classify(torch.tanh(self.pool(x[:, 0])))


def _layer() -> nn.ModuleDict:
    return nn.ModuleDict(
        {
            "qkv": nn.Linear(WIDTH, 3 * WIDTH),
            "join": nn.Linear(WIDTH, WIDTH),
            "norm": nn.LayerNorm(WIDTH, EPSILON),
            "inner": nn.Linear(WIDTH, INNER),
            "out": nn.Linear(INNER, WIDTH),
            "out_norm": nn.LayerNorm(WIDTH, EPSILON),
        }
    )
