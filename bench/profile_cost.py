"""What an adaptive profile saves against an exhaustive one, and what that costs in latency.

Packrat measures every <threads, batch>. Here only those cells are measured that a configuration
may use; in both ways what a choice rests on runs in turns with rivals until it is settled, and that
counts.
Sixteen cores: exhaustive profiles that were recorded on such a host are replayed, both plans being
told their latencies; where there is none, invented latencies take their place, and the row says
"synthetic". In a replay a visit takes its runs and the fewest for warming up, and of two in turns
one each. This host: both
profiles of two models are measured.

"worst_regret", of replays: for a batch size, how much slower the configuration chosen by the
adaptive profile is than the one chosen by the exhaustive profile, both by the latencies of the
exhaustive one, so it is what the plan alone costs; the worst batch size counts.
"worst_regret_here": where the two profiles of this host lead to different configurations, both are
run side by side in turns, and the median over the rounds counts: no noisy table is asked.

The full run takes 7 minutes on two cores, 10 if the host is so noisy that much is visited again.

Examples:
    python bench/profile_cost.py                                    # two models, batches up to 16
    python bench/profile_cost.py --quick                            # one model, small batches
    python bench/profile_cost.py --record bert_base FILE            # exhaustive; goes on if FILE is
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from common import BENCH, Parser, Progress, Row, paired_ratio, write_result
from packrat_micro import PAPER, predicted
from profiled_models import node, pack_model, profile_model
from side_by_side import Workers, interleaved, shares

from shunter.allocator.planning.configuration import format_configuration
from shunter.allocator.planning.measurement import Effort, Estimate
from shunter.allocator.planning.optimizer import minimise_latency
from shunter.allocator.planning.profile import Cell, Profile, Provenance, batch_sizes, read_profile
from shunter.allocator.planning.profile_table import latency_table
from shunter.allocator.planning.survey import Survey
from shunter.plugins.profiling.concurrent_workers import WARM_UP
from shunter.plugins.torchserve.archives import unpack

NAME = "profile_cost"
MODELS = ("resnet50", "bert_base")
THREADS, BATCH = 16, 64
RECORDED = BENCH / "results/h200"
HERE = "measured on this host"
SIDES = ("adaptive", "exhaustive")
SIDE_SECONDS = 0.3
"""Of each side and round."""
AGAIN = Effort().again
RUNS = 8
NOISE = 0.01
"""Deviation of an invented latency, as a share."""
SYNTHETIC: dict[str, Callable[[int, int], float]] = {
    "scales well": lambda t, b: 1 + 20 * b / t,
    "one eighth serial": lambda t, b: 2 + 20 * b * (1 / 8 + 7 / 8 / t),
    "barriers": lambda t, b: 3 + 20 * b / t + 0.4 * t,
    "weights from memory": lambda t, b: max(40 / min(t, 4), 1) + 8 * b / t,
    "batches idle threads": lambda t, b: 2 + 20 * b / min(t, 4 * b),
}
"""Latency in ms of kinds of models, by threads and batch size."""


def synthetic_profile(kind: str, threads: int = THREADS, batch: int = BATCH) -> Profile:
    """An exhaustive profile of invented latencies."""
    noise = random.Random(kind)
    cells = {}
    for t in range(1, threads + 1):
        for b in batch_sizes(batch):
            ms = SYNTHETIC[kind](t, b) * (1 + NOISE * noise.gauss())
            cells[t, b] = Cell(t, b, ms, ms, ms, RUNS)
    origin = Provenance(f"synthetic: {kind}", "", "synthetic", threads, "", "")
    return Profile(origin, threads, batch, "exhaustive", cells, complete=True)


def replay(source: Profile, *, exhaustive: bool = False) -> Profile:
    """The profile that the latencies of an exhaustive one would have led to, and in which time."""
    survey = Survey(source.threads, source.batch, exhaustive=exhaustive)
    found = replace(source, mode="exhaustive" if exhaustive else "adaptive", cells={}, seconds=0.0)
    while (visit := survey.next()) is not None:
        if not source.cells.keys() >= set(visit):
            survey.fail(visit)
            continue
        cells = [replace(source.cells[key], visits=1) for key in visit]
        again = len(cells) == 2
        runs = AGAIN.fewest if again else cells[0].runs + cells[0].outliers
        warm_up = 1 if again else WARM_UP[0]
        seconds = sum(cell.ms for cell in cells) * (runs + warm_up) / 1e3
        if again:
            ratio = cells[1].ms / cells[0].ms
            survey.compare(*cells, Estimate(ratio, ratio, ratio, runs, 0), seconds)
        else:
            survey.add(*cells, seconds)
        found = found.with_cells(survey.cells.values(), seconds)
    return found


def regret(adaptive: Profile, exhaustive: Profile) -> Row:
    """How much slower the adaptive profile's choice is, at the batch size where it is worst."""
    here, there = latency_table(adaptive), latency_table(exhaustive)
    found = []
    for batch in batch_sizes(exhaustive.batch):
        best = minimise_latency(there, (exhaustive.threads,), batch)
        choice = minimise_latency(here, (exhaustive.threads,), batch)
        found.append((predicted(there, choice.configuration) / best.latency_ms - 1, batch))
    worst, batch = max(found)
    return {"regret": worst, "regret_at_batch": batch}


