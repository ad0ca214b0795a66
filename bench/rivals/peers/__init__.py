"""mosec and LitServe with the models of ``http_peers``.

    with Mosec("sums", None, Choice(batch=32, delay_ms=1, workers=1)) as server:
        requests.post(server.url, b"[1.5, ...]")
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rivals import environments, process
from rivals.process import BENCH


@dataclass(frozen=True)
class Choice:
    """What a user of a peer chooses."""

    batch: int
    delay_ms: int
    """Longest wait for a batch to fill."""
    workers: int
    front_ends: int = 1
    """Processes that take requests; LitServe."""
    fast: bool = False
    """LitServe's queue of ZeroMQ instead of the one of multiprocessing."""


class Peer(process.Rival):
    """One server; ``served`` is a name of ``models``, ``archive`` the packed minilm."""

    packages: tuple[str, ...]
    service: str
    path = "/"

    def __init__(self, served: str, archive: Path | None, choice: Choice) -> None:
        super().__init__(archive or Path(), max_batch=choice.batch, threads=1)
        self._served, self._has_archive, self.choice = served, archive is not None, choice

    @classmethod
    def ensure(cls) -> Path:
        """Install it if it is not yet; ``environments.Unavailable`` says why it cannot be."""
        return environments.installed(f"{cls.name}-{cls.version}", cls.packages)

    @property
    def url(self) -> str:
        """Where requests are posted to."""
        return f"{self.base}{self.path}"

    def _install(self) -> None:
        self._packages = self.ensure()

    def _unpack(self) -> None:
        if self._has_archive:
            super()._unpack()

    def _settings(self) -> dict[str, Any]:
        return {"served": self._served, "port": self.port, **vars(self.choice)}

    def _command(self) -> list[str]:
        return [sys.executable, str(BENCH / "rivals/peers" / self.service)]

    def _environment(self) -> dict[str, str]:
        return {"PYTHONPATH": process.python_path(self._packages)}


class Mosec(Peer):
    """Rust takes the requests, Python processes answer batches."""

    name = "mosec"
    version = "0.9.8"
    packages = (f"mosec=={version}",)
    service = "mosec_service.py"
    path = "/inference"

    def _command(self) -> list[str]:
        options = {"address": "127.0.0.1", "port": self.port, "timeout": 60_000, "capacity": 2048}
        words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
        return [*super()._command(), *words, "--log-level", "error"]

    def _ready_url(self) -> str:
        return f"{self.base}/"


class LitServe(Peer):
    """FastAPI takes the requests, Python processes answer batches. JSON only."""

    name = "litserve"
    version = "0.2.19"
    packages = (f"litserve=={version}", "uvloop", "httptools")
    service = "litserve_service.py"
    path = "/predict"

    def _ready_url(self) -> str:
        return f"{self.base}/health"
