"""Five models and GPU memory for four, under TorchServe: the cache of models on a GPU.

The sides, the patterns and the claims are those of ``rafiqi_cache.py``; models are of the size of
the paper's CaffeNet (233 MB), and their handler puts them on the GPU that TorchServe names. One
process of the pool serves all of them. Where the paper's swaps took 60 to 90 ms and nothing ran
meanwhile, here a batch begins when its first weights have come.

Needs an NVIDIA GPU, Java and TorchServe; where there is no GPU it says so, and that is no failure.

Examples:
    python bench/gpu_pool.py            # into results/GPU/gpu_pool.json, about 10 minutes
    python bench/gpu_pool.py --quick    # about 3 minutes
    python bench/gpu_pool.py --sides dedicated pool --seconds 3
"""

from __future__ import annotations

import json
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

import torch
from common import write_result
from gpu_entry import missing
from pool.models import models, pack_all
from rafiqi_cache import MODELS, Bed, arguments, headline, summarise

NAME = "gpu_pool"
MEGABYTES = 233.0


def main() -> None:
    """Measure, print, write."""
    args = arguments(__doc__, megabytes=(MEGABYTES, MEGABYTES), workers=1)
    if reason := missing():
        print(f"{NAME}: nothing is measured: {reason}", file=sys.stderr)
        return
    gpu = torch.cuda.get_device_name()
    with ExitStack() as stack:
        store = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        bed = Bed(args, pack_all(models(MODELS, args.megabytes, args.megabytes), store))
        bed.start(stack, store)
        bed.run()
    points = summarise(bed.rows)
    top = headline(bed.rows, points)
    rows = [{"gpu": gpu, **point} for point in points]
    folder = gpu.lower().removeprefix("nvidia ").split()[0]
    path = write_result(
        f"{folder}/{NAME}", quick=args.quick, rows=rows, headline=top, samples=bed.rows
    )
    for point in points:
        print(json.dumps(point))
    print(json.dumps(top, indent=1))
    print(path)


if __name__ == "__main__":
    main()
