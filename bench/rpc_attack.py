"""Good clients beside attackers: what they feel of it, and whether anything of theirs is lost.

The server has a key, which all but the flood's sender have. Clients, good and bad ones, are in
another network namespace, at MTU 1500. Good clients: eight sessions with Poisson arrivals of 784 B
requests (--load a second) that bear numbers, which the handler writes down when it runs; and 64
sessions that ask once after every attack.

flood     HELLOs under random source addresses (raw sockets, --rate a second) against quiet, and
          against the same datagrams to a port where nobody listens to them: that is what their
          sender and the kernel cost on this machine, which has to make the load as well
slow      TCP sessions that ask for 64 KB answers with all their credit and read nothing, beside a
          good session of the same model
half_open sessions whose client is gone at once, connections that never say anything
replay    a relay repeats old datagrams of both directions and sends them back where they came from

    p99_under_flood_vs_quiet   median of paired rounds
    lost_sessions              good ones that the server forgot, or that do not answer afterwards
    failed_requests            of good clients, in all attacks
    duplicated_executions      requests that ran twice

Examples:
    python bench/rpc_attack.py               # about 2 minutes
    python bench/rpc_attack.py --quick
"""

from __future__ import annotations

import json
import math
import os
import socket
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

from common import Parser, Progress, Row, make_stores, paired_ratio, write_result
from rpc.attackers import half_open, lost_now, slow_readers
from rpc.executions import Executions
from rpc.flood import Flood
from rpc.load import Load
from rpc.models import RpcModel, empty_models, pack_model
from rpc.namespaces import LOOPBACK, Network, Place
from rpc.relay import Relay
from rpc.sides import Ours, open_session

from shunter.nic_frontend.client import Session
from shunter.nic_frontend.wire.hello import DEFAULT_KEY, Hello
from shunter.nic_frontend.wire.keys import SharedKey

NAME = "rpc_attack"
WIRE = "1500-cut"
CLIENTS, IDLE = 8, 64
ATTACKERS = 16
HALF_OPEN = 200
RELAYED = 1000
"""Number of the relayed client's session in what the handler writes down."""
LARGE = RpcModel("answers", "empty", ("uint8", (64,)), ("uint8", (65536,)))


class Good:
    """The good clients of one model at one place, from the beginning to the end."""

    def __init__(self, place: Place, server: Ours, model: RpcModel, key: SharedKey) -> None:
        self._place, self._model, self._key = place, model, key
        self._url = server.url("udp", place.host)
        self._load = place.run(self._opened, CLIENTS)
        self._idle = place.run(lambda: [self._session() for _ in range(IDLE)])
        self._lost: set[int] = set()

    def _session(self) -> Session:
        return open_session(self._url, self._model, key=self._key, fail_fast=True)

    def _opened(self, clients: int) -> Load:
        return Load(self._model, self._session, clients, stamped=True)

    def ask(self, rate: float, seconds: float, seed: int) -> Row:
        """Requests at that rate; latencies."""
        return self._place.run(lambda: self._load.open(rate, seconds, seed=seed))

    def look(self) -> list[str]:
        """Ask in the idle sessions; why some are lost that were not before."""
        found = lost_now(self._place, self._idle, self._model)
        new = found.keys() - self._lost
        self._lost |= new
        return sorted({found[number] for number in new})

    def lost(self) -> int:
        """Sessions so far."""
        return len(self._lost) + self._load.unknown()

    def close(self) -> None:
        """End all sessions."""
        self._load.close()
        for session in self._idle:
            session.close()


class Bed:
    """Server, good clients and what is measured of them."""

    def __init__(
        self, place: Place, server: Ours, good: Good, executions: Executions, seconds: float
    ) -> None:
        self.place, self.server, self.executions = place, server, executions
        self.seconds, self.rows = seconds, []
        self._good = good

    def measure(self, attack: str, rate: float, seed: int) -> Row:
        """Good clients' requests while it goes on, and what it left."""
        self.executions.take()
        found = self._good.ask(rate, self.seconds, seed)
        ran = self.executions.take()
        row = {"attack": attack, "round": seed, **found}
        row["executed_twice"] = sum(n > 1 for stamp, n in ran.items() if is_stamp(stamp))
        self.rows.append(row)
        return row

    def look(self) -> None:
        """After the attack: what it left."""
        row = self.rows[-1]
        row |= {"why": self._good.look(), "lost_sessions": self._good.lost()}
        brief = {name: row[name] for name in ("p50_us", "p99_us", "failed", "lost_sessions", "why")}
        print(f"{row['attack']}: {brief}", file=sys.stderr)


def is_stamp(number: int) -> bool:
    """Whether it is of a request that bears a number; others are what the sessions ask."""
    return 0 < number >> 32 <= RELAYED


def with_flood(bed: Bed, load: float, rate: int, rounds: int, model: RpcModel) -> list[Row]:
    """Quiet, the same datagrams to nobody, and the flood, in paired rounds."""
    port = int(bed.server.url("udp").rpartition(":")[2])
    hello = Hello(os.urandom(16), model.name, key_id=DEFAULT_KEY).message(None)
    progress = Progress(rounds)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as nobody:
        nobody.bind(("0.0.0.0", 0))
        nobody.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        ports = {"quiet": 0, "flood at nobody": nobody.getsockname()[1], "flood": port}
        for number in range(rounds):
            progress.step(f"flood, round {number + 1}")
            order = list(ports)
            for attack in order[number % 3 :] + order[: number % 3]:
                if not ports[attack]:
                    bed.measure(attack, load, number)
                else:
                    with Flood(bed.place, ports[attack], rate, hello) as flood:
                        row = bed.measure(attack, load, number)
                    row["flood_per_s"] = round(flood.rate)
                bed.look()
    return bed.rows


