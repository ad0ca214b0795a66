"""What a call costs besides the model: one client, one request at a time.

Requests of LeNet's, BERT's and ResNet's size (784 B, 6 KB, 588 KB) to models that do nothing, and
to networks with such tensors. All sides run at once and are asked in turn in every round, each by
its own public Python client: our front end by UDP, TCP and Unix streams, TorchServe's gRPC and
HTTP, Triton's gRPC with and without system shared memory. By default our processes wait without
sleep only where waits are shorter than 100 us; beside that there are a side that always sleeps, and
one that never does, its client neither. Ratios are medians of paired rounds with a bootstrap
interval.

    p50_SIZE_vs_torchserve_best  our UDP against the better of HTTP and gRPC in every round
    p50_588KB_vs_triton_shm      our UDP, and ``_one_host`` the better of UDP and a Unix socket with
                                 shared memory, against
                                 Triton's shared memory, which needs one host too
    own_time_784B_us             our p50 in Python by UDP, less the p50 of a bare UDP echo of the
                                 same datagrams (between this process and another, both in C,
                                 asleep or awake, whichever is faster) and less the model's own
                                 time, its handler called with one request; median over the rounds
    worst_p50_vs_tcp_control     of UDP; against the better of TCP and UDP it is this where above 1

Examples:
    python bench/rpc_tax.py               # all of it, about 17 minutes
    python bench/rpc_tax.py --quick
    python bench/rpc_tax.py --models 784B 588KB --default-waits --rounds 5    # 2 minutes
"""

from __future__ import annotations

import itertools
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from common import (
    Parser,
    Progress,
    Row,
    bootstrap,
    make_stores,
    paired_ratio,
    percentile,
    write_result,
)
from rivals import triton_rpc
from rivals.environments import Unavailable
from rpc import floor
from rpc.copies import Copies
from rpc.models import RpcModel, empty_models, real_models
from rpc.rival_sides import Stock, StockGrpc, StockHttp, TritonSide
from rpc.sides import SPIN_US, Ask, Ours, OurSide, Side

NAME = "rpc_tax"
WARM_UP, WARM_UP_S = 3, 0.1
"""Requests, and for how long at least: who has just slept wakes up, on all sides."""
SECONDS = 1.0
MOST, LEAST = 1000, 12
OUR = "udp"
SHARED = "unix, shared memory"
STOCK = ("torchserve grpc", "torchserve http")


@dataclass(frozen=True)
class Subject:
    """One side with one model."""

    side: Side
    model: RpcModel

    @property
    def key(self) -> str:
        """Of its samples."""
        return f"{self.model.label} | {self.side.name}"


def measure(ask: Ask, model: RpcModel, seconds: float) -> Row:
    """Latencies in microseconds, and what this process used for a request."""
    x = model.request()
    warm = time.perf_counter() + WARM_UP_S
    for asked in itertools.count():
        if asked >= WARM_UP and time.perf_counter() > warm:
            break
        ask(x)
    latencies: list[float] = []
    used, ends = time.process_time(), time.perf_counter() + seconds
    while len(latencies) < MOST and (len(latencies) < LEAST or time.perf_counter() < ends):
        begun = time.perf_counter_ns()
        ask(x)
        latencies.append((time.perf_counter_ns() - begun) / 1000)
    used = time.process_time() - used
    return {
        "p50_us": round(statistics.median(latencies), 1),
        "p99_us": round(percentile(latencies, 0.99), 1),
        "mean_us": round(statistics.fmean(latencies), 1),
        "client_cpu_us": round(used / len(latencies) * 1e6, 1),
        "requests": len(latencies),
    }


