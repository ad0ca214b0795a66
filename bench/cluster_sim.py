"""A thousand machines for a day, simulated: what spot machines save, and what a decision costs.

The policies are the product's own (allocator/cluster): the dispatcher, the number of machines,
procurement. Machines, requests and three clouds are simulated (bench/clouds); prices and chances of
eviction are those of PROTEAN's paper (table 3, section 5), and what it does not print is assumed:
`--assumptions` says what. Schemes: on demand with as many machines as the peak needs, on demand as
sizing says, spot only, ours (spot first). Compared is ours with on demand as sizing says.

Only the dispatcher's cost per decision is measured, on this machine; all else is simulated.

Examples:
    python bench/cluster_sim.py                  # some minutes
    python bench/cluster_sim.py --quick          # an hour of the day, one cloud
    python bench/cluster_sim.py --assumptions
"""

from __future__ import annotations

import json
import math
import random
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
from arrivals import diurnal
from clouds.curve import LOADS, Curve, late_share
from clouds.day import SCHEMES, Day, Scheme, simulate
from clouds.market import Market
from clouds.world import (
    ASSUMPTIONS,
    AVAILABILITY,
    CLOUDS,
    DAY_S,
    NODES,
    PEAK_TO_MEAN,
    SLOTS,
    STRICT,
    TICK_S,
    Cloud,
    peak_rate,
)
from common import Parser, Progress, Row, paired_ratio, write_result

from shunter.allocator.cluster.load import Fit, Machine, ModelState, SliceLoad
from shunter.allocator.cluster.procurement import Kind
from shunter.allocator.cluster.routing import Request, Router

NAME = "cluster_sim"
SIZES = (10, 100, 1000)
MODELS = 20
BASELINE = "on demand only"


def curve(quick: bool, seed: int) -> tuple[Curve, list[Row]]:
    """Late strict requests over the load; a few points again with all machines, to compare."""
    nodes, seconds = (50, 2.0) if quick else (200, 5.0)
    rows = [
        {
            "part": "curve",
            "nodes": count,
            "load": load,
            "late": late_share(load, count, length, seed),
            "origin": "simulated",
        }
        for load, count, length in (
            *((load, nodes, seconds) for load in LOADS),
            *(() if quick else ((load, NODES, 2.0) for load in (0.6, 0.9, 1.1))),
        )
    ]
    small = [row for row in rows if row["nodes"] == nodes]
    return Curve([row["load"] for row in small], [row["late"] for row in small]), rows


@dataclass(frozen=True)
class Run:
    """What is simulated; prices change nothing that happens."""

    scheme: Scheme
    strict: float
    notice_s: float
    level: str = "any"
    market: str = "any"


def runs(notices: Sequence[float]) -> Iterator[Run]:
    """All; on demand nothing depends on the market."""
    for scheme, strict in product(SCHEMES, STRICT):
        if scheme.only == Kind.ON_DEMAND:
            yield Run(scheme, strict, notices[0])
            continue
        for notice in notices:
            for level in AVAILABILITY:
                yield Run(scheme, strict, notice, level, "independent")
            yield Run(scheme, strict, notice, "moderate", "zones")


