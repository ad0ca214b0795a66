"""Faults and a soak behind Triton: unchanged clients of Triton, every answer compared.

`shunter serve --triton` serves LeNet with two workers. Callers with tritonclient (HTTP, gRPC,
asyncio, system shared memory; requests of one to three rows) ask all the time, while in each phase
something is done to it. An answer must be what the same network answers here; a request that ends
in any other way is lost, except that the model may be said to be unknown while it is unloaded, and
that what was cancelled may be. The soak has no faults: it measures memory, and then that of a
Triton alone, with its Python backend, under the same callers.

`tritonserver` 2.51 may end with signal 11 when a gRPC call is cancelled just as its answer comes
(its issues 7368 and 8034, mended later), with or without us: the cancel storm is made on a Triton
alone, too. What is lost when the server itself has ended is counted apart.

    lost_requests               without an answer, or with an error, while there was a server
    lost_when_triton_ended      the same of phases in which `tritonserver` ended
    triton_ended, triton_alone_ended    in how many phases it did
    wrong_answers               of all phases and the soak
    rss_slope                   MiB per minute of the server, the host and the workers together
                                in the soak (median of the slopes of all pairs of samples)
    triton_alone_rss_slope      of a Triton alone, with its Python backend

Examples:
    python bench/triton_faults.py                    # 3 rounds, soaks of 20 minutes: 50 minutes
    python bench/triton_faults.py --quick            # one round, soaks of 30 s: 3 minutes
    python bench/triton_faults.py --soak-seconds 0 --rounds 10
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psutil
from common import BENCH, Parser, Progress, Row, keep, slope, write_result
from rivals.environments import Unavailable
from rpc.models import real_models
from triton_callers import CANCELLED, KINDS, RIGHT, UNLOADED, WRONG, Callers, Questions, modules
from triton_serve import Serve
from triton_sides import PythonBackend, Static

from shunter.plugins.errors import UserError

NAME = "triton_faults"
MODEL = next(model for model in real_models() if model.name == "lenet")
BATCH, WORKERS = 8, 2
RESPONSE_TIMEOUT_S = 3
STOPPED_S = 2.0
SAMPLE_S = 1.0
Action = Callable[[Serve], None]

# ---- what is done


def kill_worker(server: Serve) -> None:
    """SIGKILL of one."""
    os.kill(server.workers()[0], signal.SIGKILL)


def kill_all_workers(server: Serve) -> None:
    """SIGKILL of all."""
    for pid in server.workers():
        os.kill(pid, signal.SIGKILL)


def stop_worker(server: Serve) -> None:
    """SIGSTOP: the backend must find that it hangs."""
    os.kill(server.workers()[0], signal.SIGSTOP)
    time.sleep(RESPONSE_TIMEOUT_S)


def stop_host(server: Serve) -> None:
    """SIGSTOP of `shunter serve` for a while."""
    os.kill(server.pid, signal.SIGSTOP)
    time.sleep(STOPPED_S)
    os.kill(server.pid, signal.SIGCONT)


def kill_host(server: Serve) -> None:
    """SIGKILL of `shunter serve`: Triton goes on with the workers that it has."""
    os.kill(server.pid, signal.SIGKILL)


def reload(server: Serve) -> None:
    """Several times, by Triton's own API."""
    for _ in range(3):
        server.ask_repository(MODEL.name, "load")


def unload(server: Serve) -> None:
    """And load it again."""
    server.ask_repository(MODEL.name, "unload")
    time.sleep(0.3)
    server.ask_repository(MODEL.name, "load")


def nothing(server: Serve) -> None:
    """Only load."""


PHASES: dict[str, Action] = {
    "quiet": nothing,
    "kill -9 a worker": kill_worker,
    "kill -9 all workers": kill_all_workers,
    "kill -STOP a worker": stop_worker,
    "kill -STOP the host": stop_host,
    "reload": reload,
    "unload and load": unload,
    "cancel storm": nothing,
    "kill -9 the host": kill_host,
}
"""The last one ends the server."""


