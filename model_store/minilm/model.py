"""The network. Goes into the archive, so nothing of Shunter is imported."""

import torch
from torch import nn
from torch.nn import functional

VOCABULARY = 30522
POSITIONS = 512
WIDTH = 384
HEADS = 12
LAYERS = 6
INNER = 1536
EPSILON = 1e-12


class MiniLM(nn.Module):
    """BERT encoder with six layers, mean over the tokens, length one.

    Equal to all-MiniLM-L6-v2, with fewer steps: one matrix for query, key and value, and the
    embedding of the sentence type, which is the same for every token, inside the positions.
    """

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, WIDTH)
        self.positions = nn.Embedding(POSITIONS, WIDTH)
        self.norm = nn.LayerNorm(WIDTH, EPSILON)
        self.layers = nn.ModuleList(_layer() for _ in range(LAYERS))

    def forward(self, ids: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        """Unit vectors (n, 384) of token ids (n, longest), of which row i has lengths[i] real ones.

        What stands in the padding makes no difference. For torch.inference_mode() only.
        """
        count, longest = ids.shape
        places = torch.arange(longest, device=ids.device)
        real = places < lengths.unsqueeze(1)
        # Added to the scores of a token's neighbours: zero, or so low that padding has no weight.
        mask = torch.zeros(real.shape, device=ids.device).masked_fill_(~real, -torch.inf)
        mask = mask.view(count, 1, 1, longest)
        x = self.norm(self.words(ids) + self.positions.weight[:longest])
        for layer in self.layers:
            query, key, value = (
                layer["qkv"](x)
                .view(count, longest, 3, HEADS, WIDTH // HEADS)
                .permute(2, 0, 3, 1, 4)
            )
            seen = functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)
            seen = seen.transpose(1, 2).reshape(count, longest, WIDTH)
            # In place: the memory of a big batch comes fresh from the system each time.
            x = layer["norm"](layer["join"](seen).add_(x))
            inner = layer["inner"](x)
            x = layer["out_norm"](layer["out"](functional.gelu(inner, out=inner)).add_(x))
        # A mean would need a division, but only the direction counts.
        total = torch.bmm(real.unsqueeze(1).to(x.dtype), x).squeeze(1)
        return functional.normalize(total, dim=1)


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
