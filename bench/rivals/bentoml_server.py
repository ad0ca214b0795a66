"""BentoML with adaptive batching, for the handler of a packed archive.

A request is posted as a list with one text; BentoML forms batches over all requests that wait. It
answers 503 to a request when it expects to miss ``max_latency_ms``.

    with Bento(archive, max_batch=32, max_latency_ms=100, threads=2) as server:
        requests.post(server.url, server.body("a text"), headers=server.headers)
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from rivals import environments, process

VERSION = "1.4.39"
# uvicorn takes uvloop and httptools when they are there: BentoML's best setting.
_PACKAGES = (f"bentoml=={VERSION}", "uvloop", "httptools")
_KEEP_ALIVE_S = 3600


def ensure() -> Path:
    """Install BentoML if it is not yet; ``Unavailable`` says why it cannot be."""
    return environments.installed(f"bentoml-{VERSION}", _PACKAGES)


class Bento(process.Rival):
    """One BentoML server.

    ``workers`` are processes, each with its own queue; ``threads`` are torch's in each of them.
    ``timeout_s`` is when BentoML gives up on a request whatever its state.
    """

    name = "BentoML"
    version = VERSION

    def __init__(
        self,
        archive: Path,
        *,
        max_batch: int = 32,
        max_latency_ms: int = 1000,
        threads: int = 2,
        workers: int = 1,
        timeout_s: int = 60,
    ) -> None:
        super().__init__(archive, max_batch=max_batch, threads=threads)
        self._max_latency_ms = max_latency_ms
        self._workers = workers
        self._timeout_s = timeout_s

    @property
    def url(self) -> str:
        """Where requests are posted to."""
        return f"{self.base}/embed"

    def body(self, text: str) -> bytes:
        """The request for one text."""
        return json.dumps({"texts": [text]}).encode()

    def embedding(self, answer: bytes) -> list[float]:
        """The embedding in an answer with status 200."""
        return json.loads(json.loads(answer)[0])["embedding"]

    def _install(self) -> None:
        self._packages = ensure()

    def _settings(self) -> dict[str, Any]:
        return {
            "max_latency_ms": self._max_latency_ms,
            "workers": self._workers,
            "timeout_s": self._timeout_s,
        }

    def _command(self) -> list[str]:
        return [
            *(sys.executable, "-m", "bentoml", "serve", "rivals.bentoml_service:Minilm"),
            *("--host", "127.0.0.1", "--port", str(self.port)),
            *("--timeout-keep-alive", str(_KEEP_ALIVE_S)),
        ]

    def _environment(self) -> dict[str, str]:
        return {
            "PYTHONPATH": process.python_path(self._packages),
            "BENTOML_DO_NOT_TRACK": "True",
            "BENTOML_HOME": str(self.folder / "home"),
            # No tracer is configured; without this every request would still open a span.
            "OTEL_SDK_DISABLED": "true",
            "NO_COLOR": "1",
        }

    def _gave_up(self) -> bool:
        # BentoML starts a worker that cannot load the model again and again.
        return b"Application startup failed" in self.log.read_bytes()

    def _ready_url(self) -> str:
        return f"{self.base}/readyz"
