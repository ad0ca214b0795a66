"""Goodput inside a latency target behind Triton, from idle to overload, and mixed classes.

Sentence embeddings (minilm's network, token ids of 8 to 64 words), open loop (Poisson), HTTP with
tensors as bytes; the SLO counts from the scheduled time of sending. Both sides are the same
``tritonserver``. The rates are shares of the highest closed-loop rate of the Python backend.

Goodput: Triton's dynamic batcher is measured in every setting of a grid (instances, threads,
batch, delay, time after which it refuses what waits) at every rate first; for every rate the best
is measured again in paired rounds of other arrivals with ours, which has ONE setting for all.

Classes: strict at 30 % and best effort at 90 % together, against strict alone. Triton has two
priority levels, in the setting in which strict p99 was lowest on other arrivals, and is loaded anew
before each run (with policies its batcher slows down over minutes).

    worst_goodput_vs_best_static          the smallest of the median ratios over the rates
    strict_p99_overload_vs_alone          ours: strict p99 with best effort over that without
    strict_p99_triton_priority_vs_alone   of Triton's priorities
    best_effort_share, triton_best_effort_share   of the capacity that strict leaves

Examples:
    python bench/triton_slo.py                   # all of it, about 35 minutes
    python bench/triton_slo.py --quick           # two settings, three rates: 4 minutes
    python bench/triton_slo.py --slo-ms 50 --shares 0.8 1.0 1.2
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import load
import numpy as np
from common import Parser, Progress, Row, keep, paired_ratio, write_result
from rivals import triton_rpc, triton_server
from rivals.environments import Unavailable
from rpc import real
from rpc.models import RpcModel
from triton_real import (
    RealBackend,
    RealOurs,
    Setting,
    answer_of,
    check,
    closed,
    setting_row,
    stream,
    weights,
)

from shunter.plugins.errors import UserError

NAME = "triton_slo"
SHARES, QUICK_SHARES = (0.2, 0.4, 0.6, 0.8, 1.0, 1.2), (0.4, 0.8, 1.2)
STRICT, BEST_EFFORT = 0.3, 0.9
LENGTHS, COUNT = (8, 64), 64
OURS = "2x1x32"
BATCH, DELAY_MS = 32, 2
MODEL = next(model for model in real.models() if model.name == "minilm")
SELECT_SEED, MEASURE_SEED = 10_000, 1
QUEUE = 10_000
"""Of Triton's priorities: without a limit of time nothing is refused."""


def grid(slo_ms: float, *, quick: bool) -> list[Setting]:
    """Of Triton's dynamic batcher."""
    refuse = tuple(round(share * slo_ms * 1000) for share in (0.4, 0.7))
    if quick:
        return [Setting(32, 2, 0, 1, timeout_us=t) for t in (0, refuse[1])]
    shapes = ((2, 1), (1, 2))
    found = [
        Setting(b, i, delay, t, timeout_us=timeout)
        for (i, t), b, delay, timeout in product(shapes, (8, 32), (0, 2000), (0, *refuse))
    ]
    return [Setting(1, 2, 0, 1), Setting(4, 2, 0, 1, timeout_us=refuse[1]), *found]


def priorities(slo_ms: float, *, quick: bool) -> list[Setting]:
    """Of Triton with two levels; batches of several sizes, as a running one cannot be left."""
    sizes = (8,) if quick else (1, 2, 4, 8, 16, 32)
    shapes = ((2, 1),) if quick else ((2, 1), (1, 2))
    return [
        Setting(b, i, 0, t, queue=QUEUE, priorities=True) for (i, t), b in product(shapes, sizes)
    ]


def sentences() -> list[np.ndarray]:
    """Token ids; always the same."""
    random = np.random.default_rng(7)
    lengths = random.integers(*LENGTHS, COUNT, endpoint=True)
    return [random.integers(0, real.WORDS, length) for length in lengths]


