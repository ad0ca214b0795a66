"""End to end through TorchServe: the best configuration against a fat worker and stock's best.

ResNet-50 with real pre- and post-processing (JPEG decode, resize, top 5), REST, as many clients
as the batch is large: the time in which all of them are answered is the latency of that batch.
Sides, in one run: Shunter, which has a profile of the model and changes its configuration by
itself while the load changes; stock with one fat worker (all cores), at its best delay; stock at
the best of its own settings for that batch size (one fat worker, or one single-threaded worker
per core; batch size; delay). Settings are selected in a first pass and measured in a second one.
Shunter's workers keep the memory of a batch for the next one (``bench/allocation.py``); an operator
can have that with stock workers, by variables of the environment, so a fourth side is the best
setting of stock with them.

Examples:
    python bench/packrat_serving.py                 # 7 rounds, about 45 minutes
    python bench/packrat_serving.py --quick         # two batch sizes, settings of the full run
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import load
from common import (
    Parser,
    Progress,
    Row,
    committed_rows,
    keep,
    make_stores,
    paired_ratio,
    write_result,
)
from sides import PHOTOGRAPHS, Setting, Side

from shunter.allocator.cpus.discovery import read_topology
from shunter.allocator.planning.profile import Profile
from shunter.handlers.placement.allocation import SETTINGS as ALLOCATION
from shunter.handlers.placement.allocation import TUNABLES
from shunter.plugins.hosts import runtime_of
from shunter.plugins.profiling.profiler import Task, run
from shunter.plugins.profiling.profiles import profile_path

NAME = "packrat_serving"
BATCHES = (2, 4, 8, 16, 32, 64)
QUICK_BATCHES = (4, 16)
SIDES = ("shunter", "stock_fat", "best_stock", "best_stock_kept")
DELAYS_MS = (5, 50)
CORES = read_topology().cores
MODEL = "resnet50"
AUTO = {**PHOTOGRAPHS.section, "auto": True}
OURS = Setting(batch=64, delay_ms=50, workers=1, threads=0, queue=1000)
SETTINGS = """
[configuration]
timeout_s = 4
alpha = 0.2
window = 20
"""
LONGEST_SETTLING_S = 180
SETTLED_S = 10
"""Without a change for so long, the configuration is the one for this load."""


def profile(side: Side) -> Profile:
    """Measure the model that is about to be registered."""
    archive = side.archive(MODEL, OURS, AUTO)
    task = Task(archive, (), threads=CORES, batch=max(BATCHES), runtime=runtime_of())
    return run(task, profile_path(archive), read_topology())


def usual(batch: int) -> list[Setting]:
    """What an operator of stock TorchServe would try."""
    share = -(-batch // CORES)
    kinds = {(1, CORES, batch), (CORES, 1, batch), (CORES, 1, share)}
    return [
        Setting(b, delay, workers, threads, 1000)
        for workers, threads, b in sorted(kinds)
        for delay in DELAYS_MS
    ]


def ask(url: str, batch: int, seconds: float) -> float:
    """Requests answered per second with so many clients. All must be answered."""
    closed = load.Closed(batch, seconds)
    stream = load.Stream("closed", url, closed=closed, **PHOTOGRAPHS.requests)
    found = load.run(load.Spec([stream], timeout_s=120))
    if found["closed"]["ok"] != found["closed"]["sent"]:
        raise RuntimeError(f"{url}: {found['closed']['statuses']}")
    # Until the last answer: the window would cut large batches into parts.
    samples = found.of("closed")
    return len(samples) / float((samples.due_s + samples.latency_s).max())


def settle(side: Side, batch: int) -> str:
    """Keep the load on until Shunter has stopped changing; the configuration it then runs."""
    closed = load.Closed(batch, LONGEST_SETTLING_S)
    stream = load.Stream("closed", side.url(MODEL), closed=closed, **PHOTOGRAPHS.requests)
    seen, since = "", time.monotonic()
    with load.start(load.Spec([stream], timeout_s=120)) as running:
        while time.monotonic() - since < SETTLED_S:
            time.sleep(0.5)
            status = side.status(MODEL)
            now = status["configuration"] + status["state"]
            if now != seen or status["state"] != "serving":
                seen, since = now, time.monotonic()
            if time.monotonic() - running.started > LONGEST_SETTLING_S:
                raise RuntimeError(f"{batch} clients: no configuration lasts")
    return status["configuration"]


def select(stock: Side, batch: int, seconds: float) -> Row:
    """The best fat setting and the best of all, by one measurement of each."""
    found = []
    for setting in usual(batch):
        found.append((ask(stock.add(setting), batch, seconds), setting))
        stock.remove(setting)
    fat = max((pair for pair in found if pair[1].workers == 1), key=lambda pair: pair[0])
    best = max(found, key=lambda pair: pair[0])
    tried = [{**setting.row(), "per_s": rate} for rate, setting in found]
    return {"stock_fat": fat[1].row(), "best_stock": best[1].row(), "tried": tried}


def measure(
    ours: Side,
    stock: Side,
    kept: Side,
    selection: dict[int, Row],
    rounds: int,
    seconds: float,
    quick: bool,
) -> list[Row]:
    """Paired rounds at each batch size; the sides take turns in going first."""
    samples: list[Row] = []
    progress = Progress(len(selection) * rounds)
    for batch, chosen in selection.items():
        settings = {name: Setting(**chosen[name]) for name in ("stock_fat", "best_stock")}
        urls = {name: stock.add(setting) for name, setting in settings.items()}
        urls["best_stock_kept"] = kept.add(settings["best_stock"])
        ours.set_auto(MODEL, True)
        configuration = settle(ours, batch)
        # While the others have their turn there is no load, for which it would change.
        ours.set_auto(MODEL, False)
        urls["shunter"] = ours.url(MODEL)
        for number in range(rounds):
            progress.step(f"{batch} clients, round {number + 1}, {configuration}")
            order = SIDES[number % 4 :] + SIDES[: number % 4]
            row: Row = {"batch": batch, "round": number}
            for side in order:
                ask(urls[side], batch, 1)  # caches and clocks are this side's
                row[side] = ask(urls[side], batch, seconds)
            row["configuration"] = ours.status(MODEL)["configuration"]
            samples.append(row)
            keep(NAME, quick, samples)
        for setting in set(settings.values()):
            stock.remove(setting)
        kept.remove(settings["best_stock"])
    return samples


def summarise(samples: list[Row], selection: dict[int, Row]) -> tuple[list[Row], Row]:
    """A row for each batch size, with paired ratios of the rates."""
    rows = []
    for batch, chosen in selection.items():
        mine = [sample for sample in samples if sample["batch"] == batch]
        rates = {name: [s[name] for s in mine] for name in SIDES}
        row: Row = {"batch": batch, "configuration": mine[-1]["configuration"]}
        for name, each in rates.items():
            per_s = statistics.median(each)
            row[name] = {"per_s": per_s, "batch_ms": batch / per_s * 1e3}
        for name in SIDES[1:]:
            row[name]["setting"] = chosen[name.removesuffix("_kept")]
            row[f"vs_{name}"] = paired_ratio(rates["shunter"], rates[name])
        rows.append(row)
    fat, best, kept = ([row[f"vs_{name}"]["median"] for row in rows] for name in SIDES[1:])
    return rows, {
        "geomean_vs_stock_fat": statistics.geometric_mean(fat),
        "worst_vs_best_stock": min(best),
        "geomean_vs_best_stock": statistics.geometric_mean(best),
        "geomean_vs_best_stock_kept": statistics.geometric_mean(kept),
    }


def committed_selection(batches: tuple[int, ...]) -> dict[int, Row]:
    """The settings that the committed full run chose."""
    rows = {row["batch"]: row for row in committed_rows(NAME)}
    return {
        batch: {name: rows[batch][name]["setting"] for name in ("stock_fat", "best_stock")}
        for batch in batches
        if batch in rows
    }


def main() -> None:
    """Run and write the result."""
    parser = Parser(__doc__)
    parser.add_argument("--seconds", type=float, help="per measurement; default 8, quick 3")
    parser.add_argument("--batches", type=int, nargs="+")
    args = parser.arguments()
    batches = tuple(args.batches or (QUICK_BATCHES if args.quick else BATCHES))
    seconds = args.seconds or (3 if args.quick else 8)
    selection: dict[int, Any] = committed_selection(batches) if args.quick else {}
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        stores: list[Path] = make_stores(folder, "ours", "stock", "kept")
        ours = Side(stores[0], shunter=True, settings=SETTINGS, workload=PHOTOGRAPHS)
        measured = profile(ours)
        stack.enter_context(ours)
        stock = Side(stores[1], shunter=False, workload=PHOTOGRAPHS)
        stack.enter_context(stock)
        variables = {TUNABLES: ALLOCATION}
        kept = Side(stores[2], shunter=False, workload=PHOTOGRAPHS, variables=variables)
        stack.enter_context(kept)
        for batch in batches:
            if batch not in selection:
                selection[batch] = select(stock, batch, seconds)
        ours.add(OURS, AUTO, name=MODEL)
        samples = measure(ours, stock, kept, selection, args.rounds, seconds, args.quick)
    rows, headline = summarise(samples, selection)
    headline["profile_seconds"] = measured.seconds
    path = write_result(NAME, quick=args.quick, rows=rows, headline=headline, samples=samples)
    for row in rows:
        texts = ", ".join(f"{name} {row[name]['batch_ms']:.0f} ms" for name in SIDES)
        ratios = " ".join(f"{row[f'vs_{name}']['median']:.2f}" for name in SIDES[1:])
        print(f"batch {row['batch']} ({row['configuration']}): {texts}; ratios {ratios}")
    print(json.dumps(headline), path.name)


if __name__ == "__main__":
    main()
