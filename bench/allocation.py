"""What it is worth that a worker keeps the memory of a batch for the next one.

Two workers of the same model on the same core, one with SHUNTER_KEEP_MEMORY=0, which is how
TorchServe's own workers run, in turns. Ratios are of the latency of a batch, without by with;
memory is the highest of each.

Examples:
    python bench/allocation.py            # four networks, 10 minutes
    python bench/allocation.py --quick    # ResNet-50
"""

from __future__ import annotations

import json
import os
import statistics
import tempfile
import time
from pathlib import Path

from common import BENCH, Parser, Progress, Row, keep, paired_ratio, write_result
from profiled_models import REQUEST, pack_model

from shunter.plugins.torchserve.archives import UnpackedModel, unpack
from shunter.plugins.torchserve.worker_client import ModelWorker

NAME = "allocation"
MODELS = ("resnet50", "inception_v3", "gpt2_small", "bert_base")
BATCHES = (1, 4, 16, 32)
SIDES = {"kept": "1", "given_back": "0"}
WARM_UP = 3


def latency_ms(worker: ModelWorker, batch: int, seconds: float) -> float:
    """Median of the batches of so many seconds, at least one."""
    found: list[float] = []
    end = time.monotonic() + seconds
    while not found or time.monotonic() < end:
        found.append(worker.run([REQUEST] * batch) * 1e3)
    return statistics.median(found)


def measure(model: UnpackedModel, batch: int, rounds: int, seconds: float) -> Row:
    """Latencies of both sides by round."""
    core = [min(os.sched_getaffinity(0))]
    row: Row = {"model": model.name, "batch": batch}
    workers = {
        name: ModelWorker(
            model, threads=1, cores=core, batch=batch, variables={"SHUNTER_KEEP_MEMORY": value}
        ).start()
        for name, value in SIDES.items()
    }
    try:
        for worker in workers.values():
            for _ in range(WARM_UP):
                worker.run([REQUEST] * batch)
        rows: dict[str, list[float]] = {name: [] for name in SIDES}
        for number in range(rounds):
            for name in sorted(SIDES, reverse=bool(number % 2)):
                rows[name].append(latency_ms(workers[name], batch, seconds))
        for name, worker in workers.items():
            row[name] = {"ms": rows[name], "peak_mib": worker.peak_bytes / 2**20}
    finally:
        for worker in workers.values():
            worker.close()
    return row


def summarise(samples: list[Row]) -> tuple[list[Row], Row]:
    """A row for each model and batch size, and the headline."""
    rows = []
    for sample in samples:
        row: Row = {"model": sample["model"], "batch": sample["batch"]}
        for name in SIDES:
            ms = statistics.median(sample[name]["ms"])
            row[name] = {"ms": ms, "peak_mib": sample[name]["peak_mib"]}
        row["speedup"] = paired_ratio(sample["given_back"]["ms"], sample["kept"]["ms"])
        rows.append(row)
    speedups = [row["speedup"]["median"] for row in rows]
    return rows, {
        "geomean_speedup": statistics.geometric_mean(speedups),
        "worst_speedup": min(speedups),
        "worst_memory_ratio": max(
            row["kept"]["peak_mib"] / row["given_back"]["peak_mib"] for row in rows
        ),
    }


def main() -> None:
    """Run and write the result."""
    args = Parser(__doc__).arguments()
    models = MODELS[:1] if args.quick else MODELS
    seconds = 0.3 if args.quick else 1.0
    progress = Progress(len(models) * len(BATCHES))
    samples: list[Row] = []
    for name in models:
        with tempfile.TemporaryDirectory() as folder:
            archive = pack_model(BENCH / "models" / name, Path(folder))
            model = unpack(archive, Path(folder) / "unpacked")
            for batch in BATCHES:
                progress.step(f"{name}, batch {batch}")
                samples.append(measure(model, batch, args.rounds, seconds))
                keep(NAME, args.quick, samples)
    rows, headline = summarise(samples)
    path = write_result(NAME, quick=args.quick, rows=rows, headline=headline, samples=samples)
    for row in rows:
        ratio = row["speedup"]["median"]
        print(f"{row['model']}, batch {row['batch']}: {row['kept']['ms']:.1f} ms, {ratio:.2f} x")
    print(json.dumps(headline), path.name)


if __name__ == "__main__":
    main()
