"""One thread of the front end against two, with two busy models that do nothing.

No server: a front end, a worker of each model and a load from C on each, every one a process. What
can be gained is what the front end costs, so most where it decrypts; less than that, or nothing, on
a host with fewer cores than processes.

    two_threads_vs_one   median ratio of the requests per second of both models together

Examples:
    python bench/rpc_threads.py
    python bench/rpc_threads.py --quick
    python bench/rpc_threads.py --rounds 9
"""

from __future__ import annotations

import json
import multiprocessing
import os
import secrets
import signal
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from common import Parser, Progress, Row, paired_ratio, write_result
from rpc.load import Load
from rpc.models import RpcModel, empty_models

from shunter.batching.queue.attach import Attach
from shunter.batching.queue.tensor_spec import TensorSpec
from shunter.handlers.queue.front_end_link import FrontEndLink
from shunter.nic_frontend.client import BadRequestError, Session, UnavailableError
from shunter.nic_frontend.server.front_end import FrontEnd, Settings

NAME = "rpc_threads"
SECONDS, QUICK_SECONDS = 4.0, 2.0
CLIENTS, DEPTH, BATCH = 16, 4, 32
KEY = secrets.token_bytes(32)
WAYS: dict[str, Any] = {"plain": {}, "encrypted": {"key": KEY, "encrypt": True}}
PROCESSES = multiprocessing.get_context("fork")


def front_end(folder: Path, threads: int, way: str, ready: Connection) -> None:
    """Serve until the process is told to end."""
    key = WAYS[way].get("key")
    found = FrontEnd(Settings(folder / "nic.sock", port=0, threads=threads, key=key))
    signal.signal(signal.SIGTERM, lambda *_: found.stop(finish=False))
    ready.send(found.port)
    found.run()
    found.close()


def worker(folder: Path, model: RpcModel, name: str) -> None:
    """Answers without a look at the inputs."""
    sides = [(TensorSpec(kind, *getattr(model, kind)),) for kind in ("input", "output")]
    attach = Attach(name, "1", *sides, BATCH, os.getpid())
    link = FrontEndLink(folder / "nic.sock", attach, lambda inputs, outputs: None)
    connection, _theirs = socket.socketpair()
    link.run(connection, lambda: True)


def load(model: RpcModel, name: str, port: int, way: str, seconds: float, said: Connection) -> None:
    """One model's load; what it found."""

    def opened() -> Session:
        until = time.monotonic() + 60
        while True:  # its worker is on its way
            try:
                return Session(f"udp://127.0.0.1:{port}", name, timeout_s=60, **WAYS[way])
            except (BadRequestError, UnavailableError):
                if time.monotonic() > until:
                    raise
                time.sleep(0.05)

    with Load(model, opened, CLIENTS) as clients:
        said.send(None)
        said.recv()
        said.send(clients.closed(seconds, depth=DEPTH))


@contextmanager
def started(*arguments: object) -> Iterator[multiprocessing.process.BaseProcess]:
    """A process, until the end of the block."""
    function, *rest = arguments
    process = PROCESSES.Process(target=function, args=rest)  # type: ignore[arg-type]
    process.start()
    try:
        yield process
    finally:
        process.terminate()
        process.join()


def cpu_s(pid: int | None) -> float:
    """Processor time of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text("ascii").rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measure(model: RpcModel, threads: int, way: str, seconds: float) -> Row:
    """Requests per second of two models together, and processor time of the front end for each."""
    names = ("one", "two")
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        ready, said = PROCESSES.Pipe()
        front = stack.enter_context(started(front_end, folder, threads, way, said))
        port = ready.recv()
        pipes = []
        for name in names:
            stack.enter_context(started(worker, folder, model, name))
        for name in names:
            mine, theirs = PROCESSES.Pipe()
            stack.enter_context(started(load, model, name, port, way, seconds, theirs))
            pipes.append(mine)
        for pipe in pipes:
            pipe.recv()
        used = cpu_s(front.pid)
        for pipe in pipes:
            pipe.send(None)
        found = [pipe.recv() for pipe in pipes]
        used = cpu_s(front.pid) - used
    requests = sum(each["requests"] for each in found)
    rps = sum(each["rps"] for each in found)
    row = {"model": model.label, "way": way, "threads": threads, "rps": round(rps, 1)}
    row |= {"failed": sum(each["failed"] for each in found), "front_end_us": 1e6 * used / requests}
    return row | {"p99_us": max(each["p99_us"] for each in found)}


def main() -> int:
    """Run it."""
    given = Parser(__doc__, rounds=5, quick_rounds=2).arguments()
    seconds = QUICK_SECONDS if given.quick else SECONDS
    models = [empty_models()[0], empty_models()[-1]]
    samples: dict[str, list[Row]] = {}
    progress = Progress(given.rounds * len(models) * len(WAYS) * 2)
    for number in range(given.rounds):
        for model in models:
            for way in WAYS:
                for threads in (1, 2) if number % 2 else (2, 1):
                    progress.step(f"{model.label} {way}, {threads} threads")
                    row = measure(model, threads, way, seconds)
                    samples.setdefault(f"{model.label} {way} {threads}", []).append(row)
    rows = []
    for model in models:
        for way in WAYS:
            one, two = (samples[f"{model.label} {way} {threads}"] for threads in (1, 2))
            ratio = paired_ratio([each["rps"] for each in two], [each["rps"] for each in one])
            row = {"model": model.label, "way": way, "two_threads_vs_one": ratio}
            for threads, each in ((1, one), (2, two)):
                for name in ("rps", "front_end_us", "p99_us"):
                    middle = statistics.median(sample[name] for sample in each)
                    row[f"{name}_{threads}"] = round(middle, 2)
            rows.append(row | {"failed": sum(each["failed"] for each in (*one, *two))})
            print(rows[-1])
    ratios = {f"{row['model']} {row['way']}": row["two_threads_vs_one"] for row in rows}
    found = {"two_threads_vs_one": ratios}
    path = write_result(NAME, quick=given.quick, rows=rows, headline=found, samples=samples)
    print(json.dumps(found), path, sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