@dataclass
class Bed:
    """What every measurement needs."""

    ours: RealOurs
    python: RealBackend
    given: list[np.ndarray]
    answer: np.ndarray
    """To the first of them."""
    slo_ms: float
    capacity: float = 0.0

    def open_loop(self, side: Any, model: RpcModel, share: float, seconds: float, seed: int) -> Row:
        """Poisson arrivals, all of one class. The first second is not counted."""
        one = stream(
            side,
            model,
            self.given,
            parameters=self.terms(side, "strict"),
            **self.arrivals(share, seconds, seed),
        )
        found = load.run(load.Spec([one], timeout_s=10, warmup_s=1))
        kept = ("goodput_per_s", "attainment", "p50_ms", "p99_ms", "offered_per_s", "statuses")
        return {key: found["load"][key] for key in kept} | {"client": found.client}

    def arrivals(self, share: float, seconds: float, seed: int) -> dict[str, Any]:
        """Of a stream."""
        rate = share * self.capacity
        poisson = {"kind": "poisson", "rate": rate, "seconds": seconds + 1, "seed": seed}
        return {"arrivals": poisson, "slo_ms": self.slo_ms, "seed": seed}

    def terms(self, side: Any, name: str, *, mixed: bool = False) -> dict[str, Any]:
        """Parameters of a request. Ours has a deadline only where Triton may have one."""
        if side is self.ours:
            deadline = {} if mixed else {"deadline_ms": self.slo_ms}
            return {"slo_class": name, **deadline}
        return {"priority": 1 if name == "strict" else 2} if mixed else {}

    def mixed(self, side: Any, model: RpcModel, seconds: float, seed: int) -> Row:
        """Strict alone, then both classes."""
        shares = {"strict": STRICT, "best_effort": BEST_EFFORT}
        streams = [
            stream(
                side,
                model,
                self.given,
                name=name,
                parameters=self.terms(side, name, mixed=True),
                **self.arrivals(share, seconds, seed + place),
            )
            for place, (name, share) in enumerate(shares.items())
        ]
        alone, both = (
            load.run(load.Spec(each, timeout_s=60, warmup_s=1, connections=2000))
            for each in (streams[:1], streams)
        )
        samples = both.of("best_effort")
        done = samples.due_s + samples.latency_s
        counted = (samples.status == 200) & (done >= 1) & (done < seconds + 1)
        left = self.capacity - both["strict"]["ok_per_s"]
        return {
            "alone_p50_ms": alone["strict"]["p50_ms"],
            "alone_p99_ms": alone["strict"]["p99_ms"],
            "mixed_p50_ms": both["strict"]["p50_ms"],
            "mixed_p99_ms": both["strict"]["p99_ms"],
            "ratio": both["strict"]["p99_ms"] / alone["strict"]["p99_ms"],
            "best_effort_share": float(counted.sum()) / seconds / left,
            "strict_statuses": both["strict"]["statuses"],
            "client": both.client,
        }


# ---- selection


def find_capacity(bed: Bed, quick: bool, seconds: float) -> Row:
    """The highest closed-loop rate of the Python backend, and how it was found."""
    tried = []
    shapes = ((2, 1),) if quick else ((2, 1), (1, 2))
    for (instances, threads), batch in product(shapes, (8, 32)):
        setting = Setting(batch, instances, 0, threads)
        with bed.python.loaded(MODEL, setting) as named:
            check(bed.python, named, bed.given[0], bed.answer)
            for clients in (16, 64):
                rate = closed(bed.python, named, bed.given, clients, seconds)
                tried.append({"setting": setting.label, "clients": clients, "rate": rate})
    bed.capacity = max(row["rate"] for row in tried)
    return {"phase": "capacity", "capacity": bed.capacity, "tried": tried}


def capacities(quick: bool) -> list[Setting]:
    """The settings of :func:`find_capacity`."""
    shapes = ((2, 1),) if quick else ((2, 1), (1, 2))
    return [Setting(b, i, 0, t) for (i, t), b in product(shapes, (8, 32))]