def phase(server: Serve, what: str, questions: Questions, seconds: float) -> Row:
    """Callers, and what is done to them."""
    kinds = KINDS if what == "cancel storm" else KINDS[:-1]
    each = 4 if what == "cancel storm" else 2
    triton = server.triton()
    with Callers(server.addresses, MODEL, questions, each=each, kinds=kinds) as callers:
        callers.wait_for(50)
        began = time.monotonic()
        PHASES[what](server)
        callers.wait_for(50)
        again_s = time.monotonic() - began
        time.sleep(max(0.0, seconds - again_s))
        if what != "kill -9 the host":
            server.wait_for_workers(WORKERS)
        callers.wait_for(50)
    found = row_of(what, callers.ends, callers.slowest_s)
    if server.triton() != triton:  # nothing here may end it
        found["triton_ended"] = end_in(server.log())
    return found | {"until_50_more_s": round(again_s, 2)}


def storm_alone(questions: Questions, seconds: float) -> Row:
    """The cancel storm on a Triton with its Python backend only."""
    setting = Static(BATCH, WORKERS, 0)
    with PythonBackend([MODEL], [setting]) as server:
        named = server.load(MODEL, setting)
        addresses = (f"127.0.0.1:{server.port}", f"127.0.0.1:{server.grpc_port}")
        with Callers(addresses, named, questions, each=4, kinds=KINDS) as callers:
            time.sleep(seconds)
        row = row_of("cancel storm", callers.ends, callers.slowest_s)
        row["side"] = "triton alone"
        if not server.running:
            row["triton_ended"] = end_in(server.log.read_text(encoding="utf-8", errors="replace"))
    return row


def end_in(log: str) -> str:
    """What a server's log says of its end."""
    at = log.rfind("Signal (")
    found = log[at : at + 1500] if at >= 0 else log[-1500:]
    return found.replace(f"{BENCH.parent}/", "")  # where it ran is nobody's business


def row_of(what: str, ends: Counter[str], slowest_s: float) -> Row:
    """What the requests of a phase came to."""
    allowed = {RIGHT, WRONG}
    allowed |= {UNLOADED} if what == "unload and load" else set()
    allowed |= {CANCELLED} if what == "cancel storm" else set()
    return {
        "phase": what,
        "requests": sum(ends.values()),
        "lost": sum(count for end, count in ends.items() if end not in allowed),
        "wrong": ends[WRONG],
        "ends": dict(ends),
        "slowest_s": round(slowest_s, 3),
    }


# ---- memory


class Memory(threading.Thread):
    """Resident memory in MiB of groups of processes, every second until ``stop``."""

    def __init__(self, pids: dict[str, list[int]]) -> None:
        super().__init__(daemon=True)
        self._groups = {name: [psutil.Process(pid) for pid in each] for name, each in pids.items()}
        self._over, self._began = threading.Event(), time.monotonic()
        self.samples: list[Row] = []

    def run(self) -> None:
        while not self._over.wait(SAMPLE_S):
            row: Row = {"s": round(time.monotonic() - self._began, 2)}
            for name, group in self._groups.items():
                row[name] = round(sum(each.memory_info().rss for each in group) / 2**20, 3)
            row["all"] = round(sum(row[name] for name in self._groups), 3)
            self.samples.append(row)

    def stop(self) -> None:
        self._over.set()
        self.join()


def soak(
    side: str,
    addresses: tuple[str, str],
    model: Any,
    pids: dict[str, list[int]],
    questions: Questions,
    seconds: float,
) -> Row:
    """Load without faults, and what memory does."""
    with Callers(addresses, model, questions, pause_s=0.002) as callers:
        callers.wait_for(200)
        memory = Memory(pids)
        memory.start()
        time.sleep(seconds)
        memory.stop()
    row = row_of("soak", callers.ends, callers.slowest_s) | {"side": side, "seconds": seconds}
    groups = [*pids, "all"]
    row["rss_mib"] = {name: [memory.samples[i][name] for i in (0, -1)] for name in groups}
    row["rss_slope"] = {name: slope(memory.samples, name) for name in groups}
    return row | {"samples": memory.samples}


