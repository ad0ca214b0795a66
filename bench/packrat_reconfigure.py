"""Does anyone notice a change of the configuration?

A model under an open Poisson load of 60 % of what the slower of two configurations can do, REST,
while the batch size goes 8 -> 64 -> 8. Each time all worker processes are replaced: those of the
optimum for 64 load beside those for 8, take over, and back. Where the optimum for both has the
same processes, they are replaced all the same. What counts is each request from its scheduled
time of sending, in three windows: before, during (from asking for the change until the last old
worker has ended) and after. The models are resnet50, with JPEGs in, and minilm, whose short
latencies show every disturbance. The first round of each can be drawn: ``shunter plot timeline``.

Examples:
    python bench/packrat_reconfigure.py                 # 7 rounds, about 15 minutes
    python bench/packrat_reconfigure.py --quick         # minilm, 1 round
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from pathlib import Path

import load
from common import Parser, Progress, Row, bootstrap, keep, make_stores, percentile, write_result
from sides import PHOTOGRAPHS, SENTENCES, Setting, Side, Workload, closed_loop

from shunter.allocator.cpus.cores import free_cores
from shunter.allocator.cpus.discovery import read_topology
from shunter.allocator.planning.configuration import format_configuration
from shunter.allocator.planning.optimizer import minimise_latency
from shunter.allocator.planning.profile_table import latency_table
from shunter.batching.page.control_page import ControlPage
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
QUIET_S = 12
"""Before a change, and after it."""
SETTLE_S = 2
"""Not counted, after the start of the load."""


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


def change(side: Side, to: str) -> Row:
    """Replace all processes; when it was asked for, served and was over, on the host's clock."""
    name, runtime = side.workload.name, Path(side.runtime())
    old = side.pids()["workers"]
    with ControlPage.attach(runtime / "control", writable=False) as page:
        (slot,) = page.live_slots()
        generation = page.read_identity(slot).generation
        found: Row = {"to": to, "asked": time.monotonic()}
        side.configure(name, configuration=to, cores="auto", restart="true")
        # Looked at on the page, which costs the server nothing.
        while time.monotonic() < found["asked"] + LONGEST_CHANGE_S:
            if "serves" not in found and page.read_identity(slot).generation > generation:
                found["serves"] = time.monotonic()
            if "serves" in found and not any(map(is_alive, old)):
                return {**found, "ended": time.monotonic()}
            time.sleep(0.05)
        raise RuntimeError(f"no change to {to}: {page.read_identity(slot).last_change}")


def capacity(side: Side, wanted: dict[int, str]) -> dict[int, float]:
    """Requests per second that each configuration answers, with 64 clients."""
    found = {}
    for batch, configuration in reversed(wanted.items()):
        change(side, configuration)
        url, requests = side.url(side.workload.name), side.workload.requests
        closed_loop(url, LARGE, 3, **requests)
        found[batch] = closed_loop(url, LARGE, 6, **requests)["ok_per_s"]
    return found


def one_round(
    side: Side, wanted: dict[int, str], rate: float, change_s: float, seed: int
) -> Row:
    """Load from beginning to end, and both changes under it."""
    # Three times as long as without load; what is left over belongs to the window after.
    seconds = SETTLE_S + 3 * QUIET_S + 6 * change_s + 20
    given = {"kind": "poisson", "rate": rate, "seconds": seconds, "seed": seed}
    url, requests = side.url(side.workload.name), side.workload.requests
    stream = load.Stream("load", url, arrivals=given, slo_ms=1000, **requests)
    changes = []
    with load.start(load.Spec([stream], timeout_s=60)) as running:
        time.sleep(SETTLE_S + QUIET_S)
        for batch in (LARGE, SMALL):
            changes.append(change(side, wanted[batch]))
            time.sleep(QUIET_S)
        result = running.result()
    for each in changes:
        for key in ("asked", "serves", "ended"):
            each[key] = round(each[key] - result.started, 3)
    samples = result.of("load")
    return {
        "model": side.workload.name,
        "rate": rate,
        "changes": changes,
        "due_s": samples.due_s.round(4).tolist(),
        "latency_ms": (samples.latency_s * 1e3).round(3).tolist(),
        "status": samples.status.tolist(),
    }


def windows(sample: Row) -> dict[str, list[float]]:
    """Latencies before, during and after each change, by its name."""
    first, second = sample["changes"]
    bounds = {
        "before_8_64": (SETTLE_S, first["asked"]),
        "during_8_64": (first["asked"], first["ended"]),
        "after_8_64": (first["ended"], second["asked"]),
        "during_64_8": (second["asked"], second["ended"]),
        "after_64_8": (second["ended"], float("inf")),
    }
    pairs = list(zip(sample["due_s"], sample["latency_ms"], strict=True))
    return {
        name: [ms for due, ms in pairs if low <= due < high] for name, (low, high) in bounds.items()
    }


