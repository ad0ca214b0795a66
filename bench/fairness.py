"""One model flooded at ten times its capacity, nine others at one percent each: what they notice.

Ten models in one pool, or with workers of their own. What the flooded one can do is measured first,
in closed loop. Then, round by round and in turns, the nine others are asked in open loop with
one percent of that each, alone and beside the flood, which comes from a process of its own.
Most of the flood is refused with 503, as it must be: the queue of a model has an end.

    quiet_p99_flooded_vs_alone   p99 of all nine together; the median of the rounds, by the pool
    quiet_lost, wrong_answers    requests of the nine that were not answered, or wrongly

Examples:
    python bench/fairness.py                       # 7 rounds, about 12 minutes a side
    python bench/fairness.py --quick               # the pool alone, under two minutes
    python bench/fairness.py --sides pool dedicated --flood 20
    python bench/fairness.py --hot-mb 1000         # quiet models find their weights cold
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import load
import numpy as np
from accounting import summary
from common import Parser, Progress, Row, keep, paired_ratio, write_result
from pool.callers import closed_loop, sequential
from pool.models import SEEDS, Packed, models, pack_all
from pool.servers import DEDICATED, POOL, STOCK, PoolServer

NAME = "fairness"
FLOODED = "transformer"
MODELS = 10
CLIENTS = 16
"""Of the closed loop that says what the flooded model can do."""
WARM_UP_S = 1.0
LEAD_S = 1.0
"""The flood begins so much earlier, and ends so much later."""


def stream(
    server: PoolServer, model: Packed, rate: float, seconds: float, seed: int
) -> load.Stream:
    """Poisson arrivals; a wrong answer is refused with 406."""
    bodies = [model.body(each) for each in range(SEEDS)]
    arrivals = {"kind": "poisson", "rate": rate, "seconds": seconds, "seed": seed}
    return load.Stream(model.name, server.url(model), arrivals=arrivals, bodies=bodies, seed=seed)


def quiet_load(
    server: PoolServer, models_: Sequence[Packed], rate: float, seconds: float, seed: int
) -> Row:
    """The nine; sums of all of them."""
    streams = [
        stream(server, each, rate, seconds + WARM_UP_S, 100 * seed + number)
        for number, each in enumerate(models_)
    ]
    found = load.run(load.Spec(streams, timeout_s=60, warmup_s=WARM_UP_S))
    row = summary(found.samples.between(*found.counted_s), seconds, None)
    row["wrong"] = row["statuses"].get("406", 0)
    row["lost"] = row["sent"] - row["ok"] - row["wrong"]
    p99s = [found[each.name]["p99_ms"] for each in models_]
    row["worst_model_p99_ms"] = max((p99 for p99 in p99s if p99 is not None), default=None)
    return row | {"client_late_p99_ms": found.client["late_p99_ms"]}


def flooded(
    server: PoolServer, packed: Sequence[Packed], capacity: float, args: argparse.Namespace, n: int
) -> tuple[Row, Row]:
    """The nine beside the flood; what became of both."""
    first, *others = packed
    seconds = args.seconds + WARM_UP_S + 2 * LEAD_S
    flood = load.Spec([stream(server, first, args.flood * capacity, seconds, n)], timeout_s=60)
    with load.start(flood) as running:
        closed_loop(server.port, [first], sequential(1, 0), 1, LEAD_S)  # it has begun
        quiet = quiet_load(server, others, capacity * args.quiet, args.seconds, n)
        found = running.result()
    row = dict(found[first.name])
    late = np.sort(found.samples.late_s * 1e3)
    row["client_late_p99_ms"] = float(late[int(0.99 * (len(late) - 1))])
    return quiet, row


def measure(side: str, packed: list[Packed], store: Path, args: argparse.Namespace) -> list[Row]:
    """All rounds of a side."""
    rows: list[Row] = []
    workers = args.pool_workers
    server = PoolServer(side, store, models=packed, hot_mb=args.hot_mb // workers, workers=workers)
    progress = Progress(2 * args.rounds)
    with server:
        everyone = sequential(len(packed), 0)
        closed_loop(server.port, packed, everyone, 4, args.warm_up)
        closed = closed_loop(server.port, packed[:1], sequential(1, 0), CLIENTS, args.warm_up)
        capacity = closed.row()["rate"]
        for number in range(args.rounds):
            for what in ("alone", "flooded") if number % 2 else ("flooded", "alone"):
                progress.step(f"{side}, round {number + 1}: {what}")
                row: Row = {"side": side, "round": number, "what": what, "capacity": capacity}
                if what == "alone":
                    rate = capacity * args.quiet
                    row |= quiet_load(server, packed[1:], rate, args.seconds, number)
                else:
                    quiet, flood = flooded(server, packed, capacity, args, number)
                    row |= quiet | {"flood": flood}
                rows.append(row)
                keep(NAME, args.quick, rows)
                drain(server, packed[0])
    return rows


def drain(server: PoolServer, model: Packed) -> None:
    """Until the flood's last requests have been answered: one behind them has."""
    closed_loop(server.port, [model], sequential(1, 0), 1, 0.2)


