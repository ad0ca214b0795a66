"""Networks that lose, double and reorder datagrams, and processes that are killed.

Every request has a number of its own, which the handler writes down when it runs: that is how
often a request was executed. A lossy link stands between the clients and the front end (its seed is
fixed); the same link without faults is the baseline. Then, under load, the front end, a worker and
a client are killed with SIGKILL.

    unanswered               requests that got neither an answer nor an error
    duplicated_executions    requests without IDEMPOTENT that ran more than once
    p99_ms_at_1pct_loss      784 B requests of 8 clients, 1 % of the datagrams lost both ways

Examples:
    python bench/rpc_faults.py
    python bench/rpc_faults.py --quick
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import psutil
from common import Parser, Progress, Row, make_stores, write_result
from rpc.executions import Executions
from rpc.link import Faults, Link
from rpc.load import Load
from rpc.models import RpcModel, empty_models
from rpc.sides import Ours

from shunter.nic_frontend.client import InferenceError, Session

NAME = "rpc_faults"
CLIENTS = 8
NETWORKS = (
    Faults(),
    Faults(lost=0.01),
    Faults(doubled=0.01),
    Faults(overtaken=0.01),
    Faults(lost=0.01, doubled=0.01, overtaken=0.01),
    Faults(lost=0.05, doubled=0.05, overtaken=0.05),
)
PATIENCE_S = 20.0
LEAST = 100
"""Requests of a row; fewer would prove nothing."""
FIRST = 1 << 40
"""Number of the first request of those that are counted while processes are killed."""


def over_network(
    server: Ours, model: RpcModel, faults: Faults, seconds: float, executions: Executions
) -> Row:
    """Closed loop over a link with faults."""
    port = int(server.url("udp").rpartition(":")[2])
    executions.take()
    with Link(port, faults) as link:

        def opened() -> Session:
            return Session(f"udp://127.0.0.1:{link.port}", model.name, timeout_s=PATIENCE_S)

        with Load(model, opened, CLIENTS, stamped=True) as load:
            found = load.closed(seconds)
        counts = link.counts()
    ran = executions.take()
    return {
        "model": model.label,
        "faults": faults.row(),
        **found,
        "unanswered": found["failed"],
        "executed_twice": sum(times > 1 for times in ran.values()),
        "never_executed": found["requests"] - found["failed"] - len(ran),
        "link": counts,
    }


class Callers:
    """Threads that ask without end and note how each request ended."""

    def __init__(self, url: str, model: RpcModel, first: int) -> None:
        self.ends: Counter[str] = Counter()
        self.begun = 0
        self._url, self._model, self._next = url, model, first
        self._lock, self._over = threading.Lock(), threading.Event()
        self._threads = [threading.Thread(target=self._run) for _ in range(CLIENTS)]

    def _run(self) -> None:
        request = self._model.request().copy()
        with Session(self._url, self._model.name, timeout_s=PATIENCE_S) as session:
            while not self._over.is_set():
                with self._lock:
                    number, self._next = self._next, self._next + 1
                    self.begun += 1
                request[:8] = np.frombuffer(number.to_bytes(8, "little"), np.uint8)
                try:
                    session.infer([request])
                    end = "answered"
                except InferenceError as error:
                    end = f"{type(error).__name__}: {error}"
                with self._lock:
                    self.ends[end] += 1

    def wait_for(self, more: int) -> None:
        """Until so many more were answered."""
        wanted, deadline = self.ends["answered"] + more, time.monotonic() + 3 * PATIENCE_S
        while self.ends["answered"] < wanted:
            if time.monotonic() > deadline:
                raise RuntimeError(f"no answers any more: {dict(self.ends)}")
            time.sleep(0.02)

    def __enter__(self) -> Callers:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    @property
    def unanswered(self) -> int:
        """When all threads have ended."""
        silent = sum(n for end, n in self.ends.items() if end.startswith("UnreachableError"))
        return self.begun - sum(self.ends.values()) + silent


def killed(
    server: Ours, model: RpcModel, who: str, kill: Callable[[], None], executions: Executions
) -> Row:
    """Kill while clients ask, and see that they are answered again."""
    executions.take()
    begun, before = time.monotonic(), front_end_memory(server)
    with Callers(server.url("udp"), model, FIRST) as callers:
        callers.wait_for(500)
        kill()
        at = time.monotonic()
        callers.wait_for(500)
        again = time.monotonic() - at
    ran = Counter({number: n for number, n in executions.take().items() if number >= FIRST})
    return {
        "model": model.label,
        "killed": who,
        "requests": callers.begun,
        "seconds": round(time.monotonic() - begun, 1),
        "seconds_until_500_more": round(again, 2),
        "ends": dict(callers.ends),
        "unanswered": callers.unanswered,
        "executed_twice": sum(times > 1 for times in ran.values()),
        "front_end_rss_mib": [before, front_end_memory(server)],
    }


def kill_client(server: Ours, model: RpcModel) -> None:
    """A client of another process, in the middle of its requests."""
    code = (
        "import sys, numpy as np\n"
        "from shunter.nic_frontend.client import Session\n"
        f"session = Session({server.url('udp')!r}, {model.name!r})\n"
        f"x = np.zeros({model.size}, np.uint8)\n"
        "print('asks', flush=True)\n"
        "while True:\n"
        "    session.infer_many([[x]] * 32)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as client:
        assert client.stdout is not None
        client.stdout.readline()
        time.sleep(0.3)
        client.kill()


def front_end_memory(server: Ours) -> float:
    """Resident memory of the front end in MiB."""
    return round(psutil.Process(server.front_end_pid()).memory_info().rss / 2**20, 1)


def enough(row: Row) -> Row:
    """The row, when there were so many requests that it says something."""
    if row["requests"] < LEAST:
        raise RuntimeError(f"only {row['requests']} requests were begun: {row}")
    return row


def measure(
    server: Ours, models: list[RpcModel], executions: Executions, seconds: float
) -> list[Row]:
    """All of it."""
    rows: list[Row] = []
    progress = Progress(len(models) * len(NETWORKS) + 3)
    for model in models:
        server.session("udp", model).close()  # its worker is there
        for faults in NETWORKS:
            progress.step(f"{model.label}: {faults}")
            rows.append(enough(over_network(server, model, faults, seconds, executions)))
    model = models[0]
    kills: dict[str, Callable[[], None]] = {
        "client": lambda: kill_client(server, model),
        "worker": lambda: os.kill(server.network_pid(model), signal.SIGKILL),
        "front end": lambda: os.kill(server.front_end_pid(), signal.SIGKILL),
    }
    for who, kill in kills.items():
        progress.step(f"kill the {who}")
        rows.append(enough(killed(server, model, who, kill, executions)))
    return rows


def main() -> None:
    """Run it."""
    args = Parser(__doc__, rounds=1, quick_rounds=1).arguments()
    small, _, large = empty_models()
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        [store] = make_stores(folder, "ours")
        record = Path(folder) / "executions"
        server = stack.enter_context(Ours(store, [small, large], batch=8, workers=2, record=record))
        seconds = 3.0 if args.quick else 10.0
        rows = measure(server, [small, large], Executions(record), seconds)
    [loss] = [
        row
        for row in rows
        if (row["model"], row.get("faults")) == (small.label, Faults(lost=0.01).row())
    ]
    top = {
        "unanswered": sum(row["unanswered"] for row in rows),
        "duplicated_executions": sum(row["executed_twice"] for row in rows),
        "p99_ms_at_1pct_loss": round(loss["p99_us"] / 1000, 2),
    }
    path = write_result(NAME, quick=args.quick, rows=rows, headline=top)
    for row in rows:
        print(json.dumps(row))
    print(json.dumps(top, indent=1))
    print(path)


if __name__ == "__main__":
    main()
