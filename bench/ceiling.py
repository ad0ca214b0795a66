"""What the load generator itself can do on this machine, against a server that does nothing."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import load
import numpy as np


@contextlib.contextmanager
def null_server() -> Iterator[str]:
    """A server that answers at once, in its own process; yields its URL."""
    command = [sys.executable, str(Path(__file__).with_name("null_server.py"))]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield f"http://127.0.0.1:{int(process.stdout.readline())}/predictions/null"
        finally:
            process.send_signal(signal.SIGTERM)


def null_ceiling(
    rate: float = 500.0, seconds: float = 1.0, body: bytes = b"{}", limit_s: float = 18.0
) -> dict[str, Any]:
    """What this client can do on this machine, against a server that does nothing.

    ``ceiling_per_s`` is the highest rate at which it sends 99 % within 2 ms of their time and at
    least 99 % are answered within the schedule; ``added_*`` are latencies at ``rate``, all of them
    the client's, the kernel's and the null server's.
    """
    end, passed, failed = time.monotonic() + limit_s, 0.0, float("inf")
    probes: list[dict[str, float]] = []
    with null_server() as url:
        quiet = _probe(url, rate, seconds, body)
        probed = 2000.0
        while (not probes or time.monotonic() + seconds + 1 < end) and failed / max(
            passed, 1
        ) > 1.1:
            probe = _probe(url, probed, seconds, body)
            probes.append(probe)
            if probe["late_p99_ms"] < 2 and probe["achieved"] >= 0.99:
                passed = probed
            else:
                failed = probed
            probed = probed * 2 if failed == float("inf") else _between(passed, failed)
    added = {f"added_{name}": quiet[name] for name in ("p50_ms", "p99_ms")}
    return {"ceiling_per_s": passed, "at_rate": rate, **added, "quiet": quiet, "probes": probes}


def _between(passed: float, failed: float) -> float:
    return (passed * failed) ** 0.5 if passed else failed / 2


def _probe(url: str, rate: float, seconds: float, body: bytes) -> dict[str, float]:
    warmup = 0.3  # connections are opened
    plan = {"kind": "poisson", "rate": rate, "seconds": seconds + warmup}
    stream = load.Stream("null", url, arrivals=plan, bodies=[body])
    found = load.run(load.Spec([stream], timeout_s=2, warmup_s=warmup))
    samples = found.of("null").between(*found.counted_s)
    in_time = samples.due_s + samples.latency_s <= found.counted_s[1] + 0.002
    answered = np.count_nonzero(in_time & (samples.status == 200))
    return {
        "rate": round(rate, 1),
        "achieved": round(float(answered / max(1, len(samples))), 4),
        **{name: found["null"][name] for name in ("p50_ms", "p99_ms")},
        **{name: found.client[name] for name in ("late_p50_ms", "late_p99_ms", "cores")},
    }