def select(
    bed: Bed, settings: list[Setting], shares: Iterable[float], seconds: float, progress: Progress
) -> list[Row]:
    """Goodput of every setting at every rate, on arrivals that are not measured later."""
    rows = []
    for setting in settings:
        progress.step(f"selection: {setting.label}")
        with bed.python.loaded(MODEL, setting) as named:
            for share in shares:
                seed = SELECT_SEED + round(100 * share)
                found = bed.open_loop(bed.python, named, share, seconds, seed)
                rows.append(
                    {"phase": "select", "setting": setting_row(setting), "share": share} | found
                )
    return rows


def select_priorities(
    bed: Bed, settings: list[Setting], seconds: float, progress: Progress
) -> list[Row]:
    """Strict p99 of every setting beside best effort."""
    rows = []
    for setting in settings:
        progress.step(f"priorities: {setting.label}")
        with bed.python.loaded(MODEL, setting) as named:
            found = bed.mixed(bed.python, named, seconds, SELECT_SEED)
        rows.append({"phase": "select classes", "setting": setting_row(setting)} | found)
    return rows


def setting_of(row: Row) -> Setting:
    """The setting of a row."""
    return Setting(**{name: value for name, value in row["setting"].items() if name != "label"})


def best(rows: Iterable[Row], share: float) -> Setting:
    """With the highest goodput at a rate; of equals that with the lowest p99."""
    mine = [row for row in rows if row["share"] == share]
    most = max(row["goodput_per_s"] for row in mine)
    # One request more or less is no difference between settings.
    near = [row for row in mine if row["goodput_per_s"] >= 0.995 * most]
    return setting_of(min(near, key=lambda row: row["p99_ms"] or float("inf")))


def best_priority(rows: Iterable[Row]) -> Setting:
    """With the lowest strict p99 beside best effort."""
    return setting_of(min(rows, key=lambda row: row["mixed_p99_ms"] or float("inf")))


# ---- measurement


def measure(
    bed: Bed, chosen: dict[float, Setting], priority: Setting, args: argparse.Namespace
) -> list[Row]:
    """Rounds of both sides in turn, with the same arrivals."""
    rows: list[Row] = []
    progress = Progress(args.rounds * (len(chosen) + 1))
    for number in range(args.rounds):
        for share, setting in chosen.items():
            progress.step(f"round {number + 1}: {share:.0%}, {setting.label}")
            with bed.python.loaded(MODEL, setting) as named:
                sides = [("shunter", bed.ours, MODEL), ("triton", bed.python, named)]
                for name, side, model in sides[:: 1 if number % 2 else -1]:
                    seed = MEASURE_SEED + 100 * number + round(share * 10)
                    found = bed.open_loop(side, model, share, args.seconds, seed)
                    rows.append({"phase": "goodput", "side": name, "share": share} | found)
        progress.step(f"round {number + 1}: classes")
        with bed.python.loaded(MODEL, priority) as named:
            sides = [("shunter", bed.ours, MODEL), ("triton", bed.python, named)]
            for name, side, model in sides[:: 1 if number % 2 else -1]:
                found = bed.mixed(side, model, args.mixed_seconds, MEASURE_SEED + 10 * number)
                rows.append({"phase": "classes", "side": name} | found)
        keep(NAME, args.quick, rows)
    return rows


def summarise(samples: list[Row], chosen: dict[float, Setting], priority: Setting) -> list[Row]:
    """A row for every rate, and one for the classes."""
    rows: list[Row] = []
    for share, setting in chosen.items():
        row: Row = {"share": share, "triton_setting": setting.label}
        sides = {}
        for side in ("shunter", "triton"):
            mine = [s for s in samples if (s.get("share"), s["side"]) == (share, side)]
            sides[side] = [s["goodput_per_s"] for s in mine]
            row[side] = {
                key: _median(mine, key) for key in ("goodput_per_s", "attainment", "p99_ms")
            }
        row["ratio"] = paired_ratio(sides["shunter"], sides["triton"])
        rows.append(row)
    row = {"classes": True, "triton_setting": priority.label}
    keys = ("alone_p50_ms", "alone_p99_ms", "mixed_p50_ms", "mixed_p99_ms", "ratio")
    for side in ("shunter", "triton"):
        mine = [s for s in samples if (s["phase"], s["side"]) == ("classes", side)]
        row[side] = {key: _median(mine, key) for key in (*keys, "best_effort_share")}
    return [*rows, row]


