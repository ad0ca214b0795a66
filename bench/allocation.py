"""What it is worth that a worker keeps the memory of a batch for the next one.

Two workers of the same model on the same core, one with SHUNTER_KEEP_MEMORY=0, which is how
TorchServe's own workers run, in turns. Ratios are of the latency of a batch, without by with;
memory is the highest of each.

Examples:
    python bench/allocation.py            # four networks, 10 minutes
    python bench/allocation.py --quick    # ResNet-50
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from common import BENCH, Parser, Progress, Row, keep, paired_ratio, write_result
from profiled_models import REQUEST, pack_model

from shunter.handlers.placement import allocation
from shunter.plugins.torchserve.archives import UnpackedModel, unpack
from shunter.plugins.torchserve.worker_client import ModelWorker

NAME = "allocation"
MODELS = ("resnet50", "inception_v3", "gpt2_small", "bert_base")
BATCHES = (1, 4, 16, 32)
SIDES = {"kept": {allocation.VARIABLE: "1"}, "given_back": {allocation.VARIABLE: "0"}}
"""Environments of workers: as they are, and without what is measured."""
WARM_UP = 3


def latency_ms(worker: ModelWorker, batch: int, seconds: float) -> float:
    """Median of the batches of so many seconds, at least one."""
    found: list[float] = []
    end = time.monotonic() + seconds
    while not found or time.monotonic() < end:
        found.append(worker.run([REQUEST] * batch) * 1e3)
    return statistics.median(found)


def measure(
    model: UnpackedModel, batch: int, sides: Mapping[str, Row], rounds: int, seconds: float
) -> Row:
    """Latencies of both sides by round."""
    core = [min(os.sched_getaffinity(0))]
    row: Row = {"model": model.name, "batch": batch}
    with ExitStack() as stack:
        workers = {}
        for name, variables in sides.items():
            worker = ModelWorker(model, threads=1, cores=core, batch=batch, variables=variables)
            stack.callback(worker.close)
            workers[name] = worker.start()
        for worker in workers.values():
            for _ in range(WARM_UP):
                worker.run([REQUEST] * batch)
        rows: dict[str, list[float]] = {name: [] for name in sides}
        for number in range(rounds):
            for name in sorted(sides, reverse=bool(number % 2)):
                rows[name].append(latency_ms(workers[name], batch, seconds))
        for name, worker in workers.items():
            row[name] = {"ms": rows[name], "peak_mib": worker.peak_bytes / 2**20}
    return row


def summarise(samples: list[Row], sides: Mapping[str, Row]) -> tuple[list[Row], Row]:
    """A row for each model and batch size, and the headline."""
    ours, without = sides
    rows = []
    for sample in samples:
        row: Row = {"model": sample["model"], "batch": sample["batch"]}
        for name in sides:
            ms = statistics.median(sample[name]["ms"])
            row[name] = {"ms": ms, "peak_mib": sample[name]["peak_mib"]}
        row["speedup"] = paired_ratio(sample[without]["ms"], sample[ours]["ms"])
        rows.append(row)
    speedups = [row["speedup"]["median"] for row in rows]
    return rows, {
        "geomean_speedup": statistics.geometric_mean(speedups),
        "worst_speedup": min(speedups),
        "worst_memory_ratio": max(
            row[ours]["peak_mib"] / row[without]["peak_mib"] for row in rows
        ),
    }


def compare(
    name: str,
    models: Sequence[str],
    batches: Sequence[int],
    sides: Mapping[str, Row],
    args: argparse.Namespace,
    settings: Row | None = None,
) -> None:
    """Measure and write the result; ``sides``: ours first. A quick run has the first model only.

    ``settings``: for the handler.
    """
    models = models[:1] if args.quick else models
    seconds = 0.3 if args.quick else 1.0
    progress = Progress(len(models) * len(batches))
    samples: list[Row] = []
    for each in models:
        with tempfile.TemporaryDirectory() as folder:
            archive = pack_model(BENCH / "models" / each, Path(folder), settings)
            model = unpack(archive, Path(folder) / "unpacked")
            for batch in batches:
                progress.step(f"{each}, batch {batch}")
                samples.append(measure(model, batch, sides, args.rounds, seconds))
                keep(name, args.quick, samples)
    rows, headline = summarise(samples, sides)
    path = write_result(name, quick=args.quick, rows=rows, headline=headline, samples=samples)
    for row in rows:
        ms, ratio = row[next(iter(sides))]["ms"], row["speedup"]
        between = f"{ratio['low']:.2f} to {ratio['high']:.2f}"
        title = f"{row['model']}, batch {row['batch']}"
        print(f"{title}: {ms:.1f} ms, {ratio['median']:.2f} x ({between})")
    print(json.dumps(headline), path.name)


if __name__ == "__main__":
    compare(NAME, MODELS, BATCHES, SIDES, Parser(__doc__).arguments())