def sides(stack: ExitStack, models: Sequence[RpcModel], *, waits: bool) -> Iterator[Side]:
    """Everybody who takes part, running; ``waits``: also those of ours that wait otherwise."""
    folder = stack.enter_context(tempfile.TemporaryDirectory())
    stores = make_stores(folder, "ours", "spin", "sleep", "stock")
    ours = stack.enter_context(Ours(stores[0], models))
    yield OurSide(OUR, ours, "udp")
    yield OurSide("tcp control", ours, "tcp")
    yield OurSide("unix control", ours, "unix", shared_memory=False)
    yield OurSide(SHARED, ours, "unix", shared_memory=True)
    if waits:
        spin = stack.enter_context(Ours(stores[1], models, spin_us=SPIN_US))
        yield OurSide("udp, spinning", spin, "udp", spin=True)
        yield OurSide("tcp control, spinning", spin, "tcp", spin=True)
        sleep = stack.enter_context(Ours(stores[2], models, spin_us=0))
        yield OurSide("udp, always sleeping", sleep, "udp")
    stock = stack.enter_context(Stock(stores[3], models))
    yield StockGrpc(stock)
    yield StockHttp(stock)
    try:
        triton = stack.enter_context(triton_rpc.TritonRpc(list(models)))
    except Unavailable as error:
        print(f"without Triton: {error}", file=sys.stderr)
        return
    yield TritonSide(triton, shared=False)
    yield TritonSide(triton, shared=True)


def check(subjects: dict[Subject, Ask]) -> None:
    """All sides answer alike."""
    first: dict[RpcModel, object] = {}
    for subject, ask in subjects.items():
        answer = ask(subject.model.request())
        if (answer.dtype.name, answer.shape) != subject.model.output:
            raise RuntimeError(f"{subject.key}: {answer.dtype} {answer.shape}")
        if subject.model.network != "empty":
            known = first.setdefault(subject.model, answer)
            if abs(known - answer).max() > 1e-3 * max(1.0, abs(known).max()):
                raise RuntimeError(f"{subject.key}: another answer")


def rows_of(samples: dict[str, list[Row]], subjects: Sequence[Subject]) -> list[Row]:
    """Medians over the rounds, and ours against each."""
    rows = []
    for subject in subjects:
        mine = samples[subject.key]
        ours = samples[f"{subject.model.label} | {OUR}"]
        row: Row = {"model": subject.model.label, "side": subject.side.name}
        for name in ("p50_us", "p99_us", "mean_us", "client_cpu_us"):
            row[name] = round(statistics.median(each[name] for each in mine), 1)
        row["udp_vs_this"] = paired_ratio(
            [each["p50_us"] for each in ours], [each["p50_us"] for each in mine]
        )
        rows.append(row)
    return rows


def best(samples: Mapping[str, Sequence[Row]], model: str, sides: Sequence[str]) -> list[float]:
    """The lowest p50 of each round among sides; empty when none of them takes part."""
    there = [samples[f"{model} | {side}"] for side in sides if f"{model} | {side}" in samples]
    return [min(row["p50_us"] for row in rows) for rows in zip(*there, strict=True)]


def against(samples: Mapping[str, Sequence[Row]], model: str, *sides: Sequence[str]) -> float:
    """The best of the first sides to the best of the second ones: median over the rounds."""
    ours, theirs = (best(samples, model, each) for each in sides)
    if not ours or not theirs:
        return float("nan")
    return round(paired_ratio(ours, theirs)["median"], 3)


def own_time(samples: Mapping[str, Sequence[Row]], model: str, floors: Sequence[Row]) -> Row:
    """What is ours of a call by UDP: the claim's median in us, with its interval."""
    took = best(samples, model, [OUR])
    if not took or not floors:
        return {"median": float("nan")}
    own = [p50 - f["kernel"] - f["model"] for p50, f in zip(took, floors, strict=True)]
    low, high = bootstrap(own)
    return {"median": round(statistics.median(own), 1), "low": low, "high": high}


