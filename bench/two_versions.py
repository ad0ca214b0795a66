"""Two versions of Shunter in one run: does a change cost anything on a request's way?

Both servers run at the same time, each from its own checkout and virtual environment (`make setup`
in both); the one that is not loaded is idle. The trivial handler of http_sweep.py, closed loop by
wrk; rounds are paired and interleaved, and which side begins alternates.

Examples:
    python bench/two_versions.py --before ../shunter-1.0
    python bench/two_versions.py --before ../shunter-1.0 --quick
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import wrk
from common import BENCH, Parser, Progress, Row, pack_sums, paired_ratio, write_result
from http_sweep import BODY, EXPECTED

NAME = "two_versions"
POINTS = (1, 8, 32, 128)
SERVE = """
import json, sys
from shunter.plugins.torchserve import build
try:
    from shunter.plugins.torchserve.server import Server
except ImportError:  # where it was before
    from shunter.plugins.torchserve.host import Server
config = {"job_queue_size": "1000"}
with Server(model_store=sys.argv[1], plugins=build.ensure(), config=config) as server:
    said = {"inference": server.inference, "management": server.management, "jvm": server.pid}
    print(json.dumps(said), flush=True)
    sys.stdin.read()
"""


@dataclass(frozen=True)
class Side:
    """A running server."""

    name: str
    inference: str
    management: str
    jvm: int

    @property
    def url(self) -> str:
        """Where predictions are asked for."""
        return f"{self.inference}/predictions/sums"


@contextmanager
def served(name: str, checkout: Path, store: Path) -> Iterator[Side]:
    """A server of a checkout, with the model registered and one answer checked."""
    command = [str(checkout / ".venv/bin/python"), "-P", "-c", SERVE, str(store)]
    with subprocess.Popen(
        command, cwd=store, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            side = Side(name, **json.loads(process.stdout.readline()))
            query = {"url": "sums.mar", "model_name": "sums", "batch_size": 64}
            query |= {"max_batch_delay": 1, "initial_workers": 1, "synchronous": "true"}
            made = httpx.post(f"{side.management}/models", params=query, timeout=120)
            made.raise_for_status()
            headers = {"content-type": "application/json"}
            answer = httpx.post(side.url, content=BODY, headers=headers, timeout=30)
            if answer.json() != EXPECTED:
                raise RuntimeError(f"{name}: wrong answer {answer.text}")
            yield side
        finally:
            process.stdin.close()
            process.wait()


def measure(sides: list[Side], lua: Path, args: argparse.Namespace) -> list[Row]:
    """Every point on both sides, round by round."""
    rows: list[Row] = []
    progress = Progress(args.rounds * len(POINTS))
    for side in sides:
        wrk.run(side.url, lua, 32, args.warm_up, side.jvm)
    for round_ in range(args.rounds):
        for connections in POINTS:
            progress.step(f"round {round_ + 1}, {connections} connections")
            for side in sides if round_ % 2 else reversed(sides):
                found = wrk.run(side.url, lua, connections, args.seconds, side.jvm)
                rows.append({"side": side.name, "round": round_, **found.row()})
    return rows


def summarise(rows: list[Row]) -> tuple[list[Row], Row]:
    """A row for each point, and the headline."""

    def values(side: str, connections: int, key: str) -> list[float]:
        chosen = [r for r in rows if r["side"] == side and r["connections"] == connections]
        return [row[key] for row in sorted(chosen, key=lambda row: row["round"])]

    def worker_ms(side: str, connections: int, part: str) -> list[float]:
        used = values(side, connections, "cpu")
        rates = values(side, connections, "rate")
        return [cpu[part] / rate for cpu, rate in zip(used, rates, strict=True)]

    points = []
    for connections in POINTS:
        point: Row = {"connections": connections}
        for key in ("rate", "p50_ms", "p99_ms"):
            pair = values("after", connections, key), values("before", connections, key)
            point[f"{key}_after_vs_before"] = paired_ratio(*pair)
        for part in ("jvm", "workers"):
            pair = worker_ms("after", connections, part), worker_ms("before", connections, part)
            point[f"{part}_cpu_per_request_after_vs_before"] = paired_ratio(*pair)
        point["errors"] = sum(values("after", connections, "errors"))
        points.append(point)
    headline = {
        "worst_rate_vs_before": min(p["rate_after_vs_before"]["median"] for p in points),
        "worst_p50_vs_before": max(p["p50_ms_after_vs_before"]["median"] for p in points),
        "errors": sum(p["errors"] for p in points),
    }
    return points, headline


def main() -> None:
    """Measure, print, write."""
    parser = Parser(__doc__, rounds=15)
    parser.add_argument("--before", type=Path, required=True, help="the other checkout")
    parser.add_argument("--seconds", type=float, default=2)
    parser.add_argument("--warm-up", type=float, default=8, help="seconds of load on each side")
    args = parser.arguments()
    with ExitStack() as stack:
        store = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        lua = stack.enter_context(wrk.script(BODY))
        pack_sums(store)
        sides = [
            stack.enter_context(served("before", args.before.resolve(), store)),
            stack.enter_context(served("after", BENCH.parent, store)),
        ]
        rows = measure(sides, lua, args)
    points, headline = summarise(rows)
    write_result(NAME, quick=args.quick, rows=points, headline=headline, samples=rows)
    for point in points:
        print(
            json.dumps(
                {
                    key: value["median"] if isinstance(value, dict) else value
                    for key, value in point.items()
                }
            )
        )
    print(json.dumps(headline))


if __name__ == "__main__":
    main()
