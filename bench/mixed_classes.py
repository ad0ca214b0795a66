"""Strict and best-effort requests for one model at the same time, far beyond its capacity.

Sentence embeddings (minilm), open loop (Poisson), REST: strict at 30 % and best effort at 90 % of
our highest closed-loop rate, the same for all. What does the best effort cost the strict requests,
and how much of what strict leaves of a server's own highest rate does it get? Beside Shunter, as it
is, with ``mix_classes`` and with a worker group for each class: stock TorchServe, which has no
classes, with large and small batches and as two models, one for each class; Triton's priority
levels with large and small batches, and two Tritons, one for each class. Each setting of Shunter
is compared with the lowest strict p99 of all settings of a rival.

The first round of every side does not count: a JVM compiles what it runs often, and on two cores a
burst of that delays as many requests as a p99 is made of. What it said is in the rows beside the
others ("first_round_mixed_p99_ms").

Examples:
    python bench/mixed_classes.py                 # 1 + 5 rounds, about 20 minutes
    python bench/mixed_classes.py --quick         # Shunter alone, under two minutes
    python bench/mixed_classes.py --batch 8 --no-rival
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import load
from common import Parser, Progress, Row, bootstrap, make_stores, write_result
from rivals import triton_server
from rivals.environments import Unavailable
from sides import BODIES, Setting, Side, stream

from shunter.model_store.minilm.archive import pack_minilm

NAME = "mixed_classes"
CLASSES = ("strict", "best_effort")
SHARES = {"strict": 0.3, "best_effort": 0.9}
SMALL = 4
MIXED = "[batching]\nmix_classes = true\n"
OURS = {
    "": "shunter",
    "_mixed": "shunter, classes mixed",
    "_grouped": "shunter, a group for each class",
}
"""Shunter's settings, by what the keys of their figures have."""
RIVALS = {"stock": "stock", "triton_priority": "triton,", "two_tritons": "two tritons"}
"""How the names of a rival's settings begin, by its key."""
Terms = dict[str, Any]


@dataclass
class Subject:
    """A server under test and how it is told the class of a request."""

    name: str
    urls: dict[str, str]
    """By class."""
    terms: dict[str, Terms]
    """What a request of a class says."""
    prepare: Callable[[], Any] = lambda: None
    """Runs before each round."""
    look: Callable[[], tuple[float, float]] = lambda: (0.0, 0.0)
    """Sum in ms, and number, of service times of best effort, where the server tells them."""
    capacity: float = 0.0

    def streams(
        self, classes: tuple[str, ...], rate: float, seconds: float, seed: int
    ) -> list[load.Stream]:
        """Streams of some classes, shares of ``rate``; arrivals do not depend on other classes."""
        return [
            stream(c, self.urls[c], SHARES[c] * rate, seconds, seed + i, **self.terms[c])
            for i, c in enumerate(classes)
        ]

    def under_load(
        self, streams: list[load.Stream], seconds: float
    ) -> tuple[load.Result, float | None]:
        """A run, and the service time of a best-effort request's batch in its first ``seconds``.

        What is queued then is served in full batches, with no strict request beside them.
        """

        def end() -> tuple[float, float]:
            time.sleep(seconds)
            return self.look()

        before = self.look()
        with ThreadPoolExecutor(1) as pool:
            after = pool.submit(end)
            found = run(streams)
            spent, count = (a - b for a, b in zip(after.result(), before, strict=True))
        return found, spent / count if count else None

    def measure_capacity(self, batch: int) -> None:
        """The highest closed-loop rate with batches of ``batch``, of all models together.

        A server that has just started does less than it can: 4 s said 0.7 of it once.
        """
        clients = 4 * batch // len(set(self.urls.values()))
        closed = load.Closed(clients, 4.0)
        asked = {self.urls[c]: {"bodies": BODIES, **self.terms[c]} for c in CLASSES}
        every = [load.Stream(u, u, closed=closed, **terms) for u, terms in asked.items()]
        for _ in range(5):
            found = load.run(load.Spec(every, timeout_s=120))
            self.capacity = max(self.capacity, sum(found[url]["ok_per_s"] for url in asked))


