"""Closed loops of 1 to 128 connections: our backend for Triton against its Python backend.

A model that does nothing (784 bytes in, 40 out) and LeNet (a digit of 784 bytes), asked by wrk with
tensors as bytes and as JSON, and by h2load with gRPC, all encoded once. Both sides are the same
``tritonserver``, one thread for torch. The Python backend is measured in every setting of a grid
(batch, instances, delay of its dynamic batcher) first; for every model, kind of request and number
of connections the best is measured again in alternating rounds with ours, which has one setting
(batch 64, one worker) for all, and for the model that does nothing with a backend in C that answers
at once: the limit of every backend. ``cpu_us`` is processor time of the server, its stubs and
workers per request. ``--perf-analyzer`` adds rows by Triton's own load generator, whose last
release on PyPI is in tritonclient 2.53 and before; it takes more of the host than wrk and h2load
and does not count for the claims.

    worst_throughput_vs_best_python_backend    the smallest of the median ratios
    geomean_vs_best_python_backend             their geometric mean
    cpu_per_request_vs_python_backend          ratio of ``cpu_us``, geometric mean of the medians
    worst_cpu_per_request_vs_python_backend    the largest
    geomean_vs_front_end_alone                 of the model that does nothing: ours to the limit
    limit_geomean_vs_best_python_backend       of that: the limit to the Python backend
    limit_cpu_vs_python_backend                of that: its processor time to the Python backend's
    failed_requests                            of ours

Examples:
    python bench/triton_sweep.py                     # all of it, about 50 minutes
    python bench/triton_sweep.py --quick             # a smaller grid, 1 and 64 connections
    python bench/triton_sweep.py --kinds grpc --models lenet
    python bench/triton_sweep.py --quick --perf-analyzer
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import tempfile
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

from common import Parser, Progress, Row, keep, paired_ratio, write_result
from rivals import perf_analyzer, triton_rpc, triton_server
from rivals.environments import Unavailable
from rpc import h2load
from rpc.models import RpcModel, empty_models, real_models
from triton_sides import (
    ANALYZED,
    KINDS,
    LIMIT,
    FrontEndAlone,
    Ours,
    PythonBackend,
    Static,
    call_of,
    check,
    measured,
)

from shunter.plugins.errors import UserError

NAME = "triton_sweep"
POINTS, QUICK_POINTS = (1, 2, 4, 8, 16, 32, 64, 128), (1, 64)
GRID = [Static(1, n, 0) for n in (1, 2)] + [
    Static(*each) for each in product((8, 64), (1, 2), (0, 500, 2000))
]
QUICK_GRID = [Static(64, 1, 0), Static(64, 2, 0)]
BATCH, WORKERS = 64, 1
"""Ours."""
LIMITS = {
    "geomean_vs_front_end_alone": "throughput_to_limit",
    "limit_geomean_vs_best_python_backend": "limit_throughput_ratio",
    "limit_cpu_vs_python_backend": "limit_cpu_ratio",
}
"""Headline key and what it is the mean of."""
MODELS = {"empty": empty_models()[0]} | {m.name: m for m in real_models() if m.name == "lenet"}


@dataclass(frozen=True)
class Cell:
    """What is asked of both sides."""

    model: str
    kind: str
    connections: int

    @property
    def key(self) -> str:
        """For rows."""
        return f"{self.model} {self.kind} {self.connections}c"


@dataclass
class Found:
    """Of a cell: the best setting of the Python backend, and rounds of all sides."""

    setting: Static
    ours: list[Row] = field(default_factory=list)
    theirs: list[Row] = field(default_factory=list)
    limit: list[Row] = field(default_factory=list)

    def ratio(self, name: str, side: str = "ours", other: str = "theirs") -> Row:
        """Of one side to another."""
        rows: list[list[Row]] = [getattr(self, side), getattr(self, other)]
        return paired_ratio(*([each[name] for each in one] for one in rows))


def select(
    server: PythonBackend, cells: list[Cell], grid: list[Static], seconds: float
) -> list[Row]:
    """Every setting in every cell, one model loaded at a time."""
    rows: list[Row] = []
    models = list(dict.fromkeys(cell.model for cell in cells))
    progress = Progress(len(models) * len(grid))
    for name, setting in product(models, grid):
        progress.step(f"selecting: {name} {setting}")
        model = server.load(MODELS[name], setting)
        check(server, model, None)
        calls: dict[str, Any] = {}
        for cell in (each for each in cells if each.model == name):
            if cell.kind not in calls:
                calls[cell.kind] = call_of(server, model, cell.kind)
            found = measured(server, model, calls[cell.kind], cell.connections, seconds)
            rows.append({"phase": "select", **asdict(cell), **asdict(setting), **found})
        server.unload(MODELS[name], setting)
    return rows


def best(rows: Iterable[Row], cell: Cell) -> Static:
    """The setting with the highest rate in a cell."""
    mine = [row for row in rows if all(row[k] == v for k, v in asdict(cell).items())]
    top = max(mine, key=lambda row: row["rps"])
    return Static(top["batch"], top["instances"], top["delay_us"])


def measure(
    ours: Ours,
    python: PythonBackend,
    limit: FrontEndAlone | None,
    found: dict[Cell, Found],
    args: argparse.Namespace,
) -> None:
    """Rounds of all sides in turn. Of the Python backend only the setting of the cell is loaded,
    so that no process of another takes memory or time.
    """
    groups: dict[tuple[str, Static], list[Cell]] = {}
    for cell, each in found.items():
        groups.setdefault((cell.model, each.setting), []).append(cell)
    progress = Progress(args.rounds * len(groups))
    for number in range(args.rounds):
        for (name, setting), cells in groups.items():
            progress.step(f"round {number + 1}: {name} {setting}")
            model = MODELS[name]
            named = python.load(model, setting)
            check(python, named, check(ours, model, None) if name != "empty" else None)
            for cell in cells:
                sides: list[tuple[Any, RpcModel, list[Row]]]
                sides = [(ours, model, found[cell].ours), (python, named, found[cell].theirs)]
                if limit and name == "empty":
                    sides.append((limit, limit.named(model, LIMIT), found[cell].limit))
                for server, asked, rows in sides[:: 1 if number % 2 else -1]:
                    call = call_of(server, asked, cell.kind)
                    rows.append(measured(server, asked, call, cell.connections, args.seconds))
            python.unload(model, setting)
            keep(NAME, args.quick, [{c.key: [f.ours, f.theirs, f.limit]} for c, f in found.items()])


def rows_of(found: dict[Cell, Found]) -> list[Row]:
    """Medians over the rounds, and the ratios."""
    rows = []
    for cell, each in found.items():
        row: Row = {**asdict(cell), "python_setting": asdict(each.setting)}
        sides = (("shunter", each.ours), ("python", each.theirs), ("limit", each.limit))
        for side, rounds in (side for side in sides if side[1]):
            row[side] = {
                name: round(statistics.median(one[name] for one in rounds), 1)
                for name in ("rps", "p50_us", "p99_us", "cpu_us")
            }
            row[side]["failed"] = sum(one["failed"] for one in rounds)
        row["throughput_ratio"], row["cpu_ratio"] = each.ratio("rps"), each.ratio("cpu_us")
        if each.limit:
            row["throughput_to_limit"] = each.ratio("rps", "ours", "limit")
            row["limit_throughput_ratio"] = each.ratio("rps", "limit")
            row["limit_cpu_ratio"] = each.ratio("cpu_us", "limit")
        rows.append(row)
    return rows


def headline(rows: list[Row]) -> Row:
    """The claims."""
    rows = [row for row in rows if row["kind"] not in ANALYZED]
    rates = [row["throughput_ratio"]["median"] for row in rows]
    cpu = [row["cpu_ratio"]["median"] for row in rows]

    def mean(values: list[float]) -> float:
        return statistics.geometric_mean(values) if min(values) > 0 else math.nan

    top: Row = {
        "worst_throughput_vs_best_python_backend": min(rates),
        "geomean_vs_best_python_backend": mean(rates),
        "cpu_per_request_vs_python_backend": mean(cpu),
        "worst_cpu_per_request_vs_python_backend": max(cpu),
    }
    for name, ratio in LIMITS.items():
        of_limit = [row[ratio]["median"] for row in rows if ratio in row]
        top |= {name: mean(of_limit)} if of_limit else {}
    failed = sum(row["shunter"]["failed"] for row in rows)
    return {name: round(value, 3) for name, value in top.items()} | {"failed_requests": failed}


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = Parser(__doc__, rounds=5, quick_rounds=2)
    parser.add_argument("--models", nargs="+", choices=list(MODELS), default=list(MODELS))
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS)
    parser.add_argument("--connections", nargs="+", type=int)
    parser.add_argument("--perf-analyzer", action="store_true", help="more rows, by that")
    parser.add_argument("--seconds", type=float, help="of a load; default 2, quick 1")
    parser.add_argument("--select-seconds", type=float, default=1, help="default 1")
    args = parser.arguments()
    args.connections = args.connections or (QUICK_POINTS if args.quick else POINTS)
    args.seconds = args.seconds or (1.0 if args.quick else 2.0)
    return args


def main() -> None:
    """Run and write the result."""
    args = arguments()
    if "grpc" in args.kinds:
        h2load.require()
    try:
        if args.perf_analyzer:
            perf_analyzer.ensure()
        triton_server.ensure()
        triton_rpc.client_module()
    except Unavailable as error:
        sys.exit(f"there is no Triton to compare with: {error}")
    kinds = (*args.kinds, *(ANALYZED if args.perf_analyzer else ()))
    cells = [Cell(*each) for each in product(args.models, kinds, args.connections)]
    grid = QUICK_GRID if args.quick else GRID
    models: list[RpcModel] = [MODELS[name] for name in args.models]
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        python = stack.enter_context(PythonBackend(models, grid))
        selection = select(python, cells, grid, args.select_seconds)
        try:
            ours = stack.enter_context(Ours(folder, models, BATCH, WORKERS))
        except UserError as error:
            sys.exit(str(error))
        found = {cell: Found(best(selection, cell)) for cell in cells}
        limit = None
        if "empty" in args.models:
            limit = stack.enter_context(FrontEndAlone(MODELS["empty"]))
            limit.load(MODELS["empty"], LIMIT)
        measure(ours, python, limit, found, args)
    rows = rows_of(found)
    top = headline(rows)
    rounds = [
        {"phase": "measure", **asdict(cell), "ours": each.ours, "theirs": each.theirs}
        | ({"limit": each.limit} if each.limit else {})
        for cell, each in found.items()
    ]
    path = write_result(NAME, quick=args.quick, rows=rows, headline=top, samples=selection + rounds)
    for row in rows:
        print(json.dumps(row))
    print(json.dumps(top, indent=1))
    print(path)


if __name__ == "__main__":
    main()