def _median(rows: list[Row], key: str) -> float:
    return statistics.median(float("inf") if row[key] is None else row[key] for row in rows)


def headline(rows: list[Row]) -> Row:
    """The claims."""
    *shares, classes = rows
    top = {
        "worst_goodput_vs_best_static": min(row["ratio"]["median"] for row in shares),
        "strict_p99_overload_vs_alone": classes["shunter"]["ratio"],
        "strict_p99_triton_priority_vs_alone": classes["triton"]["ratio"],
        "best_effort_share": classes["shunter"]["best_effort_share"],
        "triton_best_effort_share": classes["triton"]["best_effort_share"],
    }
    return {name: round(value, 3) for name, value in top.items()}


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = Parser(__doc__, rounds=5, quick_rounds=2)
    parser.add_argument("--slo-ms", type=float, default=100, help="default 100")
    parser.add_argument("--shares", type=float, nargs="+", help="of the capacity")
    parser.add_argument("--seconds", type=float, help="of a rate; default 4, quick 2")
    parser.add_argument("--mixed-seconds", type=float, help="of classes; default 8, quick 4")
    parser.add_argument("--select-seconds", type=float, help="default 2, quick 1")
    parser.add_argument("--configuration", default=OURS, help=f"of ours; default {OURS}")
    args = parser.arguments()
    for name, full, quick in (("seconds", 4, 2), ("mixed_seconds", 8, 4), ("select_seconds", 2, 1)):
        setattr(args, name, getattr(args, name) or (quick if args.quick else full))
    args.shares = args.shares or (QUICK_SHARES if args.quick else SHARES)
    return args


def main() -> None:
    """Run and write the result."""
    args = arguments()
    try:
        triton_server.ensure()
        triton_rpc.client_module()
    except Unavailable as error:
        sys.exit(f"there is no Triton to compare with: {error}")
    batching = grid(args.slo_ms, quick=args.quick)
    classes = priorities(args.slo_ms, quick=args.quick)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        files = stack.enter_context(weights())
        given = sentences()
        answer = answer_of(real.Network(files, MODEL.network), given[0])
        settings = [*batching, *classes, *capacities(args.quick)]
        python = stack.enter_context(RealBackend(MODEL, files, settings))
        section = {"class": "strict", "configuration": args.configuration}
        try:
            ours = RealOurs(folder, MODEL, files, batch=BATCH, delay_ms=DELAY_MS, section=section)
            stack.enter_context(ours)
        except UserError as error:
            sys.exit(str(error))
        bed = Bed(ours, python, given, answer, args.slo_ms)
        check(ours, MODEL, given[0], answer)
        progress = Progress(1 + len(batching) + len(classes))
        progress.step("capacity")
        found = [find_capacity(bed, args.quick, args.select_seconds)]
        selected = select(bed, batching, args.shares, args.select_seconds, progress)
        by_class = select_priorities(bed, classes, args.select_seconds * 2, progress)
        chosen = {share: best(selected, share) for share in args.shares}
        priority = best_priority(by_class)
        closed(ours, MODEL, given, 16, 2)  # its latency fit has seen batches
        samples = measure(bed, chosen, priority, args)
        state = ours.state()
    rows = summarise(samples, chosen, priority)
    top = headline(rows)
    more = [{"capacity": bed.capacity, "slo_ms": args.slo_ms, "ours": args.configuration}]
    more[0]["state"] = {key: state[key] for key in ("expired", "answered") if key in state}
    path = write_result(
        NAME,
        quick=args.quick,
        rows=rows + more,
        headline=top,
        samples=[*found, *selected, *by_class, *samples],
    )
    for row in rows:
        print(json.dumps(row))
    print(json.dumps(top, indent=1))
    print(path)


if __name__ == "__main__":
    main()
