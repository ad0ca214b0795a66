"""A hundred different models on one small host: memory, start-up, and answers by Zipf's law.

A hundred archives, each with other weights, of four architectures and of 4 to 44 MB, are registered
when the server starts. Then every model is asked with every input, and then all of them in open
loop, Poisson arrivals by Zipf's law with 1.1, at a share of what the server can do. A
request names the numbers that its model must give; a wrong answer is not given, and counted.

    pool         Shunter with `pool: shared` and 2 GB of hot memory in all
    stock        TorchServe with as many of these models as have room in the memory of the pool
    dedicated    Shunter with a worker for each model, of as many (not by default)

Memory is the sum of the proportional set sizes of all processes of a server, after the load, and of
what nobody has touched of its files in memory.

    models                       that are registered and answer
    total_pss_mb                 of the pool
    stock_models_in_same_memory  how many stock TorchServe holds in it
    wrong_answers                of all sides
    lost_requests                of the pool
    p99_zipf_ms                  of the pool, in open loop
    start_seconds, stock_start_seconds, stock_start_seconds_per_model

Examples:
    python bench/many_models.py                      # about 15 minutes
    python bench/many_models.py --quick              # 12 small models, under two minutes
    python bench/many_models.py --models 400 --largest-mb 8 --hot-mb 512
    python bench/many_models.py --sides dedicated stock --models 6
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path

import load
from accounting import summary
from common import Parser, Progress, Row, keep, write_result
from pool.callers import ask_each, closed_loop, zipf, zipf_weights
from pool.models import SEEDS, Packed, models, pack_all
from pool.servers import POOL, SIDES, STOCK, PoolServer

NAME = "many_models"
CLIENTS = 8
REFUSED = "406"
"""The status of an answer that is not the expected one."""


def zipf_load(
    server: PoolServer, packed: Sequence[Packed], rate: float, seconds: float, warm_up: float
) -> Row:
    """Poisson arrivals, each model its share of ``rate``."""
    streams = [
        load.Stream(
            each.name,
            server.url(each),
            arrivals={
                "kind": "poisson",
                "rate": rate * share,
                "seconds": seconds + warm_up,
                "seed": number,
            },
            bodies=[each.body(seed) for seed in range(SEEDS)],
            choose="random",
            seed=number,
        )
        for number, (each, share) in enumerate(zip(packed, zipf_weights(len(packed)), strict=True))
    ]
    found = load.run(load.Spec(streams, timeout_s=60, warmup_s=warm_up))
    counted = found.samples.between(*found.counted_s)
    row = summary(counted, seconds, None)
    row["wrong"] = row["statuses"].get(REFUSED, 0)
    row["lost"] = row["sent"] - row["ok"] - row["wrong"]
    return row | {"client": found.client}


def measure(
    side: str, packed: Sequence[Packed], store: Path, args: argparse.Namespace, rate: float | None
) -> Row:
    """A server with these models. ``rate``: of the open loop; None: a share of what it can do."""
    workers = args.pool_workers
    server = PoolServer(side, store, models=packed, hot_mb=args.hot_mb // workers, workers=workers)
    with server:
        row: Row = {"side": side, "models": len(packed), "start_seconds": server.start_seconds}
        row["weights_mb"] = sum(each.bytes for each in packed) / 1e6
        row["memory_at_start"] = server.memory()
        row["each"] = ask_each(server.port, packed).row()
        closed = closed_loop(server.port, packed, zipf(len(packed), 1), CLIENTS, args.seconds / 4)
        row["closed"] = closed.row()
        rate = rate or max(1.0, args.share * row["closed"]["rate"])
        row["rate"] = rate
        row["zipf"] = zipf_load(server, packed, rate, args.seconds, args.seconds / 8)
        row["memory"], row["cache"] = server.memory(), server.cache()
    parts = (row["each"], row["closed"], row["zipf"])
    for key in ("wrong", "lost"):
        row[key] = sum(part[key] for part in parts)
    return row


def fill(side: str, packed: Sequence[Packed], store: Path, limit_mb: float) -> Row:
    """Register one after the other as long as the memory of all is within a limit."""
    row: Row = {"side": side, "phase": "fill", "limit_mb": limit_mb, "total_mb": []}
    with PoolServer(side, store) as server:
        row["empty_mb"] = server.memory()["total"]
        for each in packed:
            server.register(each)
            ask_each(server.port, [each])
            row["total_mb"].append(server.memory()["total"])
            if row["total_mb"][-1] > limit_mb:
                break
    row["models"] = sum(size <= limit_mb for size in row["total_mb"])
    return row


def run(args: argparse.Namespace, store: Path) -> list[Row]:
    """All sides; the first one says how much memory the others have."""
    packed = pack_all(models(args.models, args.smallest_mb, args.largest_mb), store)
    progress = Progress(2 * len(args.sides) - 1)
    first, *others = args.sides
    progress.step(f"{first}: {len(packed)} models")
    rows = [measure(first, packed, store, args, None)]
    keep(NAME, args.quick, rows)
    for side in others:
        progress.step(f"{side}: how many models have room in the same memory")
        rows.append(fill(side, packed, store, rows[0]["memory"]["total"]))
        keep(NAME, args.quick, rows)
        room = max(1, rows[-1]["models"])
        progress.step(f"{side}: {room} models")
        rows.append(measure(side, packed[:room], store, args, rows[0]["rate"]))
        keep(NAME, args.quick, rows)
    return rows


def headline(rows: list[Row]) -> Row:
    """The claims."""
    first = rows[0]
    found: Row = {
        "models": first["models"],
        "total_pss_mb": first["memory"]["total"],
        "wrong_answers": sum(row.get("wrong", 0) for row in rows),
        "lost_requests": first["lost"],
        "p99_zipf_ms": first["zipf"]["p99_ms"],
        "start_seconds": round(first["start_seconds"], 2),
    }
    for row in rows[1:]:
        if row["side"] == STOCK and row.get("phase") == "fill":
            found["stock_models_in_same_memory"] = row["models"]
        elif row["side"] == STOCK:
            found["stock_start_seconds"] = round(row["start_seconds"], 2)
            each = row["start_seconds"] / row["models"]
            found["stock_start_seconds_per_model"] = round(each, 2)
    return found


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = Parser(__doc__, rounds=1, quick_rounds=1)
    parser.add_argument(
        "--sides", nargs="+", choices=SIDES, default=[POOL, STOCK], help="the first sets the memory"
    )
    parser.add_argument("--models", type=int, help="default 100, quick 12")
    parser.add_argument("--smallest-mb", type=float, default=4, help="default 4")
    parser.add_argument("--largest-mb", type=float, help="default 44, quick 16")
    parser.add_argument("--hot-mb", type=int, help="of all workers; default 2048, quick 96")
    parser.add_argument("--pool-workers", type=int, default=2, help="default 2")
    parser.add_argument("--seconds", type=float, help="of open loop; default 120, quick 8")
    parser.add_argument("--share", type=float, default=0.5, help="of the closed loop's rate")
    args = parser.arguments()
    quick = args.quick
    args.models = args.models or (12 if quick else 100)
    args.largest_mb = args.largest_mb or (16.0 if quick else 44.0)
    args.hot_mb = args.hot_mb or (96 if quick else 2048)
    args.seconds = args.seconds or (8.0 if quick else 120.0)
    return args


def main() -> None:
    """Measure, print, write."""
    args = arguments()
    with tempfile.TemporaryDirectory() as store:
        rows = run(args, Path(store))
    top = headline(rows)
    path = write_result(NAME, quick=args.quick, rows=rows, headline=top)
    for row in rows:
        print(json.dumps(row))
    print(json.dumps(top, indent=1))
    print(path)


if __name__ == "__main__":
    main()