STEPS = {"8 -> 64": ("before_8_64", "8_64"), "64 -> 8": ("after_8_64", "64_8")}
"""The window that a change is compared with, and the suffix of its own."""


def summarise(samples: list[Row]) -> tuple[list[Row], Row]:
    """A row for each change of each model, over all rounds together."""
    rows: list[Row] = []
    for model in dict.fromkeys(sample["model"] for sample in samples):
        mine = [sample for sample in samples if sample["model"] == model]
        parts = [windows(sample) for sample in mine]
        for number, (step, (before, suffix)) in enumerate(STEPS.items()):
            named = {"before": before, "during": f"during_{suffix}", "after": f"after_{suffix}"}
            row: Row = {"model": model, "step": step, "rate": mine[0]["rate"]}
            row["to"] = mine[0]["changes"][number]["to"]
            for name, window in named.items():
                pooled = [ms for part in parts for ms in part[window]]
                # A change may last as long as the load: nothing is known of the time after.
                row[name] = {
                    "requests": len(pooled),
                    "p50_ms": percentile(pooled, 0.5) if pooled else None,
                    "p99_ms": percentile(pooled, 0.99) if pooled else None,
                    "max_ms": max(pooled, default=None),
                }
            changes = [sample["changes"][number] for sample in mine]
            row["change_seconds"] = statistics.median(c["serves"] - c["asked"] for c in changes)
            row["until_old_ended_seconds"] = statistics.median(
                c["ended"] - c["asked"] for c in changes
            )
            row["p99_during_vs_before"] = _ratio_of_p99(parts, named["during"], before)
            after, usual = row["after"]["p50_ms"], row["before"]["p50_ms"]
            row["p50_after_vs_before"] = after / usual if after else None
            row["failed_requests"] = sum(status != 200 for s in mine for status in s["status"])
            rows.append(row)
    return rows, {
        "failed_requests": sum(row["failed_requests"] for row in rows) // len(STEPS),
        "p99_during_vs_before": max(row["p99_during_vs_before"]["ratio"] for row in rows),
        "change_seconds": max(row["change_seconds"] for row in rows),
        "p50_after_vs_before": max(row["p50_after_vs_before"] or 0 for row in rows),
    }


def _ratio_of_p99(parts: list[dict[str, list[float]]], during: str, before: str) -> Row:
    """Ratio of the pooled p99s; its interval by drawing whole rounds."""

    def ratio(indexes: list[int]) -> float:
        pooled = [[ms for i in indexes for ms in parts[i][name]] for name in (during, before)]
        return percentile(pooled[0], 0.99) / percentile(pooled[1], 0.99)

    low, high = bootstrap(list(range(len(parts))), of=ratio, draws=500)
    return {"ratio": ratio(list(range(len(parts)))), "low": low, "high": high}


def timeline(sample: Row) -> Row:
    """One round as ``shunter plot timeline`` takes it."""
    labels = ("asked", "serves", "ended")
    events = [
        {"t_s": change[label], "label": f"{change['to']}: {label}"}
        for change in sample["changes"]
        for label in labels
    ]
    series = {"name": sample["model"], "t_s": sample["due_s"], "latency_ms": sample["latency_ms"]}
    return {"series": [series], "events": events}


def measure(store: Path, workload: Workload, rounds: int, quick: bool, kept: list[Row]) -> None:
    """All rounds of one model; samples are appended to ``kept``."""
    side = Side(store, shunter=True, workload=workload)
    wanted = configurations(side)
    with side:
        side.add(SETTING, {"auto": False}, name=workload.name)
        rates = capacity(side, wanted)
        alone = change(side, wanted[SMALL])
        rate = SHARE * min(rates.values())
        progress = Progress(rounds)
        for number in range(rounds):
            progress.step(f"{workload.name}: {wanted}, {rate:.1f} requests/s")
            kept.append(one_round(side, wanted, rate, alone["ended"] - alone["asked"], number))
            keep(NAME, quick, kept)


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
    for sample in samples[:: args.rounds]:
        picture = path.with_name(f"{NAME}.{sample['model']}.timeline.json")
        picture.write_text(json.dumps(timeline(sample)) + "\n", encoding="utf-8")
    for row in rows:
        named = ((key, row[key]["p99_ms"]) for key in ("before", "during", "after"))
        p99 = ", ".join(f"{key} {ms or 0:.0f}" for key, ms in named)
        print(f"{row['model']} {row['step']} ({row['to']}): p99 ms {p99}", end="; ")
        print(f"serves after {row['change_seconds']:.1f} s, {row['failed_requests']} failed")
    print(json.dumps(headline), path.name)


if __name__ == "__main__":
    main()
