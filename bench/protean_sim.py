"""PROTEAN's evaluation, simulated: eight GPUs with MIG, 22 models, seven schemes.

The policies are the product's own (allocator/placement); GPUs, batches and requests are simulated
batch by batch (bench/protean). What the paper does not print is assumed: docs/simulator.md has the
table, with a reason for each line, and `--assumptions` prints it. Some assumptions were fitted to
values that the paper prints, so those values are no evidence; the table says which. The truth that
is simulated is the paper's own slowdown model: nothing here shows that real GPUs follow it.

Schemes: Molecule (time sharing), INFless/Llama (MPS only), Naive (static slices), GPUlet (limited
multiprocessors), PROTEAN (the paper's algorithm 2), ours (all layouts, scored), Oracle. The first
20 s of a run do not count. A day of a hundred GPUs is simulated by the second
(bench/protean/fast.py says what that approximates); its seconds are processor time.

Examples:
    python bench/protean_sim.py                  # about ten minutes, draws the figures
    python bench/protean_sim.py --quick          # a minute or two, fewer models, one seed
    python bench/protean_sim.py --quick --seed 7 # other arrivals than those it was tuned on
    python bench/protean_sim.py --assumptions    # as a table
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Sequence

from common import Parser, Progress, Row, result_path, write_result
from protean.assumptions import ASSUMPTIONS
from protean.assumptions import PRINTED as GIVEN
from protean.claims import Table, compliance_claims, latency_claims
from protean.cluster import simulate
from protean.fast import simulate_day
from protean.figures import PRINTED, PRINTED_MEANS, Case, cases
from protean.outcome import outcome
from protean.plots import draw
from protean.schemes import schemes
from protean.sweep import sweep
from protean.workloads import MODELS_22, Workload, World

NAME = "protean_sim"
DAY_S, DAY_GPUS = 86400, 100
DAY_MODEL = "VGG 19"


def measure(seeds: Sequence[int], length: int, quick: bool) -> list[Row]:
    """Every scheme on every workload; means over the seeds."""
    every = [list(cases(World(), length, seed, quick)) for seed in seeds]
    progress, rows = Progress(len(every[0])), []
    for same in zip(*every, strict=True):
        case = same[0]
        progress.step(f"{case.figure}, {case.name}")
        for name in schemes(case.world):
            rows.append(_row(name, same))
    return rows


def _row(name: str, same: Sequence[Case]) -> Row:
    case = same[0]
    found = [
        outcome(simulate(each.workload, schemes(each.world)[name], each.world)) for each in same
    ]
    for each in found:
        if each["came"] != each["answered"]:
            raise SystemExit(f"{case.figure}, {case.name}, {name}: requests were lost: {each}")
    row: Row = {"figure": case.figure, "workload": case.name, "scheme": name, "origin": "simulated"}
    for key in found[0]:
        if key == "p99_parts_ms":
            row[key] = {
                part: round(statistics.fmean(each[key][part] for each in found), 2)
                for part in found[0][key]
            }
        else:
            row[key] = round(statistics.fmean(each[key] for each in found), 6)
    if "compliance" in row:
        row["compliance_by_seed"] = [round(each["compliance"], 6) for each in found]
    if (case.figure, case.name, name) in PRINTED:
        row["paper"] = PRINTED[case.figure, case.name, name]
    return row


def day(quick: bool, seed: int) -> list[Row]:
    """A long run of many GPUs, by the second."""
    seconds = DAY_S // 12 if quick else DAY_S
    rows = []
    for name in ("PROTEAN", "ours"):
        world = World(gpus=DAY_GPUS)
        workload = Workload(DAY_MODEL, 0.5, "wikipedia", seconds, seed)
        wall, begin = time.perf_counter(), time.process_time()
        found = simulate_day(workload, schemes(world)[name], world)
        spent = time.process_time() - begin
        wall = time.perf_counter() - wall
        rows.append(
            {
                "figure": "day",
                "scheme": name,
                "gpus": DAY_GPUS,
                "simulated_s": seconds,
                "seconds": round(spent, 2),
                "wall_s": round(wall, 2),
                **vars(found),
            }
        )
    return rows


def headline(rows: list[Row], claims: list[Row], swept: list[Row], days: list[Row]) -> Row:
    """The figures by which it is judged; shares are between 0 and 1."""
    five = [row for row in rows if row["figure"] == "fig5"]
    ours = {row["workload"]: row for row in five if row["scheme"] == "ours"}
    best = {row["workload"]: row for row in five if row["scheme"] == "Oracle"}
    gaps = _gaps(rows)
    scale = DAY_S / days[-1]["simulated_s"]
    ordered = [claim for claim in claims if claim["about"] == "compliance"]
    return {
        "strict_compliance_vision": min(row["compliance"] for row in ours.values()),
        "strict_compliance_vision_mean": statistics.fmean(
            row["compliance"] for row in ours.values()
        ),
        "gap_to_oracle_points": 100
        * max(best[name]["compliance"] - ours[name]["compliance"] for name in ours),
        "be_p99_ms": max(row["be_p99_ms"] for row in ours.values()),
        "worst_vs_paper_algorithm_points": min(gaps),
        "better_than_paper_algorithm": sum(gap > 0.01 for gap in gaps),
        "equal_to_paper_algorithm": sum(abs(gap) <= 0.01 for gap in gaps),
        "workloads": len(gaps),
        "order_as_in_paper": int(all(claim["holds"] for claim in ordered)),
        "order_claims_that_hold": sum(claim["holds"] for claim in claims),
        "order_claims": len(claims),
        "order_kept_when_swept": sum(row["protean_first_on_average"] for row in swept),
        "worlds_swept": len(swept),
        "seconds_100gpu_24h": days[-1]["seconds"] * scale,
    }


def _gaps(rows: list[Row]) -> list[float]:
    """Points of compliance that ours is above the paper's algorithm, by workload."""
    strict = {
        (row["figure"], row["workload"], row["scheme"]): row["compliance"]
        for row in rows
        if "compliance" in row
    }
    return [
        100 * (value - strict[figure, workload, "PROTEAN"])
        for (figure, workload, scheme), value in strict.items()
        if scheme == "ours"
    ]


