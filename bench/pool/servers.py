"""The sides of the pool's benchmarks: one TorchServe each, with the very same archives."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol, Self

import httpx
from common import Row

from pool.memory import MARK, memory_of, processes
from shunter.plugins.torchserve.build import ensure
from shunter.plugins.torchserve.server import Server

POOL, DEDICATED, STOCK = SIDES = ("pool", "dedicated", "stock")
"""``pool: shared``; Shunter with a worker for each model; TorchServe with one."""
START_S = 900.0
HEAP_MB = 512
"""Of a server whose memory is watched: TorchServe's JVM may take a quarter of the machine's."""


_CLASS = re.compile(r"^ *\d+: +(\d+) +(\d+) +(.+?) *$", re.MULTILINE)
"""A line: its rank, instances, bytes, name."""
Histogram = dict[str, tuple[int, int]]
"""By class: instances and their bytes."""


def histogram(text: str) -> Histogram:
    """What ``jcmd GC.class_histogram`` prints. Classes of one name (of several loaders) are one.

    >>> histogram("   1:    100    4000  [B (java.base@17)\\nTotal    100    4000")
    {'[B (java.base@17)': (100, 4000)}
    """
    found: Histogram = {}
    for more, taken, name in _CLASS.findall(text):
        instances, size = found.get(name, (0, 0))
        found[name] = (instances + int(more), size + int(taken))
    return found


def megabytes(found: Histogram) -> float:
    """Of all classes."""
    return round(sum(size for _, size in found.values()) / 1e6, 1)


def growth_by_class(before: Histogram, after: Histogram, most: int = 20) -> list[Row]:
    """The classes whose objects take more bytes than before, and those first that grew most.

    >>> growth_by_class({"A": (1, 10), "B": (1, 8)}, {"A": (3, 30), "B": (1, 8)})
    [{'class': 'A', 'bytes': 20, 'instances': 2}]
    """
    rows = []
    for name, (instances, size) in after.items():
        of, had = before.get(name, (0, 0))
        rows.append({"class": name, "bytes": size - had, "instances": instances - of})
    grown = [row for row in rows if row["bytes"] > 0]
    return sorted(grown, key=lambda row: (-row["bytes"], row["class"]))[:most]


class Archived(Protocol):
    """A model in the model store."""

    @property
    def name(self) -> str:
        """Under which it is registered."""

    @property
    def archive(self) -> str:
        """The name of its file."""


class PoolServer:
    """A running server; a context manager. A worker has one thread on every side."""

    def __init__(
        self,
        side: str,
        store: Path,
        *,
        models: Sequence[Archived] = (),
        hot_mb: int = 2048,
        workers: int = 2,
        queue: int = 100,
        patience_s: int | None = None,
        heap_mb: int | None = None,
        more: str = "",
    ) -> None:
        """``models``: those that are registered when it starts; ``workers``: of the pool;
        ``hot_mb``: hot memory of each; ``queue``: requests that may wait for a model;
        ``patience_s``: after which a process of the pool that is stopped is replaced;
        ``heap_mb``: of the JVM, all of it touched at once, so that what grows is no heap;
        ``more``: text of shunter.toml."""
        self.side, self._mark = side, os.urandom(8).hex()
        settings = store / f"{self._mark}.toml"
        lines = ["[pool]", 'models = "shared"', f"workers = {workers}", f"hot_mb = {hot_mb}"]
        lines += ["threads = 1"]
        text = "".join(f"{line}\n" for line in lines) if side == POOL else ""
        settings.write_text(text + more, encoding="utf-8")
        # Of the stock worker and of dedicated ones, which leave threads to the environment.
        env = {"OMP_NUM_THREADS": "1", "SHUNTER_CONFIG": str(settings), MARK: self._mark}
        if patience_s is not None:
            env["SHUNTER_POOL_PATIENCE_S"] = str(patience_s)
        config = {"default_workers_per_model": "1", "job_queue_size": str(queue)}
        if heap_mb is not None:
            config["vmargs"] = f"-Xms{heap_mb}m -Xmx{heap_mb}m -XX:+AlwaysPreTouch"
        self.server = Server(
            model_store=store,
            models=[f"{each.name}={each.archive}" for each in models],
            plugins=None if side == STOCK else ensure(),
            config=config,
            env=env,
        )
        self.start_seconds = 0.0
        """Until all models that it started with were ready."""

    def __enter__(self) -> Self:
        began = time.monotonic()
        self.server.start(START_S)
        self.start_seconds = time.monotonic() - began
        return self

    def __exit__(self, *_: object) -> None:
        self.server.stop()

    @property
    def port(self) -> int:
        """Of inference."""
        return self.server.ports.inference

    def url(self, model: Archived) -> str:
        """Where predictions are asked for."""
        return f"{self.server.inference}/predictions/{model.name}"

    def register(self, model: Archived) -> None:
        """Returns when its worker has loaded it."""
        query = {"url": model.archive, "model_name": model.name, "initial_workers": "1"}
        query["synchronous"] = "true"
        models = f"{self.server.management}/models"
        answer = httpx.post(models, params=query, timeout=300)
        if answer.status_code == httpx.codes.CONFLICT and self.side == STOCK:
            self.unregister(model)  # it is still there
            answer = httpx.post(models, params=query, timeout=300)
        answer.raise_for_status()

    def unregister(self, model: Archived) -> None:
        """Stock answers 500 now and then although its workers have ended."""
        answer = httpx.delete(f"{self.server.management}/models/{model.name}", timeout=300)
        if self.side != STOCK:
            answer.raise_for_status()

    def are_ready(self, models: Sequence[Archived]) -> bool:
        """Whether each of them has a worker that is ready."""
        for each in models:
            found = httpx.get(f"{self.server.management}/models/{each.name}", timeout=60)
            if found.status_code != 200:
                return False
            model = found.json()[0]
            ready = [w for w in model["workers"] if w["status"] == "READY"]
            if len(ready) < max(1, model["minWorkers"]) or len(ready) < len(model["workers"]):
                return False
        return True

    def processes(self) -> dict[str, list[int]]:
        """Of this server, by kind."""
        return processes(self._mark)

    def memory(self) -> Row:
        """In MB, by kind and in all; see there."""
        return memory_of(self.processes())

    def live_heap(self) -> Histogram:
        """The JVM's objects that are still in use: all garbage is collected first."""
        command = ["jcmd", str(self.server.pid), "GC.class_histogram"]
        said = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60)
        return histogram(said.stdout)

    def live_heap_mb(self) -> float:
        """What they take."""
        return megabytes(self.live_heap())

    def cache(self) -> Any:
        """What the server says of its hot memory; None where it has no such thing."""
        with contextlib.suppress(httpx.HTTPError, ValueError):
            answer = httpx.get(f"{self.server.management}/shunter/memory", timeout=30)
            return answer.json() if answer.status_code == 200 else None
        return None
