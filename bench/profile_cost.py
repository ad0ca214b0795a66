"""What an adaptive profile saves against an exhaustive one, and what that costs in latency.

Packrat measures every <threads, batch>. Here only those cells are measured that a configuration
may use. This host: both profiles of two models are measured. Sixteen cores: exhaustive profiles
that were recorded on such a host are replayed, the adaptive plan being told their latencies; where
there is none, invented latencies take their place, and the row says "synthetic". In a replay a cell
takes the same time in either profile: its runs and the fewest for warming up.

Regret: for a batch size, how much slower the configuration chosen by the adaptive profile is than
the one chosen by the exhaustive profile, both by the latencies of the exhaustive one; the worst
batch size counts. On this host that includes the noise between two measurements; what the plan
alone costs is "regret_of_the_plan", from a replay.

Examples:
    python bench/profile_cost.py                                    # measures two models
    python bench/profile_cost.py --quick                            # one model, small batches
    python bench/profile_cost.py --record bert_base FILE            # exhaustive; goes on if FILE is
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from common import BENCH, Parser, Progress, Row, write_result
from packrat_micro import PAPER, predicted
from profiled_models import node, pack_model, profile_model

from shunter.allocator.planning.measurement import Effort
from shunter.allocator.planning.optimizer import minimise_latency
from shunter.allocator.planning.profile import Cell, Profile, Provenance, batch_sizes, read_profile
from shunter.allocator.planning.profile_plan import ProfilePlan
from shunter.allocator.planning.profile_table import latency_table
from shunter.plugins.profiling.profiler import WARM_UP

NAME = "profile_cost"
MODELS = ("resnet50", "bert_base")
THREADS, BATCH = 16, 64
RECORDED = BENCH / "results/h200"
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


def cell_ms(cell: Cell) -> float:
    """What it takes to measure a cell."""
    return cell.ms * (cell.runs + cell.outliers + WARM_UP[0])


def replay(exhaustive: Profile) -> Profile:
    """The adaptive profile that the same latencies would have led to."""
    plan = ProfilePlan(exhaustive.threads, exhaustive.batch)
    cells = {}
    while (key := plan.next()) is not None:
        if key in exhaustive.cells:
            cells[key] = exhaustive.cells[key]
            plan.add(*key, cells[key].ms)
        else:
            plan.add_impossible(*key)
    return replace(exhaustive, mode="adaptive", cells=cells)


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


def compare(
    adaptive: Profile, exhaustive: Profile, source: str, seconds: tuple[float, float]
) -> Row:
    """A row; ``seconds`` of the adaptive and the exhaustive profile."""
    return {
        "model": exhaustive.provenance.model,
        "source": source,
        "threads": exhaustive.threads,
        "batch": exhaustive.batch,
        "cells": len(adaptive.cells),
        "cells_exhaustive": len(exhaustive.cells),
        "seconds": seconds[0],
        "seconds_exhaustive": seconds[1],
        "time": seconds[0] / seconds[1],
        **regret(adaptive, exhaustive),
        "regret_of_the_plan": regret(replay(exhaustive), exhaustive)["regret"],
    }


def replayed(exhaustive: Profile, source: str) -> Row:
    """A row for a profile of another host, or of none."""
    adaptive = replay(exhaustive)
    adaptive_s, exhaustive_s = (
        sum(map(cell_ms, profile.cells.values())) / 1e3 for profile in (adaptive, exhaustive)
    )
    return compare(adaptive, exhaustive, source, (adaptive_s, exhaustive_s))


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


def measured(name: str, batch: int, args: argparse.Namespace) -> Row:
    """Both profiles of a model on this host."""
    topology, threads = node(args.threads)
    task = {"threads": threads, "batch": batch, "effort": Effort(seconds=args.seconds)}
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
    return compare(
        adaptive, exhaustive, "measured on this host", (adaptive.seconds, exhaustive.seconds)
    )


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
    """The worst of the replays' times, and the worst regret of all."""
    other = [row["time"] for row in rows if row["source"] != "measured on this host"]
    here = [row["time"] for row in rows if row["source"] == "measured on this host"]
    return {
        "adaptive_vs_exhaustive_time": max(other),
        "worst_regret": max(row["regret"] for row in rows),
        "adaptive_vs_exhaustive_time_here": max(here) if here else None,
        "synthetic": any(row["source"] == "synthetic" for row in rows),
    }


def arguments() -> argparse.Namespace:
    """What the user said."""
    parser = Parser(__doc__)
    parser.add_argument("--models", nargs="*", choices=list(PAPER), help="measured on this host")
    parser.add_argument("--batch", type=int, help="largest batch, default 64, quick 8")
    parser.add_argument("--threads", type=int, help="T; default: the cores of a NUMA node")
    parser.add_argument("--seconds", type=float, help="per cell at most, default 10, quick 0.5")
    parser.add_argument("--recorded", type=Path, default=RECORDED, help="folder of profiles")
    parser.add_argument("--record", nargs=2, metavar=("MODEL", "FILE"), help="measure one, end")
    args = parser.arguments()
    if args.record and args.record[0] not in PAPER:
        parser.error(f"--record {args.record[0]}: the models are {', '.join(PAPER)}")
    if args.models is None:
        args.models = MODELS[:1] if args.quick else MODELS
    args.batch = args.batch or (8 if args.quick else BATCH)
    args.seconds = args.seconds or (0.5 if args.quick else 10)
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
        rows.append(measured(name, args.batch, args))
    rows += replays(args.recorded)
    headline = summarise(rows)
    path = write_result(NAME, quick=args.quick, rows=rows, headline=headline)
    for row in rows:
        print(
            f"{row['model']}, {row['source']}: {row['cells']} of {row['cells_exhaustive']} cells, "
            f"{row['time']:.0%} of the time, regret {row['regret']:.1%}"
        )
    print(json.dumps(headline), path.name)


if __name__ == "__main__":
    main()
