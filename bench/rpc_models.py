"""Real networks by the network front end, TorchServe and Triton: latency of one client, rate of 8.

The model store's digits (256 B), minilm (int64 ids of 8 to 256 tokens: packed requests with us) and
resnet50 (588 KB), with the same code, weights and threads from one folder, the same inputs as raw
tensors, and each side's own public Python client; all answers are compared with what the network
says in this process. Eight clients are eight processes with one request each on its way. We have
one setting (batches of up to 8, one worker); TorchServe and Triton are tried in several first
(batch, wait, workers), and every protocol is measured in the best for it: for one client without
batches, for eight in what was fastest. Sentences of unequal length share a batch on all sides, and
are padded to its longest: without the buckets that the model store has for devices.
``server_cpu_us``: of all processes of the server, per request. Sides are asked in turn in every
round; ratios are medians of the rounds with a bootstrap interval.

    MODEL_p50_vs_torchserve_best   p50 of one client by UDP against the better of HTTP and gRPC
    MODEL_rate_vs_torchserve_best  requests per second of eight clients, likewise
    MODEL_p50_vs_triton, MODEL_rate_vs_triton    the same against Triton's gRPC
    worst_difference               of any number of any answer, as a share of the largest

Examples:
    python bench/rpc_models.py               # under 6 minutes
    python bench/rpc_models.py --quick       # under 2
    python bench/rpc_models.py --models digits --rounds 3
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from common import Parser, Progress, Row, keep, make_stores, paired_ratio, percentile, write_result
from rivals import triton_rpc
from rivals.environments import Unavailable
from rpc import real
from rpc.askers import Askers
from rpc.loaded import busy_s
from rpc.models import RpcModel
from rpc.rival_sides import Stock
from rpc.sides import Ours

NAME = "rpc_models"
CLIENTS = 8
OUR = "udp"
STOCK = ("torchserve http", "torchserve grpc")
TRITON = "triton grpc"
ONE_S, SELECT_S = (0.3, 0.15), (0.5, 0.3)
EIGHT_S = {"digits": (0.8, 0.4), "minilm": (1.2, 0.5), "resnet50": (1.6, 0.6)}
"""Of a turn, full and quick."""
TOGETHER = 4
"""Models that are registered at once."""
NEAR = 1e-3
"""Share of the largest number of an answer: another batch adds in another order."""

Setting = tuple[int, ...]
STOCK_SETTINGS: dict[bool, Sequence[Setting]] = {
    False: ((1, 1, 1), (8, 1, 1), (8, 5, 1), (1, 1, 2)),
    True: ((1, 1, 1), (8, 1, 1)),
}
"""Batch, wait in ms, workers; the first is that of one client."""
TRITON_SETTINGS: dict[bool, Sequence[Setting]] = {False: ((8, 1), (8, 2)), True: ((8, 1),)}
"""Batch, instances; it does not wait, so that batches cost one client nothing."""


@dataclass
class Side:
    """A protocol of a server: what a client process is told, by setting."""

    name: str
    pid: int
    kind: Sequence[str]
    settings: Sequence[Setting] = ((),)
    best: dict[str, Setting] = field(default_factory=dict)
    """Of a model, with eight clients."""

    def target(self, model: str, setting: Setting) -> list[str]:
        """For :mod:`rpc.asking`."""
        return [*self.kind, named(model, setting)]


def named(model: str, setting: Setting) -> str:
    """A model in a setting."""
    return "-".join(map(str, (model, *setting)))


def pace(found: Sequence[Row]) -> Row:
    """Of all clients of a turn together; each has its rate until its last answer."""
    every = [each for row in found for each in row["latencies_us"]]
    return {
        "rps": round(sum(len(row["latencies_us"]) / row["lasted_s"] for row in found), 2),
        "p50_us": round(statistics.median(every), 1),
        "p99_us": round(percentile(every, 0.99), 1),
        "requests": len(every),
        "difference": max(row["difference"] for row in found),
        "client_cpu_us": round(sum(row["cpu_s"] for row in found) / len(every) * 1e6, 1),
    }


@dataclass
class Bed:
    """The client processes and what they ask."""

    askers: Askers
    data: Mapping[str, Path]

    def turn(self, side: Side, model: str, setting: Setting, clients: int, **what: Any) -> Row:
        """One closed loop."""
        inputs, used = real.INPUTS[model], busy_s(side.pid)
        said = {"target": side.target(model, setting), "data": str(self.data[model]), **what}
        found = pace(self.askers.ask(clients, inputs, **said))
        used = busy_s(side.pid) - used
        return {**found, "server_cpu_us": round(used / found["requests"] * 1e6, 1)}

    def check(self, side: Side, model: str) -> float:
        """Every input once by one client, then all are connected; how far answers are off."""
        worst = 0.0
        for setting in side.settings:
            count = real.INPUTS[model] if setting == side.settings[0] else 1
            for clients, most in ((1, count), (CLIENTS, 1)):
                row = self.turn(side, model, setting, clients, seconds=1e9, most=most)
                worst = max(worst, row["difference"])
        return worst


def served(
    stack: ExitStack, models: Sequence[RpcModel], weights: Path, *, quick: bool
) -> Iterator[Side]:
    """Everybody who takes part, running."""
    folder = stack.enter_context(tempfile.TemporaryDirectory())
    mine, theirs = make_stores(folder, "ours", "stock")
    for model in models:
        real.pack_real(model, mine, weights, name=model.name, batch=CLIENTS)
    ours = stack.enter_context(Ours(mine, models, packed=True))
    for scheme in ("udp", "tcp", "unix"):
        yield Side(scheme, ours.pid, ("ours", ours.url(scheme)))
    stock = stack.enter_context(stock_of(models, theirs, weights, STOCK_SETTINGS[quick]))
    addresses = stock.server.ports.inference, stock.server.grpc_inference
    for name, port in zip(STOCK, addresses, strict=True):
        yield Side(name, stock.server.pid, (name, f"127.0.0.1:{port}"), STOCK_SETTINGS[quick])
    settings = TRITON_SETTINGS[quick]
    try:
        packages = Path(triton_rpc.client_module().__file__).parents[2]
        triton = stack.enter_context(real.TritonReal(weights, models, variants=settings))
    except Unavailable as error:
        print(f"without Triton: {error}", file=sys.stderr)
        return
    target = (TRITON, str(packages), f"127.0.0.1:{triton.grpc_port}")
    yield Side(TRITON, triton.pids()[0], target, settings)


def stock_of(
    models: Sequence[RpcModel], store: Path, weights: Path, settings: Sequence[Setting]
) -> Registered:
    """TorchServe as it comes, with every model in every setting."""
    names = []
    for model in models:
        for setting in settings:
            name, (batch, delay_ms, _) = named(model.name, setting), setting
            real.pack_real(model, store, weights, name=name, batch=batch, delay_ms=delay_ms)
            names.append((name, setting[2]))
    return Registered(store, names)


class Registered(Stock):
    """TorchServe as it comes; models are registered with so many workers each."""

    def __init__(self, store: Path, names: Sequence[tuple[str, int]]) -> None:
        super().__init__(store, [])
        self._names = names

    def __enter__(self) -> Self:
        super().__enter__()
        with ThreadPoolExecutor(TOGETHER) as pool:
            list(pool.map(self._register, self._names))
        return self

    def _register(self, named: tuple[str, int]) -> None:
        name, workers = named
        query = f"url={name}.mar&initial_workers={workers}&synchronous=true"
        request = urllib.request.Request(f"{self.server.management}/models?{query}", method="POST")
        urllib.request.urlopen(request, timeout=120).close()


def select(bed: Bed, sides: Sequence[Side], models: Sequence[str], seconds: float) -> list[Row]:
    """The setting in which eight clients get most, of every side and model."""
    rows = []
    for side in sides:
        side.best = dict.fromkeys(models, side.settings[0])
        for model in models if len(side.settings) > 1 else ():
            rates = {
                setting: bed.turn(side, model, setting, CLIENTS, seconds=seconds)["rps"]
                for setting in side.settings
            }
            side.best[model] = max(rates, key=lambda setting: rates[setting])
            tried = {named("", setting)[1:]: rate for setting, rate in rates.items()}
            rows.append({"model": model, "side": side.name, "tried_rps": tried})
    return rows


Samples = Mapping[str, Sequence[Row]]


def best(samples: Samples, model: str, sides: Sequence[str], what: str) -> list[float]:
    """The best of every round among sides; empty when none of them takes part."""
    there = [samples[f"{model} | {side}"] for side in sides if f"{model} | {side}" in samples]
    choose = min if what.endswith("p50_us") else max
    return [choose(row[what] for row in rows) for rows in zip(*there, strict=True)]


def ratios(samples: Samples, model: str) -> Row:
    """Ours against each rival, with intervals."""
    found = {}
    for rival, sides in (("torchserve_best", STOCK), ("triton", (TRITON,))):
        for name, what in (("p50", "one_p50_us"), ("rate", "eight_rps")):
            theirs = best(samples, model, sides, what)
            if theirs:
                ratio = paired_ratio(best(samples, model, [OUR], what), theirs)
                found[f"{model}_{name}_vs_{rival}"] = ratio
    return found


def rows_of(samples: Samples, sides: Sequence[Side], models: Sequence[str]) -> list[Row]:
    """Medians over the rounds."""
    rows = []
    for model in models:
        for side in sides:
            mine = samples[f"{model} | {side.name}"]
            row: Row = {"model": model, "side": side.name}
            if side.best.get(model):
                row["setting_of_eight"] = list(side.best[model])
            for name in mine[0]:
                row[name] = round(statistics.median(each[name] for each in mine), 6)
            rows.append(row)
    return rows


def headline(samples: Samples, models: Sequence[str]) -> Row:
    """The claims."""
    found: Row = {}
    for model in models:
        found |= {name: round(r["median"], 3) for name, r in ratios(samples, model).items()}
    worst = max(row["difference"] for rows in samples.values() for row in rows)
    return {**found, "worst_difference": float(f"{worst:.2g}")}


def measure(bed: Bed, side: Side, model: str, *, quick: bool) -> Row:
    """One side with one model in one round."""
    one, eight, row = ONE_S[quick], EIGHT_S[model][quick], {}
    alone = bed.turn(side, model, side.settings[0], 1, seconds=one, whole=True)
    many = bed.turn(side, model, side.best[model], CLIENTS, seconds=eight)
    for name in ("p50_us", "p99_us", "server_cpu_us", "client_cpu_us"):
        row[f"one_{name}"], row[f"eight_{name}"] = alone[name], many[name]
    worst = max(alone["difference"], many["difference"])
    return {**row, "eight_rps": many["rps"], "difference": worst}


def main() -> None:
    """Run it."""
    parser = Parser(__doc__, rounds=5, quick_rounds=2)
    parser.add_argument("--models", nargs="+", choices=list(real.INPUTS), help="default all")
    args = parser.arguments()
    models = [each for each in real.models() if each.name in (args.models or real.INPUTS)]
    names = [model.name for model in models]
    samples: dict[str, list[Row]] = {}
    with ExitStack() as stack:
        weights = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        real.write_weights(weights)
        data = {name: real.write_inputs(weights, name) for name in names}
        bed = Bed(stack.enter_context(Askers(CLIENTS)), data)
        every = list(served(stack, models, weights, quick=args.quick))
        for side in every:
            print(f"connecting: {side.name}", file=sys.stderr, flush=True)
            for name in names:
                if (off := bed.check(side, name)) > NEAR:
                    raise RuntimeError(f"{side.name}, {name}: another answer, {off} off")
        rows = select(bed, every, names, SELECT_S[args.quick])
        progress = Progress(args.rounds * len(names))
        for number in range(args.rounds):
            for model in names:
                progress.step(f"round {number + 1}: {model}")
                shift = number % len(every)
                for side in every[shift:] + every[:shift]:
                    found = measure(bed, side, model, quick=args.quick)
                    samples.setdefault(f"{model} | {side.name}", []).append(found)
            keep(NAME, args.quick, samples)
    rows = rows_of(samples, every, names) + rows
    rows += [{"ratio": k, **r} for name in names for k, r in ratios(samples, name).items()]
    top = headline(samples, names)
    path = write_result(NAME, quick=args.quick, rows=rows, headline=top, samples=samples)
    for row in rows:
        print(json.dumps(row))
    print(json.dumps(top, indent=1))
    print(path)


if __name__ == "__main__":
    main()
