"""Requests lost while workers die, are scaled and are replaced, under steady load.

Open loop, Poisson arrivals at a fixed rate; two workers; 2 ms of work per batch. In each phase
something happens one second after the start. Stock TorchServe goes through the phases that exist
for it. A request is unanswered when the connection closes without an answer or 30 s pass.

Examples:
    python bench/faults.py            # 5 rounds, about 12 minutes
    python bench/faults.py --quick    # one round of Shunter alone, under two minutes
    python bench/faults.py --rate 500 --rounds 1
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
from common import Parser, Progress, Row, pack_sums, percentile, write_result
from open_loop import Client, Outcome

from shunter.plugins.torchserve.build import ensure
from shunter.plugins.torchserve.server import Server

NAME = "faults"
WORKERS = 2
PHASE_S = 6.0
TIMEOUT_S = 30.0
BODY = json.dumps({"x": list(range(16)), "work_ms": 2}).encode()
Action = Callable[[Server], Any]


def kill_worker(server: Server) -> None:
    """kill -9 of one worker."""
    os.kill(server.worker_pids()[0], signal.SIGKILL)


def kill_all_workers(server: Server) -> None:
    """kill -9 of every worker at the same moment."""
    for pid in server.worker_pids():
        os.kill(pid, signal.SIGKILL)


def kill_controller(server: Server) -> None:
    """kill -9 of the controller."""
    status = httpx.get(f"{server.management}/shunter/status").json()
    os.kill(status["controller"]["pid"], signal.SIGKILL)


def scale(count: int) -> Action:
    """A stock scale call, without waiting for it: waiting blocks a thread that answers clients."""

    def call(server: Server) -> int:
        query = {"min_worker": count, "max_worker": count}
        url = f"{server.management}/models/sums"
        return httpx.put(url, params=query, timeout=60).status_code

    return call


def new_generation(server: Server) -> None:
    """Replace every worker by a new one."""
    url = f"{server.management}/shunter/models/sums/configuration"
    httpx.put(url, params={"restart": "true"}, timeout=60).raise_for_status()
    before = httpx.get(url).json()["generation"]
    end = time.monotonic() + 60
    while httpx.get(url).json()["generation"] == before:
        if time.monotonic() > end:
            raise RuntimeError(f"no new generation: {httpx.get(url).text}")
        time.sleep(0.05)


PHASES: dict[str, tuple[Action, bool]] = {
    "quiet": (lambda server: None, True),
    "kill -9 a worker": (kill_worker, True),
    "kill -9 all workers": (kill_all_workers, True),
    "kill -9 the controller": (kill_controller, False),
    "scale 2 to 3": (scale(3), True),
    "scale 3 to 1": (scale(1), True),
    "scale 1 to 2": (scale(2), True),
    "new generation": (new_generation, False),
}
"""What happens, and whether stock has it."""


async def run_phase(
    server: Server, action: Action, rate: float, seed: int
) -> tuple[Outcome, int | None]:
    """Load while the action happens; the phase is prolonged until the action is over.

    Also the status that the action was answered, if it is a call.
    """
    client = Client("127.0.0.1", server.ports.inference, "/predictions/sums", BODY)

    async def act() -> int | None:
        await asyncio.sleep(1)
        return await asyncio.to_thread(action, server)

    acting = asyncio.create_task(act())
    outcome = await client.run(rate, PHASE_S, seed, TIMEOUT_S)
    while not acting.done():
        more = await client.run(rate, 1, seed + 1, TIMEOUT_S)
        outcome.statuses += more.statuses
        outcome.latencies_ms += more.latencies_ms
        outcome.late_ms += more.late_ms
    status = await acting
    client.close()
    return outcome, status


def wait_for_workers(server: Server) -> None:
    """Until the wanted workers are ready again, so that phases do not mix."""
    end = time.monotonic() + 90
    while time.monotonic() < end:
        model = httpx.get(f"{server.management}/models/sums", timeout=30).json()[0]
        ready = [w for w in model["workers"] if w["status"] == "READY"]
        if len(ready) == model["minWorkers"] == len(model["workers"]):
            return
        time.sleep(0.1)
    raise RuntimeError("workers did not come back within 90 s")


def row_of(side: str, phase: str, number: int, outcome: Outcome, status: int | None) -> Row:
    """One row of the result."""
    return {
        "side": side,
        "phase": phase,
        "round": number,
        "action_status": status,
        "sent": outcome.sent,
        "ok": outcome.statuses["200"],
        "failed_4xx": outcome.count("4"),
        "failed_5xx": outcome.count("5"),
        "unanswered": outcome.statuses["unanswered"],
        "p50_ms": round(percentile(outcome.latencies_ms, 0.5), 3),
        "p99_ms": round(percentile(outcome.latencies_ms, 0.99), 3),
        "worst_ms": round(max(outcome.latencies_ms, default=float("nan")), 3),
        "client_late_p99_ms": round(percentile(outcome.late_ms, 0.99), 3),
    }


def run_side(side: str, args: argparse.Namespace, store: Path, progress: Progress) -> list[Row]:
    """All phases on a fresh server, several rounds."""
    model = {"minWorkers": WORKERS, "maxWorkers": WORKERS, "batchSize": 16, "maxBatchDelay": 2}
    model |= {"marName": "sums.mar", "defaultVersion": True}
    config = {"job_queue_size": "2000", "models": json.dumps({"sums": {"1.0": model}})}
    plugins = ensure() if side == "shunter" else None
    rows = []
    with Server(model_store=store, models=["sums=sums.mar"], plugins=plugins, config=config) as s:
        for number in range(args.rounds):
            for phase, (action, in_stock) in PHASES.items():
                if side == "stock" and not in_stock:
                    continue
                progress.step(f"{side}: {phase}")
                found = asyncio.run(run_phase(s, action, args.rate, seed=number))
                rows.append(row_of(side, phase, number, *found))
                wait_for_workers(s)
    return rows


def main() -> None:
    """Run and write the result."""
    parser = Parser(__doc__, rounds=5, quick_rounds=1)  # quick: Shunter alone
    parser.add_argument("--rate", type=float, default=400, help="requests/s, default 400")
    args = parser.arguments()
    sides = ["shunter"] if args.quick else ["shunter", "stock"]
    in_stock = sum(stock for _, stock in PHASES.values())
    progress = Progress(args.rounds * (len(PHASES) + (0 if args.quick else in_stock)))
    with tempfile.TemporaryDirectory() as folder:
        pack_sums(Path(folder))
        rows = [row for side in sides for row in run_side(side, args, Path(folder), progress)]
    ours = [row for row in rows if row["side"] == "shunter"]
    headline = {key: sum(row[key] for row in ours) for key in ("unanswered", "failed_5xx")}
    headline["failed_calls"] = sum((row["action_status"] or 0) >= 400 for row in ours)
    headline["requests"] = sum(row["sent"] for row in ours)
    path = write_result(NAME, quick=args.quick, rows=rows, headline=headline)
    for row in rows:
        print(
            f"{row['side']:8s} {row['phase']:24s} sent {row['sent']:6d} 200 {row['ok']:6d} "
            f"4xx {row['failed_4xx']} 5xx {row['failed_5xx']} unanswered {row['unanswered']} "
            f"p50 {row['p50_ms']:.1f} p99 {row['p99_ms']:.1f} worst {row['worst_ms']:.1f} ms"
        )
    print(json.dumps(headline), path.name)


if __name__ == "__main__":
    main()
