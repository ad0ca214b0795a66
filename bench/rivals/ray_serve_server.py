"""Plain Ray Serve with ``@serve.batch``, for the handler of a packed archive.

    with RayServe(archive, max_batch=32, threads=1, replicas=2) as server:
        requests.post(server.url, body)
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from rivals import environments, process

VERSION = "2.60.0"
_PACKAGES = (f"ray[serve]=={VERSION}", "uvloop", "httptools")


class RayServe(process.Rival):
    """One Ray with one deployment; ``threads`` are torch's in each replica."""

    name = "Ray Serve"
    version = VERSION

    def __init__(
        self,
        archive: Path,
        *,
        max_batch: int = 32,
        wait_ms: float = 2,
        threads: int = 1,
        replicas: int = 2,
    ) -> None:
        super().__init__(archive, max_batch=max_batch, threads=threads)
        self._wait_ms, self._replicas = wait_ms, replicas

    @property
    def url(self) -> str:
        """Where requests are posted to, as they are for TorchServe."""
        return f"{self.base}/predict"

    def _install(self) -> None:
        self._packages = environments.installed(f"ray-serve-{VERSION}", _PACKAGES)

    def _settings(self) -> dict[str, Any]:
        return {"port": self.port, "wait_ms": self._wait_ms, "replicas": self._replicas}

    def _command(self) -> list[str]:
        return [sys.executable, "-m", "rivals.ray_serve_service"]

    def _environment(self) -> dict[str, str]:
        return {
            "PYTHONPATH": process.python_path(self._packages),
            "RAY_USAGE_STATS_ENABLED": "0",
        }

    def _ready_url(self) -> str:
        return f"{self.base}/-/healthz"
