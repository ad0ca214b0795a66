"""Seconds and memory until a server with 1, 10 or 100 models is ready, one worker each.

Two kinds of models: a ``plain`` handler that does not use torch, and ``torch``, networks of 4 MB.
TorchServe registers the models when it starts; it is ready when each of them has a worker that has
loaded. Memory is the sum of the proportional set sizes of all processes, and of what nobody has
touched of their files in memory, when every model has answered once.

    stock        TorchServe
    dedicated    Shunter
    pool         Shunter with ``pool: shared``, two processes

A side is not tried with more models than this machine has room for (LEAST_FREE_MB stays free); that
is told from what its last model took.

    KIND_seconds_vs_stock, KIND_memory_vs_stock    dedicated, with ten models; medians of the rounds
    SIDE_KIND_MODELS                               seconds and MB of each

Examples:
    python bench/start_up.py                       # 3 rounds, about 15 minutes
    python bench/start_up.py --quick               # 1 and 4 models, one round
    python bench/start_up.py --models 1 10 --kinds plain
"""

from __future__ import annotations

import json
import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import httpx
import psutil
from common import Parser, Progress, Row, keep, pack_sums, paired_ratio, write_result
from pool.models import models, pack_all
from pool.servers import DEDICATED, POOL, SIDES, STOCK, Archived, PoolServer

NAME = "start_up"
PLAIN, TORCH = KINDS = ("plain", "torch")
LEAST_FREE_MB = 4000
MANY = 10
"""More models are started in the first round only."""
NUMBERS = json.dumps(list(range(16))).encode()


@dataclass(frozen=True)
class Named:
    """A model of a shared archive."""

    name: str
    archive: str
    body: bytes


def packed(kind: str, count: int, store: Path) -> list[Named]:
    """So many models in a model store."""
    if kind == PLAIN:
        archive = pack_sums(store)
        return [Named(f"sums-{number}", archive, NUMBERS) for number in range(count)]
    found = pack_all(models(count, 4, 4), store)
    return [Named(each.name, each.archive, each.body(0)) for each in found]


def measure(side: str, store: Path, wanted: Sequence[Named]) -> Row:
    """Start a server, ask each of its models once, look at its memory."""
    given: Sequence[Archived] = wanted
    with PoolServer(side, store, models=given) as server:
        headers = {"Content-Type": "application/json"}
        for each in wanted:
            url = server.url(each)
            httpx.post(url, content=each.body, headers=headers, timeout=60).raise_for_status()
        return {"seconds": round(server.start_seconds, 2), "mb": server.memory()["total"]}


def has_room(rows: Sequence[Row], point: Row) -> bool:
    """Whether so many models will fit, by what most models of that kind took on this side."""
    same = [row for row in rows if all(row[key] == point[key] for key in ("side", "kind"))]
    if not same:
        return True
    largest = max(same, key=lambda row: row["models"])
    wanted = largest["mb"] / largest["models"] * point["models"]
    return wanted + LEAST_FREE_MB < psutil.virtual_memory().available / 1e6


def rows_of(rows: Sequence[Row]) -> list[Row]:
    """A row for each point: medians over the rounds."""
    found = []
    for key in dict.fromkeys((row["kind"], row["models"], row["side"]) for row in rows):
        mine = [row for row in rows if (row["kind"], row["models"], row["side"]) == key]
        point: Row = dict(zip(("kind", "models", "side"), key, strict=True))
        for name in ("seconds", "mb"):
            point[name] = round(statistics.median(row[name] for row in mine), 2)
        found.append(point)
    return found


def headline(rows: Sequence[Row], compared: int) -> Row:
    """The claims."""
    found: Row = {"models_compared": compared}
    for kind, (name, key) in product(KINDS, (("seconds", "seconds"), ("memory", "mb"))):
        ours, theirs = (
            {row["round"]: row[key] for row in rows if row | point == row}
            for point in (
                {"kind": kind, "models": compared, "side": DEDICATED},
                {"kind": kind, "models": compared, "side": STOCK},
            )
        )
        if both := sorted(ours.keys() & theirs.keys()):
            pair = [ours[each] for each in both], [theirs[each] for each in both]
            found[f"{kind}_{name}_vs_stock"] = round(paired_ratio(*pair)["median"], 3)
    for row in rows_of(rows):
        at = f"{row['side']}_{row['kind']}_{row['models']}"
        found |= {f"{at}_seconds": row["seconds"], f"{at}_mb": row["mb"]}
    return found


def main() -> None:
    """Measure, print, write."""
    parser = Parser(__doc__, rounds=3, quick_rounds=1)
    parser.add_argument("--models", type=int, nargs="+", help="default 1 10 100, quick 1 4")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS)
    args = parser.arguments()
    counts = sorted(args.models or ((1, 4) if args.quick else (1, 10, 100)))
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        stores = {kind: Path(folder) / kind for kind in args.kinds}
        names = {kind: packed(kind, counts[-1], store) for kind, store in stores.items()}
        points = list(product(args.kinds, counts, SIDES))
        progress = Progress(args.rounds * len(points))
        for number in range(args.rounds):
            for kind, count, side in points:
                if number and count > MANY:
                    continue
                progress.step(f"round {number + 1}: {side}, {count} {kind}")
                row: Row = {"side": side, "kind": kind, "models": count, "round": number}
                # A pool is there for handlers that have weights.
                if (side, kind) != (POOL, PLAIN) and has_room(rows, row):
                    rows.append(row | measure(side, stores[kind], names[kind][:count]))
                    keep(NAME, args.quick, rows)
    top = headline(rows, counts[-2] if len(counts) > 2 else counts[-1])
    path = write_result(NAME, quick=args.quick, rows=rows_of(rows), headline=top, samples=rows)
    for point in rows_of(rows):
        print(json.dumps(point))
    print(json.dumps(top, indent=1))
    print(path)


if __name__ == "__main__":
    main()
