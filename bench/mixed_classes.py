"""Strict and best-effort requests for one model at the same time, far beyond its capacity.

Sentence embeddings (minilm), open loop (Poisson), REST: strict at 30 % and best effort at 90 % of
the highest closed-loop rate of the same server. What does the best effort cost the strict
requests, in units of one best-effort batch, and how much of what strict leaves does it get?
Stock TorchServe, which has no classes, and Triton with two priority levels go through the same.

Examples:
    python bench/mixed_classes.py                 # 7 rounds, about 8 minutes
    python bench/mixed_classes.py --quick         # Shunter alone, under two minutes
    python bench/mixed_classes.py --batch 8 --no-rival
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import load
from common import Parser, Progress, Row, bootstrap, make_stores, write_result
from rivals import triton_server
from rivals.environments import Unavailable
from sides import BODIES, Setting, Side, closed_loop, stream

from shunter.model_store.minilm.archive import pack_minilm

NAME = "mixed_classes"
STRICT_SHARE, BEST_EFFORT_SHARE = 0.3, 0.9
Terms = dict[str, Any]


class Subject:
    """A server under test and how it is told the class of a request."""

    def __init__(
        self,
        name: str,
        url: str,
        strict: Terms,
        best_effort: Terms,
        prepare: Callable[[], Any] = lambda: None,
        look: Callable[[], tuple[float, float]] = lambda: (0.0, 0.0),
    ) -> None:
        """``prepare`` runs before each round; ``look`` gives the sum and the number of the
        service times of best-effort requests so far, in ms, when the server tells them."""
        self.name, self.url, self.prepare, self.look = name, url, prepare, look
        self._terms = {"strict": strict, "best_effort": best_effort}
        self.capacity = 0.0

    def streams(self, classes: tuple[str, ...], seconds: float, seed: int) -> list[load.Stream]:
        """Streams of some classes; a class's arrivals do not depend on the others."""
        shares = {"strict": STRICT_SHARE, "best_effort": BEST_EFFORT_SHARE}
        return [
            stream(c, self.url, shares[c] * self.capacity, seconds, seed + i, **self._terms[c])
            for i, c in enumerate(classes)
        ]

    def batch_ms(self, before: tuple[float, float]) -> float | None:
        """Service time of a best-effort request's batch since then."""
        spent, count = (a - b for a, b in zip(self.look(), before, strict=True))
        return spent / count if count else None

    def measure_capacity(self, batch: int) -> None:
        """The highest closed-loop rate with batches of ``batch``."""
        self.capacity = closed_loop(self.url, 4 * batch, 4, **self._terms["best_effort"])[
            "ok_per_s"
        ]


def run(streams: list[load.Stream]) -> load.Result:
    """The first second is not counted."""
    return load.run(load.Spec(streams, timeout_s=60, warmup_s=1, connections=2000))


def one_round(subject: Subject, seconds: float, number: int) -> Row:
    """Strict alone, then both."""
    subject.prepare()
    alone = run(subject.streams(("strict",), seconds + 1, 10 * number))["strict"]
    before = subject.look()
    both = run(subject.streams(("strict", "best_effort"), seconds + 1, 10 * number))
    strict, best_effort = both["strict"], both["best_effort"]
    samples = both.of("best_effort")
    done = samples.due_s + samples.latency_s
    counted = (samples.status == 200) & (done >= 1) & (done < seconds + 1)
    left = subject.capacity - strict["ok_per_s"]
    batch_ms = subject.batch_ms(before)
    return {
        "side": subject.name,
        "round": number,
        "alone_p50_ms": alone["p50_ms"],
        "alone_p99_ms": alone["p99_ms"],
        "mixed_p50_ms": strict["p50_ms"],
        "mixed_p99_ms": strict["p99_ms"],
        "strict_statuses": strict["statuses"],
        "best_effort_per_s": float(counted.sum()) / seconds,
        "best_effort_share": float(counted.sum()) / seconds / left,
        "best_effort_statuses": best_effort["statuses"],
        "batch_ms": batch_ms,
        "excess_batches": (strict["p99_ms"] - alone["p99_ms"]) / batch_ms if batch_ms else None,
        "client": both.client,
    }


def service_times(side: Side, setting: Setting) -> tuple[float, float]:
    """Sum in ms, and number, of the service times of best-effort requests."""
    page = httpx.get(f"{side.server.metrics}/metrics", timeout=30).text
    labels = f'{{model="{setting.name}",version="1.0",class="best_effort",}}'
    values = dict(line.rsplit(" ", 1) for line in page.splitlines() if labels in line)
    found = [float(values[f"shunter_service_seconds_{part}{labels}"]) for part in ("sum", "count")]
    return found[0] * 1e3, found[1]


