"""Following the load with the batch size: how often it changes, and what it costs. A simulation.

No server runs here. A queue in front of 16 cores is simulated request by request; the latency of
a batch comes from a synthetic profile, the configuration of each batch size from the optimizer.
What waits is split over the free instances at once; as in Shunter, each may take a batch as much
larger than the optimum as the largest allows, so that a burst is not cut into small batches. The
estimator sees the number of requests in the system every 100 ms; a change takes effect 2 s later
and costs nothing else. The first two minutes do not count. The regret is the mean latency above
that of an oracle, as a share. The oracle knows the rate of the present interval and changes at
once to the batch size that is best for it in the long run. ``worst_regret_vs_best_fixed`` is the
mean latency above that of the fixed batch size which, in hindsight, is best for a trace.

Sides: ours, with half its dead band, the paper's estimator (an average over three seconds, the most
frequent of thirty, no dead band), fixed batch sizes.

Examples:
    python bench/estimator.py                 # about two minutes
    python bench/estimator.py --quick         # one seed, shorter traces
"""

from __future__ import annotations

import heapq
import itertools
import json
import statistics
from bisect import bisect_right
from collections import Counter, deque
from collections.abc import Callable, Sequence

import arrivals
import numpy as np
from common import Parser, Progress, Row, write_result

from shunter.allocator.planning.estimator import (
    BAND,
    BatchSizeEstimator,
    floor_power_of_two,
)
from shunter.allocator.planning.latency_table import LatencyTable
from shunter.allocator.planning.optimizer import minimise_latency
from shunter.allocator.planning.profile import batch_sizes

NAME = "estimator"
CORES, LARGEST = 16, 64
SIZES = batch_sizes(LARGEST)
CAPACITY = 460.0
"""Requests/s of the profile below at the largest batch size, about."""
LEVELS = tuple(CAPACITY * share for share in (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9))
SAMPLE_S, TIMEOUT_S, CHANGE_S = 0.1, 30.0, 2.0
WARM_UP_S = 120.0
PAPER_ALPHA, PAPER_WINDOW = 0.03, 30

Instances = list[list[float]]
"""Of each instance: latency in s by number of requests, from 1."""
Decide = Callable[[float, int], int | None]
"""From the time and the number of requests in the system the batch size to change to."""
Rates = list[tuple[float, float]]
"""Requests/s of each interval, and how long it lasts."""


def profile() -> LatencyTable:
    """Reading the weights takes less with more threads; a part of each request is serial."""
    t, b = np.arange(1, CORES + 1)[:, None], np.arange(1, LARGEST + 1)
    return LatencyTable(np.maximum(160 / t**1.5, 5.0) + b * (28.0 / t + 1.5))


