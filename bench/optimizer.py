"""The search for the best configuration: how long it takes, and is it exact?

Latency tables come from synthetic profiles (formulas with noise at powers of two, interpolated as
a measured profile is), so nothing is served here; the times are measured. Beside ours stands the
paper's dynamic program over threads and batch sizes (Packrat section 3.3), written in numpy with
one vectorised step for each pair of thread counts, wherever it is affordable. ``mismatches``
counts random tables on which an objective disagrees: the latency with the paper's program, the
rate with a plain knapsack over threads, the shares of several models with trying every split.

Examples:
    python bench/optimizer.py                 # under a minute
    python bench/optimizer.py --quick         # fewer tables, no slow program
"""

from __future__ import annotations

import itertools
import json
import math
import random
import statistics
import time
from collections.abc import Callable

import numpy as np
from common import Parser, Row, write_result

from shunter.allocator.planning.latency_table import LatencyTable
from shunter.allocator.planning.optimizer import NoConfiguration, maximise_rate, minimise_latency
from shunter.allocator.planning.profile import batch_sizes
from shunter.allocator.planning.profile_table import interpolate
from shunter.allocator.planning.sharing import latency_curve, share_threads

NAME = "optimizer"
SHAPES: dict[str, Callable[[int, int], float]] = {
    "amdahl": lambda t, b: 5 + 10 * b * (0.05 + 0.95 / t),
    "half serial": lambda t, b: 5 + 10 * b * (0.5 + 0.5 / t),
    "cost per thread": lambda t, b: 5 + 10 * b * (0.02 + 0.98 / t) + 0.5 * t,
    "second NUMA node": lambda t, b: (5 + 10 * b * (0.03 + 0.97 / t)) * (1.6 if t > 32 else 1),
    "weights": lambda t, b: max(120 / t**2, 5) + b * (20 / t + 1),
}
"""Latency in ms by threads and batch size."""
USUAL = "weights"
GRID = ((4, 16), (16, 64), (16, 256), (32, 256), (64, 256), (64, 1024), (128, 1024))
LARGEST = (128, 1024)
AFFORDABLE = 2e8
"""Steps of the paper's program, T² B² / 4."""


def table_of(shape: str, threads: int, batch: int, seed: int = 1) -> LatencyTable:
    """A profile of every cell with 2 % of noise, interpolated."""
    choose = random.Random(seed)
    measured = {
        (t, b): SHAPES[shape](t, b) * choose.uniform(0.98, 1.02)
        for t in range(1, threads + 1)
        for b in batch_sizes(batch)
    }
    return LatencyTable(interpolate(measured, threads, batch))


def random_table(choose: random.Random, threads: int, batch: int) -> LatencyTable:
    """Rows of random steps, many of them equal; some rows and some ends are impossible."""
    generator = np.random.default_rng(choose.randrange(2**32))
    steps = generator.integers(0, 4, (threads, batch)) * generator.choice([0.0, 0.5, 1.0], batch)
    rows = 1 + steps.cumsum(axis=1) + generator.integers(0, 9, (threads, 1))
    for t in range(threads):
        if choose.random() < 0.3:
            rows[t, choose.randrange(batch) :] = math.inf
    return LatencyTable(rows)


def papers_program(table: LatencyTable, threads: int, batch: int) -> np.ndarray:
    """``opt[t, b]`` of section 3.3; cores may stay idle."""
    opt = np.full((threads + 1, batch + 1), math.inf)
    opt[:, 0] = 0
    latency = np.full((threads + 1, batch + 1), math.inf)
    t, b = min(threads, table.threads), min(batch, table.batch)
    latency[1 : t + 1, 1 : b + 1] = table.ms[:t, :b]
    for t in range(1, threads + 1):
        for own in range(1, t + 1):
            padded = np.concatenate((np.full(batch, math.inf), opt[t - own]))
            # Row b of this view is opt[t - own, b - b'] for b' = 0..B.
            others = np.lib.stride_tricks.sliding_window_view(padded, batch + 1)[:, ::-1]
            opt[t] = np.minimum(opt[t], np.maximum(others, latency[own]).min(axis=1))
    return opt


def papers_rate(table: LatencyTable, threads: int, slo_ms: float) -> float:
    """Most requests per second on one node, by a plain knapsack over threads."""
    worth = [0.0] * (threads + 1)
    for c in range(1, threads + 1):
        for t in range(1, min(c, table.threads) + 1):
            row = table.ms[t - 1]
            best = max((b / ms for b, ms in enumerate(row, 1) if ms <= slo_ms), default=0.0)
            worth[c] = max(worth[c], worth[c - 1], best + worth[c - t])
    return worth[threads] * 1e3


def mean_ms(call: Callable[[], object], least_s: float = 0.05) -> float:
    """Milliseconds of one call, over as many as take a while."""
    call()
    count, begin = 0, time.perf_counter()
    while (spent := time.perf_counter() - begin) < least_s:
        call()
        count += 1
    return spent / count * 1e3


