"""Five models and hot memory for four: what a cache of models costs, and what it saves.

The paper's Figures 2 to 4, and the concurrency that it could not run. Requests come for the models
one after the other (the worst case of a cache), at random, and by Zipf's law with 1.1; there are 1
and 32 of them at a time. Every answer is compared: the model's name and its numbers.

    stock        TorchServe with a worker for each model: everything is resident
    on_demand    TorchServe with four models at most: unregistered and registered as they are
                 asked for, the least recently used one leaves
    dedicated    Shunter with a worker for each model: everything is resident
    pool         Shunter with `pool: shared`; each pool process has hot memory for four of the five

Sides are interleaved, round by round; `on_demand` has fewer rounds of its own length, for a
request there may take seconds. The pattern `hits` asks for the same four models all the time, in
turn, so that each is found in hot memory.

    hit_cost_vs_dedicated             p50 of `hits` at concurrency 1, of each model (geometric mean)
    zipf_throughput_vs_all_resident   at concurrency 32, against the better of stock and dedicated
                                      in every round
    sequential_p99_vs_stock_on_demand p99 at concurrency 1
    wrong_answers, lost_requests      of all sides

Examples:
    python bench/rafiqi_cache.py                    # 7 rounds, about 25 minutes
    python bench/rafiqi_cache.py --quick            # under two minutes
    python bench/rafiqi_cache.py --megabytes 233 --pool-workers 1
    python bench/rafiqi_cache.py --sides stock dedicated --rounds 3
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from common import Parser, Progress, Row, keep, paired_ratio, write_result
from pool.callers import PATTERNS, closed_loop, sequential
from pool.models import Packed, models, pack_all
from pool.on_demand import OnDemand
from pool.servers import DEDICATED, POOL, STOCK, PoolServer

NAME = "rafiqi_cache"
ON_DEMAND = "on_demand"
RESIDENT = (STOCK, DEDICATED)
MODELS, ROOM = 5, 4
CONCURRENCY = (1, 32)
HITS = "hits"


def hot_mb(packed: Sequence[Packed]) -> int:
    """Room for any four of them, and by half a model not for all."""
    return math.ceil((ROOM + 0.5) * max(each.bytes for each in packed) / 1e6)


def hits(before: Any, after: Any) -> float | None:
    """Share of the batches in between whose weights were hot; None where nobody says.

    Pool processes say it once a second.
    """
    counts = [
        sum(pool[key] for pool in found["pools"]) if found else 0
        for found in (before, after)
        for key in ("hits", "misses")
    ]
    new_hits, new_misses = counts[2] - counts[0], counts[3] - counts[1]
    return new_hits / (new_hits + new_misses) if new_hits + new_misses > 0 else None


class Bed:
    """Servers, and what is asked of them."""

    name = NAME
    """Under which its rows are noted while it runs."""

    def __init__(self, args: argparse.Namespace, packed: list[Packed]) -> None:
        """All answer alike."""
        self.args, self.packed = args, packed
        self.servers: dict[str, PoolServer] = {}
        self.demand: OnDemand | None = None
        self.rows: list[Row] = []

    def start(self, stack: ExitStack, store: Path) -> None:
        """All sides that were wanted, warmed up."""
        for side in self.args.sides:
            self.start_side(side, stack, store)

    def start_side(self, side: str, stack: ExitStack, store: Path) -> None:
        """One of them."""
        on_demand = side == ON_DEMAND
        server = PoolServer(
            STOCK if on_demand else side,
            store,
            models=() if on_demand else self.packed,
            hot_mb=hot_mb(self.packed),
            workers=self.args.pool_workers,
        )
        self.servers[side] = stack.enter_context(server)
        if on_demand:
            self.demand = OnDemand(server.register, server.unregister, ROOM)
        else:
            self.measure(side, "sequential", 8, -1, self.args.warm_up)
            self.measure(side, "sequential", 1, -1, self.args.warm_up / 2)

    def measure(self, side: str, pattern: str, clients: int, round_: int, seconds: float) -> None:
        """One cell; rounds below 0 are warm-up."""
        server = self.servers[side]
        if pattern == HITS:
            # Another four in every round: what leaves, leaves before it is measured.
            asked = [self.packed[(round_ + i) % MODELS] for i in range(ROOM)]
            closed_loop(server.port, asked, sequential(ROOM, 0), 1, seconds / 4)
            make = sequential
        else:
            asked, make = self.packed, PATTERNS[pattern]
        around = self.demand.holding if side == ON_DEMAND and self.demand else None
        before = server.cache()
        ends = closed_loop(
            server.port, asked, make(len(asked), round_ + 1), clients, seconds, around=around
        )
        if round_ >= 0:
            row = {"side": side, "pattern": pattern, "concurrency": clients, "round": round_}
            row |= ends.row() | {"hits": hits(before, server.cache())}
            self.rows.append(row | {"memory": server.memory()})

    def cells(self) -> list[tuple[str, int]]:
        """Patterns and how many requests there are at a time."""
        return [(p, c) for p in (HITS, *PATTERNS) for c in CONCURRENCY]

    def run(self) -> None:
        """All rounds."""
        args = self.args
        resident = [each for each in args.sides if each != ON_DEMAND]
        demand_cells = self.cells()[2:] if not args.quick else [("sequential", 1)]
        demand_rounds = args.demand_rounds if ON_DEMAND in args.sides else 0
        steps = args.rounds * len(self.cells()) + demand_rounds * len(demand_cells)
        progress = Progress(steps)
        for round_ in range(args.rounds):
            for pattern, clients in self.cells():
                progress.step(f"round {round_ + 1}: {pattern}, {clients} at a time")
                for i in range(len(resident)):
                    side = resident[(round_ + i) % len(resident)]
                    self.measure(side, pattern, clients, round_, args.seconds)
                keep(self.name, args.quick, self.rows)
        for round_ in range(demand_rounds):
            for pattern, clients in demand_cells:
                progress.step(f"on demand, round {round_ + 1}: {pattern}, {clients} at a time")
                self.measure(ON_DEMAND, pattern, clients, round_, args.demand_seconds)
                keep(self.name, args.quick, self.rows)


def values(rows: list[Row], side: str, pattern: str, clients: int, key: str) -> list[float]:
    """Of all rounds."""
    wanted = (side, pattern, clients)
    chosen = [r for r in rows if (r["side"], r["pattern"], r["concurrency"]) == wanted]
    return [row[key] for row in sorted(chosen, key=lambda row: row["round"])]


def summarise(rows: list[Row]) -> list[Row]:
    """A row for each cell: medians of every side, and the pool against the others."""
    points = []
    cells = sorted({(r["pattern"], r["concurrency"]) for r in rows})
    for pattern, clients in cells:
        point: Row = {"pattern": pattern, "concurrency": clients}
        sides = [
            s
            for s in dict.fromkeys(r["side"] for r in rows)
            if values(rows, s, pattern, clients, "rate")
        ]
        for side in sides:
            keys = ("rate", "p50_ms", "model_p50_ms", "p90_ms", "p99_ms", "requests")
            point[side] = {
                key: round(statistics.median(values(rows, side, pattern, clients, key)), 3)
                for key in keys
            }
        told = [
            share for share in values(rows, POOL, pattern, clients, "hits") if share is not None
        ]
        point["hits"] = statistics.median(told) if told else None
        for side in sides:
            if POOL in sides and side != POOL:
                for key in ("rate", "p50_ms", "model_p50_ms", "p99_ms"):
                    ours = values(rows, POOL, pattern, clients, key)
                    theirs = values(rows, side, pattern, clients, key)
                    pairs = list(zip(ours, theirs, strict=False))  # on demand has fewer rounds
                    point[f"{key}_vs_{side}"] = paired_ratio(*zip(*pairs, strict=True))
        points.append(point)
    return points


def headline(rows: list[Row], points: list[Row]) -> Row:
    """The claims, of sides that were measured."""
    found: Row = {}
    cell = {(point["pattern"], point["concurrency"]): point for point in points}
    key = f"model_p50_ms_vs_{DEDICATED}"
    if key in cell.get((HITS, 1), {}):
        found["hit_cost_vs_dedicated"] = cell[HITS, 1][key]["median"]
    resident = [s for s in RESIDENT if values(rows, s, "zipf", 32, "rate")]
    ours = values(rows, POOL, "zipf", 32, "rate")
    if ours and resident:
        theirs = zip(*(values(rows, s, "zipf", 32, "rate") for s in resident), strict=True)
        ratio = paired_ratio(ours, [max(each) for each in theirs])
        found["zipf_throughput_vs_all_resident"] = ratio["median"]
    key = f"p99_ms_vs_{ON_DEMAND}"
    if key in cell.get(("sequential", 1), {}):
        found["sequential_p99_vs_stock_on_demand"] = cell["sequential", 1][key]["median"]
    for name, of in (("wrong_answers", "wrong"), ("lost_requests", "lost")):
        found[name] = sum(row[of] for row in rows)
    return found


def arguments(
    about: str | None = __doc__, megabytes: tuple[float, float] = (96.0, 48.0)
) -> argparse.Namespace:
    """The command line. ``megabytes``: of a model unless given, and in a quick run."""
    parser = Parser(about, rounds=7, quick_rounds=2)
    sides = (STOCK, ON_DEMAND, DEDICATED, POOL)
    parser.add_argument("--sides", nargs="+", choices=sides, default=list(sides))
    full, quick = megabytes
    text = f"of a model; default {full:.0f}, quick {quick:.0f}"
    parser.add_argument("--megabytes", type=float, help=text)
    parser.add_argument("--pool-workers", type=int, default=2, help="default 2")
    parser.add_argument("--seconds", type=float, help="of a cell; default 6, quick 1")
    parser.add_argument("--demand-rounds", type=int, help="default 3, quick 1")
    parser.add_argument("--demand-seconds", type=float, help="default 25, quick 10")
    parser.add_argument("--warm-up", type=float, help="seconds; default 8, quick 2")
    args = parser.arguments()
    args.megabytes = args.megabytes or (quick if args.quick else full)
    args.seconds = args.seconds or (1.0 if args.quick else 6.0)
    args.demand_rounds = args.demand_rounds or (1 if args.quick else 3)
    args.demand_seconds = args.demand_seconds or (10.0 if args.quick else 25.0)
    args.warm_up = args.warm_up or (2.0 if args.quick else 8.0)
    return args


def main() -> None:
    """Measure, print, write."""
    args = arguments()
    with ExitStack() as stack:
        store = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        # Of about the same size: which of them is missing does not matter.
        packed = pack_all(models(MODELS, args.megabytes, args.megabytes), store)
        bed = Bed(args, packed)
        bed.start(stack, store)
        bed.run()
    points = summarise(bed.rows)
    top = headline(bed.rows, points)
    path = write_result(NAME, quick=args.quick, rows=points, headline=top, samples=bed.rows)
    for point in points:
        print(json.dumps(point))
    print(json.dumps(top, indent=1))
    print(path)


if __name__ == "__main__":
    main()