def with_others(bed: Bed, load: float, model: RpcModel, key: SharedKey) -> None:
    """Slow readers, half-open sessions, replays and reflections, one after the other."""
    place, server = bed.place, bed.server
    port = int(server.url("udp").rpartition(":")[2])
    stream = server.url("tcp", place.host)
    victim = place.run(lambda: Load(LARGE, lambda: open_session(stream, LARGE, key=key), 1))
    with slow_readers(place, stream, LARGE, key, ATTACKERS) as asked:
        row = bed.measure("slow readers", load, 0)
        row["requests_that_nobody_reads"] = asked
        beside = place.run(lambda: victim.closed(1))
        row["same_model"] = beside
        row["failed"] += beside["failed"] + (beside["requests"] == 0)
    bed.look()
    victim.close()
    with half_open(place, port, model, key, HALF_OPEN) as opened:
        bed.measure("half-open", load, 0)["opened"] = opened
    bed.look()
    with ThreadPoolExecutor(1) as beside_it:
        relayed = beside_it.submit(place.run, relay, place.host, port, model, key, bed.seconds)
        row = bed.measure("replay and reflection", load, 0)
        row["relayed"] = relayed.result()
        row["failed"] += row["relayed"]["failed"] + (row["relayed"]["requests"] == 0)
    bed.look()


def relay(host: str, port: int, model: RpcModel, key: SharedKey, seconds: float) -> Row:
    """A client whose datagrams, and the answers to them, are repeated and sent back."""
    with Relay(host, port) as between:
        url = f"udp://127.0.0.1:{between.port}"
        opened = lambda: open_session(url, model, key=key)  # noqa: E731
        with Load(model, opened, 1, stamped=True, first=RELAYED) as load:
            found = load.closed(seconds, depth=4)
            lost = load.unknown()
        more = {"replayed": between.replayed, "reflected": between.reflected}
    return {**found, "failed": found["failed"] + lost, **more}


def headline(rows: list[Row], lost: int) -> Row:
    """The claims."""
    p99 = {
        attack: [row["p99_us"] for row in rows if row["attack"] == attack]
        for attack in ("quiet", "flood at nobody", "flood")
    }

    def ratio(below: str) -> float:
        if not p99["flood"]:
            return float("nan")
        return round(paired_ratio(p99["flood"], p99[below])["median"], 2)

    return {
        "p99_under_flood_vs_quiet": ratio("quiet"),
        "p99_under_flood_vs_flood_at_nobody": ratio("flood at nobody"),
        "least_flood_per_s": min((row.get("flood_per_s", math.inf) for row in rows), default=0),
        "lost_sessions": lost,
        "failed_requests": sum(row["failed"] for row in rows),
        "duplicated_executions": sum(row["executed_twice"] for row in rows),
    }


def served(stack: ExitStack, model: RpcModel, key: bytes) -> tuple[Ours, Executions]:
    """The server, and what its handler writes down of the model."""
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
    [store] = make_stores(str(folder), "ours")
    secret, record = folder / "key", folder / "executions"
    secret.touch(0o600)
    secret.write_bytes(key)
    pack_model(model, store, batch=8, record=record)
    pack_model(LARGE, store, batch=8)
    server = Ours(
        store, [model, LARGE], settings=f'key_file = "{secret}"', anywhere=True, packed=True
    )
    return stack.enter_context(server), Executions(record)


def main() -> None:
    """Run it."""
    parser = Parser(__doc__, rounds=7, quick_rounds=3)
    parser.add_argument("--seconds", type=float, help="of a load; default 4, quick 1.5")
    parser.add_argument("--rate", type=int, default=100_000, help="spoofed HELLOs per second")
    parser.add_argument("--load", type=float, default=2000, help="good requests per second")
    args = parser.arguments()
    seconds = args.seconds or (1.5 if args.quick else 4.0)
    model, secret = empty_models()[0], os.urandom(32)
    key = SharedKey(DEFAULT_KEY, secret)
    with ExitStack() as stack:
        network = stack.enter_context(Network([WIRE]))
        places = network.places([f"mtu{WIRE}"]) or network.places([LOOPBACK])
        server, executions = served(stack, model, secret)
        for each in (model, LARGE):
            server.session("udp", each, key=key).close()  # its worker is there
        good = Good(places[0], server, model, key)
        stack.callback(good.close)
        bed = Bed(places[0], server, good, executions, seconds)
        good.ask(args.load, 1.0, 0)
        if network.impossible:
            print(f"without the flood, no namespaces: {network.impossible}", file=sys.stderr)
        else:
            with_flood(bed, args.load, args.rate, args.rounds, model)
        with_others(bed, args.load, model, key)
        top = headline(bed.rows, good.lost())
    if network.impossible:
        bed.rows.append({"skipped": "flood", "why": network.impossible})
    path = write_result(NAME, quick=args.quick, rows=bed.rows, headline=top)
    for row in bed.rows:
        print(json.dumps(row))
    print(json.dumps(top, indent=1))
    print(path)


if __name__ == "__main__":
    main()
