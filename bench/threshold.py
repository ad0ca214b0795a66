"""Closed-loop clients: does the adaptive threshold find how many they are?

Sentence embeddings (minilm), one worker with one thread, REST, clients that send their next
request when they have an answer. Stock TorchServe wins here with a batch size equal to the number
of clients, because it waits for exactly those. Sides, in one run: Shunter as it is; Shunter
without waiting (threshold = 1); Rafiqi's daemon with its fixed quantum of 5 ms in place of
Shunter's rule (`rafiqi.py`, on a server of its own); stock with the batch size set to the number
of clients. Then all clients but one leave: what do the one's first requests pay?

Examples:
    python bench/threshold.py                 # 7 rounds, about 10 minutes
    python bench/threshold.py --quick         # Shunter alone, three points, under two minutes
"""

from __future__ import annotations

import itertools
import json
import math
import statistics
import tempfile
from contextlib import ExitStack
from pathlib import Path

import load
import rafiqi
from common import Parser, Progress, Row, make_stores, paired_ratio, write_result
from sides import BODIES, Setting, Side, closed_loop

from shunter.batching.page.runtime import CONTROL

NAME = "threshold"
POINTS = (1, 2, 3, 4, 8, 16, 32)
QUICK_POINTS = (1, 4, 16)
OURS = Setting(batch=64, delay_ms=20, workers=1, threads=1, queue=1000)
SETTINGS = """
[models.plain]
threshold = 1
"""
MODELS = ("adaptive", "plain")
PATIENT_MS = 1000
"""Stock's delay: it leaves when the batch is full."""
FIRST = 5


def after_the_crowd(url: str, clients: int, seed: int) -> Row:
    """Latencies of the one client that stays, from its first request after the others left."""
    crowd = load.Stream("crowd", url, closed=load.Closed(clients - 1, 2), bodies=BODIES)
    stays = load.Stream("stays", url, closed=load.Closed(1, 4), bodies=BODIES, seed=seed)
    found = load.run(load.Spec([crowd, stays]))
    ends = found.of("crowd")
    last = float((ends.due_s + ends.latency_s).max())
    mine = found.of("stays")
    alone = mine.latency_s[mine.due_s >= last] * 1e3
    return {"first_ms": alone[:FIRST].round(3).tolist(), "p50_ms": statistics.median(alone)}


def measure(
    urls: dict[str, str],
    stock: Side | None,
    points: tuple[int, ...],
    rounds: int,
    seconds: float,
) -> list[Row]:
    """Paired rounds; all sides go through a point one after the other."""
    samples: list[Row] = []
    progress = Progress(rounds * len(points))
    for clients, number in itertools.product(points, range(rounds)):
        progress.step(f"{clients} clients, round {number + 1}")
        sides = dict(urls)
        if stock is not None:
            setting = Setting(clients, PATIENT_MS if clients > 1 else 1, 1, 1, 1000)
            sides["stock"] = stock.add(setting)
        for side in list(sides) if number % 2 == 0 else list(sides)[::-1]:
            found = closed_loop(sides[side], clients, seconds)
            row = {"side": side, "clients": clients, "round": number}
            samples.append(row | {key: found[key] for key in ("ok_per_s", "p50_ms", "p99_ms")})
        if clients == max(points):
            gone = after_the_crowd(urls["adaptive"], clients, number)
            samples.append({"side": "gone", "clients": clients, "round": number, **gone})
        if stock is not None and number == rounds - 1:
            stock.remove(setting)
    return samples


def summarise(samples: list[Row], points: tuple[int, ...]) -> tuple[list[Row], Row]:
    """A row for every number of clients with paired ratios of the rates."""
    rows: list[Row] = []
    for clients in points:
        mine = [s for s in samples if s["clients"] == clients and s["side"] != "gone"]
        sides = list(dict.fromkeys(s["side"] for s in mine))
        rates = {side: [s["ok_per_s"] for s in mine if s["side"] == side] for side in sides}
        row: Row = {"clients": clients}
        for side in sides:
            p50s = [s["p50_ms"] for s in mine if s["side"] == side]
            row[side] = {
                "rate": statistics.median(rates[side]),
                "p50_ms": statistics.median(p50s),
            }
            if side != "adaptive":
                row[f"vs-{side}"] = paired_ratio(rates["adaptive"], rates[side])
        rows.append(row)
    headline: Row = {}
    for side in ("stock", "plain", "paper"):
        ratios = [row[f"vs-{side}"]["median"] for row in rows if f"vs-{side}" in row]
        if ratios:
            headline[f"worst_rate_vs_{side}"] = min(ratios)
            headline[f"geomean_vs_{side}"] = math.exp(statistics.fmean(map(math.log, ratios)))
    gone = [s for s in samples if s["side"] == "gone"]
    excess = [max(s["first_ms"]) - s["p50_ms"] for s in gone if s["first_ms"]]
    headline["worst_of_first_ms_over_p50"] = statistics.median(excess) if excess else None
    return rows, headline


def main() -> None:
    """Run and write the result."""
    parser = Parser(__doc__)
    parser.add_argument("--seconds", type=float, default=2, help="per measurement, default 2")
    parser.add_argument("--points", type=int, nargs="+", help="numbers of clients")
    args = parser.arguments()
    points = tuple(args.points or (QUICK_POINTS if args.quick else POINTS))
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        stores = make_stores(folder, "ours", "paper", "stock")
        ours = stack.enter_context(Side(stores[0], shunter=True, settings=SETTINGS))
        paper = stack.enter_context(Side(stores[1], shunter=True, settings=rafiqi.SETTINGS))
        stock = None if args.quick else stack.enter_context(Side(stores[2], shunter=False))
        urls = {name: ours.add(OURS, name=name) for name in MODELS}
        urls["paper"] = paper.add(OURS, name="paper")
        stack.enter_context(rafiqi.running(Path(paper.runtime()) / CONTROL, "paper"))
        samples = measure(urls, stock, points, args.rounds, args.seconds)
    rows, headline = summarise(samples, points)
    path = write_result(NAME, quick=args.quick, rows=rows, headline=headline, samples=samples)
    for row in rows:
        sides = [side for side in (*MODELS, "paper", "stock") if side in row]
        texts = [f"{side} {row[side]['rate']:.1f}/s {row[side]['p50_ms']:.1f} ms" for side in sides]
        print(f"{row['clients']} clients: {', '.join(texts)}")
    print(json.dumps(headline), path.name)


if __name__ == "__main__":
    main()
