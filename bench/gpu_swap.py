"""How near a swap of a model to a GPU comes to the limit of the copy on that host.

A model's weights, pinned in the one file of the server, are brought to the GPU as a pool's process
does it: in pieces on a stream of their own, with an event after each group of layers, while the
first batch computes. Beside it, interleaved, one plain copy of as many pinned bytes.

    swap_vs_copy_limit    the plain copy's time by the swap's, for the largest model
    first_batch_ms        until the answer of a batch that begins together with the swap
    wrong_answers         of these batches

Sides take turns in rounds. Needs an NVIDIA GPU; where there is none it says so, and that is no
failure.

Examples:
    python bench/gpu_swap.py            # into results/GPU/gpu_swap.json
    python bench/gpu_swap.py --quick
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import common
import torch
from gpu_entry import folder_of, missing
from swap import SIZES_MB, WIDTH, model_of

from shunter.handlers.weights.device_memory import Cuda, DeviceMemory, Pinned
from shunter.handlers.weights.device_model import DeviceModel
from shunter.handlers.weights.hot_memory import CHUNK
from shunter.handlers.weights.sharing import store

NAME = "gpu_swap"


def plain_copy_s(pinned: torch.Tensor, target: torch.Tensor) -> float:
    """One copy of as many bytes."""
    torch.cuda.synchronize()
    begin = time.perf_counter()
    target.copy_(pinned[: target.numel()], non_blocking=True)
    torch.cuda.synchronize()
    return time.perf_counter() - begin


@torch.no_grad()
def measure(megabytes: int, rounds: int, folder: Path) -> tuple[common.Row, list[common.Row]]:
    """A row of a size, and its samples."""
    driver = Cuda(torch.cuda.current_device())
    net = model_of(megabytes).eval().to(driver.device)
    x = torch.linspace(-1, 1, WIDTH, device=driver.device).reshape(1, WIDTH)
    right = net(x).cpu()
    found = store([net], folder, driver.device)
    assert found is not None
    pinned = Pinned(found.file, driver.device)
    size = found.file.records[-1].end
    target = torch.empty(size, dtype=torch.uint8, device=driver.device)
    samples: list[common.Row] = []
    wrong = 0
    with ThreadPoolExecutor(1) as copies:
        memory = DeviceMemory(size + CHUNK, driver)
        model = DeviceModel(
            found.weights, found.file.records, pinned.data, memory, copies, [net]
        )
        model.swap_in()
        with model.reading(learn=True):
            net(x)
        model.drop()
        for _ in range(rounds + 1):
            torch.cuda.synchronize()
            begin = time.perf_counter()
            model.swap_in().result()
            swap_s = time.perf_counter() - begin
            model.drop()
            begin = time.perf_counter()
            model.swap_in()
            with model.reading():
                answer = net(x).cpu()
            first_s = time.perf_counter() - begin
            begin = time.perf_counter()
            with model.reading():
                net(x).cpu()
            hot_s = time.perf_counter() - begin
            wrong += not torch.equal(answer, right)
            model.drop()
            samples.append(
                {
                    "swap_s": swap_s,
                    "first_batch_s": first_s,
                    "hot_batch_s": hot_s,
                    "copy_s": plain_copy_s(pinned.data, target),
                }
            )
        model.close()
    pinned.close()
    samples = samples[1:]
    middle = {key: 1e3 * statistics.median(each[key] for each in samples) for key in samples[0]}
    row: common.Row = {key.replace("_s", "_ms"): value for key, value in middle.items()}
    row |= {"megabytes": size / 1e6, "gigabytes_per_s": size / 1e6 / middle["swap_s"]}
    row["swap_vs_copy_limit"] = common.paired_ratio(
        [each["copy_s"] for each in samples], [each["swap_s"] for each in samples]
    )
    return row | {"wrong_answers": wrong}, samples


def main() -> None:
    """Measure every size and write the result."""
    given = common.Parser(__doc__, rounds=41, quick_rounds=15).arguments()
    if reason := missing():
        print(f"{NAME}: nothing is measured: {reason}", file=sys.stderr)
        return
    folder = folder_of(torch.cuda.get_device_name())
    rows, samples = [], []
    with tempfile.TemporaryDirectory(dir="/dev/shm") as files:
        for megabytes in SIZES_MB:
            row, raw = measure(megabytes, given.rounds, Path(files))
            print(row, file=sys.stderr, flush=True)
            rows.append(row)
            samples.append(raw)
    largest = rows[-1]
    headline = {
        "swap_vs_copy_limit": largest["swap_vs_copy_limit"]["median"],
        "swap_ms": largest["swap_ms"],
        "first_batch_ms": largest["first_batch_ms"],
        "wrong_answers": sum(each["wrong_answers"] for each in rows),
    }
    path = common.write_result(
        f"{folder}/{NAME}", quick=given.quick, rows=rows, headline=headline, samples=samples
    )
    print(json.dumps(headline, indent=1))
    print(path)


if __name__ == "__main__":
    main()