def headline(
    rows: Sequence[Row], samples: Mapping[str, Sequence[Row]], own: Row, copies: float
) -> Row:
    """The claims."""

    def ratio(model: str, side: str) -> float:
        found = [r for r in rows if (r.get("model"), r.get("side")) == (model, side)]
        return round(found[0]["udp_vs_this"]["median"], 3) if found else float("nan")

    empty = [r["model"] for r in rows if r.get("side") == OUR and " " not in r["model"]]
    shared, here = ["triton grpc + shm"], [OUR, SHARED]
    return {
        "p50_784B_vs_torchserve_best": against(samples, "784B", [OUR], STOCK),
        "p50_588KB_vs_torchserve_best": against(samples, "588KB", [OUR], STOCK),
        "p50_588KB_vs_triton_shm": against(samples, "588KB", [OUR], shared),
        "p50_588KB_vs_triton_shm_one_host": against(samples, "588KB", here, shared),
        "own_time_784B_us": own["median"],
        "worst_p50_vs_tcp_control": max(
            (ratio(model, "tcp control") for model in empty), default=float("nan")
        ),
        "copies_per_request": copies,
    }


def copies_per_request(copies: Iterable[Copies]) -> float:
    """Payload bytes that our processes copied, for every byte of payload that came, by UDP."""
    found = list(copies)
    return round(sum(c.copied for c in found) / max(1, sum(c.came for c in found)), 5)


def main() -> None:
    """Run it."""
    parser = Parser(__doc__)
    known = [model.label for model in empty_models() + real_models()]
    parser.add_argument("--models", nargs="+", choices=known, help="default all, quick the empty")
    parser.add_argument("--seconds", type=float, help="of a turn; default 1, quick 0.3")
    parser.add_argument(
        "--default-waits", action="store_true", help="without sides that always spin or sleep"
    )
    args = parser.arguments()
    args.default_waits |= args.quick
    chosen = args.models or (known[: len(empty_models())] if args.quick else known)
    models = [each for each in empty_models() + real_models() if each.label in chosen]
    seconds = args.seconds or (SECONDS / 3 if args.quick else SECONDS)
    samples: dict[str, list[Row]] = {}
    with ExitStack() as stack:
        every = list(sides(stack, models, waits=not args.default_waits))
        subjects = {
            Subject(side, model): side.client(model, stack) for model in models for side in every
        }
        check(subjects)
        breakdown = {model: [] for model in models if model.network == "empty"}
        copies = {model: Copies(model.reply) for model in models}
        progress = Progress(args.rounds * len(models))
        for number in range(args.rounds):
            for model in models:
                progress.step(f"round {number + 1}: {model.label}")
                turn = [s for s in subjects if s.model == model]
                for subject in turn[number % len(turn) :] + turn[: number % len(turn)]:
                    ask = subjects[subject]
                    with ExitStack() as turns:
                        if subject.side is every[0]:
                            counters = every[0].counters
                            turns.enter_context(copies[model].turn(counters, ask.copied))
                        found = measure(ask, model, seconds)
                    samples.setdefault(subject.key, []).append(found)
                if model in breakdown:
                    breakdown[model].append(floor.measure(model, every[0]))
    rows = rows_of(samples, list(subjects))
    rows += [{"model": m.label, "breakdown_us": floor.medians(b)} for m, b in breakdown.items()]
    rows += [{"model": m.label, "copies": found.row()} for m, found in copies.items()]
    floors = {model.label: found for model, found in breakdown.items()}
    own = own_time(samples, "784B", floors.get("784B", ()))
    rows.append({"model": "784B", "own_time_us": own})
    top = headline(rows, samples, own, copies_per_request(copies.values()))
    path = write_result(NAME, quick=args.quick, rows=rows, headline=top, samples=samples)
    for row in rows:
        if "side" in row:
            print(
                f"{row['model']:14} {row['side']:24} p50 {row['p50_us']:9.1f} us  p99 "
                f"{row['p99_us']:9.1f} us  client CPU {row['client_cpu_us']:7.1f} us"
            )
    print(json.dumps(top, indent=1))
    print(path)


if __name__ == "__main__":
    main()