def soak_alone(questions: Questions, seconds: float) -> Row:
    """The same callers on a Triton with its Python backend only."""
    setting = Static(BATCH, WORKERS, 0)
    with PythonBackend([MODEL], [setting]) as server:
        named = server.load(MODEL, setting)
        first, *others = server.pids()
        addresses = (f"127.0.0.1:{server.port}", f"127.0.0.1:{server.grpc_port}")
        pids = {"triton": [first], "workers": others}
        return soak("triton alone", addresses, named, pids, questions, seconds)


# ---- all of it


def headline(rows: list[Row]) -> Row:
    """The claims."""
    ours = [row for row in rows if row.get("side") != "triton alone"]
    ended = [row for row in ours if "triton_ended" in row]
    found: Row = {
        "lost_requests": sum(row["lost"] for row in ours if row not in ended),
        "wrong_answers": sum(row["wrong"] for row in ours),
        "requests": sum(row["requests"] for row in ours),
        "lost_when_triton_ended": sum(row["lost"] for row in ended),
        "triton_ended": len(ended),
        "triton_alone_ended": sum("triton_ended" in row for row in rows) - len(ended),
    }
    for row in rows:
        if "rss_slope" in row:
            alone = row["side"] == "triton alone"
            found["triton_alone_rss_slope" if alone else "rss_slope"] = row["rss_slope"]["all"]
            if not alone:
                found["rss_slope_of_triton_itself"] = row["rss_slope"]["triton"]
    return found


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = Parser(__doc__, rounds=3, quick_rounds=1)
    parser.add_argument("--phase-seconds", type=float, help="at least; default 6, quick 2")
    parser.add_argument("--soak-seconds", type=float, help="default 1200, quick 30; 0: none")
    parser.add_argument("--phases", nargs="+", choices=list(PHASES), default=list(PHASES))
    args = parser.arguments()
    args.phase_seconds = args.phase_seconds or (2.0 if args.quick else 6.0)
    if args.soak_seconds is None:
        args.soak_seconds = 30.0 if args.quick else 1200.0
    return args


def main() -> None:
    """Run and write the result."""
    args = arguments()
    try:
        modules()
    except ImportError:
        sys.exit("tritonclient is missing: make triton")
    questions = Questions(MODEL)
    config = {"responseTimeout": RESPONSE_TIMEOUT_S}
    section = {"configuration": f"{WORKERS}x1x{BATCH}"}
    rows: list[Row] = []
    phases = len(args.phases) + ("cancel storm" in args.phases)
    progress = Progress(args.rounds * phases + 2 * bool(args.soak_seconds))
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        store = Serve.store(folder, [MODEL], batch=BATCH, config=config, section=section)
        try:
            for number in range(args.rounds):
                with Serve(store, folder / f"server-{number}") as server:
                    for what in args.phases:
                        progress.step(f"round {number + 1}: {what}")
                        found = phase(server, what, questions, args.phase_seconds)
                        rows.append({"round": number, **found})
                        keep(NAME, args.quick, rows)
                if "cancel storm" in args.phases:
                    progress.step(f"round {number + 1}: cancel storm, Triton alone")
                    found = storm_alone(questions, args.phase_seconds)
                    rows.append({"round": number, **found})
            if args.soak_seconds:
                progress.step("soak: shunter behind Triton")
                with Serve(store, folder / "server-soak") as server:
                    pids = {
                        "triton": [server.triton()],
                        "host": [server.pid],
                        "workers": server.workers(),
                    }
                    addresses = server.addresses
                    row = soak("shunter", addresses, MODEL, pids, questions, args.soak_seconds)
                rows.append(row)
                keep(NAME, args.quick, rows)
                progress.step("soak: Triton alone")
                rows.append(soak_alone(questions, args.soak_seconds))
        except (UserError, Unavailable) as error:
            sys.exit(str(error))
    samples = [row.pop("samples", None) for row in rows]
    top = headline(rows)
    path = write_result(NAME, quick=args.quick, rows=rows, headline=top, samples=samples)
    for row in rows:
        print(json.dumps(row))
    print(json.dumps(top, indent=1))
    print(path)


if __name__ == "__main__":
    main()
