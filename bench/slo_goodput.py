"""Goodput inside a latency target on a real model, from idle to overload.

Sentence embeddings (minilm), open loop (Poisson), REST, SLO 100 ms from the scheduled time of
sending. The rates are shares of the highest closed-loop rate of stock TorchServe in its best
setting. Stock is measured in every combination of batch size, delay and queue length first, and
BentoML's adaptive batching in several settings (selection; near the capacity also shorter queues
and early drop, and what is as good as the best again on more arrivals). Then, for every rate, the
best of them are measured again in paired, interleaved rounds with Shunter in ONE setting for all.
At last the load steps from 15 to 120 % and back.

Examples:
    python bench/slo_goodput.py                   # all of it, about 30 minutes
    python bench/slo_goodput.py --quick           # against what the last full run chose
    python bench/slo_goodput.py --rounds 2 --seconds 2 --no-rival
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import statistics
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import load
import numpy as np
from ceiling import null_ceiling
from common import Parser, Progress, Row, bootstrap, keep, make_stores, paired_ratio, write_result
from rivals import bentoml_server
from sides import SLO_MS, Setting, Side, closed_loop, open_loop, stream
from slo_selection import NAME, SHARES, bento_bodies, choose, committed_choice

from shunter.model_store.minilm.archive import pack_minilm

QUICK_SHARES = (0.9, 1.2)
OURS = Setting(batch=32, delay_ms=5, workers=2, threads=1, queue=1000)
LATE_MS = 5000.0
"""Stands for a p99 when so few are answered that there is none: when the client gives up."""
STEP_SHARES = (0.15, 1.2, 0.15)
STEP_S = (5.0, 4.0, 5.0)
WINDOW_S = 0.25
CALM = 1.2
"""p50 of a window against that before the step."""


class Measured:
    """Paired rounds over all rates."""

    def __init__(self, capacity: float, seconds: float) -> None:
        self._capacity, self._seconds = capacity, seconds
        self.samples: list[Row] = []

    def add(self, side: str, share: float, number: int, url: str, **more: Any) -> None:
        """One measurement; all sides of a round get the same arrivals."""
        seed = 100 * number + round(share * 100)
        found = open_loop(url, share * self._capacity, self._seconds, seed, **more)
        kept = ("goodput_per_s", "attainment", "p50_ms", "p99_ms", "p99_of_all_ms")
        row = {"side": side, "share": share, "round": number}
        row |= {key: found["load"][key] for key in (*kept, "offered_per_s", "statuses")}
        row |= {"client": found.client, "cores": found.cpu_cores}
        self.samples.append(row)

    def again(self, side: str) -> None:
        """The last measurement counts for another side, too: both have the same setting."""
        self.samples.append({**self.samples[-1], "side": side})

    def goodputs(self, side: str, share: float) -> list[float]:
        """By round."""
        return [
            row["goodput_per_s"]
            for row in self.samples
            if (row["side"], row["share"]) == (side, share)
        ]


def recovery_ms(found: load.Result) -> float | None:
    """From the end of the step until every window is calm again; None when it never is."""
    series = found.windows("load", WINDOW_S)
    begin, end = STEP_S[0], STEP_S[0] + STEP_S[1]
    samples = found.of("load")
    before = samples.between(1.0, begin)
    calm_ms = CALM * float(np.median(before.latency_s[before.status == 200])) * 1e3
    last = end
    for start, p50 in zip(series["start_s"], series["p50_ms"], strict=True):
        if start >= end and (p50 is None or p50 > calm_ms):
            last = start + WINDOW_S
    return None if last >= sum(STEP_S) else (last - end) * 1e3


def step(url: str, capacity: float, seed: int, **more: Any) -> load.Result:
    """The load steps up and down again."""
    levels = [(share * capacity, s) for share, s in zip(STEP_SHARES, STEP_S, strict=True)]
    arrivals = {"kind": "steps", "levels": levels, "seed": seed}
    one = stream("load", url, 0, 0, seed, **{**more, "arrivals": arrivals})
    return load.run(load.Spec([one], timeout_s=10))


def summarise(measured: Measured, shares: tuple[float, ...], choice: Row) -> list[Row]:
    """A row for every rate, with paired ratios."""
    rows = []
    for share in shares:
        ours = measured.goodputs("shunter", share)
        row: Row = {"share": share, "offered_per_s": share * choice["capacity"]}
        row["stock_setting"] = choice["stock"][str(share)]
        row["bento_setting"] = choice["bento"].get(str(share))
        for side in ("shunter", "stock-best", "stock-single", "bentoml"):
            mine = [s for s in measured.samples if (s["side"], s["share"]) == (side, share)]
            if not mine:
                continue
            row[side] = {
                key: _median([s[key] for s in mine])
                for key in ("goodput_per_s", "attainment", "p50_ms", "p99_ms", "p99_of_all_ms")
            }
            row[side]["p99_interval"] = bootstrap([s["p99_ms"] or LATE_MS for s in mine])
            if side != "shunter":
                row[f"vs-{side}"] = paired_ratio(ours, measured.goodputs(side, share))
        rows.append(row)
    return rows


def _median(values: list[float | None]) -> float | None:
    """None counts as later than all others."""
    found = statistics.median([math.inf if value is None else value for value in values])
    return found if math.isfinite(found) else None


def _mean_or_none(values: list[float | None]) -> float | None:
    """None: at least once it did not recover before the end."""
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known and len(known) == len(values) else None


def headline(rows: list[Row], recoveries: dict[str, list[float | None]]) -> Row:
    """The figures that the claims are about."""
    found: Row = {
        "worst_goodput_vs_best_stock": min(r["vs-stock-best"]["median"] for r in rows),
        "worst_goodput_vs_best_single_stock": min(r["vs-stock-single"]["median"] for r in rows),
    }
    if all("vs-bentoml" in row for row in rows):
        found["worst_goodput_vs_bentoml"] = min(r["vs-bentoml"]["median"] for r in rows)
    found["recovery_ms_mean"] = _mean_or_none(recoveries["shunter"])
    found["recovery_ms_mean_stock"] = _mean_or_none(recoveries["stock-single"])
    return found


def sides_of(
    share: float, ours: Side, stock: Side, choice: Row, bentos: dict[str, Any]
) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Name, URL and more of every side that takes part at a rate."""
    yield "shunter", ours.url(OURS.name), {"pids": ours.pids()}
    best, single = Setting(**choice["stock"][str(share)]), Setting(**choice["single"])
    yield "stock-best", stock.url(best.name), {"pids": stock.pids()}
    if single != best:
        yield "stock-single", stock.url(single.name), {"pids": stock.pids()}
    setting = choice["bento"].get(str(share))
    if setting is not None and json.dumps(setting) in bentos:
        server = bentos[json.dumps(setting)]
        yield "bentoml", server.url, {"bodies": bento_bodies(server)}


