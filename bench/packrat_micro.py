"""Packrat's claim without a server: several small instances beat one with all cores.

For every model and batch size, three configurations on the same cores: what the optimizer chooses
from a profile; the fat instance <1, T, B>; and one instance with one thread on every core,
<T, 1, B/T> (with fewer requests than cores, one each). All are
measured: their pinned worker processes are up side by side, only one configuration works at a
time, and its batch is answered when the last instance has answered. Rounds go through the sides in
turns; ratios are a baseline's latency by the chosen one's, so above 1 is good, and a configuration
that two sides share is measured once. Mean speed-ups over the fat instance in the paper, section
5.1, on 16 cores: ResNet-50 1.53, Inception-v3 1.52, GPT-2 1.18, BERT 1.13.

The networks are in graph mode with random weights, on tensors that are there already.

Examples:
    python bench/packrat_micro.py                                 # all, half an hour on two cores
    python bench/packrat_micro.py --resume --models resnet50      # goes on, one model at a time
    python bench/packrat_micro.py --quick                         # two models, small batches
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from common import (
    BENCH,
    Parser,
    Progress,
    Row,
    committed_samples,
    host,
    keep,
    paired_ratio,
    result_path,
    write_result,
)
from profiled_models import fitting_profile, node, pack_model, profile_model
from side_by_side import Workers, interleaved, shares

from shunter.allocator.cpus.discovery import Topology
from shunter.allocator.memory.host import available_bytes
from shunter.allocator.planning.configuration import (
    Configuration,
    InstanceGroup,
    format_configuration,
)
from shunter.allocator.planning.latency_table import LatencyTable
from shunter.allocator.planning.measurement import Effort
from shunter.allocator.planning.optimizer import minimise_latency
from shunter.allocator.planning.profile import Profile
from shunter.allocator.planning.profile_table import latency_table, memory_of
from shunter.plugins.torchserve.archives import UnpackedModel, unpack

NAME = "packrat_micro"
PAPER = {"resnet50": 1.53, "inception_v3": 1.52, "gpt2_small": 1.18, "bert_base": 1.13}
"""Models, and the paper's mean speed-up over the fat instance on 16 cores."""
BATCHES = (1, 2, 4, 8, 16, 32)
QUICK_MODELS = ("resnet50", "bert_base")
QUICK_BATCHES = (1, 4, 8)
PROFILES = BENCH / "results" / NAME
BASELINES = ("fat", "one_per_core")


def configurations(
    profile: Profile, batch: int, budget: float = math.inf
) -> dict[str, Configuration]:
    """The configuration of each side."""
    memory = memory_of(profile.cells.values(), budget)
    best = minimise_latency(latency_table(profile), (profile.threads,), batch, memory)
    count = min(profile.threads, batch)
    each, more = divmod(batch, count)
    thin = Counter(each + (i < more) for i in range(count))
    return {
        "chosen": best.configuration,
        "fat": (InstanceGroup(1, profile.threads, batch),),
        "one_per_core": tuple(InstanceGroup(n, 1, size) for size, n in sorted(thin.items())),
    }


def bytes_of(profile: Profile, configurations: Iterable[Configuration]) -> float:
    """Memory of all instances, as if none were shared."""
    memory = memory_of(profile.cells.values())
    groups = [group for configuration in configurations for group in configuration]
    return sum(g.instances * (memory.instance + g.batch * memory.request) for g in groups)


def predicted(table: LatencyTable, configuration: Configuration) -> float:
    """Latency of the slowest instance by the profile, in ms; inf where it has no such cell."""
    return max(table.of(group.threads, group.batch) for group in configuration)


@dataclass(frozen=True)
class Plan:
    """What is measured of a model, and for how long."""

    batches: Sequence[int]
    rounds: int = 7
    seconds: float = 0.5
    """Per side and round."""
    budget: float = math.inf
    """Bytes that all processes together may fill."""


def measure_cell(
    workers: Workers, sides: Mapping[str, Configuration], batch: int, plan: Plan
) -> Row:
    """Latencies of each side by round, and the client's part in them."""
    parts = {name: shares(configuration, batch) for name, configuration in sides.items()}
    different = list(dict.fromkeys(parts.values()))
    sets = workers.sets(different)
    try:
        runs = interleaved(sets, plan.rounds, plan.seconds)
    finally:
        for each in sets:
            each.close()
    by_part = dict(zip(different, runs, strict=True))
    return {
        name: {
            "configuration": format_configuration(sides[name]),
            "ms": [run.ms for run in by_part[part]],
            "skew_ms": [run.skew_ms for run in by_part[part]],
            "same": part == parts["chosen"],
        }
        for name, part in parts.items()
    }


def measure_model(
    model: UnpackedModel,
    profile: Profile,
    topology: Topology,
    plan: Plan,
    step: Callable[[str], None] = lambda text: None,
) -> Iterator[Row]:
    """A cell for every batch size; ``step`` is told which one is next."""
    table, workers = latency_table(profile), Workers(model, topology)
    try:
        for batch in plan.batches:
            step(f"{model.name}, batch {batch}")
            # Half of the memory: the baselines' processes are up as well.
            sides = configurations(profile, batch, plan.budget / 2)
            if (needed := bytes_of(profile, sides.values())) > plan.budget:
                print(f"left out: it needs {needed / 2**30:.0f} GiB", file=sys.stderr)
                continue
            cell = measure_cell(workers, sides, batch, plan)
            for name, configuration in sides.items():
                expected = predicted(table, configuration)
                cell[name]["predicted_ms"] = expected if math.isfinite(expected) else None
            yield {"model": model.name, "batch": batch, "threads": profile.threads, **cell}
    finally:
        workers.close()


