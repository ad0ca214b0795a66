"""Preemption of best-effort work on a GPU: the whole ladder, and the workloads of DISB.

One process owns the device: strict work on an urgent stream, best effort by one rung of the
ladder after the other, five networks of the DISB class at batch 1. Measured are what gates cost
by the length of segments, preemption (from the store to the end of the last best-effort segment,
which the device tells by a word of shared memory) and resumption for every network, strict
latency beside every rung, and the workloads A to E at the paper's rates, with ``--real`` also its
trace. Needs an NVIDIA GPU and cuda-python; where they are missing it says so, and that is no
failure. MIG mode, clocks, compute mode and persistence stay as they are.

What fails is noted in the result, and the rest is measured. After ``--budget`` seconds what is
left is skipped, and noted as skipped.

Examples:
    python bench/gpu_preempt.py          # into results/GPU/preempt.json and disb.json
    python bench/gpu_preempt.py --quick --real REAL.json
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import gpu_bed
import gpu_clients
import gpu_disb
import gpu_ladder
from common import Parser, Row, keep, result_path, write_result
from gpu_bed import NAMES, Bed, Desk
from gpu_disb import RT_ONLY
from gpu_entry import folder_of, missing
from gpu_rows import disb_headline, ladder_table, preempt_headline, rung_measured

from shunter.handlers.device.ladder import Rung, choose, worker_environment

NAME = "gpu_preempt"
BUDGET_S = 540.0
SHARES = {"latency": 0.22, "ladder": 0.2, "disb": 0.3}
"""Of the budget, for time that is measured; captures and warming up have the rest."""
GRACE_S = 20.0
WAYS = ("whole", "segments", "gates", "gates_page")


class Session:
    """What was measured so far, within a budget. Failures are rows too."""

    def __init__(self, budget_s: float, quick: bool) -> None:
        """The budget begins now."""
        self.quick = quick
        self.budget_s = budget_s
        self._end = time.monotonic() + budget_s
        self.found: dict[str, list[Row]] = {}
        self.failures: list[Row] = []

    def measure(self, what: str, label: str, how: Callable[[], Any], least_s: float = 1.0) -> Any:
        """Run a measurement if there is time for it; None when it failed or was skipped."""
        left = self._end - time.monotonic()
        if left < least_s:
            self.failures.append({"what": what, "label": label, "skipped": "no time was left"})
            return None
        print(f"[{left:.0f} s left] {what}: {label}", file=sys.stderr, flush=True)
        try:
            found = how()
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            traceback.print_exc()
            self.failures.append({"what": what, "label": label, "failed": reason})
            return None
        rows = found if isinstance(found, list) else [found]
        self.found.setdefault(what, []).extend(rows)
        keep(NAME, self.quick, {"found": self.found, "failures": self.failures})
        return found

    def seconds(self, what: str, cells: int) -> float:
        """For each cell of a kind of measurement."""
        return SHARES[what] * self.budget_s / cells


def measure(desk: Desk, session: Session, rounds: int, real: Path | None) -> None:
    """Everything, the most important first where one does not need the other."""
    session.measure("attributes", "of the device", lambda: gpu_ladder.attributes(desk))
    for name in NAMES:
        session.measure("captured", name, lambda name=name: captured(desk, name))
    measure_latencies(desk, session)
    measure_ladder(desk, session)
    passes = 10 if session.quick else 50
    session.measure("gate_cost", "by segment length", lambda: gpu_ladder.gate_cost(desk, passes))
    measure_disb(desk, session, rounds, real)


def captured(desk: Desk, name: str) -> Row:
    """Capture both copies of a model, and time a pass alone."""
    begin = time.monotonic()
    strict = desk.of_strict(name)
    with gpu_ladder.using(desk, desk.best_effort(name, Rung.PRIORITY)) as runner:
        us = gpu_clients.solo_us(runner, desk.bed.model(name)[1], 20)
    seconds = time.monotonic() - begin
    row = {"model": name, "pass_us": us, "parts": len(strict.parts), "seconds": seconds}
    return {**row, "longest_part_us": strict.bound_us, "sum_us": sum(strict.costs_us)}


def measure_latencies(desk: Desk, session: Session) -> None:
    """Preemption and resumption of every network by every way."""
    possible = gpu_ladder.rungs(desk)
    ways = [w for w in WAYS if not w.startswith("gates") or Rung.GATES in possible]
    seconds = session.seconds("latency", len(NAMES) * len(ways))
    for way in ways if possible else []:
        for name in NAMES:
            session.measure(
                "latency",
                f"{name} by {way}",
                lambda way=way, name=name: gpu_ladder.latencies(desk, name, way, seconds),
            )


def measure_ladder(desk: Desk, session: Session) -> None:
    """Strict work beside every rung; twice, so that a drift shows."""
    cells = list(gpu_ladder.ladder_cells(desk))
    seconds = session.seconds("ladder", 2 * len(cells))
    for number in range(2):
        for label, rung, options, sms in cells:

            def how(label=label, rung=rung, options=options, sms=sms, number=number) -> Row:
                found = gpu_ladder.cell(desk, rung, options, sms, seconds)
                return {"label": label, "round": number, **found}

            session.measure("ladder", f"{label}, round {number}", how)


def measure_disb(desk: Desk, session: Session, rounds: int, real: Path | None) -> None:
    """RT-only and every rung in turn, workload by workload, round by round."""
    schemes = [RT_ONLY, Rung.PRIORITY.value, *(rung.value for rung in gpu_ladder.rungs(desk))]
    loads = gpu_disb.workloads(real)
    seconds = session.seconds("disb", len(loads) * len(schemes) * rounds)
    for number in range(rounds):
        for load in loads:
            for scheme in schemes:
                session.measure(
                    "disb",
                    f"{load.name} {scheme}, round {number}",
                    lambda load=load, scheme=scheme, number=number: gpu_disb.run(
                        desk, load, scheme, seconds, number
                    ),
                )


# ---- what it amounts to


def write(session: Session, gpu: str, bed: Bed) -> None:
    """Both results, and the ladder as a table."""
    found = session.found
    table = ladder_table(found.get("ladder", []))
    rung = choose(bed.found, rung_measured(found, table)).value
    passes = {row["model"]: row["pass_us"] for row in found.get("captured", [])}
    disb = gpu_disb.summary(found.get("disb", []), passes)
    folder = folder_of(gpu)
    kinds = ("attributes", "captured", "gate_cost")
    rows = [{"kind": kind, "gpu": gpu, **row} for kind in kinds for row in found.get(kind, [])]
    for row in found.get("latency", []):
        short = {key: value for key, value in row.items() if key != "samples_us"}
        rows.append({"kind": "latency", "gpu": gpu, **short})
    rows += [{"kind": "ladder", "gpu": gpu, **row} for row in table]
    rows += [{"kind": "failure", "gpu": gpu, **row} for row in session.failures]
    headline = preempt_headline(found, rung)
    raw = {kind: found.get(kind, []) for kind in ("latency", "ladder")}
    options = {"quick": session.quick}
    write_result(f"{folder}/preempt", rows=rows, headline=headline, samples=raw, **options)
    of_disb = disb_headline(disb, rung)
    disb_rows = [{"gpu": gpu, **row} for row in disb]
    raw = found.get("disb", [])
    write_result(f"{folder}/disb", rows=disb_rows, headline=of_disb, samples=raw, **options)
    print_tables(table, disb)
    print(json.dumps({"preempt": headline, "disb": of_disb, "failures": len(session.failures)}))


def print_tables(table: Sequence[Row], disb: Sequence[Row]) -> None:
    """For people."""
    for row in table:
        overhead = row.get("mean_overhead")
        share = "" if overhead is None else f"{100 * overhead:+7.1f} %"
        times = "  ".join(f"{key} {row[key]:8.0f}" for key in ("p50", "p99", "p999"))
        print(f"{row['label']:18} us {times} {share}  {row['best_effort_per_s']:7.1f} passes/s")
    for row in disb:
        print(
            f"{row['workload']:5}{row['scheme']:10} p99 {row['p99_us']:8.0f} us  mean "
            f"{100 * row['mean_overhead']:+6.1f} %  x{row['throughput_vs_rt_only']:.2f}"
        )


def give_up(session: Session, gpu: str, bed: Bed) -> None:
    """The device does not answer any more: what is known is written, and the process ends."""
    session.failures.append({"what": "all", "failed": "a measurement did not come to its end"})
    try:
        write(session, gpu, bed)
    finally:
        os._exit(1)


def measure_on(bed: Bed, session: Session, rounds: int, real: Path | None) -> None:
    """Measure what there is time for, and write it."""
    limit = session.budget_s + GRACE_S
    overdue = threading.Timer(limit, give_up, (session, bed.gpu, bed))
    overdue.daemon = True
    overdue.start()
    try:
        with bed.executor() as desk:
            measure(desk, session, rounds, real)
        write(session, bed.gpu, bed)
        result_path(NAME, session.quick).with_suffix(".partial.json").unlink(missing_ok=True)
    finally:
        overdue.cancel()


def main() -> None:
    """Measure everything."""
    parser = Parser(__doc__, rounds=3, quick_rounds=1)
    parser.add_argument("--budget", type=float, help=f"seconds, default {BUDGET_S:.0f}, quick 110")
    parser.add_argument("--real", type=Path, help="DISB's file of the trace")
    args = parser.arguments()
    os.environ.update(worker_environment(True))  # before anything of CUDA begins
    if reason := missing():
        print(f"{NAME}: nothing is measured: {reason}", file=sys.stderr)
        return
    session = Session(args.budget or (110.0 if args.quick else BUDGET_S), args.quick)
    measure_on(gpu_bed.open_bed(0), session, args.rounds, args.real)


if __name__ == "__main__":
    main()
