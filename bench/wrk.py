"""Closed-loop load by wrk, and the processor time that each side spent meanwhile."""

from __future__ import annotations

import re
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
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


BINARY = {"Content-Type": "application/octet-stream"}


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
def script_of(body: bytes, headers: Mapping[str, str] = BINARY) -> Iterator[Path]:
    """A wrk script that posts bytes."""
    with tempfile.TemporaryDirectory() as folder:
        path, data = Path(folder) / "post.lua", Path(folder) / "body"
        data.write_bytes(body)
        text = _SCRIPT.replace("[==[{body}]==]", f'io.open("{data}", "rb"):read("*a")')
        lines = [f'wrk.headers["{name}"] = "{value}"\n' for name, value in headers.items()]
        path.write_text(text + "".join(lines), encoding="utf-8")
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


def load(url: str, lua: Path, connections: int, seconds: float) -> dict[str, Any]:
    """Load ``url`` for ``seconds`` with one wrk thread: ``rps`` of answers with status 200,
    ``requests``, ``failed``, ``p50_us`` and ``p99_us``.
    """
    command = ["wrk", "-t1", f"-c{connections}", f"-d{max(1, round(seconds))}s"]
    done = subprocess.run(
        [*command, "--timeout", "10s", "-s", str(lua), url],
        capture_output=True,
        text=True,
        check=False,
    )
    match = re.search(r"RESULT (\d+) (\d+) (\d+) (\d+) (\d+) (\d+)", done.stdout)
    if match is None:
        raise RuntimeError(f"wrk failed: {done.stdout}{done.stderr}")
    micros, requests, bad, failed, p50, p99 = map(int, match.groups())
    return {
        "rps": round((requests - bad) / (micros / 1e6), 1),
        "requests": requests,
        "failed": bad + failed,
        "p50_us": p50,
        "p99_us": p99,
    }


def run(url: str, lua: Path, connections: int, seconds: float, jvm: int) -> Measured:
    """Load ``url`` for ``seconds`` with one wrk thread."""
    server = psutil.Process(jvm)
    workers = [p for p in server.children() if _is_worker(p)]
    before, start = [_busy(p) for p in (server, *workers)], time.monotonic()
    children = _client_seconds()
    found = load(url, lua, connections, seconds)
    elapsed = time.monotonic() - start
    used = [(_busy(p) - b) / elapsed for p, b in zip((server, *workers), before, strict=True)]
    cpu = {
        "client": round((_client_seconds() - children) / elapsed, 3),
        "jvm": round(used[0], 3),
        "workers": round(sum(used[1:]), 3),
    }
    p50_ms, p99_ms = found["p50_us"] / 1e3, found["p99_us"] / 1e3
    return Measured(connections, found["rps"], p50_ms, p99_ms, found["failed"], cpu)


def _busy(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system


def _client_seconds() -> float:
    times = psutil.Process().cpu_times()
    return times.children_user + times.children_system
