"""Packrat's configuration behind Triton against one fat instance and Model Analyzer's brute force.

A network of the model store, closed loop of as many clients as the batch is large, HTTP with
tensors as bytes. Ours: a profile of the model's workers (``shunter profile``), and for each batch
size the configuration <instances, threads, batch> that Packrat's optimizer chooses from it, set in
place. Against it: one fat instance (all cores, the whole batch) of our own backend, the same of
Triton's Python backend at its best delay, and the best of what Model Analyzer's brute force
measures by default: instances 1 to 5, max_batch_size 1 to 128 in powers of two, dynamic batching,
each at this number of clients. It knows no threads: each of its instances gets an equal share of
the cores, at least one, which is more than it would find by itself. What is selected in one pass is
measured again in paired rounds.

    worst_vs_fat                   the smallest of the median ratios of rates, against the fat
                                   instance of our own backend: only the configuration differs
    worst_vs_python_fat            against that of the Python backend
    worst_vs_model_analyzer        against the best that the brute force found
    configurations_measured        cells of our profile
    model_analyzer_configurations  of the brute force, its default search without repetitions
    profile_seconds, model_analyzer_seconds    spent here on either; perf_analyzer would take at
                                   least three windows of 5 s for each configuration and load

Examples:
    python bench/triton_packrat.py                      # about 45 minutes
    python bench/triton_packrat.py --quick              # minilm, two batch sizes: 5 minutes
    python bench/triton_packrat.py --model resnet50 --batches 8 32
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from common import Parser, Progress, Row, keep, paired_ratio, write_result
from rivals import triton_rpc, triton_server
from rivals.environments import Unavailable
from rpc import real
from rpc.models import RpcModel
from triton_real import (
    RealBackend,
    RealOurs,
    Setting,
    answer_of,
    check,
    closed,
    setting_row,
    weights,
)
from triton_slo import sentences

from shunter.allocator.cpus.discovery import read_topology
from shunter.allocator.planning.configuration import (
    Configuration,
    InstanceGroup,
    format_configuration,
)
from shunter.allocator.planning.measurement import Effort
from shunter.allocator.planning.optimizer import minimise_latency
from shunter.allocator.planning.profile import Profile
from shunter.allocator.planning.profile_table import latency_table
from shunter.handlers.sample import Sample
from shunter.plugins.errors import UserError
from shunter.plugins.hosts import runtime_of
from shunter.plugins.profiling import profiler

NAME = "triton_packrat"
CORES = read_topology().cores
BATCHES, QUICK_BATCHES = (2, 4, 8, 16, 32, 64), (4, 16)
SIDES = ("shunter", "shunter_fat", "python_fat", "model_analyzer")
FAT = "fat"
DELAYS_US = (0, 5000)
INSTANCES, MOST_BATCH = 5, 128
"""Model Analyzer's defaults (run_config_search_max_instance_count, ..._max_model_batch_size)."""
QUICK_SPACE = (Setting(8, 1, 0, CORES), Setting(8, 2, 0, max(1, CORES // 2)))
WINDOWS, WINDOW_S = 3, 5.0
"""perf_analyzer's fewest trials, and its measurement interval."""


def brute_force(most_batch: int = MOST_BATCH) -> list[Setting]:
    """What Model Analyzer measures by default."""
    sizes = [1 << k for k in range(most_batch.bit_length())]
    shapes = [(i, max(1, CORES // i)) for i in range(1, INSTANCES + 1)]
    return [Setting(b, i, 0, t) for (i, t), b in product(shapes, sizes)]


def fat_settings(batch: int) -> list[Setting]:
    """One instance with all cores."""
    return [Setting(batch, 1, delay, CORES) for delay in DELAYS_US]


@dataclass
class Bed:
    """What every measurement needs."""

    ours: RealOurs
    python: RealBackend
    model: RpcModel
    given: list[np.ndarray]
    answer: np.ndarray
    """To the first of them."""

    def set(self, name: str, configuration: Configuration) -> RpcModel:
        """Give a model of ours a configuration; the model."""
        self.ours.process.host.start_generation(name, configuration)
        model = replace(self.model, name=name)
        check(self.ours, model, self.given[0], self.answer)
        return model

    def rate(self, side: Any, model: RpcModel, batch: int, seconds: float) -> float:
        """Of so many clients."""
        return closed(side, model, self.given, batch, seconds)


def profile(
    bed: Bed, folder: Path, most_batch: int, seconds: float
) -> tuple[Profile, dict[int, Configuration]]:
    """Our profile, and what the optimizer chooses from it for a batch size."""
    samples = [Sample(x.tobytes(), "application/octet-stream") for x in bed.given[:8]]
    task = profiler.Task(
        folder / f"{bed.model.name}.mar",
        samples,
        threads=CORES,
        batch=most_batch,
        runtime=runtime_of(),
        effort=Effort(seconds=seconds),
    )
    found = profiler.run(task, folder / "model.profile.json", read_topology())
    table = latency_table(found)
    sizes = [1 << k for k in range(most_batch.bit_length())]
    return found, {b: minimise_latency(table, (CORES,), b).configuration for b in sizes}


def select(
    bed: Bed, settings: Sequence[Setting], batches: Sequence[int], seconds: float, what: str
) -> list[Row]:
    """The rate of every setting of the Python backend with every number of clients."""
    rows: list[Row] = []
    progress = Progress(len(settings))
    for setting in settings:
        progress.step(f"{what}: {setting.label}")
        began = time.monotonic()
        with bed.python.loaded(bed.model, setting) as named:
            for batch in batches:
                rate = bed.rate(bed.python, named, batch, seconds)
                rows.append({"phase": what, "setting": setting_row(setting)})
                rows[-1] |= {"clients": batch, "rate": rate}
        rows[-1]["seconds"] = round(time.monotonic() - began, 2)
    return rows


def best(rows: Iterable[Row], batch: int) -> Setting:
    """The setting with the highest rate of so many clients."""
    mine = [row for row in rows if row["clients"] == batch]
    found = max(mine, key=lambda row: row["rate"])["setting"]
    return Setting(**{name: value for name, value in found.items() if name != "label"})


def measure(
    bed: Bed,
    chosen: dict[int, Configuration],
    fat: dict[int, Setting],
    brute: dict[int, Setting],
    args: argparse.Namespace,
) -> list[Row]:
    """Paired rounds; the sides take turns in going first."""
    samples: list[Row] = []
    progress = Progress(len(chosen) * args.rounds)
    for batch, configuration in chosen.items():
        sides: dict[str, tuple[Any, RpcModel]] = {
            "shunter": (bed.ours, bed.set(bed.model.name, configuration)),
            "shunter_fat": (bed.ours, bed.set(FAT, (InstanceGroup(1, CORES, batch),))),
        }
        with ExitStack() as stack:
            for name, setting in (("python_fat", fat[batch]), ("model_analyzer", brute[batch])):
                same = [n for n in sides if n == "python_fat" and fat[batch] == setting]
                named = (
                    sides[same[0]][1]
                    if same
                    else stack.enter_context(bed.python.loaded(bed.model, setting))
                )
                sides[name] = bed.python, named
            for number in range(args.rounds):
                text = format_configuration(configuration)
                progress.step(f"{batch} clients, round {number + 1}: {text}")
                row: Row = {"phase": "measure", "batch": batch, "round": number}
                for name in SIDES[number % len(SIDES) :] + SIDES[: number % len(SIDES)]:
                    bed.rate(*sides[name], batch, min(1.0, args.seconds))  # caches are its own
                    row[name] = bed.rate(*sides[name], batch, args.seconds)
                samples.append(row)
                keep(NAME, args.quick, samples)
    return samples


def summarise(
    samples: list[Row],
    chosen: dict[int, Configuration],
    fat: dict[int, Setting],
    brute: dict[int, Setting],
) -> list[Row]:
    """A row for every batch size."""
    rows = []
    for batch, configuration in chosen.items():
        mine = [row for row in samples if row["batch"] == batch]
        row: Row = {"batch": batch, "configuration": format_configuration(configuration)}
        row |= {
            "python_fat_setting": fat[batch].label,
            "model_analyzer_setting": brute[batch].label,
        }
        for name in SIDES:
            rate = statistics.median(each[name] for each in mine)
            row[name] = {"per_s": round(rate, 2), "batch_ms": round(batch / rate * 1e3, 2)}
        for name in SIDES[1:]:
            row[f"vs_{name}"] = paired_ratio(
                [each["shunter"] for each in mine], [each[name] for each in mine]
            )
        rows.append(row)
    return rows


def headline(rows: list[Row], profiled: Profile, brute: Sequence[Row], loads: int) -> Row:
    """The claims."""

    def worst(name: str) -> float:
        return round(min(row[f"vs_{name}"]["median"] for row in rows), 3)

    count = len({row["setting"]["label"] for row in brute})
    ratios = [row["vs_shunter_fat"]["median"] for row in rows]
    return {
        "worst_vs_fat": worst("shunter_fat"),
        "geomean_vs_fat": round(statistics.geometric_mean(ratios), 3),
        "worst_vs_python_fat": worst("python_fat"),
        "worst_vs_model_analyzer": worst("model_analyzer"),
        "configurations_measured": len(profiled.cells),
        "model_analyzer_configurations": len(brute_force()),
        "model_analyzer_configurations_measured_here": count,
        "profile_seconds": round(profiled.seconds, 1),
        "model_analyzer_seconds": round(sum(row.get("seconds", 0) for row in brute), 1),
        "model_analyzer_windows_seconds": len(brute_force()) * loads * WINDOWS * WINDOW_S,
    }


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = Parser(__doc__, rounds=5, quick_rounds=2)
    parser.add_argument("--model", choices=("minilm", "resnet50"), help="default resnet50")
    parser.add_argument("--batches", type=int, nargs="+", help="powers of two")
    parser.add_argument("--seconds", type=float, help="per measurement; default 5, quick 2")
    parser.add_argument("--select-seconds", type=float, help="default 2, quick 1")
    parser.add_argument("--cell-seconds", type=float, help="of the profile; default 5, quick 0.5")
    args = parser.arguments()
    args.model = args.model or ("minilm" if args.quick else "resnet50")
    args.batches = args.batches or (QUICK_BATCHES if args.quick else BATCHES)
    for name, full, quick in (
        ("seconds", 5, 2),
        ("select_seconds", 2, 1),
        ("cell_seconds", 5, 0.5),
    ):
        setattr(args, name, getattr(args, name) or (quick if args.quick else full))
    return args


def main() -> None:
    """Run and write the result."""
    args = arguments()
    try:
        triton_server.ensure()
        triton_rpc.client_module()
    except Unavailable as error:
        sys.exit(f"there is no Triton to compare with: {error}")
    model = next(each for each in real.models() if each.name == args.model)
    given = sentences() if args.model == "minilm" else real.inputs(args.model)
    most = max(args.batches)
    space = [each for each in brute_force() if not args.quick or each in QUICK_SPACE]
    fats = [setting for batch in args.batches for setting in fat_settings(batch)]
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        files = stack.enter_context(weights())
        answer = answer_of(real.Network(files, model.network), given[0])
        python = stack.enter_context(RealBackend(model, files, [*space, *fats]))
        try:
            ours = RealOurs(folder, model, files, batch=most, delay_ms=50)
            stack.enter_context(ours)
            ours.process.host.load(f"{model.name}.mar", FAT)
            bed = Bed(ours, python, model, given, answer)
            for name in (model.name, FAT):  # while others are measured it has no memory
                ours.process.host.retire(name)
            profiled, planned = profile(bed, folder, most, args.cell_seconds)
        except UserError as error:
            sys.exit(str(error))
        brute_rows = select(bed, space, args.batches, args.select_seconds, "model analyzer")
        fat_rows = [
            row
            for batch in args.batches
            for row in select(bed, fat_settings(batch), [batch], args.select_seconds, "fat")
        ]
        chosen = {batch: planned[batch] for batch in args.batches}
        fat = {batch: best(fat_rows, batch) for batch in args.batches}
        brute = {batch: best(brute_rows, batch) for batch in args.batches}
        samples = measure(bed, chosen, fat, brute, args)
    rows = summarise(samples, chosen, fat, brute)
    top = headline(rows, profiled, brute_rows, len(args.batches))
    rows.append({"model": args.model, "cores": CORES, "cells": len(profiled.cells)})
    everything = [*brute_rows, *fat_rows, *samples]
    path = write_result(NAME, quick=args.quick, rows=rows, headline=top, samples=everything)
    for row in rows:
        print(json.dumps(row))
    print(json.dumps(top, indent=1))
    print(path)


if __name__ == "__main__":
    main()