def summarise(rows: list[Row]) -> list[Row]:
    """A row for each side."""
    points = []
    for side in dict.fromkeys(row["side"] for row in rows):
        mine = [row for row in rows if row["side"] == side]

        def values(what: str, key: str, mine: list[Row] = mine) -> list[float]:
            found = [row for row in mine if row["what"] == what]
            return [row[key] for row in sorted(found, key=lambda row: row["round"])]

        point: Row = {"side": side, "capacity": mine[0]["capacity"]}
        for key in ("p50_ms", "p99_ms"):
            for what in ("alone", "flooded"):
                point[f"{key}_{what}"] = values(what, key)
            pair = values("flooded", key), values("alone", key)
            point[f"{key}_flooded_vs_alone"] = paired_ratio(*pair)
        for key in ("lost", "wrong"):
            point[key] = sum(row[key] for row in mine)
        floods = [row["flood"] for row in mine if row["what"] == "flooded"]
        point["flood_ok_per_s"] = [flood["ok_per_s"] for flood in floods]
        point["flood_offered_per_s"] = [flood["offered_per_s"] for flood in floods]
        points.append(point)
    return points


def headline(points: list[Row]) -> Row:
    """The claims, of the first side; of others by their names."""
    first, *others = points
    found: Row = {
        "quiet_p99_flooded_vs_alone": first["p99_ms_flooded_vs_alone"]["median"],
        "quiet_lost": first["lost"],
        "wrong_answers": sum(point["wrong"] for point in points),
    }
    for point in others:
        key = f"quiet_p99_flooded_vs_alone_{point['side']}"
        found[key] = point["p99_ms_flooded_vs_alone"]["median"]
    return found


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = Parser(__doc__, rounds=7, quick_rounds=2)
    sides = (POOL, DEDICATED, STOCK)
    parser.add_argument("--sides", nargs="+", choices=sides, help="default pool and dedicated")
    parser.add_argument("--megabytes", type=float, help="of a model; default 96")
    parser.add_argument("--hot-mb", type=int, help="of all workers; default: room for all in each")
    parser.add_argument("--pool-workers", type=int, default=2, help="default 2")
    parser.add_argument("--seconds", type=float, help="of a round; default 40, quick 10")
    parser.add_argument("--flood", type=float, default=10, help="times the capacity; default 10")
    parser.add_argument("--quiet", type=float, default=0.01, help="share of it; default 0.01")
    parser.add_argument("--warm-up", type=float, help="seconds; default 8, quick 3")
    args = parser.arguments()
    quick = args.quick
    args.sides = args.sides or ([POOL] if quick else [POOL, DEDICATED])
    args.megabytes = args.megabytes or 96.0
    args.seconds = args.seconds or (10.0 if quick else 40.0)
    args.warm_up = args.warm_up or (3.0 if quick else 8.0)
    room = round(1.2 * MODELS * (args.megabytes + 4)) * args.pool_workers
    args.hot_mb = args.hot_mb or room
    return args


def main() -> None:
    """Measure, print, write."""
    args = arguments()
    rows: list[Row] = []
    with ExitStack() as stack:
        store = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        packed = pack_all(models(MODELS, args.megabytes, args.megabytes), store)
        # First the one that is flooded: of its requests a batch costs about as much as one by one,
        # so that ten times what it can do is still what a client on the same host can send.
        packed.sort(key=lambda each: each.model.architecture != FLOODED)
        for side in args.sides:
            rows += measure(side, packed, store, args)
    points = summarise(rows)
    top = headline(points)
    path = write_result(NAME, quick=args.quick, rows=points, headline=top, samples=rows)
    for point in points:
        print(json.dumps(point))
    print(json.dumps(top, indent=1))
    print(path)


if __name__ == "__main__":
    main()
