"""How near a swap comes to the limit of the copy on this host.

A model's weights, mapped from the one file of the server, are brought into hot memory as a pool's
worker does it: by the copy thread, in pieces, with an event after each group of layers. Beside it,
interleaved, one plain ``memcpy`` of as many bytes between two buffers whose pages are all there,
which is what the memory of this host can do. Both copy as a pool's process is told to.
``swap_vs_copy_limit`` is the plain copy's time by the swap's, for the largest model. A row says too
when the first group had come, and how long the very first swap took, whose pages the kernel had to
fill with zeros first.

Examples:
    python bench/swap.py               # 41 rounds of each size, about a minute
    python bench/swap.py --quick
    python bench/swap.py --rounds 101
"""

from __future__ import annotations

import ctypes
import os
import statistics
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import common
import torch
from torch import nn

from shunter.handlers.pool.handover import TUNABLES
from shunter.handlers.weights.hot import HotModel
from shunter.handlers.weights.hot_memory import CHUNK, HotMemory
from shunter.handlers.weights.sharing import data_of, share
from shunter.handlers.weights.tensors import weights_of

WIDTH = 1024
LAYER = WIDTH * WIDTH * 4
SIZES_MB = (16, 100, 233)
"""The last is the paper's CaffeNet."""


def model_of(megabytes: int) -> nn.Module:
    """Layers of 4 MB, about so many bytes."""
    with torch.no_grad():
        layers = [
            nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(round(megabytes * 1e6 / LAYER))
        ]
    return nn.Sequential(*layers)


class Limit:
    """A plain copy of some bytes, whose pages are all there and of the same size as the swap's."""

    def __init__(self, size: int) -> None:
        """Make both buffers."""
        self._size, self._memory = size, HotMemory(2 * (size + CHUNK))
        self._from, self._to = (self._memory.take(size) for _ in range(2))
        for each in (self._from, self._to):
            ctypes.memset(each, 1, size)

    def seconds(self) -> float:
        """Of one copy."""
        begin = time.perf_counter()
        ctypes.memmove(self._to, self._from, self._size)
        return time.perf_counter() - begin

    def close(self) -> None:
        """Give the buffers back."""
        self._memory.close()


def measure(megabytes: int, rounds: int, folder: Path) -> tuple[common.Row, list[common.Row]]:
    """A row of a size, and its samples."""
    model = model_of(megabytes)
    file = share([model], folder).file
    memory = HotMemory(file.records[-1].end + CHUNK)
    samples: list[common.Row] = []
    with ThreadPoolExecutor(1) as copies:
        hot = HotModel(weights_of([model]), file.records, data_of(file), memory, copies)
        limit = Limit(hot.bytes)
        for _ in range(rounds + 1):
            begin = time.perf_counter()
            done = hot.swap_in()
            hot._groups[0].arrived.wait()
            first = time.perf_counter() - begin
            done.result()
            hot.settle()
            whole = time.perf_counter() - begin
            hot.drop()
            samples.append({"swap_s": whole, "first_group_s": first, "copy_s": limit.seconds()})
    memory.close()
    limit.close()
    fresh, *samples = samples
    ratio = common.paired_ratio(
        [each["copy_s"] for each in samples], [each["swap_s"] for each in samples]
    )
    middle = {key: 1e3 * statistics.median(each[key] for each in samples) for key in fresh}
    row = {
        "megabytes": hot.bytes / 1e6,
        "swap_ms": middle["swap_s"],
        "copy_ms": middle["copy_s"],
        "first_group_ms": middle["first_group_s"],
        "first_swap_ms": 1e3 * fresh["swap_s"],
        "gigabytes_per_s": hot.bytes / 1e6 / middle["swap_s"],
        "swap_vs_copy_limit": ratio,
    }
    return row, samples


def main() -> None:
    """Measure every size and write the result."""
    name, value = TUNABLES
    if os.environ.get(name) != value:  # the C library reads it when a process begins
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, name: value})
    given = common.Parser(__doc__, rounds=41, quick_rounds=15).arguments()
    rows, samples = [], []
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        for megabytes in SIZES_MB:
            row, raw = measure(megabytes, given.rounds, Path(folder))
            print(row, file=sys.stderr, flush=True)
            rows.append(row)
            samples.append(raw)
    headline = {"swap_vs_copy_limit": rows[-1]["swap_vs_copy_limit"]["median"]}
    path = common.write_result(
        "swap", quick=given.quick, rows=rows, headline=headline, samples=samples
    )
    print(path, headline)


if __name__ == "__main__":
    main()
