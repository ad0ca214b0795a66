"""Five models and GPU memory for four, under TorchServe: the cache of models on a GPU.

The sides, the patterns and the claims are those of ``rafiqi_cache.py``; models are of the size of
the paper's CaffeNet (233 MB), and their handler puts them on the GPU that TorchServe names. Where
the paper's swaps took 60 to 90 ms and nothing ran meanwhile, here a batch can begin when its first
weights have come. ``gpu_mb`` is what a side takes of the GPU once it is warm, the contexts of its
processes included.

Needs an NVIDIA GPU, Java and TorchServe; where there is no GPU it says so, and that is no failure.

Examples:
    python bench/gpu_pool.py            # into results/GPU/gpu_pool.json, about 15 minutes
    python bench/gpu_pool.py --quick    # about 3 minutes
    python bench/gpu_pool.py --sides dedicated pool --seconds 3
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

import pynvml
import torch
from common import write_result
from gpu_entry import folder_of, missing
from pool.models import Packed, models, pack_all
from rafiqi_cache import MODELS, ON_DEMAND, Bed, arguments, headline, summarise

NAME = "gpu_pool"
MEGABYTES = 233.0


class GpuBed(Bed):
    """Notes what each side takes of the GPU."""

    def __init__(self, args: argparse.Namespace, packed: list[Packed]) -> None:
        """See there."""
        super().__init__(args, packed)
        self.name = f"{folder_of(torch.cuda.get_device_name())}/{NAME}"
        self.gpu_mb: dict[str, int] = {}

    def start_side(self, side: str, stack: ExitStack, store: Path) -> None:
        """See there."""
        before = _used_mb()
        super().start_side(side, stack, store)
        if side != ON_DEMAND:  # which has no models yet
            self.gpu_mb[side] = round(_used_mb() - before)


def _used_mb() -> float:
    """By all processes."""
    device = pynvml.nvmlDeviceGetHandleByIndex(torch.cuda.current_device())
    return float(pynvml.nvmlDeviceGetMemoryInfo(device).used) / 1e6


def main() -> None:
    """Measure, print, write."""
    args = arguments(__doc__, megabytes=(MEGABYTES, MEGABYTES))
    if reason := missing():
        print(f"{NAME}: nothing is measured: {reason}", file=sys.stderr)
        return
    gpu = torch.cuda.get_device_name()
    pynvml.nvmlInit()
    with ExitStack() as stack:
        store = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        wanted = models(MODELS, args.megabytes, args.megabytes, wide=True)
        bed = GpuBed(args, pack_all(wanted, store))
        bed.start(stack, store)
        bed.run()
    points = summarise(bed.rows)
    top = headline(bed.rows, points)
    rows = [{"gpu": gpu, "gpu_mb": bed.gpu_mb, **point} for point in points]
    path = write_result(bed.name, quick=args.quick, rows=rows, headline=top, samples=bed.rows)
    for point in points:
        print(json.dumps(point))
    print(json.dumps(top, indent=1))
    print(path)


if __name__ == "__main__":
    main()
