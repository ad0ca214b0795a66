"""Latency against load, and the peak with batches of up to eight (SplitRPC Figures 9 and 10).

Requests of LeNet's and ResNet's size to models that do nothing, one worker each. The load comes
from C on every side, so that it is not the limit: our C client, nghttp2's h2load for gRPC.

Peak: closed loop of 1 to 32 clients with one request each. Stock TorchServe runs with each of four
settings (batch 1 or 8, one or two workers); the best one counts. Triton batches up to 8 without
delay. Then every side is measured again at its best number of clients in paired rounds, and these
count for the headline.

Latency: open loop at shares of each side's own peak; Poisson arrivals for us, even distances for
gRPC (h2load knows no others, and they are the easier ones). Latency counts from the time at which a
request should have been sent for us, and from the time at which it was sent for gRPC.

Examples:
    python bench/rpc_load.py              # all of it, about 12 minutes
    python bench/rpc_load.py --quick
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

from common import (
    Parser,
    Progress,
    Row,
    committed_samples,
    make_stores,
    paired_ratio,
    write_result,
)
from rivals import triton_rpc
from rivals.environments import Unavailable
from rpc import h2load
from rpc.load import Load
from rpc.models import RpcModel, empty_models
from rpc.sides import Ours, Stock

from shunter.plugins.torchserve import grpc_client

NAME = "rpc_load"
CLIENTS = (1, 2, 4, 8, 16, 32)
BATCH = 8
SHARES = (0.1, 0.3, 0.5, 0.7, 0.8, 0.9, 1.0, 1.1)
STOCK = ((1, 1), (1, 2), (8, 1), (8, 2))
"""Batch and workers."""
Closed = Callable[[RpcModel, int, float], Row]
Open = Callable[[RpcModel, float, float, int], Row]


@dataclass
class Side:
    """Who is loaded."""

    name: str
    closed: Closed
    open: Open
    rival: str = ""
    """The headline's name for all settings of this server."""
    peaks: dict[str, tuple[int, float]] = field(default_factory=dict)
    """By model: clients and requests per second."""


def our_side(name: str, server: Ours, scheme: str) -> Side:
    """Our client in C, one session for each client."""

    def load(model: RpcModel, clients: int) -> Load:
        return Load(model, lambda: server.session(scheme, model), clients)

    def closed(model: RpcModel, clients: int, seconds: float) -> Row:
        with load(model, clients) as sessions:
            sessions.closed(min(1.0, seconds))
            return sessions.closed(seconds)

    def arrivals(model: RpcModel, rate: float, seconds: float, number: int) -> Row:
        with load(model, 32) as sessions:
            sessions.open(rate, 0.3, seed=number)
            return sessions.open(rate, seconds, seed=number)

    return Side(name, closed, arrivals)


def grpc_side(name: str, rival: str, call: Callable[[RpcModel], h2load.Call]) -> Side:
    """h2load."""
    return Side(
        name,
        lambda model, clients, seconds: h2load.run(call(model), clients=clients, seconds=seconds),
        lambda model, rate, seconds, _: h2load.run(
            call(model), clients=8, seconds=seconds, rate=rate
        ),
        rival,
    )


def torchserve_call(server: Stock, model: RpcModel) -> h2load.Call:
    """Predictions with the raw bytes."""
    request = grpc_client.predictions_request(model.name, {"data": model.request().tobytes()})
    reply = grpc_client.PredictionResponse(prediction=bytes(model.reply)).ByteSize()
    port = server.server.grpc_inference
    return h2load.Call(port, grpc_client.METHOD, request.SerializeToString(), reply)


def sides(stack: ExitStack, models: Sequence[RpcModel]) -> list[Side]:
    """Everybody, running."""
    h2load.require()
    folder = stack.enter_context(tempfile.TemporaryDirectory())
    stores = make_stores(folder, "ours", *(f"stock-{b}-{w}" for b, w in STOCK))
    ours = stack.enter_context(Ours(stores[0], models, batch=BATCH))
    found = [our_side("udp", ours, "udp"), our_side("tcp control", ours, "tcp")]
    for (batch, workers), store in zip(STOCK, stores[1:], strict=True):
        stock = stack.enter_context(Stock(store, models, batch=batch, workers=workers))
        name = f"torchserve grpc, batch {batch}, {workers} workers"
        calls = {model: torchserve_call(stock, model) for model in models}
        found.append(grpc_side(name, "torchserve_grpc", calls.__getitem__))
    try:
        triton = triton_rpc.TritonRpc(list(models), max_batch=BATCH)
        stack.enter_context(triton)
    except Unavailable as error:
        print(f"without Triton: {error}", file=sys.stderr)
        return found
    calls = {model: triton_rpc.call(triton, model) for model in models}
    found.append(grpc_side("triton grpc", "triton_grpc", calls.__getitem__))
    return found


