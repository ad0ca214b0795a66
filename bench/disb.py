"""DISB: strict and best-effort networks on the same cores, in four schemes of the same server.

Workloads A to E of the REEF paper, and its trace when a file is given. Strict clients send in open
loop, scaled so that in A, C, D, E and the trace they keep the cores 30 % busy (B: 66 %);
best-effort clients ask again when they are answered, one per model. The schemes take turns in
paired rounds:

    rt_only     no best-effort load
    shunter     best-effort models are preemptible
    seq         one model at a time, strict first, nothing is preempted (Clockwork's way)
    concurrent  whatever is ready runs
    kernel      (when asked for) best effort under SCHED_IDLE, and nothing else
    parking     (when asked for) preemptible, and beside no strict work at all

Examples:
    python bench/disb.py                         # A, C, E: 20 rounds, B, D: 4; under 25 minutes
    python bench/disb.py --trace REAL.json       # the trace as well (DISB's format), 4 rounds
    python bench/disb.py --quick                 # A and E, under two minutes
    python bench/disb.py --workloads A --schemes rt_only,kernel --rounds 4
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

import arrivals
import disb_workloads
from common import Parser, Progress, Row, keep, make_stores, write_result
from disb_load import LEAD_S, LateStart, client_goes_first, measure, service_time
from disb_rows import headline, summarise, work_per_s
from disb_server import SCHEMES, Bed, Setting
from disb_workloads import WORKLOADS, Run, Workload

NAME = "disb"
MAIN = ("A", "C", "E")
SIDE_ROUNDS = 4
"""Of the other workloads."""
OVERHEAD_S = 1.2
"""Of a measurement, beside what it takes by its definition."""


def choose(args: argparse.Namespace) -> tuple[dict[str, Workload], dict[str, int], str]:
    """Workloads, rounds of each, and why the trace is left out."""
    names = args.workloads.split(",") if args.workloads else None
    found = {n: WORKLOADS[n] for n in names or ("AE" if args.quick else "ACEBD") if n != "REAL"}
    reason = "no file was given (--trace)"
    if args.trace is not None:
        try:
            found["REAL"] = disb_workloads.from_trace(arrivals.disb(args.trace))
            reason = ""
        except (arrivals.BadArrivals, ValueError) as error:
            reason = str(error)
    rounds = {n: args.rounds if n in MAIN else min(args.rounds, SIDE_ROUNDS) for n in found}
    return found, rounds, reason


class Bench:
    """What was found about the models, and the measurements so far."""

    def __init__(self, bed: Bed, workloads: Mapping[str, Workload], args: argparse.Namespace):
        self.bed, self.workloads, self.args = bed, workloads, args
        self.schemes: list[str] = args.schemes
        self.samples: list[Row] = []

    def prepare(self) -> None:
        """Register the models, measure each alone, and best effort alone."""
        strict = {m for each in self.workloads.values() for m in each.strict}
        others = {m for each in self.workloads.values() for m in each.best_effort}
        kinds = {SCHEMES[s].best_effort for s in self.schemes} - {None}
        wanted = {(m, "strict") for m in strict | others}
        wanted |= {(m, kind) for m in others for kind in kinds}
        self.bed.register(wanted)
        self.bed.use("rt_only")
        seconds = 0.8 if self.args.quick else 3.0
        self.service_s = {m: service_time(self.bed, m, seconds) for m in sorted(strict | others)}
        self.scales = {
            n: disb_workloads.scale(each, self.service_s) for n, each in self.workloads.items()
        }
        self.solo = {
            models: self._solo(models)
            for models in dict.fromkeys(each.best_effort for each in self.workloads.values())
        }

    def _solo(self, models: tuple[str, ...]) -> Row:
        """By scheme: work per second of best effort alone, and what it leaves idle."""
        seconds = 1.5 if self.args.quick else self.args.seconds
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
            "strict_order": self.args.strict_order,
            "strict_client_goes_first": client_goes_first(),
            "wait_policy": self.args.wait_policy,
            "best_effort_threads": self.args.best_effort_threads,
            "seconds": self.args.seconds,
        }


def options() -> argparse.Namespace:
    """The command line."""
    parser = Parser(__doc__, rounds=20, quick_rounds=3)
    parser.add_argument("--trace", type=Path, help="a workload file of DISB, such as REAL.json")
    parser.add_argument("--workloads", help="default A,C,E,B,D; quick A,E")
    parser.add_argument("--schemes", default="rt_only,shunter,seq,concurrent")
    parser.add_argument("--strict-order", default="fifo", choices=("fifo", "edf", "concurrent"))
    parser.add_argument(
        "--wait-policy", default="default", choices=("passive", "default"), help="OpenMP's, of all"
    )
    parser.add_argument("--best-effort-threads", type=int, default=1, help="of each, default 1")
    parser.add_argument("--seconds", type=float, help="per measurement, default 6, quick 2.5")
    args = parser.arguments()
    args.seconds = args.seconds or (2.5 if args.quick else 6.0)
    args.schemes = args.schemes.split(",")
    if args.schemes[0] != "rt_only" or len(args.schemes) < 2 or set(args.schemes) - set(SCHEMES):
        parser.error(f"--schemes: rt_only, then some of {', '.join(SCHEMES)}")
    return args


def main() -> None:
    """Run and write the result."""
    args = options()
    workloads, rounds, reason = choose(args)
    runs = list(disb_workloads.plan(rounds, args.schemes))
    each_s = LEAD_S + args.seconds + OVERHEAD_S
    print(f"{len(runs)} measurements, about {len(runs) * each_s / 60 + 1:.0f} min", file=sys.stderr)
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
    found = headline(rows, args.schemes[1], MAIN)
    rows += [bench.about(), {"trace_left_out": reason}]
    path = write_result(NAME, quick=args.quick, rows=rows, headline=found, samples=bench.samples)
    for row in rows[:-2]:
        print(line(row))
    print(json.dumps(found), path.name)


def line(row: Row) -> str:
    """A row for people."""
    text = (
        f"{row['workload']:4} {row['scheme']:10} strict mean {row['mean_ms']:.1f} ms, "
        f"p99 {row['p99_ms']:.1f} ms"
    )
    if "best_effort_per_s" not in row:
        return f"{text}; idle {row['idle_share']:.0%}"
    return (
        f"{text} ({row['mean_overhead']:+.1%}, {row['p99_overhead']:+.1%}); best effort "
        f"{row['best_effort_per_s']:.1f}/s, {row['share_of_idle']:.0%} of the idle time; "
        f"throughput x{row['throughput_vs_rt_only']:.2f}; "
        f"wrong {row['wrong_answers']}, failed {row['failed']}"
    )


if __name__ == "__main__":
    main()
