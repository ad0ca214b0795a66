"""Throughput and latency of a trivial handler over HTTP against hand-tuned stock TorchServe.

Closed loop by wrk at 1 to 128 connections; both servers with quiet logs and job_queue_size=1000;
only answers with status 200 count. Stock is measured in every combination of batch size, delay
and worker count first (selection). Then, for every number of connections, the best of them is
measured again in paired, interleaved rounds with Shunter in ONE setting (batch 64, delay 1 ms, one
worker) for all numbers of connections.

Examples:
    python bench/http_sweep.py                    # all of it, about 25 minutes
    python bench/http_sweep.py --quick            # against what the last full run chose
    python bench/http_sweep.py --rounds 2 --seconds 1 --select-seconds 1
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import statistics
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import wrk
from common import (
    Parser,
    Progress,
    Row,
    committed_samples,
    pack_sums,
    paired_ratio,
    result_path,
    write_result,
)

from shunter.plugins.torchserve.build import ensure
from shunter.plugins.torchserve.server import Server

NAME = "http_sweep"
POINTS = (1, 2, 4, 8, 16, 32, 64, 128)
QUICK_POINTS = (1, 8, 32, 128)
BATCHES = (1, 2, 4, 8, 16, 32, 64)
DELAYS_MS = (1, 5, 20)
WORKERS = (1, 2)
BODY = json.dumps([1.5, *range(2, 17)])
EXPECTED = [10.5, 26, 42, 58]


@dataclass(frozen=True)
class Setting:
    """How the model is registered."""

    batch: int
    delay_ms: int
    workers: int

    @property
    def name(self) -> str:
        """Model name under which this setting is registered."""
        return f"sums-{self.batch}-{self.delay_ms}-{self.workers}"


OURS = Setting(64, 1, 1)
OURS_TWO = Setting(64, 1, 2)


class Side:
    """One server with models registered in several settings."""

    def __init__(self, server: Server, lua: Path) -> None:
        """Measure ``server``."""
        self._server, self._lua = server, lua
        self._models: set[Setting] = set()

    def add(self, setting: Setting) -> None:
        """Register the model in that setting, wait for its workers, check one answer."""
        if setting in self._models:
            return
        query = {
            "url": "sums.mar",
            "model_name": setting.name,
            "batch_size": setting.batch,
            "max_batch_delay": setting.delay_ms,
            "initial_workers": setting.workers,
            "synchronous": "true",
        }
        url = f"{self._server.management}/models"
        httpx.post(url, params=query, timeout=120).raise_for_status()
        self._models.add(setting)
        headers = {"content-type": "application/json"}
        answer = httpx.post(self.url(setting), content=BODY, headers=headers, timeout=30)
        if answer.json() != EXPECTED:
            raise RuntimeError(f"{setting}: wrong answer {answer.text}")
        self.measure(setting, 8, 1)

    def remove(self, setting: Setting) -> None:
        """Unregister it. Stock answers 500 now and then although its workers have ended."""
        url = f"{self._server.management}/models/{setting.name}"
        answer = httpx.delete(url, timeout=120)
        if answer.status_code != 200:
            print(f"unregistering {setting.name}: {answer.status_code}", file=sys.stderr)
        self._models.discard(setting)

    def url(self, setting: Setting) -> str:
        """Where its predictions are asked for."""
        return f"{self._server.inference}/predictions/{setting.name}"

    def measure(self, setting: Setting, connections: int, seconds: float) -> wrk.Measured:
        """One run of wrk."""
        return wrk.run(self.url(setting), self._lua, connections, seconds, self._server.pid)

    def ceiling(self, seconds: float) -> wrk.Measured:
        """What client and front end do when no model has a part in it: /ping."""
        url = f"{self._server.inference}/ping"
        return wrk.run(url, self._lua, 64, seconds, self._server.pid)


@contextmanager
def sides() -> Iterator[tuple[Side, Side]]:
    """Shunter and stock, both running; the one that is not loaded is idle."""
    config = {"job_queue_size": "1000"}
    with ExitStack() as stack:
        store = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        lua = stack.enter_context(wrk.script(BODY))
        pack_sums(store)
        ours = stack.enter_context(Server(model_store=store, plugins=ensure(), config=config))
        stock = stack.enter_context(Server(model_store=store, config=config))
        yield Side(ours, lua), Side(stock, lua)


def select(stock: Side, seconds: float) -> list[Row]:
    """Measure every stock setting at every point, one model loaded at a time.

    What an interrupted run measured is taken from its file; delete that to begin anew.
    """
    saved = result_path(NAME, quick=False).with_name(f"{NAME}.selection.partial.json")
    rows = json.loads(saved.read_text(encoding="utf-8")) if saved.exists() else []
    done = {setting_of(row) for row in rows}
    settings = [Setting(*s) for s in itertools.product(BATCHES, DELAYS_MS, WORKERS)]
    progress = Progress(len(settings) - len(done))
    for setting in [s for s in settings if s not in done]:
        progress.step(f"selecting: stock {setting}")
        stock.add(setting)
        for point in POINTS:
            found = stock.measure(setting, point, seconds)
            rows.append({"side": "stock", "phase": "select", **vars(setting), **found.row()})
        stock.remove(setting)
        saved.parent.mkdir(parents=True, exist_ok=True)
        saved.write_text(json.dumps(rows), encoding="utf-8")
    saved.unlink()
    return rows


def setting_of(row: Row) -> Setting:
    """The setting in a row."""
    return Setting(row["batch"], row["delay_ms"], row["workers"])


def choose(rows: list[Row]) -> tuple[dict[int, Setting], Setting]:
    """The best stock setting per point, and the best single one by geometric mean."""
    rates: dict[Setting, dict[int, float]] = {}
    for row in rows:
        if row["phase"] == "select":
            rates.setdefault(setting_of(row), {})[row["connections"]] = max(row["rate"], 1e-9)
    best = {p: max(rates, key=lambda s: rates[s][p]) for p in POINTS}
    single = max(rates, key=lambda s: statistics.geometric_mean(rates[s].values()))
    return best, single


def measure(
    ours: Side, stock: Side, best: dict[int, Setting], single: Setting, args: argparse.Namespace
) -> list[Row]:
    """Paired rounds: every side at every point, in random order."""
    points = QUICK_POINTS if args.quick else POINTS
    for setting in {*(best[p] for p in points), single}:
        stock.add(setting)
    ours.add(OURS)
    if not args.quick:
        ours.add(OURS_TWO)
    shuffle = random.Random(7)
    progress = Progress(args.rounds)
    rows = []
    for number in range(args.rounds):
        progress.step("measuring")
        for point in points:
            runs = [
                ("shunter", ours, OURS),
                ("stock-best", stock, best[point]),
                ("stock-single", stock, single),
            ]
            if not args.quick:
                runs.append(("shunter-2", ours, OURS_TWO))
            shuffle.shuffle(runs)
            for side, server, setting in runs:
                found = server.measure(setting, point, args.seconds)
                head = {"side": side, "phase": "measure", "round": number, **vars(setting)}
                rows.append({**head, **found.row()})
    return rows


def summarise(rows: list[Row]) -> tuple[list[Row], Row]:
    """One row per point, and the headline numbers."""

    def values(side: str, point: int, key: str) -> list[float]:
        return [
            r[key]
            for r in rows
            if r["phase"] == "measure" and (r["side"], r["connections"]) == (side, point)
        ]

    table, points = [], sorted({r["connections"] for r in rows if r["phase"] == "measure"})
    for p in points:
        row: Row = {"connections": p}
        for side in sorted({r["side"] for r in rows if r["phase"] == "measure"}):
            row[side] = {
                "rate": statistics.median(values(side, p, "rate")),
                "p50_ms": statistics.median(values(side, p, "p50_ms")),
                "p99_ms": statistics.median(values(side, p, "p99_ms")),
                "errors": sum(values(side, p, "errors")),
                "cpu": next(
                    r["cpu"]
                    for r in rows
                    if r["phase"] == "measure" and (r["side"], r["connections"]) == (side, p)
                ),
            }
        chosen = next(r for r in rows if (r["side"], r["connections"]) == ("stock-best", p))
        row["stock_setting"] = vars(setting_of(chosen))
        for key, name in (("rate", "throughput_ratio"), ("p50_ms", "p50_ratio")):
            row[name] = paired_ratio(values("shunter", p, key), values("stock-best", p, key))
        row["single_ratio"] = paired_ratio(
            values("shunter", p, "rate"), values("stock-single", p, "rate")
        )
        table.append(row)
    peak = max(r["shunter"]["rate"] for r in table) / max(r["stock-best"]["rate"] for r in table)
    singles = [r["single_ratio"]["median"] for r in table]
    headline = {
        "worst_throughput_vs_best_stock": min(r["throughput_ratio"]["median"] for r in table),
        "worst_p50_vs_best_stock": max(r["p50_ratio"]["median"] for r in table),
        "geomean_vs_best_single_stock": statistics.geometric_mean(singles),
        "peak_vs_best_stock": peak,
    }
    return table, {key: round(value, 3) for key, value in headline.items()}


def committed_choice() -> tuple[dict[int, Setting], Setting]:
    """The stock settings that the committed full run selected."""
    path = result_path(NAME, quick=False)
    if not path.exists():
        raise SystemExit("--quick needs the result of a full run; run without --quick first")
    rows = json.loads(path.read_text(encoding="utf-8"))["rows"]
    best = {r["connections"]: Setting(**r["stock_setting"]) for r in rows if "stock_setting" in r}
    return best, Setting(**next(r["stock_single"] for r in rows if "stock_single" in r))


def committed_selection() -> list[Row]:
    """What the committed full run measured to select them."""
    return [row for row in committed_samples(NAME) if row["phase"] == "select"]


def main() -> None:
    """Run and write the result."""
    parser = Parser(__doc__)
    parser.add_argument(
        "--keep-selection", action="store_true", help="settings that the last full run chose"
    )
    parser.add_argument("--seconds", type=float, default=2, help="per measurement, default 2")
    parser.add_argument("--select-seconds", type=float, default=1, help="per selection, default 1")
    args = parser.arguments()
    with sides() as (shunter, stock):
        kept = args.quick or args.keep_selection
        selection = committed_selection() if kept else select(stock, args.select_seconds)
        selection = [] if args.quick else selection
        best, single = committed_choice() if kept else choose(selection)
        measured = measure(shunter, stock, best, single, args)
        null = {side: s.ceiling(2).row() for side, s in (("shunter", shunter), ("stock", stock))}
    table, headline = summarise(measured)
    table.append({"stock_single": vars(single)})
    table.append({"null_ceiling": null})
    path = write_result(
        NAME, quick=args.quick, rows=table, headline=headline, samples=selection + measured
    )
    for row in table:
        if "connections" in row:
            ours, best = row["shunter"], row["stock-best"]
            print(
                f"{row['connections']:4d} connections: "
                f"shunter {ours['rate']:8.0f}/s {ours['p50_ms']:6.2f} ms, "
                f"best stock {best['rate']:8.0f}/s {best['p50_ms']:6.2f} ms {row['stock_setting']}"
            )
    print(json.dumps(headline), path.name)


if __name__ == "__main__":
    main()