def compare(adaptive: Profile, exhaustive: Profile, source: str) -> Row:
    """A row."""
    return {
        "model": exhaustive.provenance.model,
        "source": source,
        "threads": exhaustive.threads,
        "batch": exhaustive.batch,
        "cells": len(adaptive.cells),
        "cells_exhaustive": len(exhaustive.cells),
        "seconds": adaptive.seconds,
        "seconds_exhaustive": exhaustive.seconds,
        "time": adaptive.seconds / exhaustive.seconds,
        "undecided": [str(each) for each in adaptive.undecided],
    }


def replayed(exhaustive: Profile, source: str) -> Row:
    """A row for a profile of another host, or of none."""
    adaptive = replay(exhaustive)
    row = compare(adaptive, replay(exhaustive, exhaustive=True), source)
    return {**row, **regret(adaptive, exhaustive)}


def recorded_profiles(folder: Path) -> list[Profile]:
    """The complete exhaustive profiles in a folder."""
    found = [read_profile(path.read_bytes()) for path in sorted(folder.glob("*.profile.json"))]
    return [each for each in found if each.mode == "exhaustive" and each.complete]


def replays(folder: Path) -> list[Row]:
    """Rows of recorded profiles, of invented ones where there is none."""
    recorded = recorded_profiles(folder)
    if recorded:
        return [replayed(each, f"recorded on {each.provenance.cpu}") for each in recorded]
    return [replayed(synthetic_profile(kind), "synthetic") for kind in SYNTHETIC]


def measured(name: str, args: argparse.Namespace) -> Row:
    """Both profiles of a model on this host, and their choices side by side."""
    topology, threads = node(args.threads)
    task = {"threads": threads, "batch": args.batch, "effort": Effort(seconds=args.seconds)}
    with tempfile.TemporaryDirectory() as folder:
        archive = pack_model(BENCH / "models" / name, Path(folder))
        adaptive, exhaustive = (
            profile_model(
                archive,
                Path(folder) / f"{mode}.profile.json",
                topology,
                {**task, "exhaustive": mode == "exhaustive"},
            )
            for mode in ("adaptive", "exhaustive")
        )
        workers = Workers(unpack(archive, Path(folder) / "unpacked"), topology)
        try:
            choices = beside(workers, adaptive, exhaustive, args.rounds)
        finally:
            workers.close()
    return {
        **compare(adaptive, exhaustive, HERE),
        **regret(replay(exhaustive), exhaustive),
        "choices": choices,
        "regret_here": regret_here(choices),
    }


