"""Does anyone notice a change of the configuration?

A model under an open load, REST, while the batch size goes 8 -> 64 -> 8. Each time all worker
processes are replaced: those of the optimum for 64 load beside those for 8, take over, and back.
Where the optimum for both has the same processes, they are replaced all the same. The models are
resnet50, with JPEGs in, and minilm, whose short latencies show every disturbance.

The load is 60 % of the lowest rate that either configuration reaches with 8 or 64 clients, so both
can carry it, and the same before and after. Arrivals are random, but repeat every ``QUIET_S``
seconds, so that windows of this length have the same bursts. What counts is each request from its
scheduled time of sending, in three windows: before, during (from asking for the change until the
last old worker has ended) and after. Each change has a load of its own, which begins on a server
at rest: no change is measured against what the one before it left behind.

A configuration may have another p99 by nature. ``p99_after_vs_settled`` therefore compares with
the same configuration, under the same arrivals, when it has long settled: the window before the
other change. p99s are of all rounds together, with intervals by drawing whole rounds. The first
round of each model can be drawn: ``shunter plot timeline``.

Examples:
    python bench/packrat_reconfigure.py                 # 7 rounds, about half an hour
    python bench/packrat_reconfigure.py --quick         # minilm, 1 round: three minutes
"""

from __future__ import annotations

import json
import math
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path

import httpx
import load
import numpy as np
from common import Parser, Progress, Row, bootstrap, keep, make_stores, write_result
from sides import PHOTOGRAPHS, SENTENCES, Setting, Side, Workload, answered_per_s

from shunter.allocator.cpus.cores import free_cores
from shunter.allocator.cpus.discovery import read_topology
from shunter.allocator.planning.configuration import format_configuration
from shunter.allocator.planning.optimizer import minimise_latency
from shunter.allocator.planning.profile_table import latency_table
from shunter.batching.page.control_page import ControlPage, UnstableError
from shunter.batching.page.processes import is_alive
from shunter.handlers.sample import Sample
from shunter.plugins.hosts import runtime_of
from shunter.plugins.profiling.profiler import Task, run
from shunter.plugins.profiling.profiles import profile_path

NAME = "packrat_reconfigure"
SMALL, LARGE = 8, 64
SHARE = 0.6
SETTING = Setting(batch=LARGE, delay_ms=5, workers=1, threads=0, queue=1000)
LONGEST_CHANGE_S = 120
FIRST_CHANGE_S = 40
"""For so long there is load for the first change, and for later ones by the longest so far."""
QUIET_S = 15
"""Before a change, and after it; the period of the arrivals."""
SETTLE_S = 3
"""Not counted, after the start of the load; and without load before it."""
STEPS = {"8 -> 64": LARGE, "64 -> 8": SMALL}
"""Which batch size each change leads to. Each begins where the other one ends."""
RATIOS = {
    "p99_during_vs_before": ("during", "before", 0.99),
    "p99_after_vs_before": ("after", "before", 0.99),
    "p99_after_vs_settled": ("after", "settled", 0.99),
    "p50_after_vs_before": ("after", "before", 0.5),
}
"""Of which windows, and of which percentile."""
Window = tuple[str, str]
"""A change, and before, during or after."""
Windows = dict[Window, np.ndarray]
"""Latencies of a round."""


def configurations(side: Side) -> dict[int, str]:
    """The optimum for both batch sizes, from a profile measured now."""
    workload = side.workload
    archive = side.archive(workload.name, SETTING, {"auto": False})
    topology = read_topology()
    samples = [Sample(workload.bodies[0], workload.content_type)]
    task = Task(archive, samples, threads=topology.cores, batch=LARGE, runtime=runtime_of())
    table = latency_table(run(task, profile_path(archive), topology))
    choices = {b: minimise_latency(table, free_cores(topology), b) for b in (SMALL, LARGE)}
    return {batch: format_configuration(each.configuration) for batch, each in choices.items()}


@dataclass
class Ready:
    """What a change needs, at hand before there is load: it would take 0.1 s of the CPUs."""

    old: list[int]
    """Processes that will be replaced."""
    page: Path
    url: str
    client: httpx.Client


def ready(side: Side) -> Ready:
    """Look it up."""
    page, client = Path(side.runtime()) / "control", httpx.Client(timeout=30)
    url = f"{side.server.management}/shunter/models/{side.workload.name}"
    client.get(url).raise_for_status()
    return Ready(side.pids()["workers"], page, f"{url}/configuration", client)


