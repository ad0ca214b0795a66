"""What the samples of the preemption benchmark on a GPU amount to."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from common import Row, percentile
from gpu_ladder import OTHER, spread

from shunter.handlers.device.ladder import Measured, Rung


def ladder_table(rows: Sequence[Row]) -> list[Row]:
    """A row for each rung and its settings, against strict work alone."""
    cells: dict[str, list[Row]] = {}
    for row in rows:
        cells.setdefault(row["label"], []).append(row)
    alone = [us for row in cells.get("alone", []) for us in row["strict_us"]]
    table = []
    for label, mine in cells.items():
        took = [us for row in mine for us in row["strict_us"]]
        seconds = sum(row["seconds"] for row in mine)
        row = {"label": label, **spread(took)}
        row["best_effort_per_s"] = sum(each["passes"] for each in mine) / seconds
        row["wrong_answers"] = sum(each["wrong_answers"] for each in mine)
        if alone:
            row["mean_overhead"] = sum(took) / len(took) / (sum(alone) / len(alone)) - 1
            row["p99_overhead"] = row["p99"] / percentile(alone, 0.99) - 1
        table.append(row)
    return table


def worst(rows: Sequence[Row], key: str, way: str) -> float | None:
    """The largest percentile of preemption over all networks."""
    found = [row["preempt"][key] for row in rows if row["way"] == way and row["preempt"]["count"]]
    return max(found, default=None)


def rung_measured(found: Mapping[str, Sequence[Row]], table: Sequence[Row]) -> dict[Rung, Measured]:
    """What the choice of a rung is made by."""
    passes = {row["model"]: row["pass_us"] for row in found.get("captured", [])}
    labels = {Rung.SEGMENTS: "V1 window 2", Rung.GATES: "V2 segment 50 us"}
    measured = {}
    for rung, label in labels.items():
        p99 = worst(found.get("latency", []), "p99", rung.value)
        row = next((r for r in table if r["label"] == label and "mean_overhead" in r), None)
        if p99 is not None and row is not None and OTHER in passes:
            share = row["best_effort_per_s"] * passes[OTHER] / 1e6
            measured[rung] = Measured(p99, row["mean_overhead"], share)
    return measured


def disb_headline(rows: Sequence[Row], rung: str) -> Row:
    """Of the chosen rung, over all workloads."""
    mine = [row for row in rows if row["scheme"] == rung]

    def of(which: Callable[..., float], key: str) -> float | None:
        return which((row[key] for row in mine), default=None)

    return {
        "rung": rung,
        "strict_mean_overhead_worst": of(max, "mean_overhead"),
        "strict_p99_overhead_worst": of(max, "p99_overhead"),
        "best_effort_share_of_idle_worst": of(min, "best_effort_share_of_idle"),
        "throughput_vs_rt_only": {row["workload"]: row["throughput_vs_rt_only"] for row in mine},
    }


def preempt_headline(found: Mapping[str, Sequence[Row]], rung: str) -> Row:
    """Of the chosen rung, the worst network; latencies of the kernel do not apply to a device."""
    rows = found.get("latency", [])
    mine = [row for row in rows if row["way"] == rung]
    segments = [
        row["preempt"]["p99"] / row["bound_us"]
        for row in rows
        if row["way"] == Rung.SEGMENTS.value and row["preempt"]["count"] and row["bound_us"]
    ]
    costs = [row["restore_overhead"] for row in mine if row["restore_overhead"] is not None]
    every = [row for kind in ("latency", "ladder", "disb") for row in found.get(kind, [])]
    return {
        "rung": rung,
        "preempt_p50_us": worst(rows, "p50", rung),
        "preempt_p99_us": worst(rows, "p99", rung),
        "kernel_p50_us": None,
        "kernel_p99_vs_idle_wakeup": None,
        "cooperative_p99_segments": max(segments, default=None),
        "restore_overhead": max(costs, default=None),
        "wrong_answers": sum(row["wrong_answers"] for row in every),
    }
