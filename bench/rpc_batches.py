"""The same arrivals by HTTP and by the network front end: do both form the same batches?

One server with our plugin has the same model twice: one is asked by HTTP, where the JVM forms the
batches, the other by UDP, where the front end does. Its handler sleeps as a batch would take
(--takes-ms: for each batch, and for each request in it) and notes the size of every batch. Arrivals
are Poisson at shares of the capacity with full batches, or a closed loop; plain ones have neither
deadline nor class, of mixed ones a third each has no deadline, 60 ms and 200 ms, and half of
them are best effort. Both sides get the same ones, in paired rounds, from the same asyncio loop,
and all of them reach the queue when they come: HTTP by as many connections as its queue takes
requests, UDP by 64 sessions. A deadline counts from the arrival at the queue on both sides.

With few sessions that is not so. A session's window spans so many requests from the oldest on that
has no answer: a best-effort one that waits behind strict ones keeps back, in the client, all that
come 64 later in its session, of any class. Fewer strict ones then interrupt best effort, whose
batches are full. ``udp_4_sessions`` are the open mixed loops by four sessions, as one client would
have them.

    mean_batch_vs_http_path  mean batch by UDP to mean batch by HTTP: median of the rounds, of the
                             workload where it is farthest from 1
    mean_batch_4_sessions_vs_http_path    the same by four sessions

Examples:
    python bench/rpc_batches.py               # about 12 minutes
    python bench/rpc_batches.py --quick       # under 2
    python bench/rpc_batches.py --rounds 3 --seconds 2    # about 5
"""

from __future__ import annotations

import asyncio
import json
import math
import random
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from common import Parser, Progress, Row, make_stores, paired_ratio, write_result
from http_client import Exchange, Pool, prebuilt
from rpc.models import RpcModel, empty_models, pack_model
from rpc.sides import Ours

from shunter.nic_frontend.client import AsyncClient, InferenceError

NAME = "rpc_batches"
BATCH = 16
SESSIONS, FEW = 64, 4
"""Many, so that none is kept back by its window; and as few as a client would have."""
CONNECTIONS = 1000
"""By HTTP, where each has one request on its way; ``job_queue_size`` is as large."""
FEW_NAME = f"udp_{FEW}_sessions"
BUSY_SHARES = (0.4, 0.7, 0.9, 1.1)
CLIENTS = (4, 16, 64)
DEADLINES_MS = (None, 60.0, 200.0)
WARM_UP_S = 0.5


@dataclass(frozen=True)
class Kind:
    """What a request says of itself."""

    deadline_ms: float | None = None
    best_effort: bool | None = None

    @property
    def headers(self) -> dict[str, str]:
        """By HTTP."""
        found = {}
        if self.deadline_ms is not None:
            found["x-shunter-deadline-ms"] = f"{self.deadline_ms:g}"
        if self.best_effort is not None:
            found["x-shunter-class"] = "best-effort" if self.best_effort else "strict"
        return found


PLAIN = [Kind()]
MIXED = [Kind(deadline, low) for deadline in DEADLINES_MS for low in (False, True)]


@dataclass(frozen=True)
class Workload:
    """Arrivals: Poisson at a rate, or so many clients."""

    name: str
    kinds: Sequence[Kind]
    rate: float = 0.0
    clients: int = 0

    def arrivals(self, seconds: float, seed: int) -> list[tuple[float, Kind]]:
        """When which request comes, in seconds from the start; always the same."""
        choose, at, found = random.Random(seed), 0.0, []
        while (at := at + choose.expovariate(self.rate)) < seconds:
            found.append((at, choose.choice(self.kinds)))
        return found


def workloads(capacity: float, quick: bool) -> list[Workload]:
    """All of them."""
    found = []
    for name, kinds in (("plain", PLAIN), ("mixed", MIXED)):
        for share in BUSY_SHARES[1:3] if quick else BUSY_SHARES:
            found.append(Workload(f"{name}, {share:.0%}", kinds, rate=share * capacity))
        for clients in CLIENTS[1:2] if quick else CLIENTS:
            found.append(Workload(f"{name}, {clients} clients", kinds, clients=clients))
    return found