def change(given: Ready, to: str) -> Row:
    """Replace all processes; when it was asked for, served and was over, on the host's clock."""
    old, wanted = given.old, {"configuration": to, "cores": "auto", "restart": "true"}
    with closing(given.client), ControlPage.attach(given.page, writable=False) as page:
        (slot,) = page.live_slots()
        generation = page.read_identity(slot).generation
        found: Row = {"to": to, "asked": time.monotonic()}
        given.client.put(given.url, params=wanted).raise_for_status()
        # Looked at on the page, which costs the server nothing.
        while time.monotonic() < found["asked"] + LONGEST_CHANGE_S:
            with suppress(UnstableError):  # the server is writing it, and waits for a CPU
                if "serves" not in found and page.read_identity(slot).generation > generation:
                    found["serves"] = time.monotonic()
            if "serves" in found and not any(map(is_alive, old)):
                return {**found, "ended": time.monotonic()}
            time.sleep(0.05)
        raise RuntimeError(f"no change to {to}: {page.read_identity(slot).last_change}")


def capacity(side: Side, wanted: dict[int, str]) -> float:
    """Requests per second that each configuration answers, with few clients and with many."""
    url, found = side.url(side.workload.name), []
    for configuration in reversed(wanted.values()):
        change(ready(side), configuration)
        found += [answered_per_s(url, n, 6, **side.workload.requests) for n in (LARGE, SMALL)]
    return min(found)


def arrivals(rate: float, seconds: float, seed: int) -> Row:
    """Times of sending that repeat every ``QUIET_S`` seconds; in each period equally many."""
    choose = random.Random(seed)
    period = sorted(choose.uniform(0, QUIET_S) for _ in range(max(1, round(rate * QUIET_S))))
    periods = range(math.ceil(seconds / QUIET_S))
    times = [QUIET_S * number + each for number in periods for each in period]
    return {"kind": "times", "times": [t for t in times if t < seconds], "seconds": seconds}


def one_change(side: Side, to: str, rate: float, room_s: float, seed: int) -> Row:
    """A load from beginning to end, and a change under it that may take ``room_s``."""
    at_hand = ready(side)
    time.sleep(SETTLE_S)
    seconds = SETTLE_S + QUIET_S + room_s + QUIET_S
    given = arrivals(rate, seconds, seed)
    url, requests = side.url(side.workload.name), side.workload.requests
    stream = load.Stream("load", url, arrivals=given, slo_ms=1000, **requests)
    with load.start(load.Spec([stream], timeout_s=60)) as running:
        time.sleep(max(0.0, running.started + SETTLE_S + QUIET_S - time.monotonic()))
        changed = change(at_hand, to)
        result = running.result()
    for key in ("asked", "serves", "ended"):
        changed[key] = round(changed[key] - result.started, 3)
    samples = result.of("load")
    return {
        "model": side.workload.name,
        "rate": rate,
        "seconds": seconds,
        "change": changed,
        "due_s": samples.due_s.round(4).tolist(),
        "latency_ms": (samples.latency_s * 1e3).round(3).tolist(),
        "status": samples.status.tolist(),
    }


def windows(sample: Row) -> Windows:
    """Latencies before, during and after a change; none after it if the load ended too early."""
    asked, ended = sample["change"]["asked"], sample["change"]["ended"]
    is_whole = ended + QUIET_S <= sample["seconds"]
    bounds = {
        "before": (asked - QUIET_S, asked),
        "during": (asked, ended),
        "after": (ended, ended + QUIET_S * is_whole),
    }
    due_s, ms = np.array(sample["due_s"]), np.array(sample["latency_ms"])
    return {
        (sample["step"], name): ms[(due_s >= low) & (due_s < high)]
        for name, (low, high) in bounds.items()
    }


def pooled(parts: list[Windows], window: Window, share: float) -> float:
    """A percentile of all rounds together."""
    values = np.concatenate([part[window] for part in parts])
    return float(np.quantile(values, share, method="inverted_cdf"))


def value(parts: list[Windows], window: Window, share: float) -> Row | None:
    """A percentile with its interval; None where nothing was sent."""
    known = [part for part in parts if part[window].size]
    return with_interval(known, lambda drawn: pooled(drawn, window, share))


def ratio(parts: list[Windows], over: Window, under: Window, share: float) -> Row | None:
    """The quotient of two windows' percentiles, over the rounds that have both; None for none."""
    known = [part for part in parts if part[over].size and part[under].size]
    return with_interval(known, lambda d: pooled(d, over, share) / pooled(d, under, share))


def with_interval(parts: list[Windows], of: Callable[[list[Windows]], float]) -> Row | None:
    """What all rounds give, and its interval by drawing whole rounds."""
    if not parts:
        return None
    every = range(len(parts))
    low, high = bootstrap(every, of=lambda drawn: of([parts[int(i)] for i in drawn]), draws=1000)
    return {"value": of(parts), "low": low, "high": high, "rounds": len(parts)}


