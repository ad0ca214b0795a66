"""DISB: strict and best-effort networks on the same cores, in five schemes of the same server.

Workloads A to E of the REEF paper, DRIVE (arrivals like those of its trace REAL, made by
``disb_drive.py`` from a seed), and that trace when a file is given. Strict clients send in open
loop, scaled so that they keep the cores 30 % busy (B: 66 %); best-effort clients ask again when
they are answered. The schemes take turns in paired rounds:

    rt_only     no best-effort load
    shunter     best-effort models are preemptible
    kernel      best effort under SCHED_IDLE, and nothing else: nothing stands still, no turns
    seq         one model at a time, strict first, nothing is preempted (Clockwork's way)
    concurrent  whatever is ready runs: this server without control, not stock TorchServe
    parking     (when asked for) preemptible, and beside no strict work at all

Where ``concurrent`` cannot keep up its strict queue grows as long as a run lasts: the row says so
(``late_vs_early``), and its latencies are those of runs of that length.

Best effort can fill the machine in every workload. A request has one thread, so A and B, which
have one best-effort client in the paper, have one for each core, with a copy of the model each.
The share of the idle time is against what the same clients do alone with all cores, in the scheme
that does most (its idle time is in the result), times the share that RT-only leaves idle.

A run takes about 25 minutes: 6 rounds of 6 workloads in three schemes, and in two more in every
other round, are 144 measurements of 8.7 s (21 min); before them three minutes for the server, its
23 models and what they do alone, and half a minute for queues of ``concurrent`` that run empty.

Examples:
    python bench/disb.py                         # A to E and DRIVE
    python bench/disb.py --trace REAL.json       # and that trace (DISB's format), 4 more minutes
    python bench/disb.py --quick                 # A and E in three schemes, about two minutes
    python bench/disb.py --workloads A --schemes rt_only,kernel --rounds 4
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path

import arrivals
import disb_workloads
from common import Parser, Progress, Row, keep, make_stores, write_result
from disb_load import LEAD_S, LateStart, client_goes_first, measure, service_times
from disb_rows import headline, summarise, work_per_s
from disb_server import SCHEMES, Bed, Setting, copies
from disb_workloads import DRIVE, WORKLOADS, Run, Workload

NAME = "disb"
KNOWN = {**WORKLOADS, DRIVE.name: DRIVE}
SECONDS, QUICK_SECONDS = 6.0, 2.0
OVERHEAD_S = 1.2
"""Of a measurement, beside what it takes by its definition."""
START_S, QUICK_START_S = 210.0, 60.0
"""Of what comes before the first round, and of queues that run empty."""
GROWS = 1.5
"""From here on the second half of a run was slower than the first because a queue grew."""


def choose(args: argparse.Namespace) -> tuple[dict[str, Workload], str]:
    """Workloads, and why the trace is left out."""
    found = {name: KNOWN[name] for name in args.workloads if name != "REAL"}
    reason = "no file was given (--trace)"
    if args.trace is not None:
        try:
            found["REAL"] = disb_workloads.from_trace(arrivals.disb(args.trace))
            reason = ""
        except (arrivals.BadArrivals, ValueError) as error:
            reason = str(error)
    return found, reason


def minutes(measurements: int, seconds: float, *, quick: bool) -> float:
    """How long a run takes.

    >>> round(minutes(144, SECONDS, quick=False), 1)
    24.4
    """
    start = QUICK_START_S if quick else START_S
    return (measurements * (LEAD_S + seconds + OVERHEAD_S) + start) / 60


class Bench:
    """What was found about the models, and the measurements so far."""

    def __init__(self, bed: Bed, workloads: Mapping[str, Workload], args: argparse.Namespace):
        self.bed, self.workloads, self.args = bed, workloads, args
        self.schemes: list[str] = args.schemes
        self.samples: list[Row] = []

    def prepare(self) -> None:
        """Register the models, measure each alone, and best effort alone."""
        strict = {m for each in self.workloads.values() for m in each.strict}
        sets = dict.fromkeys(each.best_effort for each in self.workloads.values())
        others = {model for models in sets for model in models}
        self.bed.register({(m, "strict") for m in strict | others} | self._best_effort(sets))
        self.bed.use("rt_only")
        self.service_s = service_times(self.bed, sorted(strict | others), self.args.quick)
        self.scales = {
            n: disb_workloads.scale(each, self.service_s) for n, each in self.workloads.items()
        }
        self.solo = {models: self._solo(models) for models in sets}

    def _best_effort(self, sets: Iterable[tuple[str, ...]]) -> set[tuple[str, str]]:
        """Models and kinds of all schemes, with the copies that fill the cores."""
        kinds = [SCHEMES[s].best_effort for s in self.schemes]
        return {
            (model, copy)
            for models in sets
            for model in models
            for kind in kinds
            if kind is not None
            for copy in copies(kind, self.bed.setting.copies(models))
        }

    def _solo(self, models: tuple[str, ...]) -> Row:
        """By scheme: work per second of best effort alone, and what it leaves idle."""
        seconds = self.args.seconds
        found = {}
        for scheme in self.schemes:
            if SCHEMES[scheme].best_effort is not None:
                row = self._measure(scheme, {}, models, seconds)
                work = work_per_s(row, self.service_s)
                found[scheme] = {"work_per_s": work, "idle_share": row["idle_share"]}
        return found

    def run(self, run: Run) -> None:
        """One measurement."""
        workload, seconds = self.workloads[run.workload], self.args.seconds
        factor = self.scales[run.workload]
        due = disb_workloads.times(workload, factor, LEAD_S + seconds, run.number)
        row = self._measure(run.scheme, due, workload.best_effort, seconds)
        known = {"workload": run.workload, "scheme": run.scheme, "round": run.number}
        work = work_per_s(row, self.service_s) if "best_effort_done" in row else 0.0
        solo = max(each["work_per_s"] for each in self.solo[workload.best_effort].values())
        self.samples.append({**known, **row, "work_per_s": work, "solo_work_per_s": solo})

    def _measure(self, *what: object) -> Row:
        for _ in range(5):
            try:
                return measure(self.bed, *what)
            except LateStart as error:
                print(f"once more, the best-effort clients were {error}", file=sys.stderr)
                last = error
        raise last

    def about(self) -> Row:
        """What rates and shares refer to."""
        return {
            "service_ms": {m: s * 1e3 for m, s in self.service_s.items()},
            "strict_per_s": {
                name: {m: rate * self.scales[name] for m, rate in each.rates().items()}
                for name, each in self.workloads.items()
            },
            "best_effort_alone": {"+".join(m): v for m, v in self.solo.items()},
            "best_effort_copies": {"+".join(m): self.bed.setting.copies(m) for m in self.solo},
            "strict_order": self.args.strict_order,
            "strict_client_goes_first": client_goes_first(),
            "wait_policy": self.args.wait_policy,
            "best_effort_threads": self.args.best_effort_threads,
            "seconds": self.args.seconds,
        }


def options() -> argparse.Namespace:
    """The command line."""
    parser = Parser(__doc__, rounds=6, quick_rounds=2)
    parser.add_argument("--trace", type=Path, help="a workload file of DISB, such as REAL.json")
    parser.add_argument("--workloads", help="default A,B,C,D,E,DRIVE; quick A,E")
    parser.add_argument(
        "--schemes", help="default rt_only,shunter,kernel,seq,concurrent; quick the first three"
    )
    parser.add_argument("--strict-order", default="fifo", choices=("fifo", "edf", "concurrent"))
    parser.add_argument(
        "--wait-policy", default="default", choices=("passive", "default"), help="OpenMP's, of all"
    )
    parser.add_argument("--best-effort-threads", type=int, default=1, help="of each, default 1")
    parser.add_argument("--seconds", type=float, help="per measurement, default 6, quick 2")
    args = parser.arguments()
    args.seconds = args.seconds or (QUICK_SECONDS if args.quick else SECONDS)
    args.workloads = (args.workloads or ("A,E" if args.quick else ",".join(KNOWN))).split(",")
    if set(args.workloads) - {*KNOWN, "REAL"}:
        parser.error(f"--workloads: some of {', '.join(KNOWN)}")
    usual = "rt_only,shunter,kernel" + ("" if args.quick else ",seq,concurrent")
    args.schemes = (args.schemes or usual).split(",")
    if args.schemes[0] != "rt_only" or len(args.schemes) < 2 or set(args.schemes) - set(SCHEMES):
        parser.error(f"--schemes: rt_only, then some of {', '.join(SCHEMES)}")
    return args


def main() -> None:
    """Run and write the result."""
    args = options()
    workloads, reason = choose(args)
    runs = list(disb_workloads.plan(list(workloads), args.rounds, args.schemes))
    takes = minutes(len(runs), args.seconds, quick=args.quick)
    print(f"{len(runs)} measurements, about {takes:.0f} min", file=sys.stderr)
    environment = {"passive": (("OMP_WAIT_POLICY", "passive"),), "default": ()}[args.wait_policy]
    threads = len(os.sched_getaffinity(0)), args.best_effort_threads
    setting = Setting(*threads, args.strict_order, environment)
    with tempfile.TemporaryDirectory() as folder:
        (store,) = make_stores(folder, "store")
        with Bed(store, setting) as bed:
            bench = Bench(bed, workloads, args)
            bench.prepare()
            keep(NAME, args.quick, bench.about())
            progress = Progress(len(runs))
            for index, run in enumerate(runs):
                progress.step(f"round {run.number + 1}, {run.workload}, {run.scheme}")
                bench.run(run)
                if index + 1 == len(runs) or runs[index + 1].number != run.number:
                    keep(NAME, args.quick, bench.samples)
    rows = summarise(bench.samples)
    found = headline(rows, args.schemes[1])
    rows += [bench.about(), {"trace_left_out": reason}]
    path = write_result(NAME, quick=args.quick, rows=rows, headline=found, samples=bench.samples)
    for row in rows[:-2]:
        print(line(row))
    print(json.dumps(found), path.name)


def line(row: Row) -> str:
    """A row for people, with 95 % intervals."""
    low, high = row["p99_ms_interval"]
    text = (
        f"{row['workload']:5} {row['scheme']:10} strict mean {row['mean_ms']:.1f} ms, "
        f"p99 {row['p99_ms']:.1f} ms ({low:.1f} to {high:.1f})"
    )
    if (row["late_vs_early"] or 0) > GROWS:
        text += f", the second half of a run x{row['late_vs_early']:.1f}"
    if "best_effort_per_s" not in row:
        return f"{text}; idle {row['idle_share']:.0%}"
    return (
        f"{text}; mean {_change(row, 'mean_overhead')}, p99 {_change(row, 'p99_overhead')}; "
        f"best effort {row['best_effort_per_s']:.1f}/s, {row['share_of_idle']:.0%} of the idle "
        f"time; throughput x{row['throughput_vs_rt_only']:.2f}; "
        f"wrong {row['wrong_answers']}, failed {row['failed']}"
    )


def _change(row: Row, key: str) -> str:
    low, high = row[f"{key}_interval"]
    return f"{row[key]:+.1%} ({low:+.1%} to {high:+.1%})"


if __name__ == "__main__":
    main()