def instances_of(table: LatencyTable, batch: int) -> Instances:
    """The optimal configuration, the instances with the largest batches first."""
    groups = minimise_latency(table, (CORES,), batch).configuration
    widest = max(group.batch for group in groups)
    caps = [(LARGEST * g.batch // widest, g.threads) for g in groups for _ in range(g.instances)]
    return [(table.ms[t - 1, :cap] / 1e3).tolist() for cap, t in sorted(caps, reverse=True)]


def simulate(
    times: Sequence[float],
    configurations: dict[int, Instances],
    decide: Decide,
    size: int,
    change_s: float,
) -> tuple[list[float], int]:
    """Latency of each request after the warm-up, and the number of changes."""
    instances = configurations[size]
    free, generation, changed = list(range(len(instances))), 0, 0
    waiting: deque[float] = deque()
    latencies: list[float] = []
    # Kinds: 0 an instance is free, 1 a change, 2 a sample. Requests come from ``times``.
    events: list[tuple[float, int, int, int]] = [(SAMPLE_S, 2, 0, 0)]
    following, running = 0, 0
    while following < len(times) or waiting or running:
        if following < len(times) and times[following] <= events[0][0]:
            now = times[following]
            waiting.append(now)
            following += 1
        else:
            now, kind, what, of = heapq.heappop(events)
            if kind == 0:
                running -= what >> 16
                if of == generation:
                    heapq.heappush(free, what & 0xFFFF)
            elif kind == 1:
                instances, generation = configurations[what], generation + 1
                free = list(range(len(instances)))
            else:
                wanted = decide(now, len(waiting) + running)
                heapq.heappush(events, (now + SAMPLE_S, 2, 0, 0))
                if wanted is not None and wanted != size:
                    size, changed = wanted, changed + 1
                    heapq.heappush(events, (now + change_s, 1, size, 0))
        room = sum(len(instances[which]) for which in free) if waiting else 0
        while waiting and free:
            which = heapq.heappop(free)
            cap = len(instances[which])
            count = min(cap, -(-len(waiting) * cap // room))
            room -= cap
            end = now + instances[which][count - 1]
            due = [waiting.popleft() for _ in range(count)]
            latencies += [end - at for at in due if at >= WARM_UP_S]
            running += count
            heapq.heappush(events, (end, 0, count << 16 | which, generation))
    return latencies, changed


def ours(band: float) -> Decide:
    """With that dead band."""
    follows = BatchSizeEstimator(1, round(TIMEOUT_S * 1e9), largest=LARGEST, band=band)
    return lambda now, depth: follows.sample(depth, round(now * 1e9))


def paper() -> Decide:
    """Section 3.8; of the requests in the system, as ours, since none waits for a free instance."""
    average, due = 0.0, TIMEOUT_S
    rounded = deque[int](maxlen=PAPER_WINDOW)

    def decide(now: float, depth: int) -> int | None:
        nonlocal average, due
        average += PAPER_ALPHA * (depth - average)
        rounded.append(min(floor_power_of_two(average), LARGEST))
        if now < due:
            return None
        due = now + TIMEOUT_S
        return Counter(rounded).most_common(1)[0][0]

    return decide


def oracle(rates: Rates, best: Sequence[int]) -> Decide:
    """Knows the rate of every interval and the best batch size for each of LEVELS."""
    ends = list(itertools.accumulate(seconds for _, seconds in rates))

    def decide(now: float, depth: int) -> int:
        rate = rates[min(bisect_right(ends, now), len(rates) - 1)][0]
        nearest = min(range(len(LEVELS)), key=lambda i: abs(LEVELS[i] - rate))
        return best[nearest]

    return decide


def best_sizes(configurations: dict[int, Instances], seconds: float) -> list[int]:
    """The batch size with the least mean latency at each of LEVELS, by simulation."""
    found = []
    for rate in LEVELS:
        times = arrivals.poisson(rate, seconds, seed=99).tolist()
        means = {
            size: statistics.fmean(simulate(times, configurations, fixed, size, 0)[0])
            for size in SIZES
        }
        found.append(min(means, key=means.__getitem__))
    return found


def fixed(now: float, depth: int) -> None:
    """Never changes."""


def traces(seconds: int, seed: int) -> dict[str, Rates]:
    """Rates of each trace; the bursts are as long as the estimator's window and shorter."""
    day = arrivals.diurnal(0.4 * CAPACITY, 2.0, seconds, seed)
    short = [(0.15 * CAPACITY, 2.0), (0.75 * CAPACITY, 1.0)] * (seconds // 3)
    wild = arrivals.diurnal(0.25 * CAPACITY, 3.2, seconds, seed, bursts_per_minute=2)
    return {
        "poisson": [(0.45 * CAPACITY, float(seconds))],
        "diurnal": [(float(rate), 1.0) for rate in day],
        "bursty": short,
        "diurnal with bursts": [(float(rate), 1.0) for rate in wild],
    }


def measure(seeds: Sequence[int], seconds: int) -> list[Row]:
    """All sides on the same requests."""
    table = profile()
    configurations = {size: instances_of(table, size) for size in SIZES}
    best = best_sizes(configurations, WARM_UP_S + 60)
    names = list(traces(60, 1))
    progress, samples = Progress(len(seeds) * len(names)), []
    for seed, name in itertools.product(seeds, names):
        progress.step(f"{name}, seed {seed}")
        rates = traces(seconds, seed)[name]
        times = arrivals.steps(rates, seed + 1).tolist()
        knowing = oracle(rates, best)
        sides = {
            "oracle": (knowing, knowing(0, 0), 0.0),
            "ours": (ours(BAND), 1, CHANGE_S),
            "half the band": (ours(BAND / 2), 1, CHANGE_S),
            "paper": (paper(), 1, CHANGE_S),
            **{f"fixed {size}": (fixed, size, 0.0) for size in SIZES},
        }
        for side, (decide, size, change_s) in sides.items():
            latencies, changed = simulate(times, configurations, decide, size, change_s)
            samples.append(
                {
                    "trace": name,
                    "side": side,
                    "seed": seed,
                    "mean_ms": statistics.fmean(latencies) * 1e3,
                    "p99_ms": float(np.percentile(latencies, 99)) * 1e3,
                    "changes_per_hour": changed * 3600 / seconds,
                }
            )
    return samples


def best_fixed(samples: list[Row], trace: str) -> list[Row]:
    """By seed, of the fixed batch size whose mean over all seeds is least."""
    by_side: dict[str, list[Row]] = {}
    for sample in samples:
        if sample["trace"] == trace and sample["side"].startswith("fixed"):
            by_side.setdefault(sample["side"], []).append(sample)
    return min(by_side.values(), key=lambda rows: statistics.fmean(r["mean_ms"] for r in rows))


def summarise(samples: list[Row]) -> list[Row]:
    """A row for every trace and side: medians over the seeds."""
    rows = []
    for trace, side in dict.fromkeys((s["trace"], s["side"]) for s in samples):
        mine = [s for s in samples if (s["trace"], s["side"]) == (trace, side)]
        known = [s for s in samples if (s["trace"], s["side"]) == (trace, "oracle")]
        pairs = zip(mine, known, strict=True)
        row: Row = {"trace": trace, "side": side, "origin": "simulated"}
        for key in ("mean_ms", "p99_ms", "changes_per_hour"):
            row[key] = statistics.median(s[key] for s in mine)
        row["regret"] = statistics.median(a["mean_ms"] / b["mean_ms"] - 1 for a, b in pairs)
        best = best_fixed(samples, trace)
        row["regret_vs_best_fixed"] = statistics.median(
            a["mean_ms"] / b["mean_ms"] - 1 for a, b in zip(mine, best, strict=True)
        )
        rows.append(row)
    return rows


def main() -> None:
    """Run and write the result."""
    parser = Parser(__doc__, rounds=5, quick_rounds=1)
    parser.add_argument("--seconds", type=int, help="of each trace, default 1800, quick 600")
    args = parser.arguments()
    seconds = args.seconds or (600 if args.quick else 1800)
    samples = measure(range(1, args.rounds + 1), seconds)
    rows = summarise(samples)
    mine = [row for row in rows if row["side"] == "ours"]
    headline = {
        "changes_per_hour": max(row["changes_per_hour"] for row in mine),
        "regret": max(row["regret"] for row in mine),
        "worst_regret_vs_best_fixed": max(row["regret_vs_best_fixed"] for row in mine),
    }
    path = write_result(NAME, quick=args.quick, rows=rows, headline=headline, samples=samples)
    for row in rows:
        print(
            f"{row['trace']}, {row['side']}: mean {row['mean_ms']:.1f} ms, regret "
            f"{row['regret']:+.1%} ({row['regret_vs_best_fixed']:+.1%} of the best fixed), "
            f"{row['changes_per_hour']:.0f} changes an hour (simulated)"
        )
    print(json.dumps(headline), path.name)


if __name__ == "__main__":
    main()