def _same(choice: Row, share: float) -> bool:
    return choice["stock"][str(share)] == choice["single"]


def measure(
    ours: Side,
    stock: Side,
    archive: Path,
    choice: Row,
    selection: list[Row],
    args: argparse.Namespace,
) -> Any:
    """Paired rounds, then the step; ``selection`` is only kept beside what was measured so far."""
    shares = QUICK_SHARES if args.quick else SHARES
    with ExitStack() as stack:
        ours.add(OURS, {"class": "strict", "slo_ms": SLO_MS})
        for setting in [choice["single"], *(choice["stock"][str(share)] for share in shares)]:
            stock.add(Setting(**setting))
        bentos: dict[str, Any] = {}
        wanted = () if args.no_rival or args.quick else choice["bento"].values()
        for setting in wanted:
            if json.dumps(setting) not in bentos:
                server = bentoml_server.Bento(archive, threads=1, workers=2, **setting)
                bentos[json.dumps(setting)] = stack.enter_context(server)
                closed_loop(server.url, 24, 2, bodies=bento_bodies(server))
        measured = Measured(choice["capacity"], args.seconds)
        progress = Progress(args.rounds * len(shares) + args.steps)
        for number, share in itertools.product(range(args.rounds), shares):
            progress.step(f"round {number + 1}, {share:.0%}")
            found = list(sides_of(share, ours, stock, choice, bentos))
            for side, url, more in found if number % 2 == 0 else found[::-1]:
                measured.add(side, share, number, url, **more)
                if side == "stock-best" and _same(choice, share):
                    measured.again("stock-single")
            keep(NAME, args.quick, {"choice": choice, "samples": [*selection, *measured.samples]})
        recoveries: dict[str, list[float | None]] = {"shunter": [], "stock-single": []}
        for number in range(args.steps):
            progress.step(f"step {number + 1}")
            single = Setting(**choice["single"])
            urls = {"shunter": ours.url(OURS.name), "stock-single": stock.url(single.name)}
            for side, url in urls.items():
                recoveries[side].append(recovery_ms(step(url, choice["capacity"], number)))
        return measured, shares, recoveries, ours.status(OURS.name)


def parse() -> argparse.Namespace:
    """The command line."""
    parser = Parser(__doc__, rounds=5)
    parser.add_argument(
        "--keep-selection", action="store_true", help="settings that the last full run chose"
    )
    parser.add_argument("--seconds", type=float, help="per measurement, default 3, quick 2")
    parser.add_argument("--select-seconds", type=float, default=2, help="per selection, default 2")
    parser.add_argument("--steps", type=int, help="steps up and down, default 7, quick 1")
    parser.add_argument("--no-rival", action="store_true", help="leave BentoML out")
    args = parser.arguments()
    args.seconds = args.seconds or (2 if args.quick else 3)
    args.steps = (1 if args.quick else 7) if args.steps is None else args.steps
    return args


def main() -> None:
    """Run and write the result."""
    args = parse()
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        stores = make_stores(folder, "ours", "stock", "rival")
        archive = pack_minilm(stores[2])
        stock = stack.enter_context(Side(stores[1], shunter=False))
        if args.quick or args.keep_selection:
            choice, selection = committed_choice()
            selection = [] if args.quick else selection
        else:
            choice, selection = choose(stock, archive, args)
            keep(NAME, args.quick, {"choice": choice, "samples": selection})
        ours = stack.enter_context(Side(stores[0], shunter=True))
        measured, shares, recoveries, status = measure(
            ours, stock, archive, choice, selection, args
        )
        ceiling = null_ceiling(limit_s=6 if args.quick else 18)
    rows = summarise(measured, shares, choice)
    head = headline(rows, recoveries)
    more = [{"choice": choice}, {"recovery_ms": recoveries}, {"null_ceiling": ceiling}]
    more.append({"rivals": {"bentoml": bentoml_server.VERSION}})
    more.append({"shunter": OURS.row(), "latency": [g["latency"] for g in status["groups"]]})
    samples = [*selection, *measured.samples]
    path = write_result(NAME, quick=args.quick, rows=rows + more, headline=head, samples=samples)
    for row in rows:
        texts = [f"{row['share']:5.0%} {row['offered_per_s']:6.0f}/s"]
        for side in ("shunter", "stock-best", "stock-single", "bentoml"):
            if side in row:
                texts.append(f"{side} {row[side]['goodput_per_s']:6.1f} p99 {row[side]['p99_ms']}")
        print("; ".join(texts))
    print(json.dumps(head), path.name)


if __name__ == "__main__":
    main()
