"""The settings of stock and of BentoML that goodput is compared with, and how they are found.

Measured once in short runs, so that what is chosen is measured anew afterwards.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
from pathlib import Path
from typing import Any

from common import Progress, Row, committed_samples, result_path
from rivals import bentoml_server
from rivals.environments import Unavailable
from sides import BODIES, Setting, Side, closed_loop, open_loop

NAME = "slo_goodput"
SHARES = (0.2, 0.4, 0.6, 0.8, 0.9, 1.0, 1.2)
SHAPES = ((2, 1), (1, 2))
"""Workers and threads."""
STOCK = ((1, 1), *itertools.product((4, 8, 16, 32), (1, 10)))
"""Batch sizes and delays in ms."""
SHORT_QUEUES = (10, 30)
"""Tried where the load is near the capacity; the default is 100."""
NEAR_CAPACITY = 0.85
DROPS_MS = (50, 80)
"""``clientTimeoutInMills``, tried there too: what is left of 100 ms is for the batch."""
SEED, MORE_SEEDS = 11, (12, 13, 14)
CLOSE = 0.97
"""Settings with this share of a rate's highest goodput are measured again on other arrivals."""
MOST_CLOSE = 4
BENTO = tuple(
    {"max_batch": b, "max_latency_ms": ms}
    for b, ms in ((32, 60_000), (32, 200), (32, 100), (8, 200))
)


def capacity_of(stock: Side, progress: Progress, seconds: float) -> tuple[float, Row]:
    """The best closed-loop rate of stock, and how it was found."""
    tried: list[Row] = []
    for (workers, threads), batch in itertools.product(SHAPES, (16, 32)):
        setting = Setting(batch, 20, workers, threads, 100)
        progress.step(f"capacity: stock {setting}")
        url = stock.add(setting)
        for clients in (workers * batch, 64):
            rate = closed_loop(url, clients, seconds)["ok_per_s"]
            tried.append({"setting": setting.row(), "clients": clients, "rate": rate})
        stock.remove(setting)
    best = max(tried, key=lambda row: row["rate"])
    return best["rate"], {"capacity": best, "tried": tried}


def settings_near(best: list[Row], share: float) -> list[Setting]:
    """The best setting so far for a rate, with shorter queues or with a time to drop."""
    setting = best_by_share(best)[share]["setting"]
    changes = [{"queue": queue} for queue in SHORT_QUEUES] + [{"drop_ms": ms} for ms in DROPS_MS]
    return [Setting(**{**setting, **change}) for change in changes]


def finalists(rows: list[Row]) -> list[Row]:
    """Of each rate the few settings that are as good as its best, each to be measured again."""
    found = []
    for share, best in best_by_share(rows).items():
        close = [r for r in rows if r["share"] == share and r["goodput"] >= CLOSE * best["goodput"]]
        found += sorted(close, key=lambda row: -row["goodput"])[:MOST_CLOSE]
    return found


def settled(rows: list[Row], again: list[Row]) -> list[Row]:
    """A finalist's goodput becomes the mean over all seeds; what was not measured again is out."""
    found = []
    for row in finalists(rows):
        key = (row["setting"], row["share"])
        of = [each for each in (row, *again) if (each["setting"], each["share"]) == key]
        found.append({**row, "goodput": statistics.fmean(each["goodput"] for each in of)})
    return found


def select_stock(
    stock: Side, shape: tuple[int, int], capacity: float, progress: Progress, seconds: float
) -> tuple[list[Row], list[Row]]:
    """Goodput of every stock setting at every rate, one model loaded at a time.

    Then the best of each rate again, on more arrivals.
    """
    rows: list[Row] = []

    def measure(setting: Setting, shares: tuple[float, ...]) -> None:
        progress.step(f"selection: stock {setting}")
        url = stock.add(setting)
        for share in shares:
            rows.append({"setting": setting.row(), **_selected(url, share, capacity, seconds)})
        stock.remove(setting)

    for batch, delay_ms in STOCK:
        measure(Setting(batch, delay_ms, *shape, 100), SHARES)
    near = tuple(share for share in SHARES if share > NEAR_CAPACITY)
    for setting in dict.fromkeys(s for share in near for s in settings_near(rows, share)):
        measure(setting, SHARES)
    wanted: dict[Setting, list[float]] = {}
    for row in finalists(rows):
        wanted.setdefault(Setting(**row["setting"]), []).append(row["share"])
    again: list[Row] = []
    for setting, shares in wanted.items():
        progress.step(f"selection again: stock {setting}")
        url = stock.add(setting)
        for share, seed in itertools.product(shares, MORE_SEEDS):
            found = _selected(url, share, capacity, seconds, seed=seed)
            again.append({"setting": setting.row(), "seed": seed, **found})
        stock.remove(setting)
    return rows, again


