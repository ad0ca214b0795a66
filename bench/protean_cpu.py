"""Strict and best-effort models on the cores of one host: who meets its SLO, and who gets the rest?

Real inference through TorchServe with Shunter: sentence embeddings (minilm) are strict, ResNet-50
and DenseNet-201 are best effort. Open loop (Poisson), REST. The strict load rises and falls; best
effort is offered more than there is time for, what finds no room in its queue is refused at once.
The SLO is three times the latency of a strict request that is alone, as in PROTEAN. In one run:

time_sharing  one batch at a time has all cores, by arrival, whoever's it is
uncontrolled  all models on all cores, and the kernel shares these out
static        one core for strict work, the other for best effort
preemption    Shunter without placement: best effort gives way, configurations follow the load
shunter       with placement: the split of the cores follows the load too

strict_compliance: share of all strict requests that were answered within the SLO, whatever became
of the others. best_effort: batches' worth, so that both models count alike: of each model the rate
as a share of what it can do alone on all cores by its profile, summed. lost_requests: Shunter's
without an answer, or with an error that is no refusal (429, 503) and no deadline that passed (504).

Examples:
    python bench/protean_cpu.py              # 3 rounds of 100 s for each, about 35 minutes
    python bench/protean_cpu.py --quick      # 1 round of 16 s for each, about 4 minutes
    python bench/protean_cpu.py --only static,shunter --rounds 1
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import load
import numpy as np
from accounting import status_name
from common import Parser, Progress, Row, keep, write_result
from protean_bed import BEST_EFFORT, SCHEMES, STRICT, Bed, profile_models

from shunter.allocator.planning.optimizer import maximise_rate
from shunter.allocator.planning.profile import Profile
from shunter.allocator.planning.profile_table import latency_table

NAME = "protean_cpu"
SLO_OF_ALONE = 3.0
LIGHT, HEAVY = 0.15, 0.5
"""Share of what the strict model can do alone on all cores within half of its SLO."""
OFFERED = 0.6
"""Of each best-effort model, likewise: together more than there is."""
ANSWERED = ("200", "429", "503", "504")
SETTLE_S = 20.0
"""For so long Shunter sees the first load before it counts: workers start once."""


class Watch:
    """Notes how the models are placed while a load runs; a context manager."""

    def __init__(self, bed: Bed) -> None:
        """It asks every half second."""
        self._bed = bed
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.seen: list[tuple[float, dict[str, str]]] = []

    def __enter__(self) -> Watch:
        self._begin = time.monotonic()
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(0.5):
            places = self._bed.places()
            if not self.seen or self.seen[-1][1] != places:
                self.seen.append((time.monotonic() - self._begin, places))


def capacities(profiles: Mapping[str, Profile], slo_ms: float) -> dict[str, float]:
    """Requests per second of each model alone on all cores."""
    found = {}
    for model, profile in profiles.items():
        table, nodes = latency_table(profile), [profile.provenance.cores]
        limit = slo_ms / 2 if model == STRICT else float("inf")
        found[model] = maximise_rate(table, nodes, limit).rate
    return found


def measure(bed: Bed, rates: Mapping[str, float], levels: list, slo_ms: float, seed: int) -> Row:
    """One scheme under the whole load."""
    seconds = sum(each for _, each in levels)
    offered = {STRICT: levels, **{model: rates[model] * OFFERED for model in BEST_EFFORT}}
    with Watch(bed) as watch:
        streams = bed.streams(offered, seconds, seed, slo_ms)
        found = load.run(load.Spec(streams, timeout_s=30, warmup_s=1))
    strict = found.of(STRICT)
    good = (strict.status == 200) & (strict.latency_s * 1e3 <= slo_ms)
    row: Row = {"strict_compliance": float(good.mean()), "placements": watch.seen}
    row["phases"], begin = [], 1.0
    for rate, length in levels:
        end = min(begin + length, seconds)
        here = (strict.due_s >= begin) & (strict.due_s < end)
        row["phases"].append(
            {
                "strict_per_s": rate,
                "compliance": float(good[here].mean()),
                "p50_ms": float(np.median(strict.latency_s[here])) * 1e3,
                "p99_ms": float(np.percentile(strict.latency_s[here], 99)) * 1e3,
                "best_effort": sum(_rate(found, m, begin, end) / rates[m] for m in BEST_EFFORT),
            }
        )
        begin = end
    each = {model: _rate(found, model, 1.0, seconds) for model in BEST_EFFORT}
    row["best_effort_per_s"] = each
    row["best_effort"] = sum(each[model] / rates[model] for model in BEST_EFFORT)
    statuses = Counter[str]()
    for model in (STRICT, *BEST_EFFORT):
        statuses.update(status_name(int(status)) for status in found.of(model).status)
    row["statuses"] = dict(statuses)
    row["lost"] = sum(count for name, count in statuses.items() if name not in ANSWERED)
    return row


def _rate(found: load.Result, model: str, begin: float, end: float) -> float:
    """Answers per second that were ready in an interval."""
    samples = found.of(model)
    done = samples.due_s + samples.latency_s
    return float(((samples.status == 200) & (done >= begin) & (done < end)).sum()) / (end - begin)


def settle(bed: Bed, rates: Mapping[str, float], light: float, slo_ms: float) -> None:
    """Let a scheme that follows the load see the first one."""
    offered = {STRICT: light, **{model: rates[model] * OFFERED for model in BEST_EFFORT}}
    load.run(load.Spec(bed.streams(offered, SETTLE_S, 99, slo_ms), timeout_s=30))


def headline(rows: Mapping[str, Row]) -> Row:
    """The figures that the claims are about."""
    ours = rows["shunter"]
    found: Row = {"strict_compliance": ours["strict_compliance"]}
    for name, row in rows.items():
        if name != "shunter":
            found[f"strict_compliance_{name}"] = row["strict_compliance"]
            found[f"best_effort_vs_{name}"] = ours["best_effort"] / max(row["best_effort"], 1e-9)
    # Without deadlines an overloaded server leaves requests waiting for longer than anybody does.
    found["lost_requests"] = ours["lost"]
    found["placements"] = ours["placements"]
    return found


def summarise(samples: list[Row]) -> dict[str, Row]:
    """A row for every scheme: medians over the rounds, and the sum of what was lost."""
    found = {}
    for name in dict.fromkeys(each["scheme"] for each in samples):
        mine = [each for each in samples if each["scheme"] == name]
        row: Row = {"scheme": name, "lost": sum(each["lost"] for each in mine)}
        for key in ("strict_compliance", "best_effort"):
            row[key] = statistics.median(each[key] for each in mine)
        row["phases"] = [
            {key: statistics.median(p[key] for p in same) for key in same[0]}
            for same in zip(*(each["phases"] for each in mine), strict=True)
        ]
        # How often who runs where was seen to change, in all rounds.
        row["placements"] = sum(len(each["placements"]) - 1 for each in mine)
        found[name] = row
    return found


def parse() -> argparse.Namespace:
    """The command line."""
    parser = Parser(__doc__, rounds=3, quick_rounds=1)
    parser.add_argument("--seconds", type=float, help="of a phase, default 33, quick 8")
    parser.add_argument("--slo-ms", type=float, help="default: three times the latency alone")
    parser.add_argument("--only", help="schemes, separated by commas")
    args = parser.arguments()
    args.seconds = args.seconds or (8.0 if args.quick else 33.0)
    return args


def main() -> None:
    """Run and write the result."""
    args = parse()
    samples: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        slo_ms = args.slo_ms
        if slo_ms is None:
            with Bed(root / "alone", SCHEMES["uncontrolled"], 1e4, root) as bed:
                slo_ms = SLO_OF_ALONE * bed.alone_ms()
        profiles = root / "profiles"
        profiles.mkdir()
        rates = capacities(profile_models(profiles, slo_ms, 1.0 if args.quick else 4.0), slo_ms)
        light, heavy = (share * rates[STRICT] for share in (LIGHT, HEAVY))
        levels = [(light, args.seconds), (heavy, args.seconds)]
        levels += [] if args.quick else [(light, args.seconds)]
        print(f"SLO {slo_ms:.1f} ms; alone {rates}", flush=True)
        names = args.only.split(",") if args.only else list(SCHEMES)
        progress = Progress(args.rounds * len(names))
        for number in range(args.rounds):
            for name in names:
                progress.step(f"round {number + 1}, {name}")
                store = root / f"{name}{number}"
                with Bed(store, SCHEMES[name], slo_ms, profiles) as bed:
                    if SCHEMES[name].profiled:
                        settle(bed, rates, light, slo_ms)
                    row = measure(bed, rates, levels, slo_ms, number)
                samples.append({"scheme": name, "round": number, **row})
                keep(NAME, args.quick, samples)
                phases = [{k: round(v, 3) for k, v in each.items()} for each in row["phases"]]
                print(name, phases, row["statuses"], row["placements"], flush=True)
    rows = summarise(samples)
    head = headline(rows) if "shunter" in rows else {}
    more = [{"slo_ms": slo_ms, "alone_per_s": rates}]
    rows_out = [*rows.values(), *more]
    path = write_result(NAME, quick=args.quick, rows=rows_out, headline=head, samples=samples)
    print(json.dumps(head), path.name)


if __name__ == "__main__":
    main()
