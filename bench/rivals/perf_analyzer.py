"""perf_analyzer, Triton's own load generator: the program that tritonclient's wheels carried.

Those of 2.53 and before; the package perf-analyzer of PyPI is empty. The libraries that it needs
besides those of the system are among those of nvidia-pytriton.
"""

from __future__ import annotations

import csv
import os
import subprocess
import tempfile
from pathlib import Path

from common import Row

from rivals import environments, triton_server

VERSION = "2.51.0"
_LIBRARIES = {"libb64.so.0d": "libb64-*.so.0d", "libcudart.so.12": "libcudart-*.so.12*"}
_STABLE_PERCENT = 999
"""Windows may differ so much: rounds and their medians are the benchmark's own."""


def ensure() -> Path:
    """The program; ``Unavailable`` says why there is none."""
    name, wanted = f"perf-analyzer-{VERSION}", (f"tritonclient=={VERSION}",)
    found = environments.installed(name, wanted, dependencies=False) / "bin/perf_analyzer"
    if not found.is_file():
        raise environments.Unavailable(f"tritonclient {VERSION} has no perf_analyzer here")
    found.chmod(0o755)
    return found


def arguments(model: str, protocol: str, port: int) -> list[str]:
    """For a model whose inputs have fixed sizes."""
    return ["-m", model, "-i", protocol, "-u", f"127.0.0.1:{port}", "--input-data", "random"]


def run(given: list[str], connections: int, seconds: float) -> Row:
    """A closed loop of so many requests. RuntimeError when one failed."""
    with tempfile.TemporaryDirectory() as folder:
        _link_libraries(Path(folder))
        report = Path(folder) / "report.csv"
        command = [str(ensure()), *given, "-b", "1", "--async", "-f", str(report)]
        command += ["--concurrency-range", str(connections), "-r", "12"]
        command += ["-p", str(round(seconds * 1000)), "-s", str(_STABLE_PERCENT)]
        environment = {**os.environ, "LD_LIBRARY_PATH": folder}
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, check=False, timeout=300
        )
        if done.returncode != 0 or not report.exists():
            raise RuntimeError(f"perf_analyzer: {done.stdout[-1000:]}{done.stderr[-1000:]}")
        return row_of(report.read_text(encoding="utf-8"), seconds)


def row_of(report: str, seconds: float) -> Row:
    """Of the only line of a report."""
    [line] = csv.DictReader(report.splitlines())
    rate = float(line["Inferences/Second"])
    return {
        "rps": round(rate, 1),
        "requests": round(rate * seconds),
        "failed": 0,  # it ends when one fails
        "p50_us": float(line["p50 latency"]),
        "p99_us": float(line["p99 latency"]),
    }


def _link_libraries(folder: Path) -> None:
    beside = triton_server.ensure() / "nvidia_pytriton.libs"
    for name, pattern in _LIBRARIES.items():
        for found in sorted(beside.glob(pattern))[:1]:
            (folder / name).symlink_to(found)
