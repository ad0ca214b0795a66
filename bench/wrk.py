"""Closed-loop load by wrk, and the processor time that each side spent meanwhile."""

from __future__ import annotations

import re
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil

_UNITS = {"us": 1e-3, "ms": 1.0, "s": 1e3, "m": 6e4}
_SCRIPT = """
wrk.method = "POST"
wrk.headers["Content-Type"] = "application/json"
wrk.body = [==[{body}]==]
function done(summary, latency, requests)
  local e = summary.errors
  io.write(string.format("RESULT %d %d %d %d %d %d\\n", summary.duration, summary.requests,
    e.status, e.connect + e.read + e.write + e.timeout,
    latency:percentile(50), latency:percentile(99)))
end
"""


@dataclass(frozen=True)
class Measured:
    """One run of wrk. Only answers with status 200 count as throughput."""

    connections: int
    rate: float
    """Answers with status 200 per second."""
    p50_ms: float
    p99_ms: float
    errors: int
    """Answers with another status, and failed connections."""
    cpu: dict[str, float]
    """Cores used by the client, the JVM and its workers."""

    def row(self) -> dict[str, Any]:
        """The measurement as it stands in a result."""
        return asdict(self)


@contextmanager
def script_of(body: bytes) -> Iterator[Path]:
    """A wrk script that posts bytes."""
    with tempfile.TemporaryDirectory() as folder:
        path, data = Path(folder) / "post.lua", Path(folder) / "body"
        data.write_bytes(body)
        text = _SCRIPT.replace("[==[{body}]==]", f'io.open("{data}", "rb"):read("*a")')
        path.write_text(text.replace("application/json", "application/octet-stream"))
        yield path


@contextmanager
def script(body: str) -> Iterator[Path]:
    """A wrk script that posts ``body``."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "post.lua"
        path.write_text(_SCRIPT.replace("{body}", body), encoding="utf-8")
        yield path


def _is_worker(process: psutil.Process) -> bool:
    try:
        return "--sock-name" in process.cmdline()
    except psutil.NoSuchProcess:  # a script of TorchServe's metrics that has just ended
        return False


def run(url: str, lua: Path, connections: int, seconds: float, jvm: int) -> Measured:
    """Load ``url`` for ``seconds`` with one wrk thread."""
    duration = f"{max(1, round(seconds))}s"
    command = ["wrk", "-t1", f"-c{connections}", f"-d{duration}", "--timeout", "10s"]
    server = psutil.Process(jvm)
    workers = [p for p in server.children() if _is_worker(p)]
    before, start = [_busy(p) for p in (server, *workers)], time.monotonic()
    children = _client_seconds()
    done = subprocess.run(
        [*command, "-s", str(lua), url], capture_output=True, text=True, check=False
    )
    elapsed = time.monotonic() - start
    match = re.search(r"RESULT (\d+) (\d+) (\d+) (\d+) (\d+) (\d+)", done.stdout)
    if match is None:
        raise RuntimeError(f"wrk failed: {done.stdout}{done.stderr}")
    micros, requests, bad, failed, p50, p99 = map(int, match.groups())
    used = [(_busy(p) - b) / elapsed for p, b in zip((server, *workers), before, strict=True)]
    cpu = {
        "client": round((_client_seconds() - children) / elapsed, 3),
        "jvm": round(used[0], 3),
        "workers": round(sum(used[1:]), 3),
    }
    rate = (requests - bad) / (micros / 1e6)
    return Measured(connections, rate, p50 / 1e3, p99 / 1e3, bad + failed, cpu)


def _busy(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system


def _client_seconds() -> float:
    times = psutil.Process().cpu_times()
    return times.children_user + times.children_system
