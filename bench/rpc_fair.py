"""Beside TCP: what share of a bottleneck our datagrams get, and what they leave.

Two network namespaces of the script's own, and between them a link of 100 Mbit/s, 20 ms and 1 %
loss (each packet by chance, both ways, and a queue of 20 ms that drops what does not fit). There is
no netem in every kernel, so the link is a process between two TUN devices: it delays, shapes, drops
and counts. One session of ours with up to 64 requests on their way and one TCP flow (CUBIC, and
Reno) go the same way at the same time: requests of 588 KB to the server, or answers of 588 KB from
it. A share is of the bytes that have passed the link, IP headers included, while both ran. Two TCP
flows beside one another are the control. Needs root; loads one core, mostly with the link.

    share_beside_tcp   ours, beside one CUBIC flow: requests or answers, whichever is further from
                       one half; 0.3 to 0.7 is fair

Examples:
    python bench/rpc_fair.py
    python bench/rpc_fair.py --quick
    python bench/rpc_fair.py --rounds 3
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

from common import Parser, Progress, Row, bootstrap, write_result
from rpc.bottleneck import DELAY_S, LOST, MTU, QUEUE_S, RATE_BITS, Bottleneck

NAME = "rpc_fair"
PROCESSES = Path(__file__).parents[1] / "tests/nic_frontend/processes.py"
PORT, TCP_PORTS = 5000, (6000, 6001)
LARGE, SMALL = 602_112, 64
MODELS = {"up": ("requests", LARGE, SMALL), "down": ("answers", SMALL, LARGE)}
"""By the way of the large tensors: the model, and its bytes in and out."""
AT_ONCE = 64
WARM_UP_S, SECONDS = 3.0, 8.0
QUICK_SECONDS = 5.0
START_S = 30
FAIR = (0.3, 0.7)

# ---- flows: this script again, in a namespace


def tcp_server(port: str) -> None:
    """Sends to whoever says so, and reads from whoever does not."""
    with socket.create_server(("0.0.0.0", int(port))) as listener:
        print("ready", flush=True)
        while True:
            connection = listener.accept()[0]
            with connection, contextlib.suppress(OSError):
                way, kind = connection.recv(64).decode().split()
                _carry(connection, kind, sends=way == "down")


def tcp_client(address: str, port: str, way: str, kind: str) -> None:
    """One flow."""
    with socket.create_connection((address, int(port)), START_S) as connection:
        connection.sendall(f"{way} {kind}".encode().ljust(64))
        _carry(connection, kind, sends=way == "up")


def _carry(connection: socket.socket, kind: str, *, sends: bool) -> None:
    connection.settimeout(None)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, kind.encode())
    block = bytearray(1 << 16)
    while connection.sendall(block) is None if sends else connection.recv_into(block):
        pass


def our_client(address: str, way: str) -> None:
    """One session that always has something on its way."""
    import numpy as np

    from shunter.nic_frontend.client import Session

    model, size, _ = MODELS[way]
    with Session(f"udp://{address}:{PORT}", model, timeout_s=600) as session:
        while True:
            session.infer_many([[np.ones(size, np.uint8)]] * AT_ONCE)


# ---- the servers


class OurServer:
    """A front end and a worker for each model, in a namespace. A context manager."""

    def __init__(self, network: Bottleneck, folder: Path) -> None:
        self._network, self._folder = network, folder
        self._pids: list[int] = []

    def __enter__(self) -> OurServer:
        command = self._network.inside(self._network.server, str(PROCESSES))
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self._process = subprocess.Popen(command, text=True, **pipes)  # type: ignore[call-overload]
        self._process.stdout.readline()
        self._start("front_end", port=PORT, host="0.0.0.0", tcp=False, queue_bytes=128 << 20)
        self._links = [self._worker(*model) for model in MODELS.values()]
        return self

    def _start(self, role: str, **options: object) -> None:
        line = json.dumps([role, "", {"folder": str(self._folder), **options}])
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
        self._pids.append(int(self._process.stdout.readline()))

    def _worker(self, model: str, size: int, answer: int) -> socket.socket:
        path = self._folder / f"server-{model}"
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(path))
            listener.listen()
            tensors = {"inputs": [("a", "uint8", [size])], "outputs": [("b", "uint8", [answer])]}
            self._start("worker", server=str(path), batch=4, model=model, **tensors)
            listener.settimeout(START_S)
            return listener.accept()[0]

    def __exit__(self, *_: object) -> None:
        for link in self._links:
            link.close()
        for pid in self._pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.stdin.close()
        self._process.terminate()
        self._process.wait()
        self._process.stdout.close()


# ---- rounds


@contextlib.contextmanager
def flow(network: Bottleneck, *arguments: str) -> Iterator[None]:
    """A client of this script in its namespace, as long as it is needed."""
    command = network.inside(network.client, __file__, *arguments)
    with subprocess.Popen(command) as process:
        try:
            yield
            if process.poll() is not None:
                raise RuntimeError(f"{arguments[0]} has ended by itself")
        finally:
            process.kill()


def tcp_flow(network: Bottleneck, port: int, way: str, kind: str) -> contextlib.ExitStack:
    """One TCP flow."""
    stack = ExitStack()
    stack.enter_context(flow(network, "tcp_client", network.address, str(port), way, kind))
    return stack


def our_flow(network: Bottleneck, way: str) -> contextlib.ExitStack:
    """One session of ours."""
    stack = ExitStack()
    stack.enter_context(flow(network, "our_client", network.address, way))
    return stack


def measure(network: Bottleneck, way: str, seconds: float) -> dict[str, float]:
    """Mbit/s of each flow in a direction."""
    time.sleep(WARM_UP_S)
    before, began = network.passed()[way], time.monotonic()
    time.sleep(seconds)
    after, took = network.passed()[way], time.monotonic() - began
    return {
        name: 8e-6 * (count - before.get(name, 0)) / took
        for name, count in after.items()
        if name.startswith(("udp", "tcp"))
    }


Start = Callable[[], contextlib.ExitStack]


def side_by_side(
    network: Bottleneck, way: str, seconds: float, first: Start, second: Start | None
) -> dict[str, float]:
    """What flows get that begin in this order."""
    with first(), second() if second else contextlib.nullcontext():
        return measure(network, way, seconds)


def subjects(network: Bottleneck, way: str) -> dict[str, tuple[Start, Start | None, str]]:
    """Who goes beside whom; the flow whose share it is."""

    def tcp(kind: str, port: int = TCP_PORTS[0]) -> Start:
        return lambda: tcp_flow(network, port, way, kind)

    ours: Start = lambda: our_flow(network, way)  # noqa: E731
    udp, other = f"udp {PORT}", f"tcp {TCP_PORTS[1]}"
    return {
        "beside cubic": (ours, tcp("cubic"), udp),
        "beside reno": (ours, tcp("reno"), udp),
        "cubic beside cubic": (tcp("cubic", TCP_PORTS[1]), tcp("cubic"), other),
        "alone": (ours, None, udp),
    }


def rows_of(samples: dict[str, list[Row]]) -> list[Row]:
    """Medians over the rounds."""
    rows = []
    for key, rounds in samples.items():
        way, name = key.split(" | ")
        shares = [each["share"] for each in rounds]
        low, high = bootstrap(shares)
        rows.append(
            {
                "large": MODELS[way][0],
                "flows": name,
                "share": round(statistics.median(shares), 3),
                "low": round(low, 3),
                "high": round(high, 3),
                "mbit_s": round(statistics.median(each["mbit_s"] for each in rounds), 2),
                "rounds": len(rounds),
            }
        )
    return rows


def headline(rows: list[Row]) -> Row:
    """The share that is further from one half."""
    shares = [row["share"] for row in rows if row["flows"] == "beside cubic"]
    return {"share_beside_tcp": max(shares, key=lambda share: abs(share - 0.5))}


def main() -> int:
    """Run it."""
    given = Parser(__doc__, rounds=7, quick_rounds=2).arguments()
    seconds = QUICK_SECONDS if given.quick else SECONDS
    samples: dict[str, list[Row]] = {}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        try:
            network = stack.enter_context(Bottleneck())
        except RuntimeError as error:
            print(error, file=sys.stderr)
            return 1
        stack.enter_context(OurServer(network, folder))
        for port in TCP_PORTS:
            command = network.inside(network.server, __file__, "tcp_server", str(port))
            server = subprocess.Popen(command, stdout=subprocess.PIPE)
            stack.callback(server.wait)
            stack.callback(server.kill)
            assert server.stdout is not None
            server.stdout.readline()
        pairs = {way: subjects(network, way) for way in MODELS}
        if given.quick:
            pairs = {way: {"beside cubic": each["beside cubic"]} for way, each in pairs.items()}
        progress = Progress(given.rounds * sum(len(each) for each in pairs.values()))
        for number in range(given.rounds):
            for way, those in pairs.items():
                for name, (first, second, whose) in those.items():
                    progress.step(f"{MODELS[way][0]}, {name}")
                    order = (first, second) if number % 2 or not second else (second, first)
                    rates = side_by_side(network, way, seconds, *order)
                    share = rates.get(whose, 0.0) / sum(rates.values())
                    sample = {"share": share, "mbit_s": rates.get(whose, 0.0), "rates": rates}
                    samples.setdefault(f"{way} | {name}", []).append(sample)
        link = {"rate_mbit_s": RATE_BITS / 1e6, "rtt_ms": 2000 * DELAY_S, "lost": LOST}
        link |= {"queue_ms": 1000 * QUEUE_S, "mtu": MTU, "made_by": "a process between TUN devices"}
        link |= {"passed": network.passed()}
    rows = rows_of(samples)
    found = headline(rows)
    path = write_result(
        NAME, quick=given.quick, rows=[*rows, {"link": link}], headline=found, samples=samples
    )
    for row in rows:
        print(row)
    print(json.dumps(found), path, sep="\n")
    return 0 if FAIR[0] <= found["share_beside_tcp"] <= FAIR[1] else 2


if __name__ == "__main__":
    flows = {"tcp_server": tcp_server, "tcp_client": tcp_client, "our_client": our_client}
    if sys.argv[1:2] and sys.argv[1] in flows:
        flows[sys.argv[1]](*sys.argv[2:])
    else:
        sys.exit(main())