def days(
    clouds: Sequence[Cloud], seconds: int, seed: int, late: Curve
) -> Iterator[tuple[Run, Day]]:
    """Every run; ``seconds`` of a day, around its peak."""
    shape = diurnal(1 / PEAK_TO_MEAN, PEAK_TO_MEAN, DAY_S, seed, 6.0)
    begin = max(0, min(int(np.argmax(shape)) - seconds // 2, DAY_S - seconds))
    # The busiest tick takes all machines; a second inside it may want more.
    shape = shape[begin : begin + seconds] / shape.reshape(-1, int(TICK_S)).mean(axis=1).max()
    every = list(runs(sorted({each.notice_s for each in clouds})))
    progress = Progress(len(every))
    for run in every:
        progress.step(f"{run.scheme.name}, {run.strict:.0%} strict, {run.level}, {run.market}")
        sold = Market(
            AVAILABILITY.get(run.level, 0.0), run.notice_s, seed, in_zones=run.market == "zones"
        )
        rates = shape * peak_rate(run.strict)
        yield run, simulate(run.scheme, rates, run.strict, sold, late)


def priced(found: dict[Run, Day], clouds: Sequence[Cloud]) -> list[Row]:
    """A row for each run and cloud."""
    base = {run.strict: day for run, day in found.items() if run.scheme.name == BASELINE}
    return [
        {
            "part": "day",
            "scheme": run.scheme.name,
            "strict": run.strict,
            "cloud": cloud.name,
            "availability": run.level,
            "market": run.market,
            "dollars": round(cloud.cost(day.hours), 2),
            "cost_vs_on_demand": round(
                cloud.cost(day.hours) / cloud.cost(base[run.strict].hours), 4
            ),
            "gap_points": round(100 * (base[run.strict].compliance - day.compliance), 4) + 0.0,
            "spot_share": round(day.hours[Kind.SPOT] / sum(day.hours.values()), 4),
            **day.row(),
            "origin": "simulated",
        }
        for (run, day), cloud in product(found.items(), clouds)
        if run.market == "any" or cloud.notice_s == run.notice_s
    ]


def router(nodes: int, draw: random.Random) -> tuple[Router, list[Machine]]:
    """Machines of eight slices with twenty models each, a quarter of them hot."""
    found = Router(draw)
    machines = [_machine(f"m{at}", at, draw) for at in range(nodes)]
    for each in machines:
        found.publish(each)
    for at in range(MODELS):
        found.choose(Request(f"model{at}", True))
    return found, machines


def _machine(name: str, order: int, draw: random.Random) -> Machine:
    models = {
        f"model{at}": ModelState(Fit(0.01, 0.001), draw.choice([0.0, 0.1, 0.1, 0.1]), 8.0)
        for at in range(MODELS)
    }
    slices = tuple(
        SliceLoad(str(at), strict_s=draw.uniform(0, 0.1), best_effort_s=draw.uniform(0, 0.5))
        for at in range(SLOTS)
    )
    return Machine(name, models, slices, order)


KINDS = {
    "strict": (True, math.inf),
    "best_effort": (False, math.inf),
    "late": (True, 0.001),  # nobody can: the best of all is looked for
}


def decision_cost(rounds: int, count: int) -> tuple[list[Row], Row]:
    """Microseconds of a decision by nodes and kind, sizes interleaved, publications between."""
    draw, spent = random.Random(1), {}
    beds = {nodes: router(nodes, random.Random(nodes)) for nodes in SIZES}
    for _ in range(rounds + 1):  # the first one warms up
        for nodes, (found, machines) in beds.items():
            took = _publish(found, machines, draw)
            spent.setdefault((nodes, "publish"), []).append(took)
            for kind, (strict, deadline_s) in KINDS.items():
                asked = [
                    Request(f"model{draw.randrange(MODELS)}", strict, deadline_s)
                    for _ in range(count)
                ]
                begin = time.process_time()
                for each in asked:
                    found.choose(each)
                took = (time.process_time() - begin) / count
                spent.setdefault((nodes, kind), []).append(took)
    rows = [
        {
            "part": "decision",
            "nodes": nodes,
            "kind": kind,
            "us": round(1e6 * statistics.median(values[1:]), 2),
            "origin": "measured",
        }
        for (nodes, kind), values in spent.items()
    ]
    ratios = {
        kind: paired_ratio(spent[SIZES[-1], kind][1:], spent[SIZES[0], kind][1:]) for kind in KINDS
    }
    rows += [
        {"part": "decision ratio", "kind": kind, **ratio, "origin": "measured"}
        for kind, ratio in ratios.items()
    ]
    return rows, ratios


def _publish(found: Router, machines: Sequence[Machine], draw: random.Random) -> float:
    """What a publication takes; none at random, so that each machine is as fresh as the others."""
    begin = time.process_time()
    for each in machines:
        found.publish(each)
    return (time.process_time() - begin) / len(machines)


def headline(rows: list[Row], ratios: Row) -> Row:
    """The figures by which it is judged, the worst of all clouds and levels of availability."""
    def of(scheme: str, market: str) -> list[Row]:
        return [row for row in rows if (row["scheme"], row["market"]) == (scheme, market)]

    ours, zones = of("ours", "independent"), of("ours", "zones")
    return {
        "cost_vs_on_demand": min(row["cost_vs_on_demand"] for row in ours),
        "cost_vs_on_demand_worst": max(row["cost_vs_on_demand"] for row in ours),
        "compliance_gap_points": max(row["gap_points"] for row in ours),
        "compliance_gap_points_zones": max(row["gap_points"] for row in zones),
        "compliance_gap_points_spot_only": max(
            row["gap_points"] for row in of("spot only", "independent")
        ),
        "decision_us_1000_vs_10_nodes": max(each["median"] for each in ratios.values()),
        "logarithmic_would_be": math.log(SIZES[-1]) / math.log(SIZES[0]),
        "taken_at_work": sum(row["taken_at_work"] for row in ours),
    }


def print_assumptions() -> None:
    """As a table in Markdown."""
    print("| Assumed | value | why |\n|---|---|---|")
    for line in ASSUMPTIONS:
        print("| " + " | ".join(line) + " |")


def main() -> None:
    """Run and write the result."""
    parser = Parser(__doc__, rounds=9, quick_rounds=7)
    parser.add_argument("--seed", type=int, default=1, help="default 1")
    parser.add_argument("--assumptions", action="store_true", help="print them and end")
    args = parser.arguments()
    if args.assumptions:
        print_assumptions()
        return
    costs, ratios = decision_cost(args.rounds, 300 if args.quick else 2000)
    clouds = CLOUDS[:1] if args.quick else CLOUDS
    late, points = curve(args.quick, args.seed)
    rows = priced(dict(days(clouds, 3600 if args.quick else DAY_S, args.seed, late)), clouds)
    numbers = headline(rows, ratios)
    path = write_result(NAME, quick=args.quick, rows=[*rows, *costs, *points], headline=numbers)
    for row in rows:
        print(
            f"{row['scheme']:17} {row['strict']:4} {row['cloud']:7} {row['availability']:9}"
            f" {row['market']:12} {row['cost_vs_on_demand']:7.3f} {100 * row['compliance']:9.4f} %"
            f" {row['short_share']:7.4f} {row['best_effort_behind_s']:9.2f} s"
        )
    for row in costs:
        print(row)
    print(json.dumps(numbers, indent=1), path.name)


if __name__ == "__main__":
    main()
