"""Share of requests answered in time when there is more work than time.

Sentence embeddings (minilm), open loop (Poisson), REST, 120 % of the highest closed-loop rate.
Requests have deadlines of 50, 100, 150, 200 and 300 ms, a fifth of them each. Shunter with the
deadlines (earliest first, early 504) against the same server without (first in, first out, the
better of two queue lengths) and against stock TorchServe: every batch size with every queue length
in short runs, the best of them with early drop (``clientTimeoutInMills``), and the best three of
all measured again in every round. In time is judged by the client, from the scheduled time of
sending.

Examples:
    python bench/deadlines.py                 # 7 rounds, about 9 minutes
    python bench/deadlines.py --quick         # Shunter with and without, under two minutes
    python bench/deadlines.py --load 0.9
"""

from __future__ import annotations

import itertools
import json
import statistics
import tempfile
from contextlib import ExitStack
from dataclasses import replace

import load
from common import Parser, Progress, Row, make_stores, paired_ratio, write_result
from sides import Setting, Side, closed_loop, stream

NAME = "deadlines"
DEADLINES_MS = (50.0, 100.0, 150.0, 200.0, 300.0)
SETTING = Setting(batch=32, delay_ms=5, queue=100)
SHORT_QUEUE = 30
BATCHES, QUEUES, DROPS_MS = (8, 16, 32), (10, 30, 100), (60, 100, 160)
FINALISTS = 3


def one_run(url: str, rate: float, seconds: float, seed: int, told: bool) -> Row:
    """All deadlines at once; ``told``: the server knows them."""
    streams = [
        stream(
            f"{deadline:g}",
            url,
            rate / len(DEADLINES_MS),
            seconds + 1,
            seed * 10 + i,
            slo_ms=deadline,
            deadline_ms=deadline if told else None,
        )
        for i, deadline in enumerate(DEADLINES_MS)
    ]
    found = load.run(load.Spec(streams, timeout_s=5, warmup_s=1, connections=2000))
    sent = sum(each["sent"] for each in found.streams.values())
    row: Row = {"in_time": sum(each["good"] for each in found.streams.values()) / sent}
    row["by_deadline"] = {name: each["attainment"] for name, each in found.streams.items()}
    statuses: dict[str, int] = {}
    for each in found.streams.values():
        for status, count in each["statuses"].items():
            statuses[status] = statuses.get(status, 0) + count
    return {**row, "statuses": statuses, "sent": sent, "client": found.client}


def tuned(stock: Side, rate: float, seconds: float) -> tuple[list[Setting], list[Row]]:
    """The best settings of stock at this rate, and what was seen of all."""
    found: list[Row] = []

    def measure(settings: list[Setting]) -> list[Setting]:
        progress = Progress(len(settings))
        for setting in settings:
            progress.step(f"selecting: stock {setting}")
            url = stock.add(setting)
            shares = [one_run(url, rate, seconds, 50 + seed, told=False) for seed in (0, 1)]
            in_time = statistics.fmean(each["in_time"] for each in shares)
            found.append({"setting": setting.row(), "in_time": in_time})
            stock.remove(setting)
        ordered = sorted(found, key=lambda row: -row["in_time"])
        return [Setting(**row["setting"]) for row in ordered]

    shapes = [Setting(b, 1, queue=queue) for b, queue in itertools.product(BATCHES, QUEUES)]
    best = measure(shapes)
    queues = (best[0].queue, max(QUEUES))
    with_drop = {
        replace(best[0], queue=queue, drop_ms=ms) for queue in queues for ms in DROPS_MS
    }
    return measure(sorted(with_drop, key=str))[:FINALISTS], found


def main() -> None:
    """Run and write the result."""
    parser = Parser(__doc__)
    parser.add_argument("--seconds", type=float, default=5, help="per measurement, default 5")
    parser.add_argument(
        "--load", type=float, default=1.2, help="share of the capacity, default 1.2"
    )
    args = parser.arguments()
    samples: list[Row] = []
    best: list[Setting] = []
    selection: list[Row] = []
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        stores = make_stores(folder, "ours", "stock")
        ours = stack.enter_context(Side(stores[0], shunter=True))
        urls = {"edf": ours.add(SETTING)}
        urls["fifo-100"] = urls["edf"]
        urls["fifo-30"] = ours.add(replace(SETTING, queue=SHORT_QUEUE))
        # A server that has just started does less than it can: 5 s said a quarter of it once.
        capacity = max(closed_loop(urls["edf"], 64, 5)["ok_per_s"] for _ in range(5))
        if not args.quick:
            stock = stack.enter_context(Side(stores[1], shunter=False))
            best, selection = tuned(stock, args.load * capacity, 3)
            urls |= {f"stock-{number}": stock.add(each) for number, each in enumerate(best)}
        progress = Progress(args.rounds * len(urls))
        for number in range(args.rounds):
            for side in list(urls) if number % 2 == 0 else list(urls)[::-1]:
                progress.step(f"round {number + 1}, {side}")
                rate = args.load * capacity
                found = one_run(urls[side], rate, args.seconds, number, told=side == "edf")
                samples.append({"side": side, "round": number, **found})
    rows, headline = summarise(samples, list(urls))
    rows.append({"capacity": capacity, "load": args.load})
    rows.append({"stock": [each.row() for each in best], "selection": selection})
    path = write_result(NAME, quick=args.quick, rows=rows, headline=headline, samples=samples)
    for row in rows:
        if "side" in row:
            print(f"{row['side']}: {row['in_time']:.1%} in time, {row['by_deadline']}")
    print(json.dumps(headline), path.name)


def summarise(samples: list[Row], sides: list[str]) -> tuple[list[Row], Row]:
    """A row for every side, and Shunter with deadlines against the best without them."""
    shares = {s: [row["in_time"] for row in samples if row["side"] == s] for s in sides}
    rows: list[Row] = []
    for side in sides:
        by_deadline = {
            f"{deadline:g}": statistics.median(
                row["by_deadline"][f"{deadline:g}"] for row in samples if row["side"] == side
            )
            for deadline in DEADLINES_MS
        }
        row: Row = {"side": side, "in_time": statistics.median(shares[side])}
        rows.append({**row, "by_deadline": by_deadline})

    def lowest(prefix: str) -> Row:
        """Against whichever of them is the best in the same rounds."""
        named = [side for side in sides if side.startswith(prefix)]
        found = (paired_ratio(shares["edf"], shares[side]) for side in named)
        return min(found, key=lambda ratio: ratio["median"])

    against = {"fifo": lowest("fifo")}
    headline = {"in_time_vs_fifo": against["fifo"]["median"]}
    if any(side.startswith("stock") for side in sides):
        against["stock"] = lowest("stock")
        headline["in_time_vs_tuned_stock"] = against["stock"]["median"]
    return [*rows, {"ratios": against}], headline


if __name__ == "__main__":
    main()
