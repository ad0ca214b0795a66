"""gRPC load from C: nghttp2's h2load with a call that was encoded once.

A unary call is a POST with five bytes in front of the message; every answer is compared by its
length with one that a real client got.
"""

from __future__ import annotations

import re
import shutil
import statistics
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from common import Row, percentile

_DONE = re.compile(r"requests: (\d+) total, \d+ started, (\d+) done, (\d+) succeeded, (\d+) failed")
_TOOK = re.compile(r"finished in ([\d.]+)(us|ms|s|m)\b")
_UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0}
_TRAFFIC = re.compile(r"traffic: .* \((\d+)\) total, .* \((\d+)\) headers .* \((\d+)\) data")
WARM_UP_S = 1
_FIRST = 200
"""Requests to find the rate."""


class Unavailable(Exception):
    """h2load is not installed."""


@dataclass(frozen=True)
class Call:
    """A unary gRPC call."""

    port: int
    path: str
    message: bytes
    reply: int
    """Bytes of a good answer's message."""


def require() -> None:
    """Raises Unavailable."""
    if shutil.which("h2load") is None:
        raise Unavailable("h2load is missing (Debian: apt-get install nghttp2-client)")


def run(
    call: Call,
    *,
    clients: int,
    seconds: float,
    rate: float | None = None,
    streams: int = 1,
    host: str = "127.0.0.1",
) -> Row:
    """Closed loop of ``streams`` requests each; or with ``rate`` requests per second at even
    distances.

    Latencies in microseconds, of errors as well. RuntimeError when an answer was no answer.
    """
    whole = max(1, int(seconds))
    with tempfile.TemporaryDirectory() as folder:
        body, log = Path(folder) / "body", Path(folder) / "log"
        body.write_bytes(b"\0" + len(call.message).to_bytes(4, "big") + call.message)
        command = ["h2load", "-c", str(clients), "-d", str(body), "--log-file", str(log)]
        command += ["-H", "content-type: application/grpc", "-H", "te: trailers", "-w30", "-W30"]
        if rate is None:
            command += ["-m", str(streams), "-D", str(whole), f"--warm-up-time={WARM_UP_S}"]
        else:
            # Without -D every request that was started is waited for.
            command += ["-m", "1000", "-n", str(max(clients, int(rate * seconds)))]
            command += [f"--rps={max(1, round(rate / clients))}"]
        url = f"http://{host}:{call.port}{call.path}"
        begun = time.monotonic()
        try:
            done = subprocess.run(
                [*command, url], capture_output=True, text=True, check=True, timeout=seconds + 60
            )
        except subprocess.TimeoutExpired:
            return {"rps": 0.0, "requests": 0, "p50_us": float("nan"), "p99_us": float("nan")}
        took = time.monotonic() - begun
        return _row(call, done.stdout, log, whole if rate is None else took)


def complete(call: Call, *, clients: int, seconds: float) -> Row:
    """Closed loop as by :func:`run` that ends when all is answered, after about so long.

    There, what is under way at the end is reset: of that Triton 2.51 may die (its issue 7368).
    """
    first = max(_FIRST, 4 * clients)
    found = _requests(call, clients, first)
    count = max(4 * clients, round(found["rps"] * seconds))
    return _requests(call, clients, count) | {"asked": first + count}


def _requests(call: Call, clients: int, count: int) -> Row:
    with tempfile.TemporaryDirectory() as folder:
        body, log = Path(folder) / "body", Path(folder) / "log"
        body.write_bytes(b"\0" + len(call.message).to_bytes(4, "big") + call.message)
        command = ["h2load", "-c", str(clients), "-d", str(body), "--log-file", str(log)]
        command += ["-H", "content-type: application/grpc", "-H", "te: trailers", "-w30", "-W30"]
        command += ["-m1", "-n", str(count), f"http://127.0.0.1:{call.port}{call.path}"]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
        took = _TOOK.search(done.stdout)
        if took is None:
            raise RuntimeError(f"h2load: {done.stdout[-400:]}")
        return _row(call, done.stdout, log, float(took.group(1)) * _UNITS[took.group(2)])


def _row(call: Call, printed: str, log: Path, seconds: float) -> Row:
    counts, traffic = _DONE.search(printed), _TRAFFIC.search(printed)
    if counts is None or traffic is None:
        raise RuntimeError(f"h2load: {printed[-400:]}")
    _, _, good, failed = map(int, counts.groups())
    data = int(traffic.group(3))
    latencies = []
    for line in log.read_text(encoding="ascii").splitlines():
        _, status, duration = line.split("\t")
        if status == "200":
            latencies.append(int(duration))
    answers, rest = divmod(data, call.reply + 5)  # those of the warm-up, too
    if rest:
        raise RuntimeError(f"{good} answers of {call.reply} bytes, but {data} bytes: {printed}")
    refused = max(0, good - answers)  # an error of gRPC is a status 200 without a message
    return {
        "rps": round((good - refused) / seconds, 1),
        "requests": good,
        "failed": failed + refused,
        "p50_us": round(statistics.median(latencies), 1) if latencies else float("nan"),
        "p99_us": round(percentile(latencies, 0.99), 1),
    }