Ask = Callable[[Kind, int], Awaitable[str]]
"""One request to its end, which is "200" where it was answered."""


async def drive(ask: Ask, load: Workload, seconds: float, seed: int) -> Counter[str]:
    """How all requests ended."""
    if load.clients:
        return await _closed(ask, load, seconds, seed)
    begun, tasks = time.monotonic(), []
    for number, (at, kind) in enumerate(load.arrivals(seconds, seed)):
        if (left := begun + at - time.monotonic()) > 0:
            await asyncio.sleep(left)
        tasks.append(asyncio.ensure_future(ask(kind, number)))
    return Counter(await asyncio.gather(*tasks))


async def _closed(ask: Ask, load: Workload, seconds: float, seed: int) -> Counter[str]:
    ends: Counter[str] = Counter()
    until = time.monotonic() + seconds

    async def client(number: int) -> None:
        choose = random.Random(seed * 1000 + number)
        while time.monotonic() < until:
            ends[await ask(choose.choice(load.kinds), number)] += 1

    await asyncio.gather(*(client(number) for number in range(load.clients)))
    return ends


class ByHttp:
    """The JVM's path."""

    name = "http"

    def __init__(self, server: Ours, model: RpcModel) -> None:
        self._port = int(server.inference.rpartition(":")[2])
        body, path = model.request().tobytes(), f"/predictions/{model.name}"
        more = ("127.0.0.1", self._port, path, body, "application/octet-stream")
        self._bodies = {kind: prebuilt(*more, kind.headers) for kind in (*PLAIN, *MIXED)}

    async def drive(self, *what: object) -> Counter[str]:
        """See :func:`drive`."""
        pool = Pool("127.0.0.1", self._port, CONNECTIONS)
        loop = asyncio.get_running_loop()

        async def ask(kind: Kind, _: int) -> str:
            ended: asyncio.Future[str] = loop.create_future()
            done = lambda exchange: ended.set_result(str(exchange.status))  # noqa: E731
            pool.submit(Exchange(self._bodies[kind], time.monotonic(), done))
            return await ended

        try:
            return await drive(ask, *what)
        finally:
            pool.close()


class ByNetwork:
    """The front end's path."""

    def __init__(self, server: Ours, model: RpcModel, sessions: int = SESSIONS) -> None:
        self.name = "udp" if sessions == SESSIONS else FEW_NAME
        self._url, self._model, self._input = server.url("udp"), model.name, model.request()
        self._sessions = sessions

    async def drive(self, *what: object) -> Counter[str]:
        """See :func:`drive`."""
        clients = [AsyncClient(self._url, timeout_s=30) for _ in range(self._sessions)]

        async def ask(kind: Kind, number: int) -> str:
            options = {"deadline_ms": kind.deadline_ms, "best_effort": kind.best_effort}
            try:
                await clients[number % self._sessions].infer(self._model, self._input, **options)
            except InferenceError as error:
                return type(error).__name__
            return "200"

        try:
            return await drive(ask, *what)
        finally:
            for client in clients:
                await client.close()


@dataclass
class Sizes:
    """Of batches, as a handler notes them."""

    path: Path
    seen: int = 0

    def take(self) -> np.ndarray:
        """Those since the last time."""
        data = self.path.read_bytes()[self.seen :] if self.path.exists() else b""
        self.seen += len(data)
        return np.frombuffer(data, np.uint8)


def measure(
    side: ByHttp | ByNetwork, sizes: Sizes, load: Workload, seconds: float, seed: int
) -> Row:
    """One side, one workload."""
    asyncio.run(side.drive(load, WARM_UP_S, seed + 1))
    sizes.take()
    ends = asyncio.run(side.drive(load, seconds, seed))
    found = sizes.take()
    if not len(found):
        raise RuntimeError(f"{side.name}, {load.name}: no batch ran; {dict(ends)}")
    return {
        "mean_batch": round(float(found.mean()), 3),
        "batches": len(found),
        "sizes": {str(size): int(n) for size, n in sorted(Counter(found.tolist()).items())},
        "ends": dict(ends),
    }