def time_row(threads: int, batch: int, rounds: int, slow: bool) -> Row:
    """Median time of the search on each shape, and of the paper's program where affordable."""
    row: Row = {"threads": threads, "batch": batch, "profile": "synthetic"}
    tables = {shape: table_of(shape, threads, batch) for shape in SHAPES}
    times = {
        shape: statistics.median(
            mean_ms(lambda: minimise_latency(table, (threads,), batch))  # noqa: B023
            for _ in range(rounds)
        )
        for shape, table in tables.items()
    }
    row |= {"ms": times[USUAL], "worst_ms": max(times.values()), "ms_by_shape": times}
    half = threads // 2
    row["two_nodes_ms"] = mean_ms(lambda: minimise_latency(tables[USUAL], (half, half), batch))
    row["curve_ms"] = mean_ms(lambda: latency_curve(tables[USUAL], threads, batch))
    if slow and threads**2 * batch**2 / 4 <= AFFORDABLE:
        begin = time.perf_counter()
        expected = papers_program(tables[USUAL], threads, batch)[threads, batch]
        row["papers_program_in_numpy_ms"] = (time.perf_counter() - begin) * 1e3
        found = minimise_latency(tables[USUAL], (threads,), batch).latency_ms
        row["equal"] = bool(found == expected)
    return row


def latency_of(table: LatencyTable, threads: int, batch: int) -> float:
    """Ours; inf where nothing fits."""
    try:
        return minimise_latency(table, (threads,), batch).latency_ms
    except NoConfiguration:
        return math.inf


def rate_of(table: LatencyTable, threads: int, slo_ms: float) -> float:
    """Ours; 0 where nothing fits."""
    try:
        return maximise_rate(table, (threads,), slo_ms).rate
    except NoConfiguration:
        return 0.0


def shares_agree(choose: random.Random) -> bool:
    """Whether three models share eight cores as trying every split says."""
    tables = [random_table(choose, 8, 8) for _ in range(3)]
    batches = [choose.randint(1, 12) for _ in tables]
    weights = [choose.uniform(0.1, 5) for _ in tables]
    pairs = list(zip(tables, batches, strict=True))
    expected = [papers_program(table, 8, b)[:, b] for table, b in pairs]
    curves = [latency_curve(table, 8, b) for table, b in pairs]
    if any((a != b).any() for a, b in zip(curves, expected, strict=True)):
        return False

    def cost(split: tuple[int, ...]) -> float:
        return sum(w * c[t] for w, c, t in zip(weights, expected, split, strict=True))

    least = min(cost(s) for s in itertools.product(range(9), repeat=3) if sum(s) <= 8)
    try:
        return math.isclose(cost(tuple(share_threads(curves, weights))), least)
    except NoConfiguration:
        return math.isinf(least)


def mismatches(count: int) -> Row:
    """How often each objective disagrees on ``count`` random tables."""
    choose, found = random.Random(1), {"latency": 0, "rate": 0, "shares": 0}
    for _ in range(count):
        threads, batch = choose.randint(1, 16), choose.randint(1, 64)
        table = random_table(choose, choose.randint(1, 16), choose.randint(1, 64))
        expected = papers_program(table, threads, batch)[threads, batch]
        found["latency"] += int(latency_of(table, threads, batch) != expected)
        slo = choose.uniform(0, 60)
        rates = rate_of(table, threads, slo), papers_rate(table, threads, slo)
        found["rate"] += not math.isclose(*rates)
        found["shares"] += not shares_agree(choose)
    return {"tables": count, **found}


def main() -> None:
    """Run and write the result."""
    parser = Parser(__doc__)
    parser.add_argument("--tables", type=int, help="random tables, default 1000, quick 100")
    args = parser.arguments()
    grid = ((16, 64), LARGEST) if args.quick else GRID
    rows = [time_row(*point, args.rounds, not args.quick) for point in grid]
    rows.append(mismatches(args.tables or (100 if args.quick else 1000)))
    largest, checked = rows[-2], rows[-1]
    headline = {
        "ms_T128_B1024": largest["ms"],
        "mismatches": checked["latency"]
        + checked["rate"]
        + checked["shares"]
        + sum(row.get("equal") is False for row in rows),
    }
    path = write_result(NAME, quick=args.quick, rows=rows, headline=headline)
    for row in rows[:-1]:
        paper = row.get("papers_program_in_numpy_ms")
        theirs = f", the paper's program in numpy {paper:.0f} ms" if paper else ""
        print(
            f"T={row['threads']} B={row['batch']}: {row['ms']:.2f} ms, worst of {len(SHAPES)} "
            f"shapes {row['worst_ms']:.2f} ms, two nodes {row['two_nodes_ms']:.2f} ms{theirs}"
        )
    print(json.dumps(checked))
    print(json.dumps(headline), path.name)


if __name__ == "__main__":
    main()
