"""End to end through TorchServe: the best configuration against a fat worker and stock's best.

ResNet-50 with real pre- and post-processing (JPEG decode, resize, top 5), REST, as many clients
as the batch is large: the time in which all of them are answered is the latency of that batch.
Shunter has a profile of the model and changes its configuration by itself while the load changes.

Its workers keep the memory of a batch for the next one (``bench/allocation.py``). An operator can
have that with stock workers, by variables of the environment, so stock has them here too ("same
memory"). What is left is the choice of the configuration, and the convolutions of 1 x 1 of workers
with one thread (``bench/pointwise.py``), for which stock has no variable.

Two rivals, both tuned for each batch size: one fat worker (all cores) at its best delay, and the
best of all settings (one fat worker, or one single-threaded worker per core; batch size; delay).
They are selected in a first pass and measured in a second one. ``--plain`` adds stock as it comes,
tuned likewise in that environment.

A row has four rounds; where it is a tie with stock's best (the interval holds 1), up to seven.
A measurement lasts six seconds, or a quarter of a second for each client if that is longer, and
twice as long where that was less than two requests of each client.

Examples:
    python bench/packrat_serving.py                 # 4 to 7 rounds, about 50 minutes
    python bench/packrat_serving.py --plain         # about 75 minutes
    python bench/packrat_serving.py --quick         # two batch sizes, settings of the full run
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

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
from sides import PHOTOGRAPHS, Setting, Side, answered_per_s

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
MORE_ROUNDS = 3
"""At most, to break a tie."""
SAME_MEMORY = ("fat_same_memory", "best_stock_same_memory")
PLAIN = ("stock_fat", "best_stock")
"""A fat worker and the best setting: with our settings of the allocator, and as stock comes."""
Chosen = dict[str, Setting]
"""The setting of each rival for one batch size."""
DELAYS_MS = (5, 50)
CORES = read_topology().cores
MODEL = "resnet50"
AUTO = {**PHOTOGRAPHS.section, "auto": True}
OURS = Setting(batch=64, delay_ms=50, workers=1, threads=0, queue=1000)
SETTINGS = """
[configuration]
timeout_s = 4
"""
LONGEST_SETTLING_S = 400
SETTLED_S = 90
"""Without a change for so long, the configuration is the one for this load: on a slow host it came
after 57 s."""
JAVA_S = 60
"""Requests before ours is measured: rivals' Java compiles while their settings are tried."""


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
    """Requests answered per second with so many clients."""
    return answered_per_s(url, batch, max(seconds, batch / 4), **PHOTOGRAPHS.requests)


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


def select(
    stock: Side, names: Sequence[str], batches: Sequence[int], seconds: float
) -> dict[int, Chosen]:
    """The best fat setting and the best of all for each batch size, by one measurement of each.

    A setting is registered once, for all batch sizes at which it is tried.
    """
    found: dict[int, list[tuple[float, Setting]]] = {batch: [] for batch in batches}
    settings = dict.fromkeys(setting for batch in batches for setting in usual(batch))
    progress = Progress(len(settings))
    for setting in settings:
        progress.step(f"selection for {names[1]}: {setting.name}")
        url = stock.add(setting)
        for batch in batches:
            if setting in usual(batch):
                found[batch].append((ask(url, batch, seconds), setting))
        stock.remove(setting)
    return {batch: dict(zip(names, best_of(pairs), strict=True)) for batch, pairs in found.items()}


def best_of(pairs: list[tuple[float, Setting]]) -> tuple[Setting, Setting]:
    """The fastest with one worker, and the fastest of all."""
    ordered = [setting for _, setting in sorted(pairs, key=lambda pair: -pair[0])]
    return next(setting for setting in ordered if setting.workers == 1), ordered[0]


def measure(
    ours: Side,
    rivals: dict[str, Side],
    selection: dict[int, Chosen],
    args: argparse.Namespace,
) -> list[Row]:
    """Paired rounds at each batch size."""
    samples: list[Row] = []
    progress = Progress(len(selection) * args.rounds)
    for batch, chosen in selection.items():
        urls = {name: side.add(chosen[name]) for name, side in rivals.items()}
        ours.set_auto(MODEL, True)
        configuration = settle(ours, batch)
        # While the others have their turn there is no load, for which it would change.
        ours.set_auto(MODEL, False)
        urls = {"shunter": ours.url(MODEL), **urls}
        progress.step(f"{batch} clients, {configuration}")
        for row in rounds_of(urls, batch, args):
            samples.append({**row, "configuration": ours.status(MODEL)["configuration"]})
            keep(NAME, args.quick, samples)
        for side, setting in {(side, chosen[name]) for name, side in rivals.items()}:
            side.remove(setting)
    return samples


def rounds_of(urls: dict[str, str], batch: int, args: argparse.Namespace) -> Iterator[Row]:
    """Rounds of one batch size, more of them for a tie; the sides take turns in going first."""
    names, rows = list(urls), []
    most = args.rounds + (0 if args.quick else MORE_ROUNDS)
    while len(rows) < args.rounds or (len(rows) < most and is_tie(rows)):
        first = len(rows) % len(names)
        row: Row = {"batch": batch, "round": len(rows)}
        for name in names[first:] + names[:first]:
            row[name] = ask(urls[name], batch, args.seconds)
        rows.append(row)
        yield row


