"""What it is worth that oneDNN has the convolutions of 1 x 1 of a worker with one thread.

Two workers of the same model on the same core, one with SHUNTER_POINTWISE=0, which is how torch is
by itself, in turns. Ratios are of the latency of a batch, without by with. From a batch of 16 on
torch does the same by itself; so does a frozen graph, whence the models run eagerly here.
gpt2_small has no convolutions.

Examples:
    python bench/pointwise.py            # three networks, 5 minutes
    python bench/pointwise.py --quick    # ResNet-50
"""

from __future__ import annotations

from allocation import compare
from common import Parser

from shunter.handlers.placement.pointwise import VARIABLE

NAME = "pointwise"
MODELS = ("resnet50", "inception_v3", "gpt2_small")
BATCHES = (1, 2, 4, 8, 15, 16)
SIDES = {"onednn": {VARIABLE: "1"}, "torch": {VARIABLE: "0"}}

if __name__ == "__main__":
    compare(NAME, MODELS, BATCHES, SIDES, Parser(__doc__).arguments(), {"eager": True})