def rows_of(samples: dict[str, dict[str, list[Row]]]) -> list[Row]:
    """Medians over the rounds, and the ratio."""
    rows = []
    for name, sides in samples.items():
        means = {side: [row["mean_batch"] for row in found] for side, found in sides.items()}
        row: Row = {"workload": name}
        for side, found in sides.items():
            row[side] = statistics.median(means[side])
            row[f"{side}_ends"] = dict(sum((Counter(each["ends"]) for each in found), Counter()))
        ratios = {side: paired_ratio(found, means["http"]) for side, found in means.items()}
        rows.append({**row, "ratio": ratios["udp"]})
        if FEW_NAME in ratios:
            rows[-1][f"ratio_{FEW}_sessions"] = ratios[FEW_NAME]
    return rows


def farthest(ratios: Sequence[float]) -> float:
    """From 1."""
    return round(max(ratios, key=lambda each: abs(math.log(each))), 3)


def headline(rows: Sequence[Row]) -> Row:
    """The ratio that is farthest from 1, and how many are not within 10 %."""
    ratios = [row["ratio"]["median"] for row in rows]
    key = f"ratio_{FEW}_sessions"
    few = [row[key]["median"] for row in rows if key in row]
    return {
        "mean_batch_vs_http_path": farthest(ratios),
        **({f"mean_batch_{FEW}_sessions_vs_http_path": farthest(few)} if few else {}),
        "workloads_beyond_10_percent": sum(not 0.9 <= each <= 1.1 for each in ratios),
    }


def served(stack: ExitStack, takes_ms: Sequence[float]) -> tuple[Ours, dict[str, RpcModel], Path]:
    """The server, its two models, and the folder of their notes."""
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
    [store] = make_stores(str(folder), "ours")
    small = empty_models()[0]
    models = {side: replace(small, name=f"by{side}") for side in ("http", "udp")}
    for side, model in models.items():
        noted = {"batches": str(folder / side), "takes_ms": list(takes_ms)}
        pack_model(model, store, batch=BATCH, delay_ms=20, handler_settings=noted)
    config = {"default_workers_per_model": "1", "job_queue_size": str(CONNECTIONS)}
    server = Ours(store, list(models.values()), config=config, packed=True)
    return stack.enter_context(server), models, folder


def main() -> None:
    """Run it."""
    parser = Parser(__doc__, rounds=5, quick_rounds=2)
    parser.add_argument("--seconds", type=float, help="of a workload; default 4, quick 2")
    parser.add_argument("--takes-ms", nargs=2, type=float, default=(8.0, 1.0))
    args = parser.arguments()
    seconds = args.seconds or (2.0 if args.quick else 4.0)
    capacity = BATCH * 1000 / (args.takes_ms[0] + BATCH * args.takes_ms[1])
    samples: dict[str, dict[str, list[Row]]] = {}
    with ExitStack() as stack:
        server, models, folder = served(stack, args.takes_ms)
        server.session("udp", models["udp"]).close()  # its worker is there
        sides = [ByHttp(server, models["http"]), ByNetwork(server, models["udp"])]
        few = ByNetwork(server, models["udp"], FEW)
        by_udp = Sizes(folder / "udp")
        sizes = {"http": Sizes(folder / "http"), "udp": by_udp, FEW_NAME: by_udp}
        loads = workloads(capacity, args.quick)
        progress = Progress(args.rounds * len(loads))
        for number in range(args.rounds):
            for load in loads:
                progress.step(f"round {number + 1}: {load.name}")
                asked = [*sides, few] if load.rate and load.kinds is MIXED else sides
                for side in asked if number % 2 else asked[::-1]:
                    row = measure(side, sizes[side.name], load, seconds, number)
                    samples.setdefault(load.name, {}).setdefault(side.name, []).append(row)
    rows = rows_of(samples)
    top = headline(rows)
    path = write_result(NAME, quick=args.quick, rows=rows, headline=top, samples=samples)
    for row in rows:
        print(json.dumps(row))
    print(json.dumps(top, indent=1))
    print(path)


if __name__ == "__main__":
    main()