def _selected(
    url: str, share: float, capacity: float, seconds: float, seed: int = SEED, **more: Any
) -> Row:
    found = open_loop(url, share * capacity, seconds, seed, **more)["load"]
    return {"share": share, "goodput": found["goodput_per_s"], "p99_ms": found["p99_ms"]}


def select_bento(archive: Path, capacity: float, progress: Progress, seconds: float) -> list[Row]:
    """The same for BentoML; empty when it cannot be installed."""
    rows: list[Row] = []
    for setting in BENTO:
        progress.step(f"selection: BentoML {setting}")
        with bentoml_server.Bento(archive, threads=1, workers=2, **setting) as server:
            bodies = bento_bodies(server)
            closed_loop(server.url, 24, 2, bodies=bodies)
            for share in SHARES:
                found = _selected(server.url, share, capacity, seconds, bodies=bodies)
                rows.append({"setting": setting, **found})
    return rows


def bento_bodies(server: Any) -> list[bytes]:
    return [server.body(json.loads(body)["text"]) for body in BODIES]


def best_by_share(rows: list[Row]) -> dict[float, Row]:
    """For every rate the setting with the highest goodput."""
    shares = {row["share"] for row in rows}
    return {
        s: max((r for r in rows if r["share"] == s), key=lambda r: r["goodput"]) for s in shares
    }


def best_single(rows: list[Row]) -> dict[str, Any]:
    """The setting whose mean goodput, as a share of the best for each rate, is highest.

    The mean, because the worst of short measurements would be decided by one disturbance.
    """
    best = {share: row["goodput"] for share, row in best_by_share(rows).items()}
    by_setting: dict[str, list[float]] = {}
    for row in rows:
        ratio = row["goodput"] / best[row["share"]]
        by_setting.setdefault(json.dumps(row["setting"]), []).append(ratio)
    complete = {
        setting: statistics.fmean(ratios)
        for setting, ratios in by_setting.items()
        if len(ratios) == len(best)
    }
    return json.loads(max(complete, key=complete.__getitem__))


def choose(stock: Side, archive: Path, args: argparse.Namespace) -> tuple[Row, list[Row]]:
    """Selection: capacity, and the best settings of the others for each rate."""
    progress = Progress(len(SHAPES) * 2 + len(STOCK) + 12 + 10 + len(BENTO))
    capacity, found = capacity_of(stock, progress, args.select_seconds)
    best_setting = found["capacity"]["setting"]
    shape = (best_setting["workers"], best_setting["threads"])
    rows, again = select_stock(stock, shape, capacity, progress, args.select_seconds)
    bento: list[Row] = []
    unavailable = "not asked for"
    if not args.no_rival:
        try:
            bento, unavailable = select_bento(archive, capacity, progress, args.select_seconds), ""
        except Unavailable as error:
            unavailable = str(error)
    choice = {
        "capacity": capacity,
        "stock": {str(s): r["setting"] for s, r in best_by_share(settled(rows, again)).items()},
        "single": best_single(rows),
        "bento": {str(s): row["setting"] for s, row in best_by_share(bento).items()},
        "bento_unavailable": unavailable,
    }
    return choice, [found, *rows, *again, *({"bentoml": True, **row} for row in bento)]


def committed_choice() -> tuple[Row, list[Row]]:
    """What the last full run chose, or one interrupted after its selection; and what it saw."""
    partial = result_path(NAME, quick=False).with_suffix(".partial.json")
    if partial.exists():
        kept = json.loads(partial.read_text(encoding="utf-8"))
        return kept["choice"], _selection(kept["samples"])
    path = result_path(NAME, quick=False)
    if not path.exists():
        raise SystemExit(f"{path} is missing; run the full benchmark first")
    rows = json.loads(path.read_text(encoding="utf-8"))["rows"]
    choice = next(row["choice"] for row in rows if "choice" in row)
    return choice, _selection(committed_samples(NAME))


def _selection(samples: list[Row]) -> list[Row]:
    return [row for row in samples if "side" not in row]
