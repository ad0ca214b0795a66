"""A cluster of ours on this host for a benchmark: started, asked, hurt, and ended."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import aiohttp
import psutil
from common import Row, percentile

from shunter.plugins.ray import cluster, local, started
from shunter.plugins.ray.records import settings

LOOK_S = 0.1
NOTICE_S = 30.0
WHOLE_S = 300.0
PATIENT = {"x-shunter-deadline-ms": "60000"}
"""What is lost is counted, and not what is late."""
PREDICTIONS = "/predictions/"


class Bed:
    """So many machines with all of a store; a context manager."""

    def __init__(self, store: Path, machines: int) -> None:
        """Nothing is started yet."""
        self._store, self._machines = store, machines
        self._stack, self._client = contextlib.ExitStack(), contextlib.ExitStack()

    def __enter__(self) -> Self:
        # Ray puts sockets below it: a short path.
        self.folder = Path(tempfile.mkdtemp(prefix="sb-", dir="/tmp"))
        port = _free_ports()
        count = {"least": self._machines, "most": self._machines, "provider": "local"}
        document = {"gateways": {"port": port}, "machines": count}
        wanted = settings.parse({**document, "server": {"store": str(self._store.resolve())}})
        try:
            cluster.up(self.folder, wanted, Path(), nodes=self._machines, is_local=True)
            self._stack.callback(self._down)
            self._client.enter_context(cluster.connected(self.folder))
            self._is_client = True
            self._stack.enter_context(self._client)
        except BaseException:
            self.__exit__()
            raise
        self.gateways = [f"http://127.0.0.1:{port + number}" for number in (0, 1)]
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _down(self) -> None:
        if (self.folder / started.FILE).exists():
            started.down(self.folder)

    def status(self) -> dict[str, Any]:
        """As `shunter cluster status --json`."""
        if self._is_client:
            return cluster.ask("status")
        command = [sys.executable, "-m", "shunter.plugins.cli.main", "cluster", "status", "--json"]
        command += ["--folder", str(self.folder)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        # There is a head again: a new interpreter for each question would take a core from it.
        self._client.enter_context(cluster.connected(self.folder))
        self._is_client = True
        return json.loads(done.stdout)

    def machine(self) -> dict[str, Any]:
        """The last machine that serves, which is not the head."""
        return [each for each in self.status()["machines"] if each["state"] == "serving"][-1]

    def wait_whole(self, is_other: Callable[[dict[str, Any]], bool]) -> float:
        """Seconds until all serve again and what was hurt is another one."""
        began = time.monotonic()
        while time.monotonic() - began < WHOLE_S:
            with contextlib.suppress(Exception):  # the controller may be what was hurt
                found = self.status()
                serving = sum(each["state"] == "serving" for each in found["machines"])
                problems = any(each["problem"] for each in found["gateways"])
                if serving == self._machines and not problems and is_other(found):
                    return time.monotonic() - began
            time.sleep(LOOK_S)
        raise TimeoutError(f"the cluster was not whole again after {WHOLE_S:g} s")

    # ---- what is done to it; each returns how it is seen that it is over

    def kill_server(self) -> Callable[[dict[str, Any]], bool]:
        """SIGKILL for the model server of a machine."""
        victim = self.machine()
        os.kill(victim["pid"], signal.SIGKILL)
        return lambda found: all(each["pid"] != victim["pid"] for each in found["machines"])

    def kill_node(self) -> Callable[[dict[str, Any]], bool]:
        """SIGKILL for every process of a node: its host is gone. Another one is procured."""
        victim = self.machine()
        [node] = [each for each in started.noted(self.folder) if each.name == victim["name"]]
        first = psutil.Process(node.pid)
        for each in [first, *first.children(recursive=True)]:
            with contextlib.suppress(psutil.Error):
                each.kill()
        started.bury(node.pid)
        return lambda found: _is_gone(found, victim["name"])

    def kill_gateway(self) -> Callable[[dict[str, Any]], bool]:
        """SIGKILL for a gateway."""
        pid = self.status()["gateways"][0]["pid"]
        os.kill(pid, signal.SIGKILL)
        return lambda found: found["gateways"][0].get("pid") != pid

    def kill_controller(self) -> Callable[[dict[str, Any]], bool]:
        """SIGKILL for the controller."""
        pid = self.status()["controller"]["pid"]
        os.kill(pid, signal.SIGKILL)
        return lambda found: found["controller"]["pid"] != pid

    def kill_head(self) -> Callable[[dict[str, Any]], bool]:
        """SIGKILL for Ray's own state: what runs on the head's node ends with it."""
        head = psutil.Process(started.noted(self.folder)[0].pid)
        [gcs] = [each for each in head.children(recursive=True) if "gcs_server" in each.name()]
        controller = self.status()["controller"]["pid"]
        self._client.close()  # a client of Ray ends with the node that it is on
        self._is_client = False
        gcs.kill()
        return lambda found: found["controller"]["pid"] != controller

    def evict(self) -> Callable[[dict[str, Any]], bool]:
        """A machine gets notice."""
        name = self.machine()["name"]
        local.announce(self.folder, name, NOTICE_S)
        return lambda found: _is_gone(found, name)


def _is_gone(found: dict[str, Any], name: str) -> bool:
    return all(each["name"] != name for each in found["machines"])


class Clients:
    """An open loop of requests that may run twice, with both gateways' addresses.

    A request whose connection to a gateway breaks is sent to the other one, as a load balancer
    would: at most ``TRIES`` times. Latency counts from when it was due.
    """

    TRIES = 10
    PAUSE_S = 0.1

    def __init__(self, gateways: list[str], model: str, body: bytes, rate: float) -> None:
        """It runs from ``__enter__`` to ``__exit__``."""
        self._urls = [gateway + PREDICTIONS + model for gateway in gateways]
        self._body, self._rate = body, rate
        self._ended = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()))
        self.statuses: Counter[str] = Counter()
        self.seconds: list[float] = []

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def row(self) -> Row:
        """What became of them."""
        lost = sum(count for status, count in self.statuses.items() if status != "200")
        p50, p99 = (percentile(self.seconds, share) * 1e3 for share in (0.5, 0.99))
        found = {"requests": sum(self.statuses.values()), "statuses": dict(self.statuses)}
        return {**found, "lost": lost, "p50_ms": p50, "p99_ms": p99}

    async def _run(self) -> None:
        chance, began, due = random.Random(1), time.monotonic(), 0.0
        connector = aiohttp.TCPConnector(limit=0)
        tasks = []
        async with aiohttp.ClientSession(connector=connector) as session:
            while not self._ended.is_set():
                due += chance.expovariate(self._rate)
                await asyncio.sleep(max(0.0, began + due - time.monotonic()))
                tasks.append(asyncio.create_task(self._one(session, began + due, len(tasks))))
            await asyncio.gather(*tasks)

    async def _one(self, session: aiohttp.ClientSession, due: float, number: int) -> None:
        status = "lost"
        for attempt in range(self.TRIES):
            url = self._urls[(number + attempt) % len(self._urls)]
            try:
                async with session.post(url, data=self._body, headers=PATIENT) as answer:
                    await answer.read()
                    status = str(answer.status)
                    break
            except aiohttp.ClientError:
                await asyncio.sleep(self.PAUSE_S if attempt else 0)
        self.statuses[status] += 1
        self.seconds.append(time.monotonic() - due)


def _free_ports() -> int:
    """The first of two that follow each other."""
    while True:
        with socket.socket() as one, socket.socket() as two:
            one.bind(("127.0.0.1", 0))
            port = int(one.getsockname()[1])
            with contextlib.suppress(OSError, OverflowError):
                two.bind(("127.0.0.1", port + 1))
                return port
