"""Peaks of many clients over real packets: ours by UDP, TCP and Unix against both rivals.

Requests of LeNet's and ResNet's size to models that do nothing. Servers run in one network
namespace, clients in another, packets between them are of MTU 1500 or 9000, with the offloads that
the interface has (TSO for TCP, USO for UDP), and at 1500 without any too (``mtu1500-cut``); beside
that loopback, where there are Unix sockets and Triton's system shared memory too. The load comes
from C on every side, from one thread: our client's core, wrk for HTTP, h2load for gRPC. ``bare
udp`` and ``bare tcp`` are the kernel alone: the same bytes between sockets with no server behind
them (rpc/bare.py).

A rival's peak is its real one: for every number of clients its requests per connection, batch size
and number of workers are widened until the rate falls (at the first place), in one pass; the best
setting is measured again in paired rounds at every place, and these count. Our side's requests per
connection are chosen in the same way; its batch is --batch, its worker one. ``server_cpu_us`` is
processor time of all processes of the server per request, ``copies_per_byte`` what our front end,
workers and client copied per byte of requests and answers. With shared memory all requests to
Triton have the same tensors, which its client never writes or reads: more than a program gets.
At most 256 MB of requests are on their way to a side at once, and who has been asked is given the
time to answer what is left before the next is; who breaks is started again (``tries``).

    peak_SIZE_Nc_PLACE_vs_RIVAL  our UDP against the better protocol of the rival: median ratio;
                                 vs_kernel: what is reached of the better bare protocol
    udp_vs_tcp_worst             the smallest ratio of UDP's to TCP's peak
    copies_per_byte_worst        the largest of all rows

Examples:
    python bench/rpc_load.py                                  # all of it, about an hour
    python bench/rpc_load.py --quick                          # 784 B, 64 clients, MTU 1500
    python bench/rpc_load.py --sizes 588KB --clients 64 --mtu 1500       # 6 minutes
    python bench/rpc_load.py --quick --sizes 588KB                       # 2, as chosen last time
    python bench/rpc_load.py --quick --rivals kernel --mtu 1500 1500-cut # our sides alone
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from common import (
    Parser,
    Progress,
    Row,
    keep,
    make_stores,
    paired_ratio,
    write_result,
)
from rivals import triton_rpc, triton_server
from rivals.environments import Unavailable
from rpc import h2load, loaded
from rpc.bare import BareLoad
from rpc.loaded import FAILURES, Loaded, OurLoad
from rpc.models import RpcModel, empty_models
from rpc.namespaces import LOOPBACK, WIRES, Network, Place
from rpc.rival_sides import Stock
from rpc.selection import NAME, Cell, Settings, select, without_selection
from rpc.sides import Ours
from rpc.widen import Setting

SIZES = ("784B", "588KB")
CLIENTS = (1, 8, 64)
PLACES = (*(f"mtu{wire}" for wire in WIRES), LOOPBACK)
RIVALS = ("torchserve", "triton", "kernel")
UDP, TCP = "udp", "tcp"
NOTHING: Row = {
    **dict.fromkeys(("rps", "failed", "backlog_drops"), 0),
    **dict.fromkeys(("p50_us", "p99_us", "server_cpu_us"), float("nan")),
}
"""Of a load that nobody answered."""


@dataclass
class Found:
    """What was measured of one cell, by side."""

    rounds: dict[str, list[Row]] = field(default_factory=dict)
    copies: dict[str, float] = field(default_factory=dict)

    def rates(self, side: str) -> list[float]:
        """Of all rounds."""
        return [row["rps"] for row in self.rounds[side]]


def sides(
    stack: ExitStack, models: Sequence[RpcModel], batch: int, wanted: Sequence[str]
) -> Iterator[Loaded]:
    """Everybody who takes part, running; ``wanted``: of the rivals."""
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
    stores = make_stores(str(folder), "ours", "stock")
    ours = stack.enter_context(Ours(stores[0], models, batch=batch, anywhere=True))
    yield from loaded.ours(ours)
    if "torchserve" in wanted:
        stock = stack.enter_context(Stock(stores[1], [], anywhere=True))
        yield loaded.StockHttpLoad(stock, stores[1])
        yield loaded.StockGrpcLoad(stock, stores[1])
    if "triton" in wanted:
        variants = loaded.TritonLoad.variants
        server = triton_rpc.TritonRpc(models, variants=variants, address="0.0.0.0")
        stack.enter_context(server)
        yield loaded.TritonLoad(server, stack, shared=False)
        yield loaded.TritonLoad(server, stack, shared=True)
    if "kernel" in wanted:
        yield from (BareLoad(scheme) for scheme in (UDP, TCP))


def rivals(wanted: Sequence[str]) -> list[str]:
    """Those that can run; they are installed before there is no way to the network any more."""
    if "triton" in wanted:
        try:
            triton_server.ensure()
            triton_rpc.client_module()
        except Unavailable as error:
            print(f"without Triton: {error}", file=sys.stderr)
            return [name for name in wanted if name != "triton"]
    return list(wanted)


def measured(side: Loaded, cell: Cell, setting: Setting, seconds: float) -> Row:
    """One load. A server that breaks, or answers nothing, is asked again when it has settled, and
    then once more as it comes after a start: ``tries`` says so.
    """
    row: Row = {}
    for tries in (1, 2, 3):
        try:
            if tries == 3 or not side.is_alive():
                side.restart()
            row = side.measure(cell.place, cell.model, cell.clients, setting, seconds)
        except FAILURES as error:
            row = {**NOTHING, "error": str(error)}
        row["tries"] = tries
        if row["rps"]:
            break
        print(f"{cell.key} | {side.name}: no answer in try {tries}", file=sys.stderr)
    return row


def measure(
    cells: Sequence[Cell],
    every: Sequence[Loaded],
    settings: Settings,
    rounds: int,
    seconds: float,
    quick: bool,
) -> dict[Cell, Found]:
    """Every side in every cell, in paired rounds."""
    found = {cell: Found() for cell in cells}
    progress = Progress(rounds * len(cells))
    for number in range(rounds):
        for cell in cells:
            progress.step(f"round {number + 1}: {cell.key}")
            here = [side for side in every if side.reaches(cell.place)]
            for side in here[number % len(here) :] + here[: number % len(here)]:
                setting = settings[side.name, cell.model.label, cell.clients]
                row = measured(side, cell, setting, seconds)
                found[cell].rounds.setdefault(side.name, []).append(row)
                if number == 0 and isinstance(side, OurLoad):
                    copies = side.copies(cell.place, cell.model, cell.clients, setting)
                    found[cell].copies[side.name] = copies
            keep(NAME, quick, [{c.key: f.rounds} for c, f in found.items()])
    return found


def against(cell: Found, rates: Sequence[float]) -> Row | None:
    """Our UDP against these rates. Who answered nothing in a round was broken: no ratio."""
    return paired_ratio(cell.rates(UDP), rates) if all(rates) else None


def rows_of(found: dict[Cell, Found], settings: Settings) -> list[Row]:
    """Medians over the rounds, and ours against each."""
    rows = []
    for cell, cells_found in found.items():
        for side, rounds in cells_found.rounds.items():
            row: Row = {"cell": cell.key, "side": side}
            row |= settings[side, cell.model.label, cell.clients]
            for name in ("rps", "p50_us", "p99_us", "server_cpu_us"):
                row[name] = round(statistics.median(each[name] for each in rounds), 1)
            for name in ("failed", "backlog_drops"):
                row[name] = sum(each[name] for each in rounds)
            row["tries"] = sum(each["tries"] for each in rounds)
            if side in cells_found.copies:
                row["copies_per_byte"] = cells_found.copies[side]
            row["udp_vs_this"] = against(cells_found, cells_found.rates(side))
            rows.append(row)
    return rows


def headline(found: dict[str, Found], sides_of: dict[str, list[str]]) -> Row:
    """The claims; ``found`` by the key of its cell, ``sides_of``: of each rival."""
    top: Row = {}
    for key, cell in found.items():
        for rival, names in sides_of.items():
            here = [cell.rates(name) for name in names if name in cell.rounds]
            if here:
                best = [max(rates) for rates in zip(*here, strict=True)]
                ratio = against(cell, best)
                top[f"peak_{key}_vs_{rival}"] = ratio and round(ratio["median"], 2)
    ratios = [paired_ratio(c.rates(UDP), c.rates(TCP))["median"] for c in found.values()]
    top["udp_vs_tcp_worst"] = round(min(ratios), 3)
    copies = [value for cell in found.values() for value in cell.copies.values()]
    top["copies_per_byte_worst"] = max(copies)
    return top


def cells_of(args: argparse.Namespace, places: Sequence[Place]) -> list[Cell]:
    """What was asked for; the first place is where settings are chosen."""
    models = [model for model in empty_models() if model.label in args.sizes]
    return [
        Cell(place, model, clients)
        for place in places
        for model in models
        for clients in args.clients
    ]


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = Parser(__doc__, rounds=5, quick_rounds=2)
    wires = [place.removeprefix("mtu") for place in PLACES]
    parser.add_argument("--mtu", nargs="+", choices=wires, help="default all, quick 1500")
    parser.add_argument("--sizes", nargs="+", choices=SIZES, help="default all, quick 784B")
    parser.add_argument("--clients", nargs="+", type=int, help="default 1 8 64, quick 64")
    parser.add_argument("--rivals", nargs="*", choices=RIVALS, default=RIVALS)
    parser.add_argument("--batch", type=int, default=32, help="of our worker; default 32")
    parser.add_argument("--seconds", type=float, help="of a load; default 2, quick 1")
    parser.add_argument("--select", choices=("yes", "no"), help="no: what the last full run chose")
    args = parser.arguments()
    args.mtu = args.mtu or (wires[:1] if args.quick else wires)
    args.sizes = args.sizes or (SIZES[:1] if args.quick else SIZES)
    args.clients = args.clients or (CLIENTS[-1:] if args.quick else CLIENTS)
    args.seconds = args.seconds or (1.0 if args.quick else 2.0)
    args.select = args.select or ("no" if args.quick else "yes")
    return args


def main() -> None:
    """Run it."""
    args = arguments()
    h2load.require()
    wanted = rivals(args.rivals)
    names = [each if each == LOOPBACK else f"mtu{each}" for each in args.mtu]
    wires = [each for each in args.mtu if each != LOOPBACK]
    rows: list[Row] = []
    with ExitStack() as stack:
        network = stack.enter_context(Network(wires))
        if network.impossible:
            print(f"no namespaces: {network.impossible}", file=sys.stderr)
            rows.append({"skipped": [f"mtu{wire}" for wire in wires], "why": network.impossible})
        places = network.places(names) or network.places([LOOPBACK])
        cells = cells_of(args, places)
        models = list(dict.fromkeys(cell.model for cell in cells))
        every = list(sides(stack, models, args.batch, wanted))
        if args.select == "yes":
            settings, selection = select(cells, every, min(1.0, args.seconds))
        else:
            settings, selection = without_selection(cells, every), []
        found = measure(cells, every, settings, args.rounds, args.seconds, args.quick)
    rows = rows_of(found, settings) + rows + selection
    of_rival = {rival: [s.name for s in every if s.rival == rival] for rival in wanted}
    top = headline({cell.key: each for cell, each in found.items()}, of_rival)
    samples = [
        {"side": side, "model": model, "clients": clients, "setting": setting}
        for (side, model, clients), setting in settings.items()
    ]
    samples += [{"cell": cell.key, **each.rounds} for cell, each in found.items()]
    path = write_result(NAME, quick=args.quick, rows=rows, headline=top, samples=samples)
    for row in rows:
        if "cell" in row:
            print(json.dumps(row))
    print(json.dumps(top, indent=1))
    print(path)


if __name__ == "__main__":
    main()