def select(
    found: list[Side], models: Sequence[RpcModel], seconds: float, quick: bool
) -> list[Row]:
    """Every side at every number of clients, once; notes each side's peak."""
    committed = {tuple(key): value for key, value in _committed()} if quick else {}
    if committed:
        for side in found:
            side.peaks = {
                m.label: committed[side.name, m.label]
                for m in models
                if (side.name, m.label) in committed
            }
        return []
    rows = []
    progress = Progress(len(found) * len(models) * len(CLIENTS))
    for model in models:
        for side in found:
            for clients in CLIENTS:
                progress.step(f"{model.label} | {side.name} | {clients} clients")
                row = side.closed(model, clients, seconds)
                rows.append({"model": model.label, "side": side.name, "clients": clients, **row})
                if row["rps"] > side.peaks.get(model.label, (0, 0.0))[1]:
                    side.peaks[model.label] = clients, row["rps"]
    return rows


def _committed() -> list[tuple[tuple[str, str], tuple[int, float]]]:
    """What the last full run chose."""
    samples = committed_samples(NAME)
    return [((s["side"], s["model"]), tuple(s["peak"])) for s in samples if "peak" in s]


def champions(found: Sequence[Side], model: RpcModel) -> list[Side]:
    """Ours, and of every rival the setting with the highest peak."""
    chosen = [side for side in found if not side.rival]
    for rival in dict.fromkeys(side.rival for side in found if side.rival):
        mine = [side for side in found if side.rival == rival]
        chosen.append(max(mine, key=lambda side: side.peaks.get(model.label, (0, 0.0))[1]))
    return chosen


def measure(
    found: Sequence[Side], models: Sequence[RpcModel], rounds: int, seconds: float
) -> tuple[list[Row], list[Row], Row]:
    """The peaks again, in paired rounds: rows, samples and headline."""
    rows: list[Row] = []
    samples: list[Row] = []
    top: Row = {}
    progress = Progress(rounds * len(models))
    for model in models:
        chosen = champions(found, model)
        peaks: dict[str, list[float]] = {side.name: [] for side in chosen}
        for number in range(rounds):
            progress.step(f"{model.label}: peaks, round {number + 1}")
            for side in chosen[number % len(chosen) :] + chosen[: number % len(chosen)]:
                clients = side.peaks[model.label][0]
                row = side.closed(model, clients, seconds)
                peaks[side.name].append(row["rps"])
                samples.append({"side": side.name, "model": model.label, **row})
        for side in chosen:
            ratio = paired_ratio(peaks["udp"], peaks[side.name])
            median = statistics.median(peaks[side.name])
            clients = side.peaks[model.label][0]
            row = {"model": model.label, "side": side.name, "clients": clients}
            rows.append({**row, "peak_rps": median, "udp_vs_this": ratio})
            if side.rival:
                top[f"peak_{model.label}_vs_{side.rival}"] = round(ratio["median"], 2)
    return rows, samples, top


def curves(found: Sequence[Side], models: Sequence[RpcModel], seconds: float) -> list[Row]:
    """Latency at shares of the peak."""
    rows = []
    progress = Progress(sum(len(champions(found, m)) for m in models) * len(SHARES))
    for model in models:
        for side in champions(found, model):
            peak = side.peaks[model.label][1]
            for number, share in enumerate(SHARES):
                progress.step(f"{model.label} | {side.name} at {share:.0%}")
                row = side.open(model, peak * share, seconds, number)
                head = {"model": model.label, "side": side.name, "rate": round(peak * share)}
                rows.append({**head, "share_of_peak": share, **row})
    return rows


def main() -> None:
    """Run it."""
    args = Parser(__doc__).arguments()
    small, _, large = empty_models()
    models = [small, large]
    with ExitStack() as stack:
        found = sides(stack, models)
        table = select(found, models, 1 if args.quick else 2, args.quick)
        peaks, samples, top = measure(found, models, args.rounds, 1 if args.quick else 3)
        latencies = [] if args.quick else curves(found, models, 3)
    samples += [
        {"side": side.name, "model": model, "peak": peak}
        for side in found
        for model, peak in side.peaks.items()
    ]
    rows = peaks + table + latencies
    path = write_result(NAME, quick=args.quick, rows=rows, headline=top, samples=samples)
    for row in rows:
        print(json.dumps(row))
    print(json.dumps(top, indent=1))
    print(path)


if __name__ == "__main__":
    main()