def is_tie(rows: list[Row]) -> bool:
    """Whether nobody can say if stock's best with the same memory is faster."""
    found = paired_ratio(*([row[name] for row in rows] for name in ("shunter", SAME_MEMORY[1])))
    return bool(found["low"] <= 1 <= found["high"])


def summarise(
    samples: list[Row], selection: dict[int, Chosen], names: Sequence[str]
) -> tuple[list[Row], Row]:
    """A row for each batch size, with paired ratios of the rates to each rival's."""
    rows = []
    for batch, chosen in selection.items():
        mine = [sample for sample in samples if sample["batch"] == batch]
        rates = {name: [sample[name] for sample in mine] for name in ("shunter", *names)}
        row: Row = {"batch": batch, "configuration": mine[-1]["configuration"]}
        for name, each in rates.items():
            per_s = statistics.median(each)
            row[name] = {"per_s": per_s, "batch_ms": batch / per_s * 1e3}
        for name in names:
            row[name]["setting"] = chosen[name].row()
            row[f"vs_{name}"] = paired_ratio(rates["shunter"], rates[name])
        rows.append(row)
    headline: Row = {}
    for fat, best in (SAME_MEMORY, PLAIN):
        if best not in names:
            continue
        ratios = {name: [row[f"vs_{name}"]["median"] for row in rows] for name in (fat, best)}
        headline[f"geomean_vs_{fat}"] = statistics.geometric_mean(ratios[fat])
        headline[f"worst_vs_{best}"] = min(ratios[best])
        headline[f"geomean_vs_{best}"] = statistics.geometric_mean(ratios[best])
    return rows, headline


def committed_selection(batches: Sequence[int], names: Sequence[str]) -> dict[int, Chosen]:
    """The settings that the committed full run chose; none unless it has them all."""
    rows = {row["batch"]: row for row in committed_rows(NAME)}
    if not all(name in rows.get(batch, ()) for batch in batches for name in names):
        return {}
    return {b: {name: Setting(**rows[b][name]["setting"]) for name in names} for b in batches}


def choose(
    rivals: dict[str, Side], batches: Sequence[int], args: argparse.Namespace
) -> dict[int, Chosen]:
    """The setting of every rival for each batch size."""
    if args.quick and (committed := committed_selection(batches, tuple(rivals))):
        return committed
    selection: dict[int, Chosen] = {batch: {} for batch in batches}
    for names in (SAME_MEMORY, PLAIN):
        if names[1] in rivals:
            found = select(rivals[names[1]], names, batches, args.seconds)
            for batch in batches:
                selection[batch] |= found[batch]
    return selection


def run_all(args: argparse.Namespace, batches: Sequence[int]) -> tuple[list[Row], list[Row], Row]:
    """Servers, selection and measurement: rows, samples and headline."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        stores: list[Path] = make_stores(folder, "ours", "kept", "stock")
        ours = Side(stores[0], shunter=True, settings=SETTINGS, workload=PHOTOGRAPHS)
        measured = profile(ours)
        stack.enter_context(ours)
        rivals: dict[str, Side] = {}
        environments = [(SAME_MEMORY, {TUNABLES: ALLOCATION}, stores[1])]
        environments += [(PLAIN, {}, stores[2])] if args.plain else []
        for names, variables, store in environments:
            side = Side(store, shunter=False, workload=PHOTOGRAPHS, variables=variables)
            rivals |= dict.fromkeys(names, stack.enter_context(side))
        selection = choose(rivals, batches, args)
        ours.add(OURS, AUTO, name=MODEL)
        if not args.quick:
            ask(ours.url(MODEL), min(batches), JAVA_S)
        samples = measure(ours, rivals, selection, args)
    rows, headline = summarise(samples, selection, tuple(rivals))
    return rows, samples, headline | {"profile_seconds": measured.seconds}


def main() -> None:
    """Run and write the result."""
    parser = Parser(__doc__, rounds=4)
    parser.add_argument("--seconds", type=float, default=6, help="per measurement; default 6")
    parser.add_argument("--batches", type=int, nargs="+")
    parser.add_argument("--plain", action="store_true", help="stock as it comes, too")
    args = parser.arguments()
    batches = tuple(args.batches or (QUICK_BATCHES if args.quick else BATCHES))
    rows, samples, headline = run_all(args, batches)
    path = write_result(NAME, quick=args.quick, rows=rows, headline=headline, samples=samples)
    for row in rows:
        print(f"batch {row['batch']} ({row['configuration']}): {row['shunter']['batch_ms']:.0f} ms")
        for name in (*SAME_MEMORY, *PLAIN):
            if name in row:
                ratio = "{median:.2f} ({low:.2f} to {high:.2f})".format(**row[f"vs_{name}"])
                print(f"  {name} {row[name]['batch_ms']:.0f} ms, ratio {ratio}")
    print(json.dumps(headline), path.name)


if __name__ == "__main__":
    main()