def summarise(cells: Sequence[Row]) -> tuple[list[Row], Row]:
    """A row for every model and batch size, one for every model, and the headline."""
    rows = [_row(cell) for cell in cells]
    ratios = [row["vs_fat"]["median"] for row in rows]
    headline = {
        "worst_vs_better_baseline": min(row["vs_better_baseline"]["median"] for row in rows),
        "geomean_vs_fat": math.exp(statistics.fmean(map(math.log, ratios))),
    }
    for model in dict.fromkeys(row["model"] for row in rows):
        mine = [row["vs_fat"]["median"] for row in rows if row["model"] == model]
        headline[f"mean_speedup_{model}"] = statistics.fmean(mine)
    means = [
        {
            "model": model,
            "mean_speedup": headline[f"mean_speedup_{model}"],
            "mean_speedup_in_the_paper_on_16_cores": of_paper,
        }
        for model, of_paper in PAPER.items()
        if f"mean_speedup_{model}" in headline
    ]
    return [*rows, *means], headline


def _row(cell: Row) -> Row:
    row: Row = {key: cell[key] for key in ("model", "batch", "threads")}
    for side in ("chosen", *BASELINES):
        row[side] = {
            "configuration": cell[side]["configuration"],
            "ms": statistics.median(cell[side]["ms"]),
            "predicted_ms": cell[side]["predicted_ms"],
            "skew_ms": statistics.median(cell[side]["skew_ms"]),
        }
    row["same"] = [side for side in BASELINES if cell[side]["same"]]
    for side in BASELINES:
        row[f"vs_{side}"] = paired_ratio(cell[side]["ms"], cell["chosen"]["ms"])
    better = min(BASELINES, key=lambda side: row[side]["ms"])
    row["vs_better_baseline"] = {"baseline": better, **row[f"vs_{better}"]}
    return row


def earlier_cells(quick: bool, threads: int) -> list[Row]:
    """Cells of this processor: of the run that was interrupted, else of the last result."""
    partial = result_path(NAME, quick).with_suffix(".partial.json")
    cells = [] if quick else committed_samples(NAME)
    if partial.exists():
        cells = json.loads(partial.read_bytes())
    cpu = host()["cpu"]
    return [cell for cell in cells if (cell["cpu"], cell["threads"]) == (cpu, threads)]


def arguments() -> argparse.Namespace:
    """What the user said."""
    parser = Parser(__doc__)
    parser.add_argument("--models", nargs="+", choices=list(PAPER), help="default: all")
    parser.add_argument("--batches", type=int, nargs="+", help="default: 1, 2, 4, ..., 32")
    parser.add_argument("--threads", type=int, help="T; default: the cores of a NUMA node")
    parser.add_argument("--seconds", type=float, help="per side and round, default 0.5, quick 0.2")
    parser.add_argument("--profiles", type=Path, default=PROFILES, help="folder of the profiles")
    parser.add_argument(
        "--resume", action="store_true", help="leave out what an earlier run on this host has"
    )
    args = parser.arguments()
    args.models = args.models or (QUICK_MODELS if args.quick else list(PAPER))
    args.batches = args.batches or (QUICK_BATCHES if args.quick else BATCHES)
    args.seconds = args.seconds or (0.2 if args.quick else 0.5)
    return args


def profile_for(
    archive: Path, topology: Topology, threads: int, args: argparse.Namespace
) -> Profile:
    """The model's profile; a quick run takes the full run's if it can, and leaves it as it is."""
    path = args.profiles / f"{archive.stem}.profile.json"
    if not args.quick:
        batch = max(*BATCHES, *args.batches)
        return profile_model(archive, path, topology, {"threads": threads, "batch": batch})
    batch = max(args.batches)
    found = fitting_profile(archive, path, topology)
    if found and found.complete and found.threads == threads and found.batch >= batch:
        return found
    task = {"threads": threads, "batch": batch, "effort": Effort(precision=0.05, seconds=0.5)}
    return profile_model(archive, archive.with_name(path.name), topology, task)


def main() -> None:
    """Run and write the result."""
    args = arguments()
    topology, threads = node(args.threads)
    cells = earlier_cells(args.quick, threads) if args.resume else []
    done = {(cell["model"], cell["batch"]) for cell in cells}
    left = {model: [b for b in args.batches if (model, b) not in done] for model in args.models}
    progress = Progress(sum(map(len, left.values())))
    for model in (model for model, batches in left.items() if batches):
        plan = Plan(left[model], args.rounds, args.seconds, 0.8 * available_bytes())
        with tempfile.TemporaryDirectory() as folder:
            archive = pack_model(BENCH / "models" / model, Path(folder))
            profile = profile_for(archive, topology, threads, args)
            unpacked = unpack(archive, Path(folder) / "unpacked")
            for cell in measure_model(unpacked, profile, topology, plan, progress.step):
                cells.append({**cell, "cpu": host()["cpu"]})
                keep(NAME, args.quick, cells)
    report(cells, args.quick)


def report(cells: list[Row], quick: bool) -> None:
    """Write the result and print it."""
    rows, headline = summarise(cells)
    path = write_result(NAME, quick=quick, rows=rows, headline=headline, samples=cells)
    for row in rows:
        if "chosen" in row:
            sides = (
                f"{name} {row[name]['configuration']} {row[name]['ms']:.1f} ms"
                for name in ("chosen", *BASELINES)
            )
            print(f"{row['model']}, batch {row['batch']}: {', '.join(sides)}")
    print(json.dumps(headline), path.name)


if __name__ == "__main__":
    main()