def summarise(samples: list[Row]) -> list[Row]:
    """A row for every side: medians over the rounds."""
    rows = []
    for side in dict.fromkeys(row["side"] for row in samples):
        mine = [row for row in samples if row["side"] == side]
        row: Row = {"side": side}
        for key in (
            "alone_p50_ms",
            "alone_p99_ms",
            "mixed_p50_ms",
            "mixed_p99_ms",
            "batch_ms",
            "excess_batches",
            "best_effort_per_s",
            "best_effort_share",
        ):
            values = [each[key] for each in mine if each[key] is not None]
            if not values:
                continue
            row[key] = statistics.median(values)
            row[f"{key}_interval"] = bootstrap(values)
        rows.append(row)
    return rows


def subjects(
    ours: Side, stock: Side | None, stack: ExitStack, archive: Path, args: argparse.Namespace
) -> tuple[list[Subject], str]:
    """Who takes part, warmed up and with its capacity; and why a rival does not."""
    setting = Setting(batch=args.batch, delay_ms=5, queue=10_000)
    terms = [{"request_class": c} for c in ("strict", "best_effort")]
    url = ours.add(setting, {"class": "strict", "slo_ms": args.slo_ms} if args.slo_ms else None)
    terms[0]["slo_ms"] = args.slo_ms
    found = [Subject("shunter", url, *terms, look=lambda: service_times(ours, setting))]
    if stock is not None:
        found.append(Subject("stock", stock.add(setting), {}, {}))
    reason = "left out"
    if not args.no_rival and not args.quick:
        try:
            server = stack.enter_context(
                triton_server.Triton(
                    archive, max_batch=args.batch, threads=1, instances=2, priorities=True
                )
            )
        except Unavailable as error:
            reason = str(error)
        else:
            texts = [json.loads(body)["text"] for body in BODIES]
            terms = [
                {"bodies": [server.body(t, priority=p) for t in texts], "headers": server.headers}
                for p in (1, 2)
            ]
            found.append(Subject("triton", server.url, *terms, prepare=server.reload))
            reason = ""
    for subject in found:
        subject.measure_capacity(args.batch)
    return found, reason


def main() -> None:
    """Run and write the result."""
    parser = Parser(__doc__)
    parser.add_argument("--seconds", type=float, default=6, help="per measurement, default 6")
    parser.add_argument("--batch", type=int, default=16, help="largest batch, default 16")
    parser.add_argument(
        "--slo-ms", type=float, default=0, help="SLO of the strict class, default none"
    )
    parser.add_argument("--no-rival", action="store_true", help="leave Triton out")
    args = parser.arguments()
    samples: list[Row] = []
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        stores = make_stores(folder, "ours", "stock", "rival")
        archive = pack_minilm(stores[2])
        ours = stack.enter_context(Side(stores[0], shunter=True))
        stock = None if args.quick else stack.enter_context(Side(stores[1], shunter=False))
        taking_part, reason = subjects(ours, stock, stack, archive, args)
        progress = Progress(args.rounds * len(taking_part))
        for number in range(args.rounds):
            for subject in taking_part:
                progress.step(f"round {number + 1}, {subject.name}")
                samples.append(one_round(subject, args.seconds, number))
    rows = summarise(samples)
    headline = {
        "strict_p99_excess_batches": rows[0]["excess_batches"],
        "best_effort_share": rows[0]["best_effort_share"],
    }
    rows.append({"capacities": {s.name: s.capacity for s in taking_part}})
    rows.append({"rivals": {"triton": triton_server.VERSION}, "triton_unavailable": reason})
    path = write_result(NAME, quick=args.quick, rows=rows, headline=headline, samples=samples)
    for row in rows:
        if "side" in row:
            excess = (
                f" ({row['excess_batches']:+.2f} batches of {row['batch_ms']:.0f} ms)"
                if "batch_ms" in row
                else ""
            )
            print(
                f"{row['side']}: strict p99 {row['alone_p99_ms']:.1f} ms alone, "
                f"{row['mixed_p99_ms']:.1f} ms mixed{excess}; best effort "
                f"{row['best_effort_per_s']:.0f}/s, {row['best_effort_share']:.0%} of what is left"
            )
    print(json.dumps(headline), path.name)


if __name__ == "__main__":
    main()