def beside(workers: Workers, adaptive: Profile, exhaustive: Profile, rounds: int) -> list[Row]:
    """What each profile leads to by batch size, and where that differs both run in turns."""
    found = []
    for batch in batch_sizes(exhaustive.batch):
        chosen = [
            minimise_latency(latency_table(each), (each.threads,), batch).configuration
            for each in (adaptive, exhaustive)
        ]
        row: Row = dict(zip(SIDES, map(format_configuration, chosen), strict=True))
        parts = [shares(each, batch) for each in chosen]
        if parts[0] != parts[1]:
            print(f"  batch {batch}: {' beside '.join(row.values())}", file=sys.stderr, flush=True)
            sets = workers.sets(parts)
            try:
                ours, theirs = interleaved(sets, rounds, SIDE_SECONDS)
            finally:
                for each in sets:
                    each.close()
            row["ratio"] = paired_ratio([run.ms for run in ours], [run.ms for run in theirs])
        found.append({"batch": batch, **row})
    return found


def regret_here(choices: list[Row]) -> float:
    """How much slower the adaptive profile's choice ran, at the batch size where it is worst."""
    return max(0.0, *(row["ratio"]["median"] - 1 if "ratio" in row else 0.0 for row in choices))


def record(name: str, path: Path, args: argparse.Namespace) -> None:
    """Measure an exhaustive profile into ``path``; what is there of this model is kept."""
    topology, threads = node(args.threads)
    task = {
        "threads": threads,
        "batch": args.batch,
        "effort": Effort(seconds=args.seconds),
        "exhaustive": True,
    }
    with tempfile.TemporaryDirectory() as folder:
        archive = pack_model(BENCH / "models" / name, Path(folder))
        found = profile_model(archive, path, topology, task)
    print(f"{len(found.cells)} cells in {found.seconds:.0f} s: {path.name}")


def summarise(rows: list[Row]) -> Row:
    """The worst of the replays' times, of what the plan costs, and of what was measured here."""
    other = [row["time"] for row in rows if row["source"] != HERE]
    here = [row for row in rows if row["source"] == HERE]
    return {
        "adaptive_vs_exhaustive_time": max(other),
        "worst_regret": max(row["regret"] for row in rows),
        "worst_regret_here": max((row["regret_here"] for row in here), default=None),
        "adaptive_vs_exhaustive_time_here": max((row["time"] for row in here), default=None),
        "undecided_here": sum(len(row["undecided"]) for row in here),
        "synthetic": any(row["source"] == "synthetic" for row in rows),
    }


def arguments() -> argparse.Namespace:
    """What the user said."""
    parser = Parser(__doc__)
    parser.add_argument("--models", nargs="*", choices=list(PAPER), help="measured on this host")
    parser.add_argument("--batch", type=int, help="largest batch, default 16, quick 8, --record 64")
    parser.add_argument("--threads", type=int, help="T; default: the cores of a NUMA node")
    parser.add_argument(
        "--seconds", type=float, help="per cell at most, default 4, quick 0.5, --record 10"
    )
    parser.add_argument("--recorded", type=Path, default=RECORDED, help="folder of profiles")
    parser.add_argument("--record", nargs=2, metavar=("MODEL", "FILE"), help="measure one, end")
    args = parser.arguments()
    if args.record and args.record[0] not in PAPER:
        parser.error(f"--record {args.record[0]}: the models are {', '.join(PAPER)}")
    if args.models is None:
        args.models = MODELS[:1] if args.quick else MODELS
    batch, seconds = (8, 0.5) if args.quick else (BATCH, 10) if args.record else (16, 4)
    args.batch, args.seconds = args.batch or batch, args.seconds or seconds
    return args


def main() -> None:
    """Measure, replay, write the result; or record."""
    args = arguments()
    if args.record:
        record(args.record[0], Path(args.record[1]), args)
        return
    progress = Progress(len(args.models))
    rows = []
    for name in args.models:
        progress.step(name)
        rows.append(measured(name, args))
    rows += replays(args.recorded)
    headline = summarise(rows)
    path = write_result(NAME, quick=args.quick, rows=rows, headline=headline)
    for row in rows:
        print(
            f"{row['model']}, {row['source']}: {row['cells']} of {row['cells_exhaustive']} cells, "
            f"{row['time']:.0%} of the time, regret {row.get('regret_here', row['regret']):.1%}"
        )
    print(json.dumps(headline), path.name)


if __name__ == "__main__":
    main()