def means(rows: list[Row]) -> list[Row]:
    """Of a figure's workloads, where the paper prints them."""
    found = []
    for (figure, scheme), printed in PRINTED_MEANS.items():
        source = "fig5" if figure == "fig16" else figure
        values = [
            row["compliance"] for row in rows if row["figure"] == source and row["scheme"] == scheme
        ]
        found.append(
            {
                "figure": figure,
                "workload": "mean",
                "scheme": scheme,
                "compliance": statistics.fmean(values),
                "paper": {"compliance": printed},
            }
        )
    return found


def print_assumptions() -> None:
    """As tables in Markdown."""
    print("| Given by the paper | value | where |\n|---|---|---|")
    for line in GIVEN:
        print("| " + " | ".join(line) + " |")
    print("\n| Assumed | value | why |\n|---|---|---|")
    for line in ASSUMPTIONS:
        print("| " + " | ".join(line) + " |")
    print(
        "\n| Model | group | alone on 7g, ms | FBR | p | GiB a batch |\n|---|---|---|---|---|---|"
    )
    for each in MODELS_22.values():
        print(
            f"| {each.name} | {each.group} | {each.alone_ms:g} | {each.fbr:.2f} | "
            f"{each.parallel:g} | {each.memory_gib:g} |"
        )


def main() -> None:
    """Run, draw and write the result."""
    parser = Parser(__doc__, rounds=3, quick_rounds=1)
    parser.add_argument("--seconds", type=int, help="of each run, default 200, quick 120")
    parser.add_argument("--seed", type=int, default=1, help="of the first round, default 1")
    parser.add_argument("--assumptions", action="store_true", help="print them and end")
    args = parser.arguments()
    if args.assumptions:
        print_assumptions()
        return
    length = args.seconds or (120 if args.quick else 200)
    rows = measure(range(args.seed, args.seed + args.rounds), length, args.quick)
    table = Table(rows)
    claims = [
        {"figure": "order", "about": about, "claim": text, "holds": bool(holds)}
        for about, found in (
            ("compliance", compliance_claims(table)),
            ("latency", latency_claims(table)),
        )
        for text, holds in found
    ]
    print("sweep", file=sys.stderr)
    swept = [{"figure": "sweep", **row} for row in sweep(120, args.seed, args.quick)]
    days = day(args.quick, args.seed)
    numbers = headline(rows, claims, swept, days)
    everything = [*rows, *means(rows), *claims, *swept, *days]
    path = write_result(NAME, quick=args.quick, rows=everything, headline=numbers)
    draw(rows, result_path(NAME, args.quick).with_suffix(""))
    for claim in claims:
        print(f"{'yes' if claim['holds'] else 'NO '}  {claim['claim']}")
    print(json.dumps(numbers, indent=1), path.name)


if __name__ == "__main__":
    main()
