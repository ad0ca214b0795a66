"""The server of the soak: what it says of itself, and whether all of it is there."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import psutil
from common import Row
from pool.memory import memory_of
from pool.servers import HEAP_MB, POOL, PoolServer

from shunter.plugins.torchserve.server import free_ports
from soaking.memory import by_role, private
from soaking.targets import NETWORK_WORKERS, Target
from soaking.traffic import Makers, makers

POOL_WORKERS, HOT_MB = 2, 64
AGAIN_S = 180.0
"""Longest time until everything is back."""


def lives(pid: int) -> bool:
    """Whether there is such a process, and it has not ended."""
    with contextlib.suppress(psutil.Error):
        return pid > 0 and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return False


class Bed:
    """The server with its models."""

    def __init__(self, store: Path, targets: Sequence[Target]) -> None:
        """Their archives are in the store. It is not started yet: see ``server``."""
        self.targets = list(targets)
        self._port = free_ports().grpc_inference  # the same after a restart of the front end
        self._unix = store / "nic.stream"
        nic = f'[nic]\nenabled = true\nport = {self._port}\nunix = "{self._unix}"\n'
        given = {"models": targets, "hot_mb": HOT_MB, "workers": POOL_WORKERS, "queue": 1000}
        given["heap_mb"] = HEAP_MB
        self.server = PoolServer(POOL, store, **given, more=nic)
        self._busy = 0
        """Faults that go on."""

    def clients(self) -> Makers:
        """How each protocol is asked."""
        ports = self.server.server.ports
        return makers(ports.inference, ports.grpc_inference, self._port, str(self._unix))

    @property
    def management(self) -> str:
        """Base URL."""
        return self.server.server.management

    def status(self) -> Any:
        """Of the server and all of its models."""
        return httpx.get(f"{self.management}/shunter/status", timeout=30).json()

    def groups(self) -> dict[str, list[int]]:
        """Its processes by kind."""
        return by_role(self.server.processes())

    def workers(self) -> list[int]:
        """Of all models, behind HTTP and behind the front end; seats, too."""
        return [pid for pid in worker_pids(self.status()) if lives(pid)]

    def pools(self) -> list[int]:
        """Processes that models share."""
        return [each for each in self.server.processes()["pool"] if lives(each)]

    def memory(self) -> Row:
        """A sample; ``quiet``: no fault went on meanwhile."""
        before = self._busy
        groups = self.groups()
        row = memory_of(groups) | {"private": private(groups)}
        return row | {"quiet": not before and not self._busy}

    @contextlib.contextmanager
    def disturbed(self) -> Iterator[None]:
        """A fault goes on."""
        self._busy += 1
        try:
            yield
        finally:
            self._busy -= 1

    def is_whole(self) -> bool:
        """Whether each part that should be there is, and answers."""
        try:
            return parts_there(self.status(), self.targets) and self.server.are_ready(self.targets)
        except (httpx.HTTPError, ValueError, KeyError, TypeError):
            return False

    def wait_until_whole(self, gone: Sequence[int] = ()) -> bool:
        """Until everything is back, and these processes have ended; False: it takes too long."""
        end = time.monotonic() + AGAIN_S
        while time.monotonic() < end:
            if not any(map(lives, gone)) and self.is_whole():
                return True
            time.sleep(0.25)
        return False


def worker_pids(status: Any) -> list[int]:
    """Of all models."""
    groups = [group for model in status["models"] for group in model["groups"]]
    return [worker["pid"] for group in groups for worker in group["workers"]]


def parts_there(status: Any, targets: Sequence[Target]) -> bool:
    """Whether the controller, the front end, and all workers that are named run."""
    for part in (status["controller"], status["front_end"]):
        if part["state"] != "running" or not lives(part["pid"]):
            return False
    models = {each["name"]: each for each in status["models"]}
    for target in targets:
        model = models.get(target.name)
        if model is None or model["state"] != "serving":
            return False
        network = model["network"] or {"workers": 0}
        if target.by_network and network["workers"] < NETWORK_WORKERS:
            return False
    return all(map(lives, worker_pids(status)))