def row_of(step: str, mine: list[Row], parts: list[Windows]) -> Row:
    """One change of one model, over all rounds."""
    other = next(each for each in STEPS if each != step)
    named = {name: (step, name) for name in ("before", "during", "after")}
    named["settled"] = other, "before"
    changes = [sample["change"] for sample in mine]
    row: Row = {"model": mine[0]["model"], "step": step, "rate": mine[0]["rate"]}
    row["to"] = changes[0]["to"]
    for name, window in named.items():
        row[name] = {
            "requests": sum(part[window].size for part in parts),
            "p50_ms": value(parts, window, 0.5),
            "p99_ms": value(parts, window, 0.99),
            "max_ms": value(parts, window, 1),
        }
    for name, (over, under, share) in RATIOS.items():
        row[name] = ratio(parts, named[over], named[under], share)
    row["change_seconds"] = statistics.median(c["serves"] - c["asked"] for c in changes)
    row["until_old_ended_seconds"] = statistics.median(c["ended"] - c["asked"] for c in changes)
    row["failed_requests"] = sum(status != 200 for each in mine for status in each["status"])
    return row


def summarise(samples: list[Row]) -> tuple[list[Row], Row]:
    """A row for each change of each model, and the worst of all rows."""
    rows: list[Row] = []
    for model in dict.fromkeys(sample["model"] for sample in samples):
        mine = {s: [x for x in samples if (x["model"], x["step"]) == (model, s)] for s in STEPS}
        pairs = zip(*mine.values(), strict=True)
        parts = [{**windows(first), **windows(second)} for first, second in pairs]
        rows += [row_of(step, mine[step], parts) for step in STEPS]
    headline: Row = {"failed_requests": sum(row["failed_requests"] for row in rows)}
    for name in RATIOS:
        # What is not known of one change is not known of the worst.
        known = [row[name]["value"] for row in rows if row[name]]
        headline[name] = max(known) if len(known) == len(rows) else None
    return rows, headline | {"change_seconds": max(row["change_seconds"] for row in rows)}


def timeline(samples: list[Row]) -> Row:
    """One round as ``shunter plot timeline`` takes it: both changes, one after the other."""
    series: Row = {"name": samples[0]["model"], "t_s": [], "latency_ms": []}
    events, begin = [], 0.0
    for sample in samples:
        series["t_s"] += [begin + due for due in sample["due_s"]]
        series["latency_ms"] += sample["latency_ms"]
        changed = sample["change"]
        events += [
            {"t_s": begin + changed[label], "label": f"{changed['to']}: {label}"}
            for label in ("asked", "serves", "ended")
        ]
        begin += sample["seconds"] + SETTLE_S
    return {"series": [series], "events": events}


def measure(store: Path, workload: Workload, rounds: int, quick: bool, kept: list[Row]) -> None:
    """All rounds of one model; samples are appended to ``kept``."""
    side = Side(store, shunter=True, workload=workload)
    wanted = configurations(side)
    with side:
        side.add(SETTING, {"auto": False}, name=workload.name)
        rate, room_s, longest = SHARE * capacity(side, wanted), FIRST_CHANGE_S, 0.0
        progress = Progress(rounds * len(STEPS))
        for number in range(rounds):
            for step, batch in STEPS.items():
                progress.step(f"{workload.name} {step}: {wanted[batch]}, {rate:.1f} requests/s")
                sample = one_change(side, wanted[batch], rate, room_s, number)
                kept.append({**sample, "step": step, "round": number})
                keep(NAME, quick, kept)
                longest = max(longest, sample["change"]["ended"] - sample["change"]["asked"])
                room_s = 1.5 * longest + 5


def main() -> None:
    """Run and write the result."""
    parser = Parser(__doc__, quick_rounds=1)
    args = parser.arguments()
    samples: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        for workload in (SENTENCES,) if args.quick else (PHOTOGRAPHS, SENTENCES):
            (store,) = make_stores(folder, workload.name)
            measure(store, workload, args.rounds, args.quick, samples)
    rows, headline = summarise(samples)
    path = write_result(NAME, quick=args.quick, rows=rows, headline=headline, samples=samples)
    for model in dict.fromkeys(sample["model"] for sample in samples):
        both = [each for each in samples if (each["model"], each["round"]) == (model, 0)]
        picture = path.with_name(f"{NAME}.{model}.timeline.json")
        picture.write_text(json.dumps(timeline(both)) + "\n", encoding="utf-8")
    for row in rows:
        print(f"{row['model']} {row['step']} ({row['to']}):", end=" ")
        print(f"serves after {row['change_seconds']:.1f} s, {row['failed_requests']} failed")
        for name in ("before", "during", "after", "settled"):
            print(f"  p99 {name}: {row[name]['p99_ms']}")
    print(json.dumps(headline), path.name)


if __name__ == "__main__":
    main()
