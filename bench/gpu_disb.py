"""The workloads of DISB and its trace in one process on a GPU, by the rungs of the ladder."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

import arrivals
import disb_workloads
import numpy as np
from common import Row, percentile
from disb_workloads import Workload
from gpu_bed import Desk
from gpu_clients import Background, steady, until
from gpu_ladder import using

from shunter.handlers.device.ladder import Rung

RT_ONLY = "rt_only"


def workloads(real: Path | None) -> list[Workload]:
    """A to E at the paper's own rates, and the trace if there is one."""
    found = list(disb_workloads.WORKLOADS.values())
    if real is not None:
        found.append(disb_workloads.from_trace(arrivals.disb(real)))
    return found


def run(desk: Desk, workload: Workload, scheme: str, seconds: float, number: int) -> Row:
    """One round of a workload: strict requests in open loop, best effort in closed loop."""
    due = sorted(
        (at, name)
        for name, times in disb_workloads.times(workload, 1.0, seconds, number).items()
        for at in times
    )
    row: Row = {"workload": workload.name, "scheme": scheme, "round": number, "seconds": seconds}
    with ExitStack() as stack:
        models = dict.fromkeys(name for _, name in due)
        strict = {n: stack.enter_context(using(desk, desk.strict(n))) for n in models}
        others = None
        if scheme != RT_ONLY:
            runners = {
                name: stack.enter_context(using(desk, desk.best_effort(name, Rung(scheme))))
                for name in workload.best_effort
            }
            others = Background(desk.bed, runners)
        stack.enter_context(steady())
        if others is not None:
            stack.enter_context(others)
        begin = time.perf_counter()
        took, busy = [], 0.0
        for at, name in due:
            until(begin, at)
            now = time.perf_counter()
            strict[name].run([desk.bed.model(name)[1]])
            busy += time.perf_counter() - now
            took.append((time.perf_counter() - begin - at) * 1e6)
        until(begin, seconds)
        row["strict_us"], row["busy_s"] = took, busy
        row["seconds"] = time.perf_counter() - begin
        passes = list(others.passes) if others is not None else []
    row["best_effort"] = {
        name: sum(one.model == name for one in passes) for name in workload.best_effort
    }
    row["preemptions"] = sum(one.parks for one in passes)
    row["wrong_answers"] = sum(not one.right for one in passes)
    return row


def summary(rows: Sequence[Row], alone_us: Mapping[str, float]) -> list[Row]:
    """A row for each workload and scheme, against RT-only of the same rounds.

    ``alone_us``: time of a best-effort pass alone, by model.
    """
    found = []
    for workload in dict.fromkeys(row["workload"] for row in rows):
        mine = [row for row in rows if row["workload"] == workload]
        base = {row["round"]: row for row in mine if row["scheme"] == RT_ONLY}
        for scheme in dict.fromkeys(row["scheme"] for row in mine):
            pairs = [
                (row, base[row["round"]])
                for row in mine
                if row["scheme"] == scheme and row["round"] in base
            ]
            if pairs and all(row["strict_us"] for pair in pairs for row in pair):
                found.append(_against(workload, scheme, pairs, alone_us))
    return found


def _against(
    workload: str, scheme: str, pairs: Sequence[tuple[Row, Row]], alone_us: Mapping[str, float]
) -> Row:
    ours = [us for row, _ in pairs for us in row["strict_us"]]
    theirs = [us for _, row in pairs for us in row["strict_us"]]
    shares = {"p50_us": 0.5, "p99_us": 0.99, "p999_us": 0.999}
    row: Row = {"workload": workload, "scheme": scheme, "rounds": len(pairs)}
    row |= {key: percentile(ours, share) for key, share in shares.items()}
    row["mean_overhead"] = float(np.mean(ours) / np.mean(theirs)) - 1
    row["p99_overhead"] = row["p99_us"] / percentile(theirs, 0.99) - 1
    row["throughput_vs_rt_only"] = float(np.median([_answers(a) / _answers(b) for a, b in pairs]))
    row["best_effort_share_of_idle"] = float(
        np.median([_work_s(a, alone_us) / max(b["seconds"] - b["busy_s"], 1e-9) for a, b in pairs])
        # Both are of rounds that took as long.
    )
    row["preemptions"] = sum(a["preemptions"] for a, _ in pairs)
    row["wrong_answers"] = sum(a["wrong_answers"] for a, _ in pairs)
    return row


def _answers(row: Row) -> float:
    return (len(row["strict_us"]) + sum(row["best_effort"].values())) / row["seconds"]


def _work_s(row: Row, alone_us: Mapping[str, float]) -> float:
    return sum(count * alone_us[name] / 1e6 for name, count in row["best_effort"].items())
