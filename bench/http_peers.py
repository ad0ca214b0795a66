"""Our TorchServe over HTTP against other servers: mosec, LitServe and Triton's Python backend.

Closed loops by wrk at 1 to 512 connections:

    json      16 numbers in, 4 sums out
    close     the same with a connection for each request
    binary    100,000 bytes in, their number out (not LitServe, which takes JSON and forms)
    minilm    a sentence in, its embedding out, one thread for torch

Each peer is started in every setting of a grid (batch, delay, workers, for LitServe also its queue
and front ends) and measured; for each row the best is measured again in alternating rounds with
ours, during which it stands still (SIGSTOP), for LitServe's processes spin while nothing is asked.
Ours has one setting for all rows (batch 64, 1 ms, one worker; minilm: 2x1x32). Triton answers 784
bytes with 40 zeros instead of ``json`` (binary tensors: its shortest way). All with quiet logs;
only answers with status 200 count. ``cpu_us`` is processor time of all processes of a server per
request.

    worst_throughput_vs_best_peer      the smallest of the median ratios, minilm left out
    peak_vs_best_peer                  our highest rate of ``json`` to the highest of a peer
    worst_real_model_vs_best_peer      the smallest of minilm
    geomean_vs_PEER                    over the rows of json and close

Examples:
    python bench/http_peers.py                       # all of it, about 45 minutes
    python bench/http_peers.py --keep-selection      # settings of the last full run: 20 minutes
    python bench/http_peers.py --quick               # few settings, 1 and 64 connections
    python bench/http_peers.py --work json --peers mosec
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

import httpx
import psutil
import wrk
from common import (
    BENCH,
    Parser,
    Progress,
    Row,
    committed_samples,
    keep,
    pack_sums,
    paired_ratio,
    write_result,
)
from cpu_use import CpuUse
from rivals import triton_server
from rivals.environments import Unavailable
from rivals.peers import Choice, LitServe, Mosec, Peer
from rpc.models import empty_models
from triton_sides import PythonBackend, Static, call_of

from shunter.model_store.minilm.archive import pack_minilm
from shunter.plugins.torchserve.build import ensure
from shunter.plugins.torchserve.server import Server

NAME = "http_peers"
POINTS, QUICK_POINTS = (1, 8, 32, 128, 512), (1, 64)
JSON = {"Content-Type": "application/json"}
CLOSE = {"Connection": "close"}
EMPTY = empty_models()[0]
TRITON = "triton-python"


@dataclass(frozen=True)
class Work:
    """What is asked."""

    served: str
    """The model."""
    body: bytes
    headers: dict[str, str]
    begins: bytes
    """Of the answer."""
    peers: tuple[str, ...]


NUMBERS = json.dumps([1.5, *range(2, 17)]).encode()
TEXT = json.dumps({"text": "a quiet street in the rain seen from a warm window"}).encode()
WORK = {
    "json": Work("sums", NUMBERS, JSON, b"[10.5", (Mosec.name, LitServe.name, TRITON)),
    "close": Work("sums", NUMBERS, JSON | CLOSE, b"[10.5", (Mosec.name, LitServe.name)),
    "binary": Work("length", bytes(100_000), wrk.BINARY, b"[100000]", (Mosec.name,)),
    "minilm": Work("minilm", TEXT, JSON, b"", (Mosec.name, LitServe.name)),
}
MOSEC = [Choice(*each) for each in ((1, 0, 1), (1, 0, 2), *product((8, 64), (1, 5), (1, 2)))]
LITSERVE = [Choice(1, 0, 1), Choice(1, 0, 2, 2)] + [
    Choice(*each) for each in product((8, 64), (0, 2), (1, 2), (1, 2), (True,))
]
PYTHON = [Static(1, 1, 0), Static(1, 2, 0), Static(64, 1, 0), Static(64, 1, 500), Static(64, 2, 0)]
GRIDS: dict[str, Sequence[Any]] = {Mosec.name: MOSEC, LitServe.name: LITSERVE, TRITON: PYTHON}
QUICK: dict[str, Sequence[Any]] = {
    Mosec.name: [Choice(64, 1, 1)],
    LitServe.name: [Choice(64, 0, 1, 1, True)],
    TRITON: PYTHON[2:3],
}
REAL = "minilm"
REAL_SECTION = {"configuration": "2x1x32", "auto": False}
"""Of its archive: no deadline, as the peers have none."""


@dataclass(frozen=True)
class Cell:
    """A row: a peer, what is asked, by how many."""

    peer: str
    work: str
    connections: int


@dataclass
class Found:
    """Of a cell: the best setting of the peer, and rounds of both sides."""

    setting: Any
    ours: list[Row] = field(default_factory=list)
    theirs: list[Row] = field(default_factory=list)


# ---- servers


class Ours:
    """TorchServe with Shunter and all models."""

    def __init__(self, server: Server) -> None:
        self._server = server
        for name in ("sums", "length", REAL):
            query = {"url": f"{name}.mar", "model_name": name, "synchronous": "true"}
            query["initial_workers"] = "2" if name == REAL else "1"
            if name != REAL:
                query |= {"batch_size": "64", "max_batch_delay": "1"}
            url = f"{server.management}/models"
            httpx.post(url, params=query, timeout=300, trust_env=False).raise_for_status()

    def url(self, work: Work) -> str:
        """Where it is asked for."""
        return f"{self._server.inference}/predictions/{work.served}"

    def pids(self) -> list[int]:
        """The server and its workers."""
        server = psutil.Process(self._server.pid)
        return [server.pid, *(each.pid for each in server.children(recursive=True))]


@contextmanager
def ours(store: Path) -> Iterator[Ours]:
    """Running, with one thread for torch."""
    config = {"job_queue_size": "2048"}
    env = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    with Server(model_store=store, plugins=ensure(), config=config, env=env) as server:
        yield Ours(server)


def _pack_length(store: Path) -> None:
    command = [str(Path(sys.executable).with_name("torch-model-archiver"))]
    command += ["--model-name", "length", "--version", "1.0", "--export-path", str(store)]
    command += ["--handler", str(BENCH / "models/length/handler.py")]
    subprocess.run(command, check=True, capture_output=True, cwd=store)


class Triton:
    """Its Python backend in one setting."""

    def __init__(self, server: PythonBackend, setting: Static) -> None:
        self._server = server
        model = server.load(EMPTY, setting)
        self.call = call_of(server, model, "http binary")
        self.url = f"{server.base}/v2/models/{model.name}/infer"

    def pids(self) -> list[int]:
        """All its processes."""
        return self._server.pids()


@contextmanager
def peer(name: str, served: str, setting: Any, minilm: Path) -> Iterator[Any]:
    """One of them, running."""
    if name == TRITON:
        # Another server for each setting: with one for all, the crash of a stub that was being
        # unloaded once took the server along.
        with PythonBackend([EMPTY], [setting]) as triton:
            yield Triton(triton, setting)
        return
    kinds: dict[str, type[Peer]] = {Mosec.name: Mosec, LitServe.name: LitServe}
    with kinds[name](served, minilm if served == REAL else None, setting) as server:
        yield server


def loaded(url: str, pids: list[int], cell: Cell, seconds: float, call: Any = None) -> Row:
    """A closed loop, with the processor time of all processes of the server."""
    work = WORK[cell.work]
    body, headers = work.body, work.headers
    if call is not None:
        body, length = call.body, str(call.header_bytes)
        headers = wrk.BINARY | {"Inference-Header-Content-Length": length}
    use = CpuUse({"server": pids})
    use.begin()
    with wrk.script_of(body, headers) as lua:
        row = wrk.load(url, lua, cell.connections, seconds)
    use.end()
    row["cpu_us"] = round(use.cores()["server"] * 1e6 / max(row["rps"], 1e-9), 1)
    return row


def of_peer(server: Any, cell: Cell, seconds: float) -> Row:
    """A load of a peer."""
    call = server.call if isinstance(server, Triton) else None
    return loaded(server.url, server.pids(), cell, seconds, call)


def check(url: str, work: Work) -> None:
    """Raises RuntimeError when the answer is not what it should be."""
    answer = httpx.post(url, content=work.body, headers=work.headers, timeout=60, trust_env=False)
    if answer.status_code != 200 or not b"".join(answer.content.split()).startswith(work.begins):
        raise RuntimeError(f"{url}: {answer.status_code} {answer.content[:200]!r}")


# ---- the run


def select(cells: list[Cell], grids: Any, minilm: Path, seconds: float) -> list[Row]:
    """Every setting of every peer in its cells, one server at a time."""
    rows: list[Row] = []
    served = {(cell.peer, WORK[cell.work].served): None for cell in cells}
    progress = Progress(sum(len(grids[name]) for name, _ in served))
    for name, model in served:
        for setting in grids[name]:
            progress.step(f"selecting: {name} {model} {setting}")
            with peer(name, model, setting, minilm) as server:
                for cell in (c for c in cells if c.peer == name and WORK[c.work].served == model):
                    if name != TRITON:
                        check(server.url, WORK[cell.work])
                    found = of_peer(server, cell, seconds)
                    rows.append({"phase": "select", **asdict(cell), **asdict(setting), **found})
    return rows


def best(rows: list[Row], cell: Cell, grid: Sequence[Any]) -> Any:
    """The setting with the highest rate in a cell."""
    mine = [row for row in rows if all(row[k] == v for k, v in asdict(cell).items())]
    top = max(mine, key=lambda row: row["rps"])
    return next(each for each in grid if all(top[k] == v for k, v in asdict(each).items()))


@contextmanager
def standing_still(pids: Sequence[int]) -> Iterator[None]:
    """Processes that do nothing meanwhile, not even spin."""
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


def measure(ours: Ours, found: dict[Cell, Found], minilm: Path, args: argparse.Namespace) -> None:
    """Rounds of both sides in turn; of the peers one server at a time."""
    groups: dict[tuple[str, str, Any], list[Cell]] = {}
    for cell, each in found.items():
        groups.setdefault((cell.peer, WORK[cell.work].served, each.setting), []).append(cell)
    progress = Progress(args.rounds * len(groups))
    for number in range(args.rounds):
        for (name, model, setting), cells in groups.items():
            progress.step(f"round {number + 1}: {name} {model} {setting}")
            with peer(name, model, setting, minilm) as server:
                of_peer(server, cells[0], 1)  # warm
                for cell in cells:
                    for side in (0, 1)[:: 1 if number % 2 else -1]:
                        if side:
                            url = ours.url(WORK[cell.work])
                            with standing_still(server.pids()):
                                row = loaded(url, ours.pids(), cell, args.seconds)
                            found[cell].ours.append(row)
                        else:
                            found[cell].theirs.append(of_peer(server, cell, args.seconds))
            rows = [[asdict(cell), f.ours, f.theirs] for cell, f in found.items()]
            keep(NAME, args.quick, rows)


def rows_of(found: dict[Cell, Found]) -> list[Row]:
    """Medians over the rounds, and the ratios."""
    rows = []
    for cell, each in found.items():
        row: Row = {**asdict(cell), "setting": asdict(each.setting)}
        for side, rounds in (("shunter", each.ours), ("theirs", each.theirs)):
            row[side] = {
                name: round(statistics.median(one[name] for one in rounds), 1)
                for name in ("rps", "p50_us", "p99_us", "cpu_us")
            }
            row[side]["failed"] = sum(one["failed"] for one in rounds)
        for name, key in (("throughput_ratio", "rps"), ("cpu_ratio", "cpu_us")):
            row[name] = paired_ratio(
                [one[key] for one in each.ours], [one[key] for one in each.theirs]
            )
        rows.append(row)
    return rows


def headline(rows: list[Row]) -> Row:
    """The claims."""
    top: Row = {}
    paths = [row for row in rows if row["work"] != REAL]
    real = [row for row in rows if row["work"] == REAL]
    for name, some in (
        ("worst_throughput_vs_best_peer", paths),
        ("worst_real_model_vs_best_peer", real),
    ):
        if some:
            top[name] = min(row["throughput_ratio"]["median"] for row in some)
    peaks = {
        side: max((row[side]["rps"] for row in rows if row["work"] == "json"), default=0)
        for side in ("shunter", "theirs")
    }
    if peaks["theirs"]:
        top["peak_vs_best_peer"] = peaks["shunter"] / peaks["theirs"]
    for name in dict.fromkeys(row["peer"] for row in paths):
        ratios = [
            row["throughput_ratio"]["median"]
            for row in paths
            if row["peer"] == name and row["work"] in ("json", "close")
        ]
        if ratios and min(ratios) > 0:
            top[f"geomean_vs_{name}"] = statistics.geometric_mean(ratios)
    failed = sum(row["shunter"]["failed"] for row in rows)
    return {key: round(value, 3) for key, value in top.items()} | {"failed_requests": failed}


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = Parser(__doc__, rounds=5, quick_rounds=2)
    parser.add_argument("--work", nargs="+", choices=list(WORK), default=list(WORK))
    parser.add_argument("--peers", nargs="+", choices=list(GRIDS), default=list(GRIDS))
    parser.add_argument("--connections", nargs="+", type=int)
    parser.add_argument("--seconds", type=float, help="of a load; default 2, quick 1")
    parser.add_argument("--keep-selection", action="store_true", help="do not select anew")
    parser.add_argument("--select-seconds", type=float, default=1, help="default 1")
    args = parser.arguments()
    args.connections = args.connections or (QUICK_POINTS if args.quick else POINTS)
    args.seconds = args.seconds or (1.0 if args.quick else 2.0)
    return args


def main() -> None:
    """Run and write the result."""
    args = arguments()
    grids = QUICK if args.quick else GRIDS
    cells = [
        Cell(name, work, connections)
        for name, work, connections in product(args.peers, args.work, args.connections)
        if name in WORK[work].peers and not (work == REAL and connections > 32)
    ]
    with ExitStack() as stack:
        try:
            for kind in (Mosec, LitServe):
                if kind.name in args.peers:
                    kind.ensure()
            if TRITON in args.peers:
                triton_server.ensure()
        except Unavailable as error:
            sys.exit(f"there is no peer to compare with: {error}")
        store = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        pack_sums(store)
        _pack_length(store)
        minilm = pack_minilm(store, config={"shunter": REAL_SECTION})
        kept = [row for row in committed_samples(NAME) if row["phase"] == "select"]
        if not (args.keep_selection and kept):
            kept = select(cells, grids, minilm, args.select_seconds)
        server = stack.enter_context(ours(store))
        for work in dict.fromkeys(cell.work for cell in cells):
            check(server.url(WORK[work]), WORK[work])
            loaded(server.url(WORK[work]), server.pids(), Cell("", work, 8), 1)  # warm
        found = {cell: Found(best(kept, cell, grids[cell.peer])) for cell in cells}
        measure(server, found, minilm, args)
    rows = rows_of(found)
    top = headline(rows)
    rounds = [
        {"phase": "measure", **asdict(cell), "ours": each.ours, "theirs": each.theirs}
        for cell, each in found.items()
    ]
    path = write_result(NAME, quick=args.quick, rows=rows, headline=top, samples=kept + rounds)
    for row in rows:
        print(json.dumps(row))
    print(json.dumps(top, indent=1))
    print(path)


if __name__ == "__main__":
    main()