def run(streams: list[load.Stream]) -> load.Result:
    """The first second is not counted. No request waits for a connection, however many wait."""
    return load.run(load.Spec(streams, timeout_s=60, warmup_s=1, connections=6000))


def one_round(subject: Subject, rate: float, seconds: float, number: int) -> Row:
    """Strict alone, then both."""
    subject.prepare()
    alone = run(subject.streams(("strict",), rate, seconds + 1, 10 * number))["strict"]
    streams = subject.streams(CLASSES, rate, seconds + 1, 10 * number)
    both, batch_ms = subject.under_load(streams, seconds + 1)
    strict, best_effort = both["strict"], both["best_effort"]
    samples = both.of("best_effort")
    done = samples.due_s + samples.latency_s
    counted = (samples.status == 200) & (done >= 1) & (done < seconds + 1)
    left = subject.capacity - strict["ok_per_s"]
    return {
        "side": subject.name,
        "round": number,
        "alone_p50_ms": alone["p50_ms"],
        "alone_p99_ms": alone["p99_ms"],
        "mixed_p50_ms": strict["p50_ms"],
        "mixed_p99_ms": strict["p99_ms"],
        "strict_statuses": strict["statuses"],
        "best_effort_per_s": float(counted.sum()) / seconds,
        "best_effort_share": float(counted.sum()) / seconds / left if left > 0 else None,
        "mixed_vs_alone": strict["p99_ms"] / alone["p99_ms"],
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
    """A row for every side: medians over the rounds that count."""
    rows = []
    for side in dict.fromkeys(row["side"] for row in samples):
        first, *mine = (row for row in samples if row["side"] == side)
        row: Row = {"side": side, "first_round_mixed_p99_ms": first["mixed_p99_ms"]}
        for key in (
            "alone_p50_ms",
            "alone_p99_ms",
            "mixed_p50_ms",
            "mixed_p99_ms",
            "batch_ms",
            "excess_batches",
            "mixed_vs_alone",
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


def same(url: str) -> dict[str, str]:
    """One model for both classes."""
    return dict.fromkeys(CLASSES, url)


def shunter(side: Side, args: argparse.Namespace, name: str = OURS[""]) -> Subject:
    """Ours."""
    setting = Setting(batch=args.batch, delay_ms=5, queue=10_000)
    url = side.add(setting, {"class": "strict", "slo_ms": args.slo_ms} if args.slo_ms else None)
    terms: dict[str, Terms] = {each: {"request_class": each} for each in CLASSES}
    terms["strict"]["slo_ms"] = args.slo_ms
    return Subject(name, same(url), terms, look=lambda: service_times(side, setting))


def grouped(side: Side, args: argparse.Namespace) -> Subject:
    """Ours with workers of their own for best effort, which stand still for strict requests."""
    setting = Setting(batch=args.batch, delay_ms=5, queue=10_000)
    groups = [{"configuration": setting.configuration, "classes": [each]} for each in CLASSES]
    url = side.add(setting, {"groups": groups}, name="grouped")
    terms: dict[str, Terms] = {each: {"request_class": each} for each in CLASSES}
    return Subject(OURS["_grouped"], same(url), terms)


def stocks(side: Side, args: argparse.Namespace) -> list[Subject]:
    """Stock in several settings."""
    nothing: dict[str, Terms] = {each: {} for each in CLASSES}
    found = []
    for batch in (args.batch, SMALL):
        url = side.add(Setting(batch=batch, delay_ms=5, queue=10_000))
        found.append(Subject(f"stock, batches of {batch}", same(url), nothing))
    one = Setting(batch=args.batch, delay_ms=5, workers=1, queue=10_000)
    two = {each: side.add(one, name=f"{each}-{one.name}") for each in CLASSES}
    return [*found, Subject("stock, two models", two, nothing)]


def tritons(stack: ExitStack, archive: Path, args: argparse.Namespace) -> list[Subject]:
    """Triton in several settings. Raises Unavailable."""
    texts = [json.loads(body)["text"] for body in BODIES]

    def start(batch: int, instances: int, priorities: bool) -> triton_server.Triton:
        server = triton_server.Triton(
            archive, max_batch=batch, threads=1, instances=instances, priorities=priorities
        )
        return stack.enter_context(server)

    def terms(server: triton_server.Triton, priority: int | None) -> Terms:
        bodies = [server.body(text, priority=priority) for text in texts]
        return {"bodies": bodies, "headers": server.headers}

    found = []
    for batch in (args.batch, SMALL):
        server = start(batch, 2, True)
        by_class = {each: terms(server, i) for i, each in enumerate(CLASSES, 1)}
        name = f"triton, priorities, batches of {batch}"
        found.append(Subject(name, same(server.url), by_class, prepare=server.reload))
    two = {each: start(args.batch, 1, False) for each in CLASSES}
    urls = {each: server.url for each, server in two.items()}
    by_class = {each: terms(server, None) for each, server in two.items()}
    return [*found, Subject("two tritons", urls, by_class)]


def headline(rows: list[Row]) -> Row:
    """The figures that the claims are about; the rivals' best strict p99 of all settings."""
    by_side = {row["side"]: row for row in rows}
    found: Row = {"strict_p99_excess_batches": by_side[OURS[""]]["excess_batches"]}
    for part, side in OURS.items():
        if side not in by_side:
            continue
        ours = by_side[side]
        found[f"best_effort_share{part}"] = ours["best_effort_share"]
        found[f"strict_p99{part}_vs_alone"] = ours["mixed_vs_alone"]
        for key, prefix in RIVALS.items():
            p99s = [row["mixed_p99_ms"] for row in rows if row["side"].startswith(prefix)]
            if p99s:
                found[f"strict_p99{part}_vs_{key}"] = ours["mixed_p99_ms"] / min(p99s)
    return found


def main() -> None:
    """Run and write the result."""
    parser = Parser(__doc__, rounds=5)
    parser.add_argument("--seconds", type=float, default=6, help="per measurement, default 6")
    parser.add_argument("--batch", type=int, default=16, help="largest batch, default 16")
    parser.add_argument(
        "--slo-ms", type=float, default=0, help="SLO of the strict class, default none"
    )
    parser.add_argument("--no-rival", action="store_true", help="leave Triton out")
    args = parser.arguments()
    samples: list[Row] = []
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        stores = make_stores(folder, "ours", "stock", "rival", "mixed")
        archive = pack_minilm(stores[2])
        ours = stack.enter_context(Side(stores[0], shunter=True))
        taking_part, reason = [shunter(ours, args)], "left out"
        if not args.quick:
            mixed = stack.enter_context(Side(stores[3], shunter=True, settings=MIXED))
            taking_part.append(shunter(mixed, args, OURS["_mixed"]))
            taking_part.append(grouped(ours, args))
            taking_part += stocks(stack.enter_context(Side(stores[1], shunter=False)), args)
        if not args.quick and not args.no_rival:
            try:
                taking_part += tritons(stack, archive, args)
                reason = ""
            except Unavailable as error:
                reason = str(error)
        for subject in taking_part:
            subject.measure_capacity(args.batch)
        rate = taking_part[0].capacity
        progress = Progress((1 + args.rounds) * len(taking_part))
        for number in range(1 + args.rounds):
            for subject in taking_part:
                progress.step(f"round {number}, {subject.name}")
                samples.append(one_round(subject, rate, args.seconds, number))
    rows = summarise(samples)
    head = headline(rows)
    rows.append({"capacities": {s.name: s.capacity for s in taking_part}})
    rows.append({"rivals": {"triton": triton_server.VERSION}, "triton_unavailable": reason})
    path = write_result(NAME, quick=args.quick, rows=rows, headline=head, samples=samples)
    for row in rows:
        if "side" in row:
            excess = (
                f" ({row['excess_batches']:+.2f} batches of {row['batch_ms']:.0f} ms)"
                if "batch_ms" in row
                else ""
            )
            share = row.get("best_effort_share", 0)
            print(
                f"{row['side']}: strict p99 {row['alone_p99_ms']:.1f} ms alone, "
                f"{row['mixed_p99_ms']:.1f} ms mixed{excess}; best effort "
                f"{row['best_effort_per_s']:.0f}/s, {share:.0%} of what is left"
            )
    print(json.dumps(head), path.name)


if __name__ == "__main__":
    main()
